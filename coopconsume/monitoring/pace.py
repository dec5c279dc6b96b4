"""How fast a group works, from its offsets at several times (pure)."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from coopconsume.monitoring.verdict import Pace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from commits.model import TopicPartition

#: Seconds over which rates are means, as commits come in bursts.
_RECENT: Final = 30.0
#: Samples that are kept of a group: half an hour, if there is one every two seconds.
_KEPT: Final = 900


@dataclass(frozen=True)
class Sample:
    """The work of a group at one moment.

    Attributes:
        at: The time, in seconds.
        lag: Uncommitted offsets.
        done_rate: Offsets that were committed in a second since the sample before it.
        new_rate: Offsets that the topics grew by in a second since then.
        pending: Failed records, parked ones included.
    """

    at: float
    lag: int
    done_rate: float
    new_rate: float
    pending: int


@dataclass
class Course:
    """The samples of a group, the oldest first."""

    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _before: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)

    def add(
        self, at: float, offsets: Mapping[TopicPartition, tuple[int, int]], lag: int, pending: int
    ) -> None:
        """Adds a sample.

        Args:
            at: The time, in seconds.
            offsets: The number of committed offsets of each partition, and the end of its log.
            lag: Uncommitted offsets.
            pending: Failed records, parked ones included.
        """
        span = max(at - self.samples[-1].at, 1e-3) if self.samples else 1.0
        # A partition that is new, or whose offsets were moved back, has no rate in this sample.
        both = [(self._before[tp], found) for tp, found in offsets.items() if tp in self._before]
        done = sum(max(0, found[0] - before[0]) for before, found in both)
        new = sum(max(0, found[1] - before[1]) for before, found in both)
        self._before = dict(offsets)
        self.samples.append(Sample(at, lag, round(done / span, 1), round(new / span, 1), pending))

    @property
    def pace(self) -> Pace | None:
        """The mean rates of the last half minute; None before there are any."""
        return pace_of(self.samples)


def pace_of(samples: Sequence[Sample]) -> Pace | None:
    """Returns the mean rates of the last half minute, or since the sample before; None: none."""
    recent = [one for one in samples if one.at > samples[-1].at - _RECENT]
    if len(recent) == 1:  # They are farther apart.
        recent = list(samples)[-2:]
    seconds = recent[-1].at - recent[0].at if recent else 0.0
    if seconds <= 0:
        return None
    # A rate is that of the time since the sample before.
    spans = [(one, one.at - before.at) for before, one in itertools.pairwise(recent)]
    done, new = (
        sum(getattr(one, rate) * time for one, time in spans) / seconds
        for rate in ("done_rate", "new_rate")
    )
    return Pace(done, new, seconds)
