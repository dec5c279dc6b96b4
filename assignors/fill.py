"""Second and third goal of the sticky assignor: few members per partition, then few moves.

The input is a bundle of equivalent partitions and the quota of each member in units. The result
assigns units of partitions to members, with few members per partition and few changes of owner.

A quota is some whole partitions and a fraction. Members whose fractions add up to whole partitions
form a group (see `grouping`). Each partition that the group shares has one member as its *anchor*:
its fraction is on this partition alone, and the rest of the partition goes to the others. With
units of a quarter and quotas of 5, 3, 2, 6 for a, b, c, d on four partitions:

    fractions   a 1, b 3, c 2, d 2        groups  {a, b}, {c, d}
    whole       a: p0    d: p3
    anchors     b: p1    c: p2
    the rest    p1: b 3, a 1              p2: c 2, d 2

Whole partitions and anchors go first to the members that owned most. Then swaps improve the
result: of members, of partitions, or of equal amounts on two partitions. A swap must keep more
with its owner and must not need more members. For small groups the result is nearly always the
minimum that can move; for large groups it is close to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from assignors.grouping import group_fractions
from assignors.swaps import better

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assignors.balance import Bundle, Due
    from assignors.swaps import Filling, Partition


def fill(bundle: Bundle, due: Due, owned: Mapping[Partition, Mapping[int, int]]) -> Filling:
    """Divide the partitions of a balanced bundle among its members.

    Args:
        bundle: The partitions.
        due: The quota of each member.
        owned: The hashes each member owned before, by partition.
    """
    mine = {
        p: {m: hashes for m, hashes in owned.get(p, {}).items() if m in due.of}
        for p in bundle.partitions
    }
    placing = _Placing(due, mine)
    placing.give_wholes()
    for group in placing.groups:
        placing.give_rest(group)
    return better(bundle, due, mine, placing.filling)


class _Placing:
    """The first filling: owners and anchors, previous owners first; then the rest."""

    def __init__(self, due: Due, owned: Mapping[Partition, Mapping[int, int]]) -> None:
        self.units = due.units
        self.owned = owned
        self.claims = sorted(
            ((hashes, p, m) for p, owners in owned.items() for m, hashes in owners.items()),
            key=lambda claim: (-claim[0], *claim[1:]),
        )
        self.home: dict[int, Partition] = {}
        for _, partition, member in self.claims:
            self.home.setdefault(member, partition)
        nowhere = ("", -1)
        self.members = sorted(due.of, key=lambda m: (self.home.get(m, nowhere), m))
        self.wholes = {m: due.of[m] // self.units for m in self.members}
        parts = {m: due.of[m] % self.units for m in self.members}
        self.fractions = {m: fraction for m, fraction in parts.items() if fraction}
        self.groups = group_fractions(self.fractions, self.units, self._nearness)
        self.group_of = {m: g for g, group in enumerate(self.groups) for m in group}
        self.anchors = [sum(self.fractions[m] for m in g) // self.units for g in self.groups]
        self.anchored: dict[int, Partition] = {}
        self.filling: Filling = {p: {} for p in owned}

    def _nearness(self, group: Sequence[int]) -> int:
        """Return how much the members of a group owned of each other's main partitions."""
        homes = {self.home[m] for m in group if m in self.home}
        return sum(sum(sorted(self.owned[p].get(m, 0) for m in group)[:-1]) for p in homes)

    def give_wholes(self) -> None:
        """Give every partition an owner or an anchor."""
        for _, partition, member in self.claims:
            if not self.filling[partition]:
                self._take(member, partition)
        empty = [partition for partition, parts in self.filling.items() if not parts][::-1]
        for member in self.members:
            while empty and self._take(member, empty[-1]):
                empty.pop()

    def _take(self, member: int, partition: Partition) -> bool:
        if self.wholes[member]:
            self.wholes[member] -= 1
            self.filling[partition][member] = self.units
            return True
        group = self.group_of.get(member)
        if group is None or member in self.anchored or not self.anchors[group]:
            return False
        self.anchors[group] -= 1
        self.anchored[member] = partition
        self.filling[partition][member] = self.fractions[member]
        return True

    def give_rest(self, group: Sequence[int]) -> None:
        """Give the rest of the anchors' partitions to the other members of a group."""
        left = {
            self.anchored[m]: self.units - self.fractions[m] for m in group if m in self.anchored
        }
        due = {m: self.fractions[m] for m in group if m not in self.anchored}
        for _, partition, member in self.claims:
            if partition in left and member in due:
                self._give(partition, left, member, due)
        for partition in left:
            for member in list(due):
                self._give(partition, left, member, due)

    def _give(
        self, partition: Partition, left: dict[Partition, int], member: int, due: dict[int, int]
    ) -> None:
        units = min(left[partition], due[member])
        if units:
            self.filling[partition][member] = units
            left[partition] -= units
            due[member] -= units
