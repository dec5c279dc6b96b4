"""Time limits of a queue's consumer. Pure: the caller passes the time."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

MARGIN = 0.1
"""The part of a hold that its holder does not use. Clock rates may differ by half of it."""

_SAMPLES = 256
_PERCENTILE = 0.99


class QuorumLimit:
    """The time to wait for answers: the 99th percentile of the recent answer times.

    Args:
        hold: The duration of a hold in seconds. The limit is at most a quarter of it.
        first: The limit before the first answer, in seconds.
        floor: The lowest limit in seconds.
    """

    def __init__(self, hold: float, first: float = 1.0, floor: float = 0.05) -> None:
        self._ceiling = hold / 4
        self._floor = min(floor, self._ceiling)
        self._first = min(first, self._ceiling)
        self._recent: deque[float] = deque()
        self._ordered: list[float] = []

    def answered(self, seconds: float) -> None:
        """Record the time between a request and its answer."""
        self._recent.append(seconds)
        insort(self._ordered, seconds)
        if len(self._recent) > _SAMPLES:
            del self._ordered[bisect_left(self._ordered, self._recent.popleft())]

    @property
    def seconds(self) -> float:
        """The current limit in seconds."""
        ordered = self._ordered
        if not ordered:
            return self._first
        slow = ordered[min(len(ordered) - 1, int(_PERCENTILE * len(ordered)))]
        return max(self._floor, min(self._ceiling, slow))
