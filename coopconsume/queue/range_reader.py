"""Reads the records of acquired offsets from range to range, as far as time allows."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from commits import OffsetRanges

if TYPE_CHECKING:
    from kafka import KafkaConsumer, TopicPartition

    from coopconsume.queue.rows import Offsets


log = logging.getLogger(__name__)

#: So many offsets between two ranges are read, too: that costs less than a new fetch.
_NEAR = 100
_POLL_MS = 200


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
        source: The client; its partitions are assigned, and have positions.
        topic: The topic.
    """

    def __init__(self, source: KafkaConsumer, topic: str) -> None:
        self._source = source
        self._topic = topic

    def read(self, wanted: Offsets, deadline: float) -> RangesRead:
        """Read the records of some offsets until a time.

        Args:
            wanted: The offsets.
            deadline: The time on the monotonic clock at which it returns with what there is.
        """
        from kafka import TopicPartition
        from kafka.errors import OffsetOutOfRangeError

        found = RangesRead(late=dict(wanted))
        left = {TopicPartition(self._topic, p): _spans(offsets) for p, offsets in wanted.items()}
        self._source.pause(*(at for at in self._source.assignment() if at not in left))
        self._source.resume(*left)
        positions: dict[TopicPartition, int] = {}
        for at, spans in left.items():
            positions[at] = spans[0].first
            if self._position(at) != spans[0].first:
                self._source.seek(at, spans[0].first)
        while left and (remaining := deadline - time.monotonic()) > 0:
            # More would be read again by the next call.
            most = min(spans[0].last + 1 - positions[at] for at, spans in left.items())
            try:
                polled = self._source.poll(min(_POLL_MS, int(remaining * 1000) + 1), most)
            except OffsetOutOfRangeError as error:
                found.is_deleted = True
                for at in error.args[0]:
                    left[at].pop(0)
                    self._go_on(left, at, positions)
                continue
            for at in [*left]:
                raws = polled.get(at, [])
                before = positions[at]
                position = raws[-1].offset + 1 if raws else before
                positions[at] = max(position, self._position(at) or 0)  # also past holes
                _take(found, at.partition, raws, before, positions[at] - 1)
                self._go_on(left, at, positions)
        return found

    def _go_on(
        self,
        left: dict[TopicPartition, list[_Span]],
        at: TopicPartition,
        positions: dict[TopicPartition, int],
    ) -> None:
        """Go to the next span of a partition if one is over; pause it after the last one."""
        spans = left[at]
        while spans and spans[0].last < positions[at]:
            spans.pop(0)
        if not spans:
            del left[at]
            self._source.pause(at)
        elif spans[0].first > positions[at]:
            positions[at] = spans[0].first
            self._source.seek(at, positions[at])

    def _position(self, at: TopicPartition) -> int | None:
        """Return the next offset of the client; None while its broker does not answer."""
        from kafka.errors import KafkaConnectionError, KafkaTimeoutError

        try:
            position: int | None = self._source.position(at, timeout_ms=_POLL_MS)
        except (KafkaConnectionError, KafkaTimeoutError) as error:
            log.debug("the position of %s-%d is not known: %s", at.topic, at.partition, error)
            return None
        return position


def _take(found: RangesRead, partition: int, raws: list[Any], first: int, last: int) -> None:
    """Add records; other offsets from `first` to `last` have none."""
    late = found.late.get(partition, OffsetRanges())
    reached = late.clip(first, last)
    if not reached:
        return
    records = [raw for raw in raws if raw.offset in reached]
    found.records += records
    missing = reached - OffsetRanges.from_offsets([raw.offset for raw in records])
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
