"""What holds for every assignor and any input, by Hypothesis."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assignors import (
    KeyRange,
    KeyRangeAssignor,
    Member,
    RangeKeyRangeAssignor,
    RoundRobinKeyRangeAssignor,
    Share,
    StickyKeyRangeAssignor,
    coverage,
    merge,
)
from assignors.wire import MemberAssignment, Subscription

if TYPE_CHECKING:
    from random import Random

SPACE = KeyRange().size
TOPICS = ["t", "u", "v"]
ASSIGNORS = [RoundRobinKeyRangeAssignor(), RangeKeyRangeAssignor(), StickyKeyRangeAssignor()]
ALL = pytest.mark.parametrize("assignor", ASSIGNORS, ids=lambda assignor: assignor.name)

PARTITIONS = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 4))
# Ends on a coarse grid, so that what members claim to own meets, touches and overlaps.
END = st.integers(0, 8).map(lambda eighths: SPACE * eighths // 8)
RANGES = st.tuples(END, END).filter(lambda e: e[0] != e[1]).map(sorted)
SHARES = st.builds(
    Share,
    st.sampled_from(TOPICS),
    st.integers(0, 4),
    RANGES.map(lambda e: KeyRange(e[0], e[1] - 1)),
)
NAMES = [*"abcdef"]


WILLING = st.just(value=True)
EITHER = st.booleans()


def members(sharing: st.SearchStrategy[bool] = EITHER) -> st.SearchStrategy[list[Member]]:
    """Return groups of up to six members, static and not, with any claims."""
    member = st.builds(
        Member,
        st.sampled_from(NAMES),
        st.sets(st.sampled_from(TOPICS)),
        slots=st.integers(1, 4),
        allow_key_share=sharing,
        instance_id=st.sampled_from([None, "1", "2"]),
        owned=st.lists(SHARES, max_size=4).map(tuple),
    )
    return st.lists(member, max_size=6, unique_by=lambda m: m.id)


SHAREABLE = st.none() | st.sets(st.sampled_from(TOPICS))


def by_partition(
    assignment: dict[str, tuple[Share, ...]],
) -> dict[tuple[str, int], list[tuple[str, KeyRange]]]:
    """Return who has which range of each partition."""
    found = defaultdict(list)
    for member, shares in assignment.items():
        for share in shares:
            found[share.topic, share.partition].append((member, share.key_range))
    return found


@ALL
@given(PARTITIONS, members(), SHAREABLE)
def test_complete_disjoint_and_only_subscribed(
    assignor: KeyRangeAssignor,
    partitions: dict[str, int],
    group: list[Member],
    shareable: set[str] | None,
) -> None:
    """Every hash of every subscribed partition has one owner, a subscriber; nothing else has."""
    assignment = assignor.assign(partitions, group, shareable_topics=shareable)
    assert set(assignment) == {member.id for member in group}
    topics = {topic for member in group for topic in member.topics} & set(partitions)
    found = by_partition(assignment)
    assert set(found) == {(t, p) for t in topics for p in range(partitions[t])}
    for owners in found.values():
        assert coverage(key_range for _, key_range in owners).is_exact
    for member in group:
        assert {share.topic for share in assignment[member.id]} <= set(member.topics)


@ALL
@given(PARTITIONS, members(), SHAREABLE)
def test_no_parts_without_consent(
    assignor: KeyRangeAssignor,
    partitions: dict[str, int],
    group: list[Member],
    shareable: set[str] | None,
) -> None:
    """Parts go only to members that allow it, and only of topics that allow it."""
    assignment = assignor.assign(partitions, group, shareable_topics=shareable)
    for member in group:
        for share in assignment[member.id]:
            if not share.key_range.is_full:
                assert member.allow_key_share
                assert shareable is None or share.topic in shareable


@ALL
@given(PARTITIONS, members(), SHAREABLE)
def test_shares_are_in_order_and_apart(
    assignor: KeyRangeAssignor,
    partitions: dict[str, int],
    group: list[Member],
    shareable: set[str] | None,
) -> None:
    """The shares of a member are sorted, and pieces that touch are one share."""
    for shares in assignor.assign(partitions, group, shareable_topics=shareable).values():
        assert list(shares) == sorted(shares)
        for a, b in pairwise(shares):
            same = (a.topic, a.partition) == (b.topic, b.partition)
            assert not same or len(merge([a.key_range, b.key_range])) > 1


@ALL
@given(PARTITIONS, members(), SHAREABLE, st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_matter(
    assignor: KeyRangeAssignor,
    partitions: dict[str, int],
    group: list[Member],
    shareable: set[str] | None,
    chance: Random,
) -> None:
    """Members, their topics and claims, and partitions may come in any order."""
    shuffled = [
        Member(
            m.id,
            chance.sample(sorted(m.topics), len(m.topics)),
            m.slots,
            m.allow_key_share,
            m.instance_id,
            tuple(chance.sample(m.owned, len(m.owned))),
        )
        for m in chance.sample(group, len(group))
    ]
    other = dict(chance.sample(sorted(partitions.items()), len(partitions)))
    first = assignor.assign(partitions, group, shareable_topics=shareable)
    again = assignor.assign(other, shuffled, shareable_topics=shareable)
    assert [*first.items()] == [*again.items()]


@pytest.mark.parametrize("assignor", ASSIGNORS[:2], ids=lambda assignor: assignor.name)
@given(st.integers(1, 5), members(WILLING))
def test_kip_x_pieces_are_even(assignor: KeyRangeAssignor, count: int, group: list[Member]) -> None:
    """Each partition is cut evenly among the slots it got, and each slot is dealt once.

    A share of k slots of the n on a partition is k / n of it, to within one hash, so two pieces of
    one slot differ by one hash at most.
    """
    everybody = [Member(m.id, ["t"], m.slots, allow_key_share=True) for m in group]
    slots = sum(member.slots for member in everybody)
    if len(everybody) < 2 or slots <= count:
        return
    dealt: Counter[str] = Counter()
    sizes = []
    for (_, partition), owners in by_partition(assignor.assign({"t": count}, everybody)).items():
        here = slots // count + (partition < slots % count)
        for member, key_range in owners:
            k = round(key_range.size * here / SPACE)
            assert abs(key_range.size - k * SPACE // here) <= 1
            dealt[member] += k
        sizes.append(here)
    assert dealt == {member.id: member.slots for member in everybody}
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 12), members(WILLING))
def test_sticky_is_even_to_the_hash(count: int, group: list[Member]) -> None:
    """Where all share all, a slot's work is the same everywhere, to one hash a partition."""
    everybody = [Member(m.id, ["t"], m.slots, allow_key_share=True, owned=m.owned) for m in group]
    slots = sum(member.slots for member in everybody)
    assignment = ASSIGNORS[2].assign({"t": count}, everybody)
    for member in everybody:
        mine = assignment[member.id]
        partitions = len({share.partition for share in mine})
        work = sum(share.key_range.size for share in mine)
        assert abs(work * slots - SPACE * count * member.slots) <= partitions * slots


