"""Foresees which offsets Kafka's retention by time deletes next, by a few requests."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commits import OffsetRanges
    from commits.model import TopicPartition
    from coopconsume.kafka.cluster import Cluster

#: The farthest look ahead in seconds, and as a part of the retention: a topic that keeps its
#: records for an hour has none that are kept for a day.
_AHEAD: Final = 86_400.0
_PART: Final = 0.25
#: The parts of that time that are looked at, the longest first.
_STEPS: Final = (1.0, 0.5, 0.25, 0.125)


@dataclass(frozen=True)
class OpenOffsets:
    """The offsets of a partition that are not done.

    Attributes:
        first: The first one that is not done and that the log may still have.
        end: The end of the log.
        done: The committed offsets above the first one.
    """

    first: int
    end: int
    done: OffsetRanges

    def below(self, offset: int) -> int:
        """Returns how many of them are below an offset."""
        last = min(offset, self.end) - 1
        return max(0, last - self.first + 1 - len(self.done.clip(self.first, last)))


@dataclass(frozen=True)
class ExpiringOffsets:
    """Offsets that are not done and that retention deletes within some time.

    Attributes:
        records: Their number; it includes offsets without a record.
        seconds: The time. Kafka may delete them later: it deletes whole segments.
    """

    records: int
    seconds: float


def find_expiring(
    cluster: Cluster, partitions: Mapping[TopicPartition, OpenOffsets]
) -> ExpiringOffsets | None:
    """Returns the offsets that retention by time deletes soon, within the shortest time known.

    It looks ahead for a quarter of ``retention.ms``, a day at most, and within that time at a half,
    a quarter and an eighth of it. So it makes at most five requests for topics with the same
    retention, and two if nothing expires. Retention by size is not foreseen.

    Args:
        cluster: The connection to the cluster.
        partitions: What is not done, by partition.
    """
    kept = cluster.retention({topic for topic, _ in partitions})
    wanted = {tp: one for tp, one in partitions.items() if tp[0] in kept}
    found = None
    for step in _STEPS:
        nearer = _within(cluster, wanted, kept, step)
        if nearer is None:
            return found
        found = nearer
    return found


def _within(
    cluster: Cluster,
    partitions: Mapping[TopicPartition, OpenOffsets],
    kept: Mapping[str, float],
    step: float,
) -> ExpiringOffsets | None:
    """Returns what expires within a part of the time of the look ahead."""
    records, seconds = 0, 0.0
    for retention in sorted(set(kept.values())):
        ahead = step * min(_AHEAD, _PART * retention)
        some = {tp: one for tp, one in partitions.items() if kept[tp[0]] == retention}
        at = int((time.time() - retention + ahead) * 1000)
        # Records above the first one of this time are in its segment or a later one.
        young = cluster.first_at(some, at)
        count = sum(one.below(young.get(tp, one.end)) for tp, one in some.items())
        if count:
            records, seconds = records + count, max(seconds, ahead)
    return ExpiringOffsets(records, seconds) if records else None
