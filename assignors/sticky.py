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
from math import fsum
from typing import TYPE_CHECKING, NamedTuple

from assignors.contract import KeyRangeAssignor, Share
from assignors.layout import lay_out
from assignors.ranges import FULL, KeyRange, coverage, merge
from assignors.search import best_filling

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from assignors.contract import Group, Member

    Ownership = dict[tuple[str, int], dict[int, tuple[KeyRange, ...]]]


class StickyKeyRangeAssignor(KeyRangeAssignor):
    """Balances the hash space over all slots and moves as little of it as that allows."""

    name = "key-range-sticky"

    def _shares(self, group: Group) -> Iterator[tuple[str, Share]]:
        owned = _owned(group)
        found = _divide(group, owned)
        before = _as_it_was(group, owned)
        # What is found need not be the very best, so what is as good already must not be moved.
        if before and sticky_cost(group.members, before) <= sticky_cost(group.members, found):
            found = before
        for member_id, shares in found.items():
            for share in shares:
                yield member_id, share


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
    squares: list[float] = []
    moved: list[float] = []
    standing = 0
    for member in members:
        owned, has = _by_partition(member.owned), _by_partition(assignment[member.id])
        standing += len(has)
        total = sum(_size(ranges) for ranges in has.values())
        kept = sum(
            _size(ranges) + _size(owned[p]) - _size(merge([*ranges, *owned[p]]))
            for p, ranges in has.items()
            if p in owned
        )
        squares.append((total / FULL.size) ** 2 / member.slots)
        moved.append((total - kept) / FULL.size)
    return StickyCost(round(fsum(squares), 9), standing, round(fsum(moved), 9))


def _divide(group: Group, owned: Ownership) -> dict[str, list[Share]]:
    sizes = {
        partition: {member: _size(ranges) for member, ranges in owners.items()}
        for partition, owners in owned.items()
    }
    shares: dict[str, list[Share]] = {member.id: [] for member in group.members}
    for partition, parts in best_filling(group, sizes).items():
        laid_out = lay_out(dict(sorted(parts.items())), owned.get(partition, {}))
        for member, ranges in laid_out.items():
            shares[group.members[member].id] += [Share(*partition, each) for each in ranges]
    return shares


def _as_it_was(group: Group, owned: Ownership) -> dict[str, list[Share]] | None:
    """Return what members own already, if that is a valid assignment."""
    shares: dict[str, list[Share]] = {member.id: [] for member in group.members}
    for topic, count in group.topics.items():
        for partition in range(count):
            owners = owned.get((topic, partition), {})
            if not coverage(each for ranges in owners.values() for each in ranges).is_exact:
                return None
            allowed = group.may_be_shared(topic) and all(
                group.members[member].allow_key_share for member in owners
            )
            if len(owners) > 1 and not allowed:
                return None
            for member, ranges in owners.items():
                mine = [Share(topic, partition, each) for each in ranges]
                shares[group.members[member].id] += mine
    return shares


def _owned(group: Group) -> Ownership:
    """Return what members owned of partitions that they still may have, by place in the group."""
    found: Ownership = {}
    for place, member in enumerate(group.members):
        topics = set(member.topics) if member.owned else set()
        for (topic, partition), ranges in _by_partition(member.owned).items():
            if topic in topics and partition < group.topics.get(topic, 0):
                found.setdefault((topic, partition), {})[place] = ranges
    return found


def _by_partition(shares: Iterable[Share]) -> dict[tuple[str, int], tuple[KeyRange, ...]]:
    found: defaultdict[tuple[str, int], list[KeyRange]] = defaultdict(list)
    for share in shares:
        found[share.topic, share.partition].append(share.key_range)
    return {partition: merge(ranges) for partition, ranges in found.items()}


def _size(ranges: Iterable[KeyRange]) -> int:
    return sum(each.size for each in ranges)
