"""Betters a filling of partitions by swaps, so that more of it stays with its owner.

Three kinds of swaps leave everybody what they are due: two partitions change places, two members
that are due the same do, or one member gives another so much of a partition as it gets from it of
another partition:

    a, b and c are due 2/3 each; b owned p1
    before    p0: a 2/3, b 1/3    p1: c 2/3, b 1/3
    after     p0: a 2/3, c 1/3    p1: b 2/3, c 1/3        (b and c changed places)

A swap is made if more is kept and no more members stand on partitions than before, or fewer do.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from assignors.ranges import FULL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from assignors.balance import Bundle, Due

Partition = tuple[str, int]
Filling = dict[Partition, dict[int, int]]
"""For each partition the units of its members."""

TRIALS = 20_000
"""So many swaps are tried at most, which bounds the time for a large group."""


def better(
    bundle: Bundle, due: Due, owned: Mapping[Partition, Mapping[int, int]], filling: Filling
) -> Filling:
    """Swap until nothing gets better, or until `TRIALS` are used up.

    Args:
        bundle: The partitions.
        due: What each member is due of them.
        owned: The hashes each member owned before, by partition.
        filling: Where to begin; it is changed.
    """
    swaps = _Swaps(bundle, due, owned, filling)
    while swaps.trials and swaps.round():
        pass
    return filling


def cost(
    filling: Filling, units: int, owned: Mapping[Partition, Mapping[int, int]]
) -> tuple[int, int]:
    """Measure partitions: members standing on them, then units kept times `FULL.size`, negative."""
    kept = sum(
        min(part * FULL.size, owned.get(p, {}).get(m, 0) * units)
        for p, parts in filling.items()
        for m, part in parts.items()
    )
    return sum(map(len, filling.values())), -kept


class _Swaps:
    """A filling on its way to the better."""

    def __init__(
        self,
        bundle: Bundle,
        due: Due,
        owned: Mapping[Partition, Mapping[int, int]],
        filling: Filling,
    ) -> None:
        self.units = due.units
        self.due = due.of
        self.sharers = set(bundle.sharers)
        self.owned = owned
        self.filling = filling
        self.trials = TRIALS
        self.held: defaultdict[int, set[Partition]] = defaultdict(set)
        for partition, parts in filling.items():
            for member in parts:
                self.held[member].add(partition)

    def round(self) -> bool:
        """Try to give every owner back what it misses; return whether anything got better."""
        better = False
        for partition, owners in self.owned.items():
            for member in sorted(owners):
                while (
                    self.trials
                    and self._misses(member, partition)
                    and self._gain(member, partition)
                ):
                    better = True
        return better

    def _misses(self, member: int, partition: Partition) -> bool:
        """Whether a member has less of a partition than it owned before."""
        has = self.filling[partition].get(member, 0)
        return (
            has * FULL.size < self.owned[partition][member] * self.units and has < self.due[member]
        )

    def _gain(self, member: int, partition: Partition) -> bool:
        """Make the first swap that gives a member more of a partition and is better in all."""
        for change in self._changes(member, partition):
            self.trials -= 1
            before = {p: self.filling[p] for p in change}
            if cost(change, self.units, self.owned) < cost(before, self.units, self.owned):
                for p, parts in change.items():
                    for m in self.filling[p].keys() - parts.keys():
                        self.held[m].discard(p)
                    for m in parts:
                        self.held[m].add(p)
                    self.filling[p] = parts
                return True
            if not self.trials:
                break
        return False

    def _changes(self, member: int, partition: Partition) -> Iterator[Filling]:
        """Yield swaps after which a member has more of a partition, as new contents."""
        here = self.filling[partition]
        others = [other for other in sorted(here) if other != member]
        elsewhere = sorted(self.held[member] - {partition})
        for there in elsewhere:
            yield {partition: self.filling[there], there: here}
        for other in others:
            if self.due[other] == self.due[member] and self._alike(member, other):
                yield {
                    p: _swap_names(self.filling[p], member, other)
                    for p in self.held[member] | self.held[other]
                }
        for there in elsewhere:
            for other in others:
                units = min(here[other], self.filling[there][member])
                if units == self.units or {member, other} <= self.sharers:
                    yield {
                        partition: _move(here, other, member, units),
                        there: _move(self.filling[there], member, other, units),
                    }

    def _alike(self, a: int, b: int) -> bool:
        return (a in self.sharers) == (b in self.sharers)


def _swap_names(parts: Mapping[int, int], a: int, b: int) -> dict[int, int]:
    names = {a: b, b: a}
    return {names.get(m, m): units for m, units in parts.items()}


def _move(parts: Mapping[int, int], giver: int, taker: int, units: int) -> dict[int, int]:
    moved = {**parts, giver: parts[giver] - units, taker: parts.get(taker, 0) + units}
    return {m: left for m, left in moved.items() if left}
