"""How often a job commits: as often as the processor time of a commit allows."""

from __future__ import annotations

import math
from typing import Final

#: Seconds between two commits that are not exceeded, however much a commit costs.
_LONGEST: Final = 0.2
#: The time between two commits, as a multiple of a commit's processor time: in real time somebody
#: waits for each record; in batches the slots need the processors.
_IN_REAL_TIME: Final = 8
_IN_BATCHES: Final = 50
#: The part of the newest commit in the cost: a single slow one changes little.
_NEWEST: Final = 1 / 8


class Pace:
    """The time between two commits of a job: a multiple of a commit's processor time, with limits.

    Time in which a commit waits for its storage does not count: the next one begins after it.

    Args:
        shortest: ``commitInterval``, in seconds. The longest time between two commits is 0.2 s, or
            this if it is longer.
        real_time: Whether the job has real-time runs.
    """

    def __init__(self, shortest: float, *, real_time: bool) -> None:
        self._shortest = shortest
        self._multiple = _IN_REAL_TIME if real_time else _IN_BATCHES
        self._cost = 0.0
        self._begun_at = -math.inf

    @property
    def next_at(self) -> float:
        """When the next commit may begin, on the monotonic clock."""
        return self._begun_at + self.interval

    @property
    def interval(self) -> float:
        """Seconds from the begin of a commit to that of the next."""
        return max(self._shortest, min(self._multiple * self._cost, _LONGEST))

    def began(self, now: float) -> None:
        """Notes that a commit begins."""
        self._begun_at = now

    def took(self, seconds: float) -> None:
        """Notes the processor time of a commit, and of the maintenance of its table."""
        self._cost += _NEWEST * (seconds - self._cost)
