"""The best cost a sticky assignment can have, by trying everything: for small groups only."""

from __future__ import annotations

from functools import lru_cache
from math import lcm
from typing import TYPE_CHECKING

from assignors import KeyRange, StickyCost, merge

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from assignors import Member

SPACE = KeyRange().size


def best_cost(
    partitions: Mapping[str, int],
    members: Sequence[Member],
    shareable_topics: Collection[str] | None = None,
) -> StickyCost:
    """Return the smallest cost of all assignments whose cuts lie on a grid that holds an optimum.

    The even level of members that share is a number of partitions over the sum of their slots,
    so the grid must hold the parts of every such sum. What they owned must not overlap.
    """
    grid = _grid(members)
    # For every way to load the members: the fewest of them on partitions, then the most kept.
    loads: dict[tuple[int, ...], tuple[int, float]] = {(0,) * len(members): (0, 0.0)}
    for topic, count in sorted(partitions.items()):
        takers = tuple(i for i, member in enumerate(members) if topic in member.topics)
        if not takers:
            continue
        open_to_parts = shareable_topics is None or topic in shareable_topics
        sharers = tuple(i for i in takers if members[i].allow_key_share) if open_to_parts else ()
        for partition in range(count):
            owned = [_owned(member, topic, partition) for member in members]
            ways = [
                (way, sum(map(bool, way)), sum(min(w / grid, o) for w, o in zip(way, owned)))
                for way in _ways(len(members), takers, sharers, grid)
            ]
            after: dict[tuple[int, ...], tuple[int, float]] = {}
            for load, (standing, kept) in loads.items():
                for way, more, keeps in ways:
                    new = tuple(a + b for a, b in zip(load, way, strict=True))
                    cost = (standing + more, kept - keeps)
                    if new not in after or cost < after[new]:
                        after[new] = cost
            loads = after
    total = sum(next(iter(loads))) / grid
    return min(
        StickyCost(
            round(sum((n / grid) ** 2 / m.slots for n, m in zip(load, members, strict=True)), 9),
            standing,
            round(total + kept, 9),
        )
        for load, (standing, kept) in loads.items()
    )


def _grid(members: Sequence[Member]) -> int:
    sums = {0}
    for member in members:
        if member.allow_key_share:
            sums |= {each + member.slots for each in sums}
    return lcm(*(sums - {0}), 1)


def _owned(member: Member, topic: str, partition: int) -> float:
    ranges = [s.key_range for s in member.owned if (s.topic, s.partition) == (topic, partition)]
    return sum(each.size for each in merge(ranges)) / SPACE


@lru_cache(maxsize=256)
def _ways(
    members: int, takers: tuple[int, ...], sharers: tuple[int, ...], grid: int
) -> list[tuple[int, ...]]:
    """Return all ways to divide one partition: whole ones, and parts among those that share."""

    def parts(of: tuple[int, ...], left: int) -> Iterator[dict[int, int]]:
        if len(of) == 1:
            yield {of[0]: left}
            return
        for units in range(left + 1):
            for rest in parts(of[1:], left - units):
                yield {of[0]: units, **rest}

    found = {tuple(grid * (i == taker) for i in range(members)) for taker in takers}
    if len(sharers) > 1:
        found |= {tuple(d.get(i, 0) for i in range(members)) for d in parts(sharers, grid)}
    return sorted(found)
