"""Turns records into the rows of a slot, and notes positions and holes. Pure.

A consumer returns the records of a partition in ascending offsets, each once. So every offset below
a record, or below an end that the brokers named, is a record that was returned, or a hole.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from assignors.ranges import key_hash, offset_hash
from commits import OffsetAndEpoch
from coopconsume.kafka.headers import Message, message_headers
from coopconsume.worker.realtime.record_cache import joined
from coopconsume.worker.realtime.wanted import WantedOffsets
from coopconsume.worker.report import FILTERED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from commits.model import TopicPartition
    from coopconsume.filters import RecordFilter
    from coopconsume.worker.realtime.fetch_messages import Portion
    from coopconsume.worker.realtime.spec import Ranges
    from coopconsume.worker.realtime.wanted import Pairs

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_FIELDS = [
    ("part", pa.int32()), ("offset", pa.int64()), ("key_hash", pa.int64()), ("key", pa.binary()),
    ("value", pa.binary()), ("timestamp", pa.int64()),
]  # fmt: skip


class ConsumedMessage(Message, Protocol):
    """A record as confluent-kafka returns it, with its place."""

    def partition(self) -> int | None: ...  # noqa: D102

    def offset(self) -> int | None: ...  # noqa: D102

    def timestamp(self) -> tuple[int, int]: ...  # noqa: D102

    def leader_epoch(self) -> int | None: ...  # noqa: D102


@dataclass
class ReadPosition:
    """What a slot has still to read of a partition.

    Attributes:
        part: Index of the partition.
        start: The first offset to read; `NOTHING`: the slot reads the chunks that it gets.
        ranges: The slot's key ranges.
        finds_holes: Whether holes are noted.
        wanted: The offsets that were not returned, and are no holes.
        next: The offset after the highest one that was returned or is a hole.
    """

    part: int
    start: int
    ranges: Ranges
    finds_holes: bool = False
    wanted: WantedOffsets = field(init=False)
    next: int = field(init=False)

    def __post_init__(self) -> None:
        """Sets what is left to read."""
        self.wanted = WantedOffsets(self.start)
        self.next = self.start if self.wanted else 0

    def owns(self, key_hash: int) -> bool:
        """Whether records of this hash are the slot's."""
        return any(first <= key_hash <= last for first, last in self.ranges)


@dataclass
class Taken:
    """The result of one read.

    Attributes:
        rows: The slot's records, in the columns of a batch.
        positions: The new position of each partition whose position has changed.
        holes: Offsets at which there is no record, as (first, last), by partition.
        reached: How far the log of each partition reached in which leader epoch, by the last record
            that was read of it.
    """

    rows: pa.RecordBatch
    positions: dict[int, int] = field(default_factory=dict)
    holes: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    reached: dict[int, OffsetAndEpoch] = field(default_factory=dict)


