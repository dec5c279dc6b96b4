"""Pure functions of an append: its expectations, its records and its place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypedDict

from coopconsume.errors.fenced import AppendRefused, OffsetMismatch
from coopconsume.fenced.log import UNCHECKED, Consumed, Entry, LogId
from coopconsume.fenced.stamp import LARGEST_STAMP, NAME

Expected = int | Sequence[int]
Records = Iterable[Entry | tuple[bytes | None, bytes | None] | bytes]
LastSeqs = Mapping[bytes, int | None]
"""Sequence number of the last record of each key; None if the log has no record of the key."""
By = Literal["offset", "sequence"]
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


@dataclass(frozen=True)
class Expectation:
    """What an append expects of the log.

    Attributes:
        by: What is compared; None: the place of the first record is not checked.
        value: The offset or the sequence number of the first record.
        keys: Expected sequence number of the last record of some keys.
    """

    by: By | None = None
    value: int = UNCHECKED
    keys: LastSeqs = field(default_factory=dict)

    def mismatch(self, log: LogId, position: Position, last: LastSeqs) -> OffsetMismatch | None:
        """The error of the first expectation that is not met; None if all are.

        Args:
            log: The log.
            position: Its next offset and sequence number.
            last: The last sequence numbers of at least the keys of this expectation.
        """
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
    """Parses what an append expects.

    Args:
        offset: Expected offset of the first record, or of each; -1: unchecked.
        seq: The same by sequence numbers; only one of both may be given.
        rows: The records.
        key_seq: Expected sequence number of the last record of the records' only key, or by key;
            -1: unchecked.
        check: Whether checks are switched on; if not, the expectation is ignored.

    Raises:
        AppendRefused: The numbers cannot all be true at once.
    """
    count, keys = len(rows), _keys(key_seq, rows)
    by_offset, by_seq = _first("expected_offset", offset, count), _first("expected_seq", seq, count)
    if UNCHECKED not in (by_offset, by_seq):
        raise AppendRefused("expected_offset and expected_seq: give one of both")
    if not check:
        return Expectation()
    if by_offset == by_seq == UNCHECKED:
        return Expectation(keys=keys)
    if by_seq != UNCHECKED:
        return Expectation("sequence", by_seq, keys)
    return Expectation("offset", by_offset, keys)


def _keys(given: LastSeqs | int, rows: Sequence[Entry]) -> LastSeqs:
    """Parses the expectations of keys."""
    if isinstance(given, int):
        if given == UNCHECKED:
            return {}
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
    """Returns the expected number of the first record."""
    if isinstance(given, int) and given >= UNCHECKED:
        return given
    if isinstance(given, int):
        numbers: Sequence[int] = [given]
    elif len(given) == count:
        numbers = given
    else:
        raise AppendRefused(f"{name} has {len(given)} numbers for {count} records: give one each")
    if any(number < UNCHECKED for number in numbers):
        raise AppendRefused(f"{name} {min(numbers)}: give a number from 0, or -1 for unchecked")
    firsts = {number - i for i, number in enumerate(numbers) if number != UNCHECKED}
    if len(firsts) > 1 or any(first < 0 for first in firsts):
        raise AppendRefused(f"{name}: the numbers of one append follow each other, from 0 or above")
    return firsts.pop() if firsts else UNCHECKED


def entries(records: Records) -> list[Entry]:
    """Parses records: values, (key, value) pairs or entries.

    Raises:
        AppendRefused: No record, a record without key and value, or a reserved header.
    """
    found = [Entry(r) if type(r) is bytes else _entry(r) for r in records]
    if not found:
        raise AppendRefused("records: give one at least")
    return found


def _entry(record: Entry | tuple[bytes | None, bytes | None] | bytes) -> Entry:
    if isinstance(record, bytes):
        return Entry(record)
    if isinstance(record, Entry):
        entry = record
    elif isinstance(record, tuple) and len(record) == 2:  # noqa: PLR2004 - key and value
        key, value = record
        entry = Entry(value, key)
    else:
        raise AppendRefused(f"records: {type(record).__name__} is no value, pair or Entry")
    if entry.key is None and entry.value is None:
        raise AppendRefused("a record needs a key or a value")
    if entry.headers and any(name == NAME for name, _ in entry.headers):
        raise AppendRefused(f"header {NAME!r} is reserved for the writer: rename it")
    return entry


def size_of(entry: Entry) -> int:
    """Returns the largest number of bytes of a record in a Kafka batch, with its stamp."""
    value, key, headers, _ = entry
    size = _OVERHEAD + len(key or b"") + len(value or b"")
    if headers:
        size += sum(10 + 4 * len(name) + len(text) for name, text in headers)
    return size


def is_in_place(offsets: Sequence[int], expected: int) -> bool:
    """Whether the records of an append got the offsets that it expects, without gaps.

    The offset of a record never changes, so the answer still holds when the batch is committed.
    """
    return list(offsets) == list(range(expected, expected + len(offsets)))
