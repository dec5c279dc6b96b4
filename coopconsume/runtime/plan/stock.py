"""What a member of a cooperative epoch has acquired of a partition. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from commits import OffsetRanges
from commits.offsets import MAX_OFFSET

if TYPE_CHECKING:
    from coopconsume.runtime.plan.waiting import Waiting

_NOTHING = OffsetRanges()


@dataclass
class Stock:
    """What a member has acquired of a partition and has no outcome of.

    Attributes:
        acquired: The offsets that this member holds and has no outcome of.
        undealt: Those of them that no slot has.
        failing: Offsets that have failed, and whose failure is not in the commit log: they are
            held until it is.
        parked: Records of the partition that wait for a decision, as the commit log had them.
        pending: How many records of the partition have failed and wait, by any member.
    """

    acquired: OffsetRanges = field(default_factory=OffsetRanges)
    undealt: OffsetRanges = field(default_factory=OffsetRanges)
    failing: OffsetRanges = field(default_factory=OffsetRanges)
    pending: int = 0
    parked: list[Waiting] = field(default_factory=list)

    def add(self, offsets: OffsetRanges) -> None:
        """Takes offsets that are acquired and that no slot has."""
        self.acquired |= offsets
        self.undealt |= offsets

    def take(self, count: int) -> OffsetRanges:
        """Returns the next offsets for a slot, at most so many."""
        taken = self.undealt.head(count)
        self.undealt -= taken
        return taken

    def settle(self, done: OffsetRanges, failed: OffsetRanges = _NOTHING) -> None:
        """Notes outcomes: offsets that are done, and offsets that have failed."""
        self.acquired = self.acquired - done - failed
        self.undealt -= done
        self.failing = (self.failing | failed) - done

    def keep(self, held: OffsetRanges) -> OffsetRanges:
        """Forgets what this member does not hold any more.

        Args:
            held: What it holds, as the commit log says.

        Returns:
            What of that has no outcome here and is new to it.
        """
        new = held - self.acquired - self.failing
        self.acquired &= held
        self.undealt &= held
        self.failing &= held
        return new

    def forget_below(self, stable: int) -> None:
        """Nothing below the stable offset is left to do."""
        self.acquired = self.acquired.clip(stable, MAX_OFFSET)
        self.undealt = self.undealt.clip(stable, MAX_OFFSET)
        self.failing = self.failing.clip(stable, MAX_OFFSET)
