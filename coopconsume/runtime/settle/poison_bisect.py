"""Finds the record that kills the workers of a slot, by bisection of the slot's work. Pure.

If the crash journal of a dead worker names one record, that record is charged at once. If it names
several, or is missing, the slot gets the same work again. When the worker dies again, the slot gets
half of the suspected records, the lower offsets first, and so on until one record is left.
The order of keys is kept: offsets ascend, and records at work at once have different keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commits import OffsetRanges

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    ByIndex = Mapping[int, OffsetRanges]

#: Crashes in a row after which a slot gets less work.
_CRASHES = 2


class PoisonBisect:
    """The crashes of one slot, and the suspected records.

    Attributes:
        crashes: Workers that died in a row over the suspected records.
    """

    def __init__(self) -> None:
        self.crashes = 0
        self._suspects: dict[int, OffsetRanges] = {}

    def crashed(self, given: ByIndex, at_work: ByIndex | None, *, charged: bool) -> None:
        """Takes the crash of a worker of the slot.

        Args:
            given: What it might have started, by partition.
            at_work: What it was doing, if that is known.
            charged: Whether the record that did it was found and charged.
        """
        if charged or (at_work is not None and not _count(at_work)):
            self._clear()
            return
        seen = given if at_work is None else at_work
        # Earlier suspects do not narrow it: another record may have killed the worker this time.
        self._suspects = {index: offsets for index, offsets in seen.items() if offsets}
        self.crashes += 1

    def passed(self, given: ByIndex) -> None:
        """Clears the records that the slot has handled without a crash."""
        self.narrow(lambda index, offsets: offsets - given.get(index, OffsetRanges()))

    def narrow(self, left_of: Callable[[int, OffsetRanges], OffsetRanges]) -> None:
        """Drops suspects that are not left to do.

        Args:
            left_of: Returns what is left of the suspected offsets of a partition.
        """
        left = {index: left_of(index, offsets) for index, offsets in self._suspects.items()}
        self._suspects = {index: offsets for index, offsets in left.items() if offsets}
        if not self._suspects:
            self._clear()

    @property
    def has_any(self) -> bool:
        """Whether any record is suspected."""
        return bool(self._suspects)

    @property
    def allowed(self) -> dict[int, OffsetRanges] | None:
        """What the slot may get next, by partition; None: anything."""
        if self.crashes < _CRASHES:
            return None
        left = max(1, _count(self._suspects) // 2)
        chosen: dict[int, OffsetRanges] = {}
        for index, offsets in sorted(self._suspects.items()):
            taken = offsets.head(left)
            if taken:
                chosen[index] = taken
                left -= len(taken)
        return chosen

    @property
    def culprit(self) -> tuple[int, int] | None:
        """(partition, offset) of the last suspect, once enough workers have died over it."""
        if self.crashes < _CRASHES or _count(self._suspects) != 1:
            return None
        ((index, offsets),) = self._suspects.items()
        assert offsets.first is not None
        return index, offsets.first

    def _clear(self) -> None:
        self.crashes = 0
        self._suspects = {}


def _count(offsets: ByIndex) -> int:
    return sum(map(len, offsets.values()))
