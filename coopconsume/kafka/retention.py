"""Foresees which offsets Kafka's retention by time deletes next, by a few requests."""

from __future__ import annotations

import time
from collections import Counter
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
        partitions: Their partitions, those that lose most first.
    """

    records: int
    seconds: float
    partitions: tuple[TopicPartition, ...]

    @property
    def names(self) -> list[str]:
        """The names of the partitions."""
        return [f"{topic}-{number}" for topic, number in self.partitions]


@dataclass(frozen=True)
class RetentionForecast:
    """Where logs begin in some time, once retention by time has deleted all that it may.

    Attributes:
        starts: Where they begin then, by the time in seconds and by partition.
    """

    starts: Mapping[float, Mapping[TopicPartition, int]]

    def expiring(
        self, partitions: Mapping[TopicPartition, OpenOffsets], age: float = 0.0
    ) -> ExpiringOffsets | None:
        """Returns which offsets that are not done are deleted by then; None if all are done.

        Args:
            partitions: What is not done, by partition.
            age: Seconds since the forecast was made.
        """
        counts: Counter[TopicPartition] = Counter()
        seconds = 0.0
        for ahead, starts in self.starts.items():
            for tp, start in starts.items():
                count = partitions[tp].below(start) if tp in partitions else 0
                if count:
                    counts[tp], seconds = count, max(seconds, ahead - age)
        most = tuple(sorted(counts, key=lambda tp: (-counts[tp], tp)))
        return ExpiringOffsets(counts.total(), seconds, most) if counts else None


def find_expiring(
    cluster: Cluster, partitions: Mapping[TopicPartition, OpenOffsets]
) -> ExpiringOffsets | None:
    """Returns the offsets that retention by time deletes soon, within the shortest time known.

    Args:
        cluster: The connection to the cluster.
        partitions: What is not done, by partition.
    """
    forecast = forecast_retention(cluster, partitions)
    return None if forecast is None else forecast.expiring(partitions)


def find_all_expiring(
    cluster: Cluster, groups: Mapping[str, Mapping[TopicPartition, OpenOffsets]]
) -> dict[str, ExpiringOffsets | None]:
    """Returns of each group what `find_expiring` does, by the requests of `forecast_retention`.

    Args:
        cluster: The connection to the cluster.
        groups: What is not done, by group and partition.
    """
    forecasts = _forecasts(cluster, groups)
    return {
        group: None if forecast is None else forecast.expiring(groups[group])
        for group, forecast in forecasts.items()
    }


def forecast_retention(
    cluster: Cluster, partitions: Mapping[TopicPartition, OpenOffsets]
) -> RetentionForecast | None:
    """Returns the forecast for the shortest time in which retention deletes some offsets.

    It looks ahead for a quarter of ``retention.ms``, a day at most, and within that time at a half,
    a quarter and an eighth of it. So it makes at most five requests for topics with the same
    retention, also for any number of groups, and two if nothing expires. Retention by size is not
    foreseen.

    Args:
        cluster: The connection to the cluster.
        partitions: What is not done, by partition.
    """
    return _forecasts(cluster, {"": partitions})[""]


def _forecasts(
    cluster: Cluster, groups: Mapping[str, Mapping[TopicPartition, OpenOffsets]]
) -> dict[str, RetentionForecast | None]:
    """Returns the forecast for each group; None where nothing expires."""
    kept = cluster.retention({topic for open_ in groups.values() for topic, _ in open_})
    found: dict[str, RetentionForecast | None] = dict.fromkeys(groups)
    left = dict(groups)
    for step in _STEPS:
        nearer = _within(cluster, left, kept, step)
        found |= nearer
        left = {group: left[group] for group in nearer}
        if not left:
            break
    return found


def _within(
    cluster: Cluster,
    groups: Mapping[str, Mapping[TopicPartition, OpenOffsets]],
    kept: Mapping[str, float],
    step: float,
) -> dict[str, RetentionForecast]:
    """Returns the forecasts for a part of the time of the look ahead, of groups that lose any."""
    starts: dict[str, dict[float, dict[TopicPartition, int]]] = {group: {} for group in groups}
    for retention in sorted(set(kept.values())):
        ahead = step * min(_AHEAD, _PART * retention)
        some = {
            group: {tp: one for tp, one in partitions.items() if kept.get(tp[0]) == retention}
            for group, partitions in groups.items()
        }
        at = int((time.time() - retention + ahead) * 1000)
        # Records above the first one of this time are in its segment or a later one.
        young = cluster.first_at({tp for of_group in some.values() for tp in of_group}, at)
        for group, of_group in some.items():
            begin = {tp: young.get(tp, one.end) for tp, one in of_group.items()}
            starts[group].setdefault(ahead, {}).update(begin)
    forecasts = {group: RetentionForecast(of_group) for group, of_group in starts.items()}
    return {
        group: forecast
        for group, forecast in forecasts.items()
        if forecast.expiring(groups[group]) is not None
    }
