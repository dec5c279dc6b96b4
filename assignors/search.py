"""Looks for the best way to deal whole partitions, in groups that are small enough to try.

`whole` deals them without knowing what can be shared out afterwards and who owned what. So from
there on one partition is dealt to somebody else, or two of different bundles are (so that who gives
one gets one back), the rest is worked out, and the cheaper result kept, until nothing is cheaper:

    a (1 slot), b (3 slots); topic s may be split, topics t and u not: all dealt one by one
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
"""Tries times partitions and members: what a search may cost. A group above it is not searched."""


def best_filling(group: Group, owned: Mapping[Partition, Mapping[int, int]]) -> Filling:
    """Divide all partitions among the members.

    Args:
        group: Members and topics.
        owned: The hashes each member owned before, by partition; members by place in the group.

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
        """Go to cheaper ways to deal until there is none or the effort is used up."""
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
        standing, kept = 0, 0.0
        for bundle, due in zip(self.work, dues, strict=True):
            for member, units in due.of.items():
                loads[member] += units / due.units
            parts = fill(bundle, due, self.owned)
            members, missed = cost(parts, due.units, self.owned)
            standing += members
            kept -= missed / due.units / FULL.size
            filling.update(parts)
        squares = sum(load**2 / slots for load, slots in zip(loads, self.slots, strict=True))
        return (round(squares, 9), standing, round(-kept, 9)), filling

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
        """Yield what one whole partition of a bundle could go from and to; None: those sharing."""
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
