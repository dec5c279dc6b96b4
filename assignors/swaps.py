"""Improves a filling of partitions by swaps, so that more of it stays with its owner.

Three kinds of swaps keep all quotas: two partitions change places, two members with the same quota
change places, or two members exchange equal amounts of two partitions:

    a, b and c have a quota of 2/3 each; b owned p1
    before    p0: a 2/3, b 1/3    p1: c 2/3, b 1/3
    after     p0: a 2/3, c 1/3    p1: b 2/3, c 1/3        (b and c changed places)

A swap is made if it needs fewer members on partitions, or as many and keeps more.
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
"""The largest number of swaps that are tried; it bounds the time for a large group."""


def better(
    bundle: Bundle, due: Due, owned: Mapping[Partition, Mapping[int, int]], filling: Filling
) -> Filling:
    """Swap until no swap improves the result, or until `TRIALS` are used up.

    Args:
        bundle: The partitions.
        due: The quota of each member.
        owned: The hashes each member owned before, by partition.
        filling: The filling to start from; it is modified.
    """
    swaps = _Swaps(bundle, due, owned, filling)
    while swaps.trials and swaps.round():
        pass
    return filling


def cost(
    filling: Filling, units: int, owned: Mapping[Partition, Mapping[int, int]]
) -> tuple[int, int]:
    """Return the members of all partitions, and the units kept times `FULL.size`, negative."""
    kept = sum(
        min(part * FULL.size, owned.get(p, {}).get(m, 0) * units)
        for p, parts in filling.items()
        for m, part in parts.items()
    )
    return sum(map(len, filling.values())), -kept


class _Swaps:
    """The state of the search for swaps."""

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
        """Try to return to every owner what it lost; return whether a swap was made."""
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
        """Return whether a member has less of a partition than it owned before."""
        has = self.filling[partition].get(member, 0)
        return (
            has * FULL.size < self.owned[partition][member] * self.units and has < self.due[member]
        )

    def _gain(self, member: int, partition: Partition) -> bool:
        """Make the first swap that gives a member more of a partition and lowers the cost."""
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
        """Yield the new contents of partitions after swaps that favour a member."""
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
