"""Searches for the best assignment of whole partitions, in groups that are small enough.

`whole` assigns them without regard to what can be shared afterwards and to previous owners. From
there the search moves one partition to another member, or two of different bundles (so that the
giver of one gets one back), computes the rest, and keeps the cheaper result until none is cheaper:

    a (1 slot), b (3 slots); topic s may be split, topics t and u not; `whole` assigns one by one
    begin       a: t        b: u, all of s            squares 1 + 4/3
    better      a: s 3/4    b: t, u, s 1/4            squares 9/16 + 27/16: balanced
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from assignors.balance import balance, bundles
from assignors.fill import fill
from assignors.ranges import FULL
from assignors.swaps import cost
from assignors.whole import deal_wholes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from assignors.balance import Bundle, Wholes
    from assignors.contract import Group
    from assignors.swaps import Filling, Partition

    Cost = tuple[float, int, float]

EFFORT = 6_000
"""Limit of tries times partitions and members. Larger groups are not searched."""


def best_filling(group: Group, owned: Mapping[Partition, Mapping[int, int]]) -> Filling:
    """Divide all partitions among the members.

    Args:
        group: Members and topics.
        owned: The hashes each member owned before, by partition; members by index in the group.

    Returns:
        For each partition the units of its members.
    """
    work = bundles(group)
    for bundle in work:
        for partition in bundle.partitions:
            bundle.owned.update(owned.get(partition, {}))
    search = _Search(work, [member.slots for member in group.members], owned)
    search.run()
    return search.filling


class _Search:
    def __init__(
        self,
        work: Sequence[Bundle],
        slots: Sequence[int],
        owned: Mapping[Partition, Mapping[int, int]],
    ) -> None:
        self.work = work
        self.slots = slots
        self.owned = owned
        self.wholes = deal_wholes(work, slots)
        self.cost, self.filling = self._work_out(self.wholes)

    def run(self) -> None:
        """Go to cheaper assignments until none is cheaper or the effort is used up."""
        size = len(self.slots) + sum(len(bundle.partitions) for bundle in self.work)
        tries = EFFORT // max(1, size)
        improved = True
        while improved and tries > 0:
            improved = False
            for wholes in self._other_ways():
                tries -= 1
                cost, filling = self._work_out(wholes)
                improved = cost < self.cost
                if improved:
                    self.wholes, self.cost, self.filling = wholes, cost, filling
                if improved or tries <= 0:
                    break

    def _work_out(self, wholes: Wholes) -> tuple[Cost, Filling]:
        dues = balance(self.work, wholes, self.slots)
        loads = [0.0] * len(self.slots)
        filling: Filling = {}
        member_count, kept = 0, 0.0
        for bundle, due in zip(self.work, dues, strict=True):
            for member, units in due.of.items():
                loads[member] += units / due.units
            parts = fill(bundle, due, self.owned)
            count, missed = cost(parts, due.units, self.owned)
            member_count += count
            kept -= missed / due.units / FULL.size
            filling.update(parts)
        squares = sum(load**2 / slots for load, slots in zip(loads, self.slots, strict=True))
        return (round(squares, 9), member_count, round(-kept, 9)), filling

    def _other_ways(self) -> Iterator[Wholes]:
        for gift in self._gifts():
            yield self._deal(gift)
        gifts = list(self._gifts())
        for i, (bundle, giver, taker) in enumerate(gifts):
            for other in gifts[i + 1 :]:
                if other[0] != bundle and (
                    other[2] == giver or other[1] == taker or None in (giver, taker, *other[1:])
                ):
                    yield self._deal((bundle, giver, taker), other)

    def _gifts(self) -> Iterator[tuple[int, int | None, int | None]]:
        """Yield bundle, giver and taker of each possible move; None stands for the sharers."""
        for i, bundle in enumerate(self.work):
            left = len(bundle.partitions) - self.wholes[i].total()
            for giver in bundle.takers:
                if left if giver is None else self.wholes[i][giver]:
                    for taker in bundle.takers:
                        if taker != giver:
                            yield i, giver, taker

    def _deal(self, *gifts: tuple[int, int | None, int | None]) -> Wholes:
        wholes = [each.copy() for each in self.wholes]
        for i, giver, taker in gifts:
            if giver is not None:
                wholes[i][giver] -= 1
            if taker is not None:
                wholes[i][taker] += 1
        return [+each for each in wholes]
