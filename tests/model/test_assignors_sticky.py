"""The sticky assignor against all assignments there are, in groups small enough to try them all."""

from __future__ import annotations

import random
from dataclasses import replace
from math import comb, lcm
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assignors import KeyRange, Member, Share, StickyCost, StickyKeyRangeAssignor, sticky_cost
from assignors.flow import Demand, spread
from tests.examples import examples

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

SPACE = KeyRange().size
STICKY = StickyKeyRangeAssignor()


def best_cost(
    partitions: Mapping[str, int],
    members: Sequence[Member],
    grid: int,
    shareable: Collection[str] | None = None,
) -> StickyCost:
    """Return the smallest cost of all assignments whose cuts lie on a grid.

    The best assignment lies on a grid that holds the even parts of all members that may come to
    level with each other. What members owned must not overlap.
    """
    # For every way to load the members: the fewest of them on partitions, then the most kept.
    ways: dict[tuple[int, ...], tuple[int, float]] = {(0,) * len(members): (0, 0.0)}
    for topic, count in partitions.items():
        takers = [i for i, member in enumerate(members) if topic in member.topics]
        open_ = shareable is None or topic in shareable
        sharers = [i for i in takers if members[i].allow_key_share and open_]
        for partition in range(count if takers else 0):
            owned = [owned_of(member, topic, partition) for member in members]
            grown: dict[tuple[int, ...], tuple[int, float]] = {}
            for parts in all_parts(len(members), takers, sharers, grid):
                more = sum(map(bool, parts))
                keeps = sum(map(min, (part / grid for part in parts), owned))
                for load, (sharers_so_far, lost) in ways.items():
                    new = tuple(map(int.__add__, load, parts))
                    cost = (sharers_so_far + more, lost - keeps)
                    if new not in grown or cost < grown[new]:
                        grown[new] = cost
            ways = grown
    return min(
        StickyCost(
            round(sum((n / grid) ** 2 / m.slots for n, m in zip(load, members, strict=True)), 9),
            sharers_so_far,
            round(sum(load) / grid + lost, 9),
        )
        for load, (sharers_so_far, lost) in ways.items()
    )


def owned_of(member: Member, topic: str, partition: int) -> float:
    """Return how much of a partition a member owned."""
    at = (topic, partition)
    return sum(s.key_range.size for s in member.owned if (s.topic, s.partition) == at) / SPACE


def all_parts(
    members: int, takers: list[int], sharers: list[int], grid: int
) -> Iterator[tuple[int, ...]]:
    """Yield all ways to divide one partition: whole ones, and parts among those that share."""

    def divide(places: list[int], left: int) -> Iterator[dict[int, int]]:
        if len(places) == 1:
            yield {places[0]: left}
            return
        for part in range(left + 1):
            for rest in divide(places[1:], left - part):
                yield {places[0]: part, **rest}

    shared = divide(sharers, grid) if sharers else iter(())
    apart = ({taker: grid} for taker in takers if taker not in sharers)
    for parts in (*shared, *apart):
        yield tuple(parts.get(i, 0) for i in range(members))


TOPICS = ["t", "u"]
GROUP = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 2), min_size=1, max_size=4)


SMALL = [{"t": 1}, {"t": 2}, {"t": 3}, {"t": 1, "u": 2}]


def after(
    partitions: Mapping[str, int], history: Iterable[Mapping[str, int]], *, sharing: bool
) -> tuple[StickyCost, StickyCost]:
    """Return the cost of the last assignment of a history, and the smallest there could be."""
    owned: dict[str, tuple[Share, ...]] = {}
    members: list[Member] = []
    for slots in history:
        members = [
            Member(name, TOPICS, count, allow_key_share=sharing, owned=owned.get(name, ()))
            for name, count in slots.items()
        ]
        owned = STICKY.assign(partitions, members)
    grid = sum(member.slots for member in members) if sharing else 1
    return sticky_cost(members, owned), best_cost(partitions, members, grid)


@settings(max_examples=examples(60), deadline=None)
@given(st.sampled_from(SMALL), st.lists(GROUP, min_size=1, max_size=3))
def test_where_all_share_nothing_is_more_balanced_or_on_fewer_members(
    partitions: dict[str, int], history: list[dict[str, int]]
) -> None:
    """After any joins, leaves and changed slots the first two goals are met exactly."""
    cost, best = after(partitions, history, sharing=True)
    assert cost[:2] == pytest.approx(best[:2], abs=1e-8)


def test_where_all_share_hardly_ever_less_could_move() -> None:
    """Of 300 groups after up to three changes, at least 297 are the best in all three goals."""
    chance = random.Random(11)
    missed = []
    for _ in range(300):
        history = [
            {name: chance.randint(1, 2) for name in chance.sample("abcdef", chance.randint(1, 4))}
            for _ in range(chance.randint(2, 4))
        ]
        cost, best = after(chance.choice(SMALL), history, sharing=True)
        if cost != pytest.approx(best, abs=1e-8):
            missed.append((cost, best))
    assert len(missed) <= 3, missed


