"""How long records take from their timestamps to the answer of their commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commits import OffsetRanges
from coopconsume.worker.histogram import BOUNDS, Histogram
from coopconsume.worker.report import sampling, unpack_times

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from commits.model import TopicPartition
    from coopconsume.worker.report import PartitionReport

    Int64s = NDArray[np.int64]


class CommitLatency:
    """Counts the time of each handled record from its timestamp to the answer of its commit.

    A record counts once, in the commit that has its offset: its retries, the wait for its outputs
    and for capacity in the commit log are part of its time. What no handler was called for, such as
    records that do not pass the filter and holes, does not count. Of a report with many records,
    every n-th counts n times.
    """

    def __init__(self) -> None:
        self._found = Histogram()
        #: Of reports that are not committed: rows of offset, timestamp, and how often it counts;
        #: offsets are in ascending order.
        self._open: dict[TopicPartition, list[Int64s]] = {}

    def done(self, where: TopicPartition, report: PartitionReport) -> None:
        """Takes the done records of a report."""
        if report.times:
            offsets = report.done_offsets.to_numpy()
            every = sampling(len(offsets))
            times = unpack_times(report.times).to_numpy()
            counts = np.full(len(times), every)
            counts[-1] = len(offsets) - every * (len(times) - 1)
            self._open.setdefault(where, []).append(np.stack([offsets[::every], times, counts]))

    def committed(
        self, where: TopicPartition, offsets: OffsetRanges, stable: int, at: float
    ) -> None:
        """Counts the records of a commit.

        Args:
            where: The partition.
            offsets: What was committed.
            stable: The stable offset after it: what is below it and was not committed by this
                commit is forgotten.
            at: When the answer came, in seconds since the epoch.
        """
        left = []
        for rows in self._open.pop(where, ()):
            inside = _are_in(rows[0], offsets)
            _, times, counts = rows[:, inside & (rows[1] >= 0)]
            self._count(at - times / 1000.0, counts)
            rest = rows[:, ~inside & (rows[0] >= stable)]
            if rest.size:
                left.append(rest)
        if left:
            self._open[where] = left

    def retain(self, offsets: Mapping[TopicPartition, OffsetRanges]) -> None:
        """Forgets all records but some: the others are not committed by this member any more."""
        kept = {}
        for where, reports in self._open.items():
            wanted = offsets.get(where, OffsetRanges())
            some = [left for rows in reports if (left := rows[:, _are_in(rows[0], wanted)]).size]
            if some:
                kept[where] = some
        self._open = kept

    def _count(self, seconds: NDArray[np.float64], counts: Int64s) -> None:
        seconds = np.maximum(seconds, 0.0)
        found = np.bincount(np.searchsorted(BOUNDS, seconds), counts, len(BOUNDS) + 1)
        self._found.counts = [
            n + int(more) for n, more in zip(self._found.counts, found, strict=True)
        ]
        self._found.seconds += float(seconds @ counts)

    def take(self) -> Histogram:
        """Returns what was counted since the last call."""
        found, self._found = self._found, Histogram()
        return found


def _are_in(chunk: Int64s, offsets: OffsetRanges) -> NDArray[np.bool_]:
    """Returns which of some offsets are in a set."""
    firsts, lasts = offsets.bounds()
    if not len(firsts):
        return np.zeros(len(chunk), dtype=np.bool_)
    at = np.searchsorted(firsts, chunk, side="right") - 1
    inside: NDArray[np.bool_] = (at >= 0) & (chunk <= lasts[np.maximum(at, 0)])
    return inside
