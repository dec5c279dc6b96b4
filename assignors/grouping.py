"""Groups of members whose fractions of a partition add up to whole partitions.

A group of m members that shares whole partitions needs m - 1 cuts, so more groups need fewer cuts.
With fractions counted in quarters:

    a 1, b 3, c 2, d 2    ->    {a, b}, {c, d}        2 cuts, not 3

For up to `EXACT` members the algorithm tries all groupings and finds the largest number of groups;
among several solutions it prefers members that were together before. Above that it groups members
with equal fractions first, then pairs that fill a partition, then runs. With equal slots this
gives the largest number as well.
"""

from __future__ import annotations

from collections import defaultdict
from math import gcd
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

EXACT = 9
"""The largest number of members for which all groupings are tried: 3**9 / 2 steps."""


def group_fractions(
    fractions: Mapping[int, int], units: int, nearness: Callable[[Sequence[int]], int]
) -> list[list[int]]:
    """Divide members into groups whose fractions add up to whole partitions.

    Args:
        fractions: The fraction of each member, from 1 to ``units - 1``, related members adjacent
            to each other; the sum is a multiple of `units`.
        units: The number of units of a partition.
        nearness: Returns how well the members of a group fit together; more is better.
    """
    members = list(fractions)
    if len(members) <= EXACT:
        return _all_ways(members, fractions, units, nearness)
    groups: list[list[int]] = []
    left: set[int] = set()
    alike: defaultdict[int, list[int]] = defaultdict(list)
    for member, fraction in fractions.items():
        alike[fraction].append(member)
    for fraction, same in alike.items():
        size = units // gcd(units, fraction)
        whole = len(same) - len(same) % size
        groups += [same[i : i + size] for i in range(0, whole, size)]
        alike[fraction] = same[whole:]
    for fraction, same in alike.items():
        others = alike.get(units - fraction, [])
        while same and others and same is not others:
            groups.append([same.pop(), others.pop()])
        left.update(same)
    run: list[int] = []
    total = 0
    for member in (member for member in members if member in left):
        run.append(member)
        total += fractions[member]
        if total % units == 0:
            groups.append(run)
            run = []
    return groups


def _all_ways(
    members: Sequence[int],
    fractions: Mapping[int, int],
    units: int,
    nearness: Callable[[Sequence[int]], int],
) -> list[list[int]]:
    size = 1 << len(members)
    subsets = [[m for i, m in enumerate(members) if mask >> i & 1] for mask in range(size)]
    whole = [sum(fractions[m] for m in subset) % units == 0 for subset in subsets]
    near = [nearness(subset) if fits else 0 for subset, fits in zip(subsets, whole, strict=True)]
    best: list[tuple[int, int, int]] = [(0, 0, 0)] * size
    for mask in range(1, size):
        if not whole[mask]:
            continue
        lowest = mask & -mask
        ways = [(1, near[mask], mask)]
        part = (mask - 1) & mask
        while part:
            if part & lowest and whole[part]:
                count, sum_near, _ = best[mask ^ part]
                ways.append((count + 1, sum_near + near[part], part))
            part = (part - 1) & mask
        best[mask] = max(ways)
    groups = []
    mask = size - 1
    while mask:
        part = best[mask][2]
        groups.append(subsets[part])
        mask ^= part
    return groups