TEXT = st.text(max_size=8)
NUMBER = st.integers(0, 2**63 - 1)
WIRE_SHARES = st.lists(
    st.builds(
        Share,
        st.text(min_size=1, max_size=8),
        st.integers(0, 2**31 - 1),
        st.tuples(NUMBER, NUMBER).map(lambda ends: KeyRange(*sorted(ends))) | st.just(KeyRange()),
    )
).map(lambda shares: tuple(sorted(shares)))


@given(
    st.builds(
        Subscription,
        st.fixed_dictionaries(
            {"store": TEXT, "cluster": TEXT}, optional={"filter": TEXT, "state": TEXT}
        ),
        st.integers(1, 10**6),
        st.booleans(),
        WIRE_SHARES,
        NUMBER,
        TEXT,
        NUMBER,
    )
)
def test_any_subscription_survives_the_wire(subscription: Subscription) -> None:
    """A subscription is read back as it was written."""
    assert Subscription.from_bytes(subscription.to_bytes()) == subscription


@given(
    st.builds(
        MemberAssignment,
        TEXT,
        WIRE_SHARES,
        st.integers(1, 2**63),
        TEXT,
        st.dictionaries(TEXT, TEXT, max_size=3),
    )
)
def test_any_assignment_survives_the_wire(assignment: MemberAssignment) -> None:
    """An assignment is read back as it was written."""
    assert MemberAssignment.from_bytes(assignment.to_bytes()) == assignment
