"""The latest start of a batch on Spark Connect, where the cluster goes on without its driver."""

from __future__ import annotations

import math
import time
from collections import deque
from typing import TYPE_CHECKING

from coopconsume.group.owned import STARTS_WITHIN

if TYPE_CHECKING:
    from collections.abc import Callable

#: Batches whose reports are used for the difference of clocks.
_BATCHES = 4


class LatestStart:
    """Computes the latest start of each batch on the workers' clocks.

    A server of Spark Connect runs what a client sent, also when that client is gone. The next
    owners of its shares wait for the life of a batch, which includes `STARTS_WITHIN`.

    The clocks of this host and of the workers may differ. Reports show by how much: a slot ends, on
    its worker's clock, before its report arrives here. Before the first report, a start may be too
    late by the difference of the clocks; after it, by the difference between workers.

    Args:
        slots: How many reports a batch may have.
        is_limited: Whether batches have a latest start.
        clock: Seconds since the epoch, on this host.
    """

    def __init__(
        self, slots: int, *, is_limited: bool, clock: Callable[[], float] = time.time
    ) -> None:
        self.starts_within = STARTS_WITHIN if is_limited else 0.0
        self._is_limited = is_limited
        self._clock = clock
        self._ahead: deque[float] = deque(maxlen=_BATCHES * slots)

    def heard(self, worker_clock: float) -> None:
        """Notes a worker's clock, from a report that has just arrived."""
        self._ahead.append(worker_clock - self._clock())

    def of_batch(self) -> float:
        """Returns the latest start of a batch that is sent now; infinite without a limit."""
        if not self._is_limited:
            return math.inf
        return self._clock() + self.starts_within + max(self._ahead, default=0.0)
