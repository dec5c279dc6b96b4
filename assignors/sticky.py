"""The default assignor: balanced, then few members a partition, then little moved.

Its goals in order, each only as far as those before allow (`sticky_cost` measures them):

1. the work is balanced over the slots of the group;
2. few members stand on a partition, as each of them reads the whole of it to keep its part;
3. as little hash space as possible goes to another member than the one that owned it.

Two members on one partition, then a third one:

    a [0, 1/2)    b [1/2, 1)            a [0, 1/3)    c [1/3, 2/3)    b [2/3, 1)

The steps, one module each: `whole` deals what cannot be split, `balance` says how much of which
topics each member is due, `fill` on which partitions (`grouping` for few members on each, `swaps`
for little moved), `search` goes back and tries other wholes, `layout` says where in the hash space.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from assignors.contract import KeyRangeAssignor, Share
from assignors.layout import lay_out
from assignors.ranges import FULL, KeyRange, merge
from assignors.search import best_filling

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from assignors.contract import Group, Member


class StickyKeyRangeAssignor(KeyRangeAssignor):
    """Balances the hash space over all slots and moves as little of it as that allows."""

    name = "key-range-sticky"

    def _shares(self, group: Group) -> Iterator[tuple[str, Share]]:
        owned = _owned(group)
        sizes = {
            partition: {member: _size(ranges) for member, ranges in owners.items()}
            for partition, owners in owned.items()
        }
        for partition, parts in best_filling(group, sizes).items():
            ranges_of = lay_out(dict(sorted(parts.items())), owned.get(partition, {}))
            for member, ranges in ranges_of.items():
                for key_range in ranges:
                    yield group.members[member].id, Share(*partition, key_range)


class StickyCost(NamedTuple):
    """How far an assignment is from its goals; smaller is better, earlier fields first.

    Attributes:
        imbalance: Sum over all slots of the squared work of a slot, in partitions.
        members: For all partitions together, how many members stand on them.
        moved: Hash space, in partitions, that is not with a member that owned it before.
    """

    imbalance: float
    members: int
    moved: float


def sticky_cost(members: Sequence[Member], assignment: Mapping[str, Iterable[Share]]) -> StickyCost:
    """Measure an assignment by the goals of the sticky assignor.

    Args:
        members: The members, with their slots and with what they owned.
        assignment: The shares of each member.

    Returns:
        The cost, its fractions rounded to 9 digits so that cuts that fall between two hashes do
        not count.
    """
    imbalance = moved = 0.0
    standing: set[tuple[str, str, int]] = set()
    for member in members:
        owned: defaultdict[tuple[str, int], list[KeyRange]] = defaultdict(list)
        for share in member.owned:
            owned[share.topic, share.partition].append(share.key_range)
        kept = total = 0
        for share in assignment[member.id]:
            standing.add((member.id, share.topic, share.partition))
            total += share.key_range.size
            for before in merge(owned[share.topic, share.partition]):
                common = before.intersect(share.key_range)
                kept += common.size if common else 0
        imbalance += (total / FULL.size) ** 2 / member.slots
        moved += (total - kept) / FULL.size
    return StickyCost(round(imbalance, 9), len(standing), round(moved, 9))


def _owned(group: Group) -> dict[tuple[str, int], dict[int, tuple[KeyRange, ...]]]:
    """Return what members owned of partitions that they still may have, by place in the group."""
    found: dict[tuple[str, int], defaultdict[int, list[KeyRange]]] = {}
    for place, member in enumerate(group.members):
        topics = set(member.topics) if member.owned else set()
        for share in member.owned:
            if share.topic in topics and share.partition < group.topics.get(share.topic, 0):
                owners = found.setdefault((share.topic, share.partition), defaultdict(list))
                owners[place].append(share.key_range)
    return {
        partition: {place: merge(ranges) for place, ranges in owners.items()}
        for partition, owners in found.items()
    }


def _size(ranges: Iterable[KeyRange]) -> int:
    return sum(each.size for each in ranges)
