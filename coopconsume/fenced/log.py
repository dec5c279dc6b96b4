"""Words of a fenced log: which one it is, what is appended to it, and what an append expects."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypedDict

from coopconsume.errors.fenced import AppendRefused, OffsetMismatch
from coopconsume.fenced.stamp import LARGEST_STAMP, NAME, is_batch_id

UNCHECKED: Final = -1
"""An expected offset or sequence number that says: wherever the log goes on (KIP-27)."""

_PREFIX: Final = "coopconsume-log"
MULTI: Final = f"{_PREFIX}.multi."
"""What transactional ids of writers of several logs begin with."""

RETAINED: Final = "retention has removed records from that offset on"
"""Why it is not known what happened to an append."""


@dataclass(frozen=True)
class LogId:
    """One log: a partition of a topic, and by the topic's id not of another one of that name.

    Attributes:
        topic_id: Kafka's id of the topic (KIP-516), as text.
    """

    topic: str
    topic_id: str
    partition: int

    @property
    def tp(self) -> tuple[str, int]:
        """The topic and the partition."""
        return self.topic, self.partition

    def transactional_id(self, writer: str | None = None) -> str:
        """Kafka's transactional id of the log's owner, or of one of several writers that share it.

        Each part has its length before it, so that no two logs have the same.
        """
        parts = [self.topic_id, str(self.partition), *([] if writer is None else [writer])]
        return ".".join([_PREFIX, *(f"{len(part)}:{part}" for part in parts)])

    def is_of_writer(self, transactional_id: str) -> bool:
        """Whether a transactional id belongs to a writer of this log, or of several logs."""
        owner = self.transactional_id()
        return transactional_id == owner or transactional_id.startswith((f"{owner}.", MULTI))

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Entry(NamedTuple):
    """A record to be appended.

    Attributes:
        value: Its value; None deletes its key from a compacted topic.
        headers: Names and values; the name ``fw`` is reserved for the writer.
        timestamp: Milliseconds since 1970; None for the client's clock.
    """

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes]] = ()
    timestamp: int | None = None


@dataclass(frozen=True)
class Consumed:
    """Input that an append has consumed: offsets that a group commits in its transaction.

    Attributes:
        group: Id of the consumer group.
        offsets: By topic and partition, the offset of the next record to consume.
    """

    group: str
    offsets: Mapping[tuple[str, int], int]


class Raw(NamedTuple):
    """A record as a client reads it; its timestamp is in milliseconds since 1970."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


class Rows(Sequence[Raw]):
    """Records in their order, field by field: an object for each keeps the garbage collector busy.

    Attributes:
        fields: For each field of `Raw` the values of all records.
        offsets, keys, headers: Three of them.
    """

    offsets: list[int]
    keys: list[bytes | None]
    headers: list[Sequence[tuple[str, bytes]]]

    def __init__(self, fields: Iterable[Iterable[Any]] = ()) -> None:
        self.fields: list[list[Any]] = [*map(list, fields)] or [[] for _ in Raw._fields]
        self.offsets, _, self.keys, _, self.headers = self.fields

    @classmethod
    def of(cls, records: Iterable[tuple[Any, ...]]) -> Rows:
        """Returns records that are given one by one."""
        return cls(zip(*records, strict=True))

    def __len__(self) -> int:
        return len(self.fields[0])

    def __getitem__(self, at: Any) -> Any:
        return Raw(*(values[at] for values in self.fields))

    def __iter__(self) -> Iterator[Raw]:
        return map(Raw._make, zip(*self.fields, strict=True))


class LogRecord(NamedTuple):
    """A record of a fenced log that counts.

    Attributes:
        seq: Its sequence number: how many records of data count before it.
        offset: Kafka's offset.
        epoch: Fence epoch of the owner that wrote it.
        batch_id: Id of the batch that it was appended with.
        headers: The user's headers.
        timestamp: Milliseconds since 1970.
    """

    seq: int
    offset: int
    epoch: int
    batch_id: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    timestamp: int


