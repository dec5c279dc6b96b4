"""The decisions of an append, without any effects: what it expects, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from coopconsume.errors.fenced import AppendRefused
from coopconsume.fenced.log import UNCHECKED, Entry
from coopconsume.fenced.stamp import LARGEST_STAMP, NAME

Expected = int | Sequence[int]
Records = Iterable[Entry | tuple[bytes | None, bytes | None] | bytes]
By = Literal["offset", "sequence"]
#: Bytes of a record beside its key, value and headers: its stamp, and Kafka's own fields.
_OVERHEAD = LARGEST_STAMP + 40


class Position(NamedTuple):
    """Where a log goes on: the offset and the sequence number of the next record."""

    next_offset: int
    next_seq: int


@dataclass(frozen=True)
class Expectation:
    """What an append expects of its first record.

    Attributes:
        by: What is compared; None: nothing, the append is unchecked.
        value: The offset or the sequence number of the first record.
    """

    by: By | None = None
    value: int = UNCHECKED

    def missed(self, position: Position) -> tuple[int, int] | None:
        """Expected and actual number, where the log goes on elsewhere; None if all is well."""
        actual = position.next_seq if self.by == "sequence" else position.next_offset
        return None if self.by is None or self.value == actual else (self.value, actual)


def expectation(offset: Expected, seq: Expected, count: int, *, check: bool) -> Expectation:
    """What an append expects, from what its caller gave.

    Args:
        offset: Expected offset of the first record, or of each; -1: unchecked.
        seq: The same by sequence numbers; only one of both may be given.
        count: How many records there are.
        check: Whether checks are switched on; if not, what was expected is not looked at.

    Raises:
        AppendRefused: The numbers cannot all be true at once.
    """
    by_offset, by_seq = _first("expected_offset", offset, count), _first("expected_seq", seq, count)
    if UNCHECKED not in (by_offset, by_seq):
        raise AppendRefused("expected_offset and expected_seq: give one of both")
    if not check or by_offset == by_seq == UNCHECKED:
        return Expectation()
    if by_seq != UNCHECKED:
        return Expectation("sequence", by_seq)
    return Expectation("offset", by_offset)


def _first(name: str, given: Expected, count: int) -> int:
    """What is expected of the first record, when something is expected of any."""
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
    """Records to be appended, from what a user may give: values, (key, value) or entries.

    Raises:
        AppendRefused: There is none, or one has neither key nor value, or a header of the writer's.
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
    """Bytes that a record takes in a Kafka batch at most, its stamp included."""
    value, key, headers, _ = entry
    size = _OVERHEAD + len(key or b"") + len(value or b"")
    if headers:
        size += sum(10 + 4 * len(name) + len(text) for name, text in headers)
    return size


Outcome = Literal["in place", "elsewhere", "torn"]


def judge(offsets: Sequence[int], expected: int) -> Outcome:
    """What the offsets say that the leader gave to the records of an append.

    A record's offset never changes, so that what is true of it now is true when the batch is
    committed, however long that takes.

    Args:
        offsets: Of its records, in their order.
        expected: Offset that the first one was to get.
    """
    base = offsets[0]
    if list(offsets) != list(range(base, base + len(offsets))):
        return "torn"
    return "in place" if expected == base else "elsewhere"
