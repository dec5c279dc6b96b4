"""A failed record that waits for its next attempt, and the offsets behind it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from coopconsume.group.owned import Failed
from coopconsume.record import shown_key
from coopconsume.runtime.plan.reads import is_far_apart

if TYPE_CHECKING:
    from coopconsume.worker.report import Failure

#: The offset that stands for the records of a key that an earlier owner may be at work on.
EARLIER_OWNER: Final = -1


@dataclass
class Waiting(Failed):
    """A failed record that waits for its next attempt, and the offsets behind it.

    Attributes:
        behind: Higher offsets of its lane, which wait for it. A *lane* has the records that are
            handled strictly in order: those of a key, or of the partition.
        is_trying: Whether it is due and is retried alone while the offsets behind it still wait.
        is_undelivered: Whether it is handled, but its dead letter or outputs cannot be written for
            now: it is not tried again, and its lane waits until they are written.
        is_running: Whether a handler works on it, in a slot that has given back all other records
            or in an earlier owner.
        may_run_until: Until when, on the monotonic clock, the handler of a lost slot may work on
            it.
        next: The next higher failed record of its lane, which waits for this one.
    """

    behind: list[int] = field(default_factory=list)
    is_trying: bool = False
    is_undelivered: bool = False
    is_running: bool = False
    may_run_until: float = -math.inf
    next: Waiting | None = None

    @classmethod
    def after(cls, failure: Failure, now: float, *, is_undelivered: bool = False) -> Self:
        """Returns the record of a failure.

        Args:
            failure: The failure.
            now: The time of the failure, on the monotonic clock.
            is_undelivered: Whether its dead letter or outputs cannot be written.
        """
        return cls(
            failure.offset, failure.key_hash, failure.attempts, now + failure.delay, failure.error,
            failure.headers, shown_key(failure.key), since=now, is_undelivered=is_undelivered,
        )  # fmt: skip

    @property
    def is_far(self) -> bool:
        """Whether the offsets behind it are too far away for one read with it."""
        return bool(self.behind) and is_far_apart(self.offset, max(self.behind))

    @property
    def waiting_offsets(self) -> list[int]:
        """The offsets that must not start now, without those of the next failed records."""
        is_read = self.is_trying or self.offset == EARLIER_OWNER
        return self.behind if is_read else [self.offset, *self.behind]

    @property
    def is_parked(self) -> bool:
        """Whether it waits until an operator decides."""
        return super().is_parked and not (self.is_undelivered or self.is_running)

    def is_between_attempts(self, now: float) -> bool:
        """Returns whether it waits for its next attempt; its slot may have dispatched it.

        Args:
            now: The time, on the monotonic clock.
        """
        return self.due > now
