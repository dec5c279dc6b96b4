"""The offsets of a partition that a member of a cooperative epoch has acquired. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from commits import OffsetRanges
from commits.offsets import MAX_OFFSET

if TYPE_CHECKING:
    from coopconsume.group.owned import Failed

_NOTHING = OffsetRanges()
#: What is smaller than this part of what is taken is a tail.
_TAIL: Final = 4


@dataclass
class Stock:
    """The acquired offsets of a partition that have no outcome yet.

    Attributes:
        acquired: The offsets that this member holds and that have no outcome.
        undealt: Those of them that no slot has.
        failing: Offsets that have failed; they are held until the failure is in the commit log.
        parked: Records of the partition that wait for a decision, as of the last read of the log.
        pending: How many records of the partition are pending, of all members.
        leads: As in `Owned`.
    """

    acquired: OffsetRanges = field(default_factory=OffsetRanges)
    undealt: OffsetRanges = field(default_factory=OffsetRanges)
    failing: OffsetRanges = field(default_factory=OffsetRanges)
    pending: int = 0
    parked: list[Failed] = field(default_factory=list)
    leads: bool = False

    def add(self, offsets: OffsetRanges) -> None:
        """Adds newly acquired offsets."""
        self.acquired |= offsets
        self.undealt |= offsets

    def below(self, end: int) -> OffsetRanges:
        """Returns the offsets that no slot has, up to the end of the log."""
        return self.undealt.clip(0, end - 1)

    def take(self, count: int, end: int = MAX_OFFSET) -> OffsetRanges:
        """Returns the next offsets for a slot, at most so many, all of them below an end."""
        taken = self.below(end).head(count)
        self.undealt -= taken
        return taken

    def settle(self, done: OffsetRanges, failed: OffsetRanges = _NOTHING) -> None:
        """Notes the offsets that are done, and those that have failed."""
        self.acquired = self.acquired - done - failed
        self.undealt -= done
        self.failing = (self.failing | failed) - done

    def keep(self, acquired: OffsetRanges) -> OffsetRanges:
        """Keeps only offsets that this member holds.

        Args:
            acquired: The offsets that it has acquired, as the commit log says.

        Returns:
            Those of them that are new here.
        """
        new = acquired - self.acquired - self.failing
        self.acquired &= acquired
        self.undealt &= acquired
        self.failing &= acquired
        return new

    def forget_below(self, stable: int) -> None:
        """Forgets the offsets below the stable offset."""
        self.acquired = self.acquired.clip(stable, MAX_OFFSET)
        self.undealt = self.undealt.clip(stable, MAX_OFFSET)
        self.failing = self.failing.clip(stable, MAX_OFFSET)


def with_tail(count: int, most: int) -> int:
    """Returns how many of some offsets to take: all of them, if only a tail would be left.

    A tail would take a batch of its own, which costs as much as many records.

    Args:
        count: How many are wanted.
        most: How many there are.
    """
    return most if most <= count + count // _TAIL else count