@settings(max_examples=examples(60), deadline=None)
@given(
    st.sampled_from([{"t": 3}, {"t": 4}, {"t": 2, "u": 3}]),
    st.lists(GROUP, min_size=2, max_size=4),
)
def test_where_nobody_shares_it_is_the_best_there_is(
    partitions: dict[str, int], history: list[dict[str, int]]
) -> None:
    """Of whole partitions no fewer could have moved, nor lie better balanced."""
    cost, best = after(partitions, history, sharing=False)
    assert cost == pytest.approx(best, abs=1e-8)


def mixed_group(chance: random.Random, partitions: Mapping[str, int], seen: int) -> list[Member]:
    """Return members of any kind, some of them with the names of those before."""
    names = chance.sample([f"m{i}" for i in range(seen, seen + 6)], chance.randint(1, 4))
    return [
        Member(
            name,
            chance.sample(sorted(partitions), chance.randint(1, len(partitions))),
            chance.choice([1, 1, 2, 3]),
            allow_key_share=chance.random() < 0.7,
        )
        for name in names
    ]


def test_close_to_the_best_where_everything_is_mixed() -> None:
    """Any topics, subscriptions and consents: always balanced, nearly always the best of all.

    Balance is met in all of these groups; the other goals may be missed in one of fifty.
    """
    chance = random.Random(20)
    tried = missed = 0
    while tried < 250:
        partitions = {t: chance.randint(1, 2) for t in chance.sample("tuv", chance.randint(1, 3))}
        shareable = {topic for topic in partitions if chance.random() < 0.7}
        owned: dict[str, tuple[Share, ...]] = {}
        for step in range(3):
            members = [
                replace(member, owned=owned.get(member.id, ()))
                for member in mixed_group(chance, partitions, step)
            ]
            owned = STICKY.assign(partitions, members, shareable_topics=shareable)
            sums = {0}
            for member in members:
                sums |= {n + member.slots for n in sums} if member.allow_key_share else set()
            grid = lcm(*(sums - {0}), 1)
            if comb(grid + len(sums), 2) > 400:
                continue
            cost, best = (
                sticky_cost(members, owned),
                best_cost(partitions, members, grid, shareable),
            )
            assert cost.imbalance == pytest.approx(best.imbalance, abs=1e-8)
            missed += cost != pytest.approx(best, abs=1e-8)
            tried += 1
    assert missed <= tried / 50


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(GROUP, min_size=2, max_size=4), st.integers(1, 8), st.booleans())
def test_nothing_moves_when_nothing_changes(
    history: list[dict[str, int]], count: int, sharing: bool
) -> None:
    """The same group asked again keeps every hash where it is."""
    owned: dict[str, tuple[Share, ...]] = {}
    for slots in history:
        members = [
            Member(name, ["t"], n, allow_key_share=sharing, owned=owned.get(name, ()))
            for name, n in slots.items()
        ]
        owned = STICKY.assign({"t": count}, members)
    again = [replace(member, owned=owned[member.id]) for member in members]
    assert STICKY.assign({"t": count}, again) == owned


def test_a_large_group_moves_little() -> None:
    """Of 60 members on 200 partitions one leaves: hardly more moves than what it had."""
    members = [Member(f"m{i:02}", ["t"], 8, allow_key_share=True) for i in range(60)]
    before = STICKY.assign({"t": 200}, members)
    left = [replace(member, owned=before[member.id]) for member in members[:30] + members[31:]]
    cost = sticky_cost(left, STICKY.assign({"t": 200}, left))
    assert cost.imbalance == pytest.approx(200**2 / (59 * 8))
    assert cost.members == 200 + 59 - 1
    assert cost.moved <= 2 * 200 / 60


LEVELS = st.lists(
    st.tuples(st.integers(1, 9), st.sets(st.integers(0, 4), min_size=1)), min_size=1, max_size=5
)


@given(LEVELS, st.lists(st.integers(1, 3), min_size=5, max_size=5))
def test_spreading_is_fair(drawn: list[tuple[int, set[int]]], weights: list[int]) -> None:
    """All work is spread, and no taker of a job is on a lower level than one that has of it."""
    jobs = [Demand(amount, sorted(takers)) for amount, takers in drawn]
    parts = spread(jobs, dict(enumerate(weights)))
    load = [0.0] * 5
    for job, part in zip(jobs, parts, strict=True):
        assert sum(part.parts.values()) == job.amount * part.units
        assert all(n > 0 for n in part.parts.values())
        for taker, units in part.parts.items():
            load[taker] += units / part.units
    level = [n / weight for n, weight in zip(load, weights, strict=True)]
    for job, part in zip(jobs, parts, strict=True):
        assert max(level[taker] for taker in part.parts) <= min(level[t] for t in job.takers) + 1e-9
