"""The default assignor: balanced first, then few members per partition, then few moves.

It has three goals. An earlier goal takes precedence (`sticky_cost` measures them):

1. The work is balanced over the slots of the group.
2. A partition has few members, because each of them reads the whole partition to keep its part.
3. As little hash space as possible moves to another owner.

Two members share one partition, then a third one joins:

    a [0, 1/2)    b [1/2, 1)            a [0, 1/3)    c [1/3, 2/3)    b [2/3, 1)

Each step is one module. `whole` assigns what cannot be split. `balance` computes the quota of each
member by topic. `fill` chooses the partitions, with `grouping` for few members on each and `swaps`
for few moves. `search` tries other assignments of whole partitions. `layout` chooses the key
ranges.
"""

from __future__ import annotations

from math import fsum
from typing import TYPE_CHECKING, NamedTuple

from assignors.contract import KeyRangeAssignor
from assignors.layout import lay_out
from assignors.ranges import FULL, KeyRange, coverage, merge
from assignors.search import best_filling
from assignors.shares import Share, by_partition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from assignors.contract import Group, Member

    Ownership = dict[tuple[str, int], dict[int, tuple[KeyRange, ...]]]


class StickyKeyRangeAssignor(KeyRangeAssignor):
    """Balances the hash space over all slots and moves as little of it as possible."""

    name = "key-range-sticky"

    def _shares(self, group: Group) -> Iterator[tuple[str, Share]]:
        owned = _owned(group)
        found = _divide(group, owned)
        before = _as_it_was(group, owned)
        # The search is not exhaustive: an equally good previous assignment must not move.
        if before and sticky_cost(group.members, before) <= sticky_cost(group.members, found):
            found = before
        for member_id, shares in found.items():
            for share in shares:
                yield member_id, share


class StickyCost(NamedTuple):
    """The distance of an assignment from its goals; smaller is better, earlier fields first.

    Attributes:
        imbalance: Sum over all slots of the squared work of a slot, in partitions.
        members: The number of members of each partition, summed over all partitions.
        moved: Hash space, in partitions, whose owner changed.
    """

    imbalance: float
    members: int
    moved: float


def sticky_cost(members: Sequence[Member], assignment: Mapping[str, Iterable[Share]]) -> StickyCost:
    """Measure an assignment by the goals of the sticky assignor.

    Args:
        members: The members, with their slots and previous shares.
        assignment: The shares of each member.

    Returns:
        The cost. Fractions are rounded to 9 digits, so that a rounding to whole hashes does not
        count.
    """
    squares: list[float] = []
    moved: list[float] = []
    member_count = 0
    for member in members:
        owned, has = by_partition(member.owned), by_partition(assignment[member.id])
        member_count += len(has)
        total = sum(_size(ranges) for ranges in has.values())
        kept = sum(
            _size(ranges) + _size(owned[p]) - _size(merge([*ranges, *owned[p]]))
            for p, ranges in has.items()
            if p in owned
        )
        squares.append((total / FULL.size) ** 2 / member.slots)
        moved.append((total - kept) / FULL.size)
    return StickyCost(round(fsum(squares), 9), member_count, round(fsum(moved), 9))


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
    """Return the previous assignment if it is valid now."""
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
    """Return previous shares of partitions that are still assignable, by index in the group."""
    found: Ownership = {}
    for place, member in enumerate(group.members):
        topics = set(member.topics) if member.owned else set()
        for (topic, partition), ranges in by_partition(member.owned).items():
            if topic in topics and partition < group.topics.get(topic, 0):
                found.setdefault((topic, partition), {})[place] = ranges
    return found


def _size(ranges: Iterable[KeyRange]) -> int:
    return sum(each.size for each in ranges)
