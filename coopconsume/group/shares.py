"""Which shares a rebalance leaves with the members that work on them. Pure.

A member that joins without a hand-over *continues* with its shares. The leader leaves them with it
and names those that are to move. The member releases these once nothing of them runs any more, and
the next rebalance gives them to their new owners (KIP-429 moves partitions in the same way).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from assignors import KeyRange, Share, coverage, merge
from assignors.ranges import difference, intersection
from assignors.shares import by_partition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from commits.model import TopicPartition

    Shares = Mapping[str, tuple[Share, ...]]
    #: The key ranges of each partition, by member.
    _Places = dict[TopicPartition, dict[str, tuple[KeyRange, ...]]]


def leave_with_owners(
    wanted: Shares, owned: Shares, may_have_parts: Callable[[str, str], bool]
) -> tuple[dict[str, tuple[Share, ...]], dict[str, tuple[Share, ...]]]:
    """Leaves key ranges with the members that work on them.

    Args:
        wanted: Who is to have what in the end, of all members.
        owned: What members work on; no key range twice.
        may_have_parts: Whether a member may have parts of partitions of a topic.

    Returns:
        What each member has for now, and what of that its owner is to release.
    """
    owned = {member: shares for member, shares in owned.items() if shares}
    if not owned:
        return dict(wanted), {}
    want, have = _places(wanted), _places(owned)
    shares: dict[str, list[Share]] = {member: [] for member in wanted}
    moving: dict[str, list[Share]] = {}
    for tp in sorted(want.keys() | have.keys()):
        owners, goals = have.get(tp, {}), want.get(tp, {})
        dealt: dict[str, list[KeyRange]] = {m: list(ranges) for m, ranges in owners.items()}
        leaves = {
            member: difference(ranges, goals.get(member, ())) for member, ranges in owners.items()
        }
        free = coverage(one for ranges in owners.values() for one in ranges).holes
        for member, ranges in goals.items():
            gained = intersection(ranges, free)
            whole = merge([*gained, *owners.get(member, ())])
            if owners and gained and not whole[0].is_full and not may_have_parts(member, tp[0]):
                # Somebody must have it until the member can have the whole partition.
                member = min(owners)  # noqa: PLW2901
                leaves[member] = merge([*leaves[member], *gained])
            dealt.setdefault(member, []).extend(gained)
        for member, some in dealt.items():
            shares[member] += [Share(*tp, one) for one in merge(some)]
        for member, ranges in leaves.items():
            moving.setdefault(member, []).extend(Share(*tp, one) for one in ranges)
    return (
        {member: tuple(some) for member, some in shares.items()},
        {member: tuple(some) for member, some in moving.items() if some},
    )


def _places(shares: Shares) -> _Places:
    found: _Places = {}
    for member, some in shares.items():
        for tp, ranges in by_partition(some).items():
            found.setdefault(tp, {})[member] = ranges
    return found
