"""What of the shares of an assignment somebody may still be at work on, and until when."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from assignors.shares import outside

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from assignors import KeyRange, Share
    from commits.model import TopicPartition


class SharesInDoubt:
    """What earlier owners of an assignment's shares, or its own late tasks, may be at work on.

    A grant, a later epoch and a hand-over add to it; it ends by itself as its time passes. Nobody
    starts a record there before that, and a release of such a part says how much is left.
    Several threads read it while the group's thread adds to it.
    """

    def __init__(self, waits: Iterable[tuple[Share, float]] = ()) -> None:
        self._until: list[tuple[Share, float]] = []
        self.add(waits)

    def add(self, waits: Iterable[tuple[Share, float]]) -> None:
        """Adds parts that somebody may be at work on, and for how many seconds from now."""
        now = time.monotonic()
        # One assignment: others read it.
        self._until = [*self._until, *((share, now + seconds) for share, seconds in waits)]

    def mark(self, shares: Iterable[Share], seconds: float) -> None:
        """Adds parts on which our tasks may go on although nobody waits for them."""
        self.add((share, seconds) for share in shares)

    def release(self, shares: Sequence[Share]) -> None:
        """Removes what is in these shares: their next owner waits for it."""
        self._until = outside(self._until, shares)

    def seconds(self, tp: TopicPartition, ranges: Sequence[KeyRange]) -> float:
        """Returns the seconds until nobody can be at work on key ranges of a partition."""
        now = time.monotonic()
        return max(
            (
                until - now
                for share, until in self._until
                if (share.topic, share.partition) == tp
                and any(share.key_range.overlaps(one) for one in ranges)
            ),
            default=0.0,
        )

    def ranges(self, tp: TopicPartition) -> list[tuple[KeyRange, float]]:
        """Returns the key ranges of a partition that are in doubt.

        Each with the instant of the monotonic clock at which that has ended, in the order of these.
        """
        now = time.monotonic()
        found = [
            (share.key_range, until)
            for share, until in self._until
            if (share.topic, share.partition) == tp and until > now
        ]
        return sorted(found, key=lambda one: one[1])

    def left(self) -> list[tuple[Share, float]]:
        """Returns parts on which somebody may still be at work, and for how many seconds."""
        now = time.monotonic()
        return [(share, until - now) for share, until in self._until if until > now]
