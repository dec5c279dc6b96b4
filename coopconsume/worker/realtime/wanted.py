"""The offsets of a partition that a real-time slot still has to read. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    #: First and last of each range of offsets, ascending.
    Pairs = tuple[tuple[int, int], ...]

#: The largest offset of a log.
LAST: Final = 2**63 - 1
#: The start of a slot that reads nothing before it gets chunks.
NOTHING: Final = LAST + 1


class WantedOffsets:
    """Offsets to read: all from an offset on, or those of chunks.

    Attributes:
        first: The lowest of them; `NOTHING` without any.

    Args:
        start: All offsets from here on; `NOTHING`: none.
    """

    def __init__(self, start: int = NOTHING) -> None:
        self._pairs: list[tuple[int, int]] = [] if start > LAST else [(start, LAST)]
        self.first = start

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._pairs)

    @property
    def until(self) -> int:
        """The last offset of the first range."""
        return self._pairs[0][1]

    @property
    def last(self) -> int:
        """The highest of them."""
        return self._pairs[-1][1]

    def add(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Adds ranges of offsets that are not among them."""
        for pair in pairs:
            insort(self._pairs, pair)
        self._joined()

    def _joined(self) -> None:
        """Joins ranges that touch."""
        joined: list[tuple[int, int]] = []
        for first, last in self._pairs:
            if joined and first <= joined[-1][1] + 1:
                joined[-1] = joined[-1][0], max(joined[-1][1], last)
            else:
                joined.append((first, last))
        self._pairs = joined
        self.first = joined[0][0] if joined else NOTHING

    def take(self, first: int, following: int) -> Pairs:
        """Removes the offsets of a range that was read; returns those that were wanted.

        Args:
            first: The first offset of the range.
            following: The offset after it.
        """
        if first == self.first and self._pairs and following <= self._pairs[0][1]:
            # The usual case, once for each record: the next offsets of the first range.
            self._pairs[0] = following, self._pairs[0][1]
            self.first = following
            return ((first, following - 1),) if first < following else ()
        taken: list[tuple[int, int]] = []
        left: list[tuple[int, int]] = []
        at = max(0, bisect_left(self._pairs, (first,)) - 1)
        end = at
        while end < len(self._pairs) and self._pairs[end][0] < following:
            low, high = self._pairs[end]
            end += 1
            inside = max(low, first), min(high, following - 1)
            if inside[0] > inside[1]:
                left.append((low, high))
                continue
            taken.append(inside)
            left += [(low, first - 1)] * (low < first) + [(following, high)] * (following <= high)
        self._pairs[at:end] = left
        self.first = self._pairs[0][0] if self._pairs else NOTHING
        return tuple(taken)
