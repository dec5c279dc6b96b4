"""What reads of the commit log show: how new they are, and whether the epoch is in force."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from commits import FencedMember

if TYPE_CHECKING:
    from collections.abc import Callable

    from commits import Epoch
    from coopconsume.group.epoch_assignment import EpochAssignment
    from coopconsume.runtime.commit.log_calls import LogThread

#: Seconds between two questions whether the epoch is in force.
_CONFIRM_EVERY: Final = 0.2
#: Seconds for which the loop waits for the answer; a turn takes as long while no batch is due.
_CONFIRM_WITHIN: Final = 0.2


class EpochWatch:
    """When the commit log was last read, and whether it has refused the epoch.

    An epoch that has passed while the work continues is *refused*: nothing is read or committed
    under it until the assignment has the next one.

    Args:
        assignment: Has the epoch.
        thread: Makes the calls of the log.
        look: Reads the log, see `LogCalls.look`.
        read_at: When the log was last read, on the monotonic clock.
    """

    def __init__(
        self,
        assignment: EpochAssignment,
        thread: LogThread,
        look: Callable[[], None],
        *,
        read_at: float,
    ) -> None:
        self._assignment = assignment
        self._thread = thread
        self._look = look
        self._read_at = read_at
        self._asked_at = -math.inf
        self._epoch = assignment.epoch
        self._refused: Epoch | None = None
        self._refused_at = 0.0

    def is_older(self, seconds: float, now: float) -> bool:
        """Whether the last read of the log is more than some seconds ago."""
        return now - self._read_at > seconds

    def look(self) -> None:
        """Begins to read the log."""
        self._thread.begin(self._look)

    def has_read(self, now: float) -> None:
        """Notes that the log was just read."""
        self._read_at = now

    def look_soon(self) -> None:
        """Has the log read at the next occasion."""
        self._read_at = -math.inf

    def note_epoch(self) -> Epoch:
        """Notes and returns the epoch of the assignment; until the next call it is this one."""
        self._epoch = self._assignment.epoch
        return self._epoch

    def refused(self, error: BaseException, now: float) -> None:
        """Takes an error that may say no more than that the next epoch is in force already.

        Raises:
            BaseException: The error, if it is another one, or no next epoch is to come.
        """
        if not (isinstance(error, FencedMember) and self._assignment.may_be_late(error)):
            raise error
        self._refused, self._refused_at = error.epoch, now

    def refused_for(self, now: float) -> float:
        """Returns for how many seconds the epoch is refused; 0: it is not."""
        is_refused = self._refused is not None and self._epoch == self._refused
        return now - self._refused_at if is_refused else 0.0

    def is_confirmed(self, now: float) -> bool:
        """Whether the log said a moment ago that the epoch is in force; if not, it is asked.

        An answer is waited for, once and not for long: the next turn may look at Kafka for longer
        than an answer counts, and the loop has more to do than to wait for a table.
        """
        if self._assignment.proof.is_confirmed:
            return True
        is_soon = now - self._asked_at < _CONFIRM_EVERY
        if not (self._thread.is_busy or is_soon or self.refused_for(now) > 0):
            self._asked_at = now
            self.look()
        self._thread.wait(_CONFIRM_WITHIN)
        return self._assignment.proof.is_confirmed