@dataclass(frozen=True, slots=True)
class Appended:
    """A batch that is in the log, whole.

    Attributes:
        first_offset, first_seq: Offset and sequence number of its first record.
        count: How many records it has; their offsets and numbers follow each other.
        epoch: Fence epoch that it was written under.
    """

    batch_id: str
    first_offset: int
    first_seq: int
    count: int
    epoch: int

    @property
    def last_offset(self) -> int:
        """Offset of its last record."""
        return self.first_offset + self.count - 1

    @property
    def last_seq(self) -> int:
        """Sequence number of its last record."""
        return self.first_seq + self.count - 1


@dataclass(frozen=True)
class Ends:
    """A log's last stable offset, below which all is decided, and its high watermark."""

    stable: int
    end: int


def json_object(text: bytes | str | None) -> dict[str, Any]:
    """Parses a JSON object from an untrusted writer, or raises `ValueError`."""
    try:
        found = json.loads(text or b"")
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("not an object")  # noqa: TRY004 - the text is malformed
    return found


# -- an append -------------------------------------------------------------------------------------

Expected = int | Sequence[int]
Records = Iterable[Entry | tuple[bytes | None, bytes | None] | bytes]
LastSeqs = Mapping[bytes, int | None]
"""Sequence number of the last record of each key; None if the log has no record of the key."""
_NO_KEYS: Final[LastSeqs] = MappingProxyType({})
#: Bytes of a record beside its key, value and headers: its stamp, and Kafka's own fields.
_OVERHEAD = LARGEST_STAMP + 40


class AppendOptions(TypedDict, total=False):
    """Keyword arguments of an append: see `FencedWriter.append`."""

    expected_offset: Expected
    expected_seq: Expected
    expected_key_seq: LastSeqs | int
    batch_id: str | None
    is_new: bool
    timeout: float | None
    consumed: Consumed | None


class Position(NamedTuple):
    """The offset and the sequence number of the next record of a log."""

    next_offset: int
    next_seq: int


class Expectation(NamedTuple):
    """What an append expects: a number of its first record, and of the last records of keys."""

    by: Literal["offset", "sequence"] | None = None
    value: int = UNCHECKED
    keys: LastSeqs = _NO_KEYS

    def mismatch(self, log: LogId, position: Position, last: LastSeqs) -> OffsetMismatch | None:
        """The error of the first expectation that is not met; None if all are."""
        actual = position.next_seq if self.by == "sequence" else position.next_offset
        if self.by is not None and self.value != actual:
            return OffsetMismatch(*log.tp, self.value, actual, self.by, *position)
        for key, expected in self.keys.items():
            if last[key] != expected:
                return OffsetMismatch(*log.tp, expected, last[key], "key", *position, key)
        return None


def expectation(
    offset: Expected,
    seq: Expected,
    rows: Sequence[Entry],
    *,
    check: bool,
    key_seq: LastSeqs | int = UNCHECKED,
) -> Expectation:
    """Parses what an append of some records expects: see `FencedWriter.append`.

    The expectation is ignored if checks are switched off, but not its errors.
    """
    count, keys = len(rows), _keys(key_seq, rows)
    by_offset, by_seq = _first("expected_offset", offset, count), _first("expected_seq", seq, count)
    if UNCHECKED not in (by_offset, by_seq):
        raise AppendRefused("expected_offset and expected_seq: give one of both")
    if not check:
        return Expectation()
    if by_seq != UNCHECKED:
        return Expectation("sequence", by_seq, keys)
    return Expectation(None if by_offset == UNCHECKED else "offset", by_offset, keys)


def _keys(given: LastSeqs | int, rows: Sequence[Entry]) -> LastSeqs:
    if isinstance(given, int):
        if given == UNCHECKED:
            return _NO_KEYS
        key, *others = {row.key for row in rows}
        if others or key is None:
            raise AppendRefused(
                "expected_key_seq: a number is for records of one key; give a mapping from key to "
                "sequence number"
            )
        given = {key: given}
    for key, seq in given.items():
        if not isinstance(key, bytes) or not (seq is None or seq >= 0):
            raise AppendRefused(
                f"expected_key_seq {key!r}: {seq!r}: give keys as bytes, and the sequence number "
                "of the last record of the key, from 0, or None for no record"
            )
    return dict(given)


