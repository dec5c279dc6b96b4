"""Counts of times in fixed buckets. Task-side code: the standard library and pyarrow."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Upper bounds of the buckets in seconds, included, from 0.1 ms to a day; a last bucket has none.
BOUNDS: Final = (
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05,
    0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0,
    300.0, 600.0, 1800.0, 3600.0, 21600.0, 86400.0,
)  # fmt: skip
#: Fewer times are counted one by one: a call of Arrow takes as long as some dozen of them.
_FEW: Final = 200


@dataclass
class Histogram:
    """How many times fall into each bucket of `BOUNDS`.

    Attributes:
        counts: By bucket; the last one is of times above all bounds.
        seconds: Sum of the times.
    """

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    seconds: float = 0.0

    @property
    def count(self) -> int:
        """How many times were counted."""
        return sum(self.counts)

    def add(self, seconds: float, weight: int = 1) -> None:
        """Counts a time; a negative one, as of two clocks, counts as 0."""
        seconds = max(seconds, 0.0)
        self.counts[bisect_left(BOUNDS, seconds)] += weight
        self.seconds += weight * seconds

    def add_all(self, times: pa.Array, weight: int = 1) -> None:
        """Counts times in seconds, each as often as ``weight`` says; nulls do not count."""
        if len(times) < _FEW:
            for seconds in times.to_pylist():
                if seconds is not None:
                    self.add(seconds, weight)
            return
        left = times.cast(pa.float64()).drop_null()
        if pc.any(pc.less(left, 0.0)).as_py():
            left = pc.max_element_wise(left, 0.0)
        self.seconds += weight * (pc.sum(left).as_py() or 0.0)
        # Most times of a batch are in few buckets: each pass counts the bucket of the first one.
        while len(left) >= _FEW:
            bucket = bisect_left(BOUNDS, left[0].as_py())
            above = BOUNDS[bucket - 1] if bucket else -math.inf
            up_to = BOUNDS[bucket] if bucket < len(BOUNDS) else math.inf
            is_inside = pc.and_(pc.greater(left, above), pc.less_equal(left, up_to))
            others = left.filter(pc.invert(is_inside))
            self.counts[bucket] += weight * (len(left) - len(others))
            left = others
        for seconds in left.to_pylist():
            self.counts[bisect_left(BOUNDS, seconds)] += weight

    def merge(self, other: Histogram) -> None:
        """Adds the counts of another histogram."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.seconds += other.seconds

    def quantile(self, part: float) -> float | None:
        """Returns a quantile in seconds, interpolated within its bucket; None without times.

        Args:
            part: From 0 to 1. In the last bucket its lower bound is returned.
        """
        rank, below = part * self.count, 0
        for bucket, count in enumerate(self.counts):
            if count and below + count >= rank:
                low = BOUNDS[bucket - 1] if bucket else 0.0
                high = BOUNDS[min(bucket, len(BOUNDS) - 1)]
                return low + (high - low) * max(0.0, rank - below) / count
            below += count
        return None

    def describe(self) -> dict[str, Any]:
        """Returns it as JSON data; ``buckets`` has the upper bound and the count of each in use.

        The bound of the last bucket is null.
        """
        p50, p99 = self.quantile(0.5), self.quantile(0.99)
        return {
            "count": self.count,
            "sumSeconds": round(self.seconds, 6),
            "p50Seconds": None if p50 is None else round(p50, 6),
            "p99Seconds": None if p99 is None else round(p99, 6),
            "buckets": [
                [bound, count]
                for bound, count in zip((*BOUNDS, None), self.counts, strict=True)
                if count
            ],
        }

    @classmethod
    def of(cls, described: Iterable[dict[str, Any]]) -> Histogram:
        """Returns the sum of what `describe` has returned."""
        found = cls()
        places = {bound: bucket for bucket, bound in enumerate((*BOUNDS, None))}
        for one in described:
            for bound, count in one["buckets"]:
                found.counts[places[bound]] += count
            found.seconds += one["sumSeconds"]
        return found
