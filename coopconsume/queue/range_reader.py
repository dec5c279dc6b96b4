"""Reads the records of acquired offsets from range to range, as far as time allows."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from commits import OffsetRanges

if TYPE_CHECKING:
    from commits.model import TopicPartition
    from coopconsume.kafka.records import RecordReader
    from coopconsume.queue.rows import Offsets

#: So many offsets between two ranges are read, too: that costs less than a new fetch.
_NEAR = 100
_POLL = 0.2


@dataclass(slots=True)
class RangesRead:
    """What was read of some offsets.

    Attributes:
        records: The records as the client returns them, in ascending order in each partition.
        missing: Offsets that were passed and have no record: compacted away, or of transactions.
        late: Offsets that were not reached.
        is_deleted: Whether the broker does not have some of these any more.
    """

    records: list[Any] = field(default_factory=list)
    missing: Offsets = field(default_factory=dict)
    late: Offsets = field(default_factory=dict)
    is_deleted: bool = False


class _Span(NamedTuple):
    """Offsets that are read at once, with what is between them."""

    first: int
    last: int


class RangeReader:
    """Reads ranges of offsets of one topic.

    All partitions are read side by side, so that one whose broker does not answer holds up no
    other one. What lies between distant ranges is not read.

    Args:
        source: The reader; its partitions are assigned.
        topic: The topic.
    """

    def __init__(self, source: RecordReader, topic: str) -> None:
        self._source = source
        self._topic = topic

    def read(self, wanted: Offsets, deadline: float) -> RangesRead:
        """Read the records of some offsets until a time.

        Args:
            wanted: The offsets.
            deadline: The time on the monotonic clock at which it returns with what there is.
        """
        found, positions = RangesRead(late=dict(wanted)), self._source.positions
        left = {(self._topic, p): _spans(offsets) for p, offsets in wanted.items()}
        self._source.pause(positions.keys() - left.keys())
        self._source.resume(left.keys())
        for at, spans in left.items():
            if positions[at] != spans[0].first or at in self._source.lost:
                self._source.seek(at, spans[0].first)
        while left and (remaining := deadline - time.monotonic()) > 0:
            # More would be read again by the next call.
            most = min(spans[0].last + 1 - positions[at] for at, spans in left.items())
            before = dict(positions)
            taken = self._source.read(min(_POLL, remaining), most)
            for at in taken.lost & left.keys():
                found.is_deleted = True
                left[at].pop(0)
            for at in [*left]:
                raws = taken.records.get(at, [])
                _take(found, at[1], raws, before[at], positions[at] - 1)  # also past holes
                self._go_on(left, at, is_lost=at in taken.lost)
        return found

    def _go_on(
        self, left: dict[TopicPartition, list[_Span]], at: TopicPartition, *, is_lost: bool
    ) -> None:
        """Go to the next span of a partition if one is over; pause it while others are read."""
        spans, position = left[at], self._source.positions[at]
        while spans and spans[0].last < position:
            spans.pop(0)
        if not spans:
            del left[at]
            if left:  # Otherwise what comes next is fetched while these records are worked on.
                self._source.pause([at])
        elif spans[0].first > position or is_lost:
            self._source.seek(at, max(spans[0].first, position))


def _take(found: RangesRead, partition: int, raws: list[Any], first: int, last: int) -> None:
    """Add records; other offsets from `first` to `last` have none."""
    late = found.late.get(partition, OffsetRanges())
    reached = late.clip(first, last)
    if not reached:
        return
    offsets = [raw.offset() for raw in raws]
    records = [raw for raw, offset in zip(raws, offsets, strict=True) if offset in reached]
    found.records += records
    missing = reached - OffsetRanges.from_offsets(offsets)
    _put(found.missing, partition, found.missing.get(partition, OffsetRanges()) | missing)
    _put(found.late, partition, late - reached)


def _put(offsets: Offsets, partition: int, found: OffsetRanges) -> None:
    if found:
        offsets[partition] = found
    else:
        offsets.pop(partition, None)


def _spans(offsets: OffsetRanges) -> list[_Span]:
    """Return the ranges in ascending order; those that are near each other as one."""
    spans: list[_Span] = []
    for first, last in offsets.pairs():
        if spans and first - spans[-1].last <= _NEAR:
            spans[-1] = _Span(spans[-1].first, last)
        else:
            spans.append(_Span(first, last))
    return spans
