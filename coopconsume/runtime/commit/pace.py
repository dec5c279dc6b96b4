"""When the next commit of a job begins: as soon as the processor time of commits allows.

A commit also waits a moment for slots that are about to report: what they report is in it then.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

#: Seconds between two commits that are not exceeded, however much a commit costs.
_LONGEST: Final = 0.2
#: The time between two commits, as a multiple of a commit's processor time: in real time somebody
#: waits for each record; in batches the slots need the processors.
_IN_REAL_TIME: Final = 8
_IN_BATCHES: Final = 50
#: The part of the newest commit in the cost: a single slow one changes little.
_NEWEST: Final = 1 / 8
#: Seconds for which a commit waits for reports at most.
_LINGER: Final = 0.1


class CommitTime(NamedTuple):
    """When the next commit of a job begins.

    Attributes:
        begins_in: Seconds until then; 0 or less: at once.
        apart: Seconds from its begin to that of the one after, at least.
    """

    begins_in: float
    apart: float


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
        self._linger = min(_LINGER, shortest)
        #: Seconds for which reports that are about to come are waited for.
        self._lingers = 0.0

    @property
    def next_at(self) -> float:
        """When the next commit may begin, on the monotonic clock."""
        return self._begun_at + self.interval

    @property
    def interval(self) -> float:
        """Seconds from the begin of a commit to that of the next."""
        return max(self._shortest, min(self._multiple * self._cost, _LONGEST))

    def due(self, since: float) -> float:
        """Returns when the next commit is due, on the monotonic clock.

        Args:
            since: When the first of all that it has came in.
        """
        return max(since + self._lingers, self.next_at)

    def waits_for_reports(self, since: float, now: float) -> bool:
        """Whether the next commit waits for reports, with what came in from an instant on."""
        return now - since < self._lingers

    def expect(self, *, more_to_come: bool) -> None:
        """Notes whether slots are about to report more."""
        self._lingers = self._linger if more_to_come else 0.0

    def began(self, now: float) -> None:
        """Notes that a commit begins."""
        self._begun_at = now

    def took(self, seconds: float) -> None:
        """Notes the processor time of a commit, and of the maintenance of its table."""
        self._cost += _NEWEST * (seconds - self._cost)