def _first(name: str, given: Expected, count: int) -> int:
    if not isinstance(given, int) and len(given) != count:
        raise AppendRefused(f"{name} has {len(given)} numbers for {count} records: give one each")
    lowest = given if isinstance(given, int) else min(given)
    if lowest < UNCHECKED:
        raise AppendRefused(f"{name} {lowest}: give a number from 0, or -1 for unchecked")
    if isinstance(given, int):
        return given
    firsts = {number - i for i, number in enumerate(given) if number != UNCHECKED}
    if len(firsts) > 1 or any(first < 0 for first in firsts):
        raise AppendRefused(f"{name}: the numbers of one append follow each other, from 0 or above")
    return firsts.pop() if firsts else UNCHECKED


def entries(records: Records) -> list[Entry]:
    """Parses records: values, (key, value) pairs or entries."""
    found = [_new((r, None, (), None)) if isinstance(r, bytes) else _entry(r) for r in records]
    if not found:
        raise AppendRefused("records: give one at least")
    return found


_new = partial(tuple.__new__, Entry)  # in half the time


def _entry(record: Entry | tuple[bytes | None, bytes | None]) -> Entry:
    if isinstance(record, Entry):
        entry = record
    elif isinstance(record, tuple) and len(record) == 2:  # noqa: PLR2004 - key and value
        key, value = record
        entry = Entry(value, key)
    else:
        raise AppendRefused(f"records: {type(record).__name__} is no value, pair or Entry")
    parts: tuple[object, ...] = entry.key, entry.value
    for part in parts:
        if not isinstance(part, bytes | None):
            raise AppendRefused(f"keys and values are bytes or None, not {type(part).__name__}")
    if entry.key is None and entry.value is None:
        raise AppendRefused("a record needs a key or a value")
    if entry.headers and any(name == NAME for name, _ in entry.headers):
        raise AppendRefused(f"header {NAME!r} is reserved for the writer: rename it")
    return entry


def check_batch_id(batch_id: str | None) -> None:
    """Checks the id that a caller gives to a batch, if any."""
    if batch_id is not None and not (isinstance(batch_id, str) and is_batch_id(batch_id)):
        raise AppendRefused(f"batch_id {batch_id!r}: give 1 to 64 letters, digits or ._:-")


def size_of(rows: Iterable[Entry]) -> int:
    """Returns the largest number of bytes of records in a Kafka batch, with their stamps."""
    return sum([
        _OVERHEAD + len(key or b"") + len(value or b"")
        + (sum(10 + 4 * len(name) + len(text) for name, text in more) if more else 0)
        for value, key, more, _ in rows
    ])  # fmt: skip


def checked_size(rows: Sequence[Entry], most: int, *, is_filtered: bool) -> int:
    """Returns the bytes of an append at most.

    Raises:
        AppendRefused: A record takes more than ``most`` bytes, which a request may have; or an
            append to a filtered log does, which is one request, so that it is all or nothing.
    """
    total = size_of(rows)
    if total <= most:
        return total
    largest, limit = max(size_of([row]) for row in rows), f"kafka.max.request.size ({most})"
    if largest > most:
        raise AppendRefused(
            f"a record takes up to {largest} bytes, which is above {limit}: raise that, and the "
            "topic's max.message.bytes"
        )
    if is_filtered:
        raise AppendRefused(
            f"the records take up to {total} bytes, which is above {limit}, and an append to a "
            "filtered log is one request: append them in parts"
        )
    return total


def is_in_place(offsets: Sequence[int], expected: int) -> bool:
    """Whether the records of an append got the offsets that it expects; these never change."""
    return list(offsets) == list(range(expected, expected + len(offsets)))
