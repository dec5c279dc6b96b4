"""Which record ends a slot's workers: found by halving what it may start. Pure.

A worker that dies takes all that it knew with it. If what it left behind names one record, that
one is charged at once. If there are several, or nothing is known, the slot gets its work once more
as it was; when its worker dies again, it is given one half of what is suspected, the lower offsets
first, then a half of what remains, until one record is alone. As offsets go up, and records that
were at work together are of different keys, the order of keys is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commits import OffsetRanges

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Parts = Mapping[int, OffsetRanges]

#: Crashes in a row from which on a slot gets less.
_CRASHES = 2


class PoisonBisect:
    """What is known of the crashes of one slot.

    Attributes:
        crashes: Workers lost in a row over what is suspected now.
    """

    def __init__(self) -> None:
        self.crashes = 0
        self._suspects: dict[int, OffsetRanges] = {}

    def crashed(self, given: Parts, at_work: Parts | None, *, charged: bool) -> None:
        """A worker of the slot has ended.

        Args:
            given: What it might have started, by partition.
            at_work: What it was doing, if that is known.
            charged: Whether the record that did it was found and charged.
        """
        if charged or (at_work is not None and not _count(at_work)):
            self._clear()
            return
        seen = given if at_work is None else at_work
        # Not narrowed by earlier suspects: what it died of now need not be what it died of then.
        self._suspects = {part: offsets for part, offsets in seen.items() if offsets}
        self.crashes += 1

    def passed(self, given: Parts) -> None:
        """The slot came through with these."""
        self.narrow(lambda part, offsets: offsets - given.get(part, OffsetRanges()))

    def narrow(self, left_of: Callable[[int, OffsetRanges], OffsetRanges]) -> None:
        """Suspects only what is left.

        Args:
            left_of: Returns what is left of the suspected offsets of a partition.
        """
        left = {part: left_of(part, offsets) for part, offsets in self._suspects.items()}
        self._suspects = {part: offsets for part, offsets in left.items() if offsets}
        if not self._suspects:
            self._clear()

    @property
    def has_any(self) -> bool:
        """Whether any record is suspected."""
        return bool(self._suspects)

    @property
    def allowed(self) -> dict[int, OffsetRanges] | None:
        """What the slot may be given next, by partition; None: anything."""
        if self.crashes < _CRASHES:
            return None
        left = max(1, _count(self._suspects) // 2)
        chosen: dict[int, OffsetRanges] = {}
        for part, offsets in sorted(self._suspects.items()):
            taken = _lowest(offsets, left)
            if taken:
                chosen[part] = taken
                left -= len(taken)
        return chosen

    @property
    def culprit(self) -> tuple[int, int] | None:
        """(partition, offset) of the only one that is left after crashes enough."""
        if self.crashes < _CRASHES or _count(self._suspects) != 1:
            return None
        ((part, offsets),) = self._suspects.items()
        assert offsets.first is not None
        return part, offsets.first

    def _clear(self) -> None:
        self.crashes = 0
        self._suspects = {}


def _count(parts: Parts) -> int:
    return sum(len(offsets) for offsets in parts.values())


def _lowest(offsets: OffsetRanges, count: int) -> OffsetRanges:
    pairs: list[tuple[int, int]] = []
    for first, last in offsets:
        if count <= 0:
            break
        pairs.append((first, min(last, first + count - 1)))
        count -= pairs[-1][1] - first + 1
    return OffsetRanges(pairs)
