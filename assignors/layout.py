"""The key ranges of the members of one partition.

Every member first keeps as much of its previous ranges as its quota allows; it gives up parts next
to ranges that are free already. Then the other members take free ranges, adjacent ones first. With
a and b on half each when c joins:

    before      a [0, 1/2)                     b [1/2, 1)
    kept        a [0, 1/3)                     b [2/3, 1)
    after       a [0, 1/3)    c [1/3, 2/3)     b [2/3, 1)

A member may have several ranges if that moves least. With more than `MOST_RANGES` per member of a
partition on average, the space is laid out again with one range for each member.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from typing import TYPE_CHECKING

from assignors.ranges import FULL, KeyRange, merge

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_RANGES = 4
"""The largest number of ranges per member of a partition, on average."""


def lay_out(
    parts: Mapping[int, int], owned: Mapping[int, Sequence[KeyRange]]
) -> dict[int, tuple[KeyRange, ...]]:
    """Assign key ranges to the members of a partition.

    Args:
        parts: The quota of each member in units, in order, from 1; the sum is the partition.
        owned: The ranges members had before; several may claim the same hash.

    Returns:
        The ranges of every member, in order, without adjacent ones. All ranges together cover
        the hash space exactly once. A member with a quota of k of n units gets k/n of the hash
        space, to within one hash.
    """
    if len(parts) == 1:
        return dict.fromkeys(parts, (FULL,))
    before = {m: merge(owned.get(m, ())) for m in parts}
    due = _sizes(parts, {m: sum(r.size for r in ranges) for m, ranges in before.items()})
    ranges = _Free.divide(due, before)
    if sum(map(len, ranges.values())) > MOST_RANGES * len(parts):
        in_order = {m: due[m] for m in sorted(parts, key=lambda m: ranges[m][0])}
        return _Free.divide(in_order, dict.fromkeys(parts, ()))
    return ranges


def _sizes(parts: Mapping[int, int], before: Mapping[int, int]) -> dict[int, int]:
    """Convert units to hashes; the remainder of the rounding goes to previous owners first."""
    units = sum(parts.values())
    sizes = {m: FULL.size * part // units for m, part in parts.items()}
    left = FULL.size - sum(sizes.values())
    for member in sorted(parts, key=lambda m: before[m] <= sizes[m])[:left]:
        sizes[member] += 1
    return sizes


_SIZE = attrgetter("size")
_LAST = attrgetter("last")


class _Free:
    """The free hashes of a partition and the ranges that members have."""

    def __init__(self, due: Mapping[int, int]) -> None:
        self.ranges: list[KeyRange] = [FULL]  # in order, without touching each other
        self.has: dict[int, list[KeyRange]] = {member: [] for member in due}
        self.missing = dict(due)

    @classmethod
    def divide(
        cls, due: Mapping[int, int], before: Mapping[int, Sequence[KeyRange]]
    ) -> dict[int, tuple[KeyRange, ...]]:
        free = cls(due)
        for member in due:
            for key_range in before[member]:
                free.take(member, key_range)
        in_place = sorted(due, key=lambda m: tuple(before[m][:1]))
        for member in in_place:
            free.give_up(member)
        for member in in_place:
            free.grow(member)
        for member in due:
            free.fill(member)
        return {member: merge(ranges) for member, ranges in free.has.items()}

    def take(self, member: int, wanted: KeyRange) -> None:
        """Give a member the free part of a range."""
        begin = end = self._at(wanted.first)
        left: list[KeyRange] = []
        while end < len(self.ranges) and (common := self.ranges[end].intersect(wanted)):
            free = self.ranges[end]
            self.has[member].append(common)
            self.missing[member] -= common.size
            if free.first < common.first:
                left.append(KeyRange(free.first, common.first - 1))
            if common.last < free.last:
                left.append(KeyRange(common.last + 1, free.last))
            end += 1
        self.ranges[begin:end] = left

    def give_up(self, member: int) -> None:
        """Free the surplus of a member: its smallest ranges, then an end of the next one."""
        for each in sorted(self.has[member], key=_SIZE):
            surplus = min(-self.missing[member], each.size)
            if surplus <= 0:
                return
            self.has[member].remove(each)
            if surplus == each.size:
                freed = each
            elif self._is_free(each.first - 1):
                freed = KeyRange(each.first, each.first + surplus - 1)
                self.has[member].append(KeyRange(freed.last + 1, each.last))
            else:
                freed = KeyRange(each.last - surplus + 1, each.last)
                self.has[member].append(KeyRange(each.first, freed.first - 1))
            self.missing[member] += surplus
            at = self._at(freed.first)
            around = slice(max(at - 1, 0), at + 1)
            self.ranges[around] = merge([*self.ranges[around], freed])

    def grow(self, member: int) -> None:
        """Give a member free hashes that are adjacent to its ranges."""
        for each in merge(self.has[member]):
            for beside in (each.last + 1, each.first - 1):
                if self.missing[member] and self._is_free(beside):
                    free = self.ranges[self._at(beside)]
                    size = min(self.missing[member], free.size)
                    above = beside > each.last
                    first = free.first if above else free.last - size + 1
                    self.take(member, KeyRange(first, first + size - 1))

    def fill(self, member: int) -> None:
        """Give a member what it lacks, from the smallest free range that is large enough."""
        free = sorted(self.ranges, key=_SIZE) if self.missing[member] else []
        while self.missing[member]:
            at = bisect_left(free, self.missing[member], key=_SIZE)
            best = free.pop(min(at, len(free) - 1))
            size = min(self.missing[member], best.size)
            self.take(member, KeyRange(best.first, best.first + size - 1))

    def _at(self, key_hash: int) -> int:
        """Return the index of the free range that contains a hash, or of the next one."""
        return bisect_left(self.ranges, key_hash, key=_LAST)

    def _is_free(self, key_hash: int) -> bool:
        at = self._at(key_hash)
        return at < len(self.ranges) and self.ranges[at].contains(key_hash)