class SlotReader:
    """Turns the records of a source into the rows of a slot.

    Args:
        places: (topic, partition) by index.
        starts: The first offset to read of each of the slot's partitions, by index; `NOTHING`: it
            reads the chunks that it gets.
        ranges: The slot's key ranges, by index.
        finds_holes: The partitions whose holes are noted.
        headers: Whether rows carry record headers.
        record_filter: Marks rows that do not pass; without conditions rows have no mark.
    """

    def __init__(
        self,
        places: tuple[TopicPartition, ...],
        starts: Mapping[int, int],
        ranges: Mapping[int, Ranges],
        finds_holes: frozenset[int],
        record_filter: RecordFilter,
        *,
        headers: bool,
    ) -> None:
        self._positions = {
            places[part]: ReadPosition(part, start, ranges[part], part in finds_holes)
            for part, start in starts.items()
        }
        self._by_part = {position.part: position for position in self._positions.values()}
        self._headers = headers
        #: None: all records pass. Its truth takes longer than to read a record.
        self._filter = record_filter or None
        self._schema = row_schema(headers=headers, filters=bool(record_filter))
        self._no_rows = self._batch_of(())

    @property
    def starts(self) -> dict[TopicPartition, int]:
        """The next offset to read, by partition; `NOTHING`: none for now."""
        return {place: position.wanted.first for place, position in self._positions.items()}

    def want(self, part: int, pairs: Iterable[tuple[int, int]]) -> None:
        """Adds offsets to read."""
        self._by_part[part].wanted.add(pairs)

    def begin(self, place: TopicPartition, position: ReadPosition) -> None:
        """Adds a partition."""
        self._positions[place] = self._by_part[position.part] = position

    def take(
        self,
        records: Sequence[ConsumedMessage],
        ends: Mapping[TopicPartition, int],
        portions: Iterable[Portion] = (),
    ) -> Taken:
        """Returns the slot's rows among what a source has returned.

        Args:
            records: By ascending offsets in each partition.
            ends: The ends of partitions that the brokers named, as in `Fetched`.
            portions: What a fetch server has returned.
        """
        holes: dict[int, list[tuple[int, int]]] = {}
        moved: dict[int, ReadPosition] = {}
        rows = self._take_records(records, holes, moved)
        reached = self._reached(records, len(moved))
        for place, end in ends.items():
            position = self._positions[place]
            if end > position.wanted.first or end > position.next:
                _advance(position, end, holes)
                moved[position.part] = position
        batches = [self._batch_of(rows)] if rows else []
        for portion in portions:
            position = self._by_part[portion.part]
            wanted = position.wanted.take(portion.first, portion.next)
            if wanted:
                batches += _new_rows(portion, wanted)
                _follow(portion, position, wanted, holes)
                moved[position.part] = position
                if portion.reached is not None:
                    reached[portion.part] = portion.reached
        batch = joined(batches) or self._no_rows
        positions = {part: position.next for part, position in moved.items()}
        return Taken(batch, positions, holes, reached)

    def _reached(
        self, records: Sequence[ConsumedMessage], partitions: int
    ) -> dict[int, OffsetAndEpoch]:
        """Returns the offset after the last record of each partition, and its leader epoch."""
        found: dict[int, OffsetAndEpoch] = {}
        seen: set[int] = set()
        for record in reversed(records):
            if len(seen) == partitions:
                break
            part = self._positions[record.topic(), record.partition()].part  # type: ignore[index]
            if part not in seen:
                seen.add(part)
                epoch, offset = record.leader_epoch(), record.offset()
                assert offset is not None
                if epoch is not None and epoch >= 0:
                    found[part] = OffsetAndEpoch(offset + 1, epoch)
        return found

    def _batch_of(self, rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(self._schema)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, self._schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _take_records(
        self,
        records: Iterable[ConsumedMessage],
        holes: dict[int, list[tuple[int, int]]],
        moved: dict[int, ReadPosition],
    ) -> list[tuple[Any, ...]]:
        """Returns the rows of records; adds holes, and the positions that have moved."""
        rows = []
        for record in records:
            position = self._positions[record.topic(), record.partition()]  # type: ignore[index]
            wanted = position.wanted
            offset: int = record.offset()  # type: ignore[assignment]
            if offset > wanted.first:
                _advance(position, offset, holes)
            moved[position.part] = position
            if offset != wanted.first:
                continue  # It was returned before, or is another slot's.
            wanted.take(offset, offset + 1)
            if offset >= position.next:
                position.next = offset + 1
            key = record.key()
            hashed = offset_hash(offset) if key is None else key_hash(key)
            assert hashed is not None
            if position.owns(hashed):
                rows.append(self._row(position.part, offset, hashed, key, record))
        return rows

    def _row(
        self, part: int, offset: int, hashed: int, key: bytes | None, record: ConsumedMessage
    ) -> tuple[Any, ...]:
        kind, stamp = record.timestamp()
        row: tuple[Any, ...] = (part, offset, hashed, key, record.value(), stamp if kind else -1)
        if self._headers:
            row = (*row, headers_of(record))
        if self._filter is None:
            return row
        headers = message_headers(record) if self._filter.headers else ()
        return (*row, not self._filter.passes(key, row[4], headers))


def headers_of(record: ConsumedMessage) -> list[dict[str, Any]]:
    """Returns the headers of a record, as rows have them."""
    return [{"key": name, "value": value} for name, value in message_headers(record)]


def row_schema(*, headers: bool, filters: bool) -> pa.Schema:
    """Returns the columns of a slot's rows.

    Args:
        headers: Whether they carry record headers.
        filters: Whether there is a filter, so that rows carry its mark.
    """
    more = [*([("headers", _HEADERS)] if headers else []), *([(FILTERED, pa.bool_())] * filters)]
    return pa.schema([*_FIELDS, *more])


def _new_rows(portion: Portion, wanted: Pairs) -> list[pa.RecordBatch]:
    """Returns the rows of a portion that the slot wants."""
    rows = portion.rows
    if rows is None:
        return []
    if wanted == ((portion.first, portion.next - 1),):
        return [rows]
    offsets = rows.column("offset")
    keep = pa.repeat(pa.scalar(False), rows.num_rows)
    for first, last in wanted:
        inside = pc.and_(pc.greater_equal(offsets, first), pc.less_equal(offsets, last))
        keep = pc.or_(keep, inside)
    return [rows.filter(keep)]


def _follow(
    portion: Portion,
    position: ReadPosition,
    wanted: Pairs,
    holes: dict[int, list[tuple[int, int]]],
) -> None:
    """Takes over the end and the holes of a portion."""
    if position.finds_holes:
        holes.setdefault(position.part, []).extend(
            (max(first, low), min(last, high))
            for first, last in portion.holes
            for low, high in wanted
            if first <= high and low <= last
        )
    position.next = max(position.next, portion.next)


def _advance(position: ReadPosition, offset: int, holes: dict[int, list[tuple[int, int]]]) -> None:
    """Moves the position to the next record; the wanted offsets that it skips are holes."""
    skipped = position.wanted.take(0, offset)
    if skipped and position.finds_holes:
        holes.setdefault(position.part, []).extend(skipped)
    position.next = max(position.next, offset)
