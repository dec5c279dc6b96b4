"""Where nothing is shared, the assignments are Kafka's: kafka-python's assignors are the oracle."""

from __future__ import annotations

from collections import defaultdict
from itertools import cycle
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

from assignors import (
    KeyRangeAssignor,
    Member,
    RangeKeyRangeAssignor,
    RoundRobinKeyRangeAssignor,
    StickyKeyRangeAssignor,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

TOPICS = ["t", "u", "v"]
PARTITIONS = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 9), min_size=1)
SLOTS = st.integers(1, 3)
NAMED = st.tuples(st.sampled_from("abcdefgh"), st.sampled_from([None, None, "1", "2", "3"]))
NAMES = st.lists(NAMED, min_size=1, max_size=8, unique_by=(lambda n: n[0], lambda n: n[1] or n[0]))

Table = dict[str, dict[str, list[int]]]


def ours(assignor: KeyRangeAssignor, partitions: dict[str, int], members: list[Member]) -> Table:
    """Return our assignment in the form of the oracle, sure that all shares are whole."""
    found: Table = {}
    for member, shares in assignor.assign(partitions, members).items():
        mine = defaultdict(list)
        for share in shares:
            assert share.key_range.is_full
            mine[share.topic].append(share.partition)
        found[member] = dict(mine)
    return found


def kafkas(oracle: Any, partitions: dict[str, int], members: Sequence[Member]) -> Table:
    """Return kafka-python's assignment.

    It loses members unless those with an instance id come first, which no protocol promises.
    """
    cluster = SimpleNamespace(partitions_for_topic=lambda topic: {*range(partitions[topic])})
    joined = [
        SimpleNamespace(
            member_id=member.id,
            group_instance_id=member.instance_id,
            metadata=SimpleNamespace(topics=[t for t in member.topics if t in partitions]),
        )
        for member in sorted(members, key=lambda member: member.instance_id is None)
    ]
    return {
        member: {topic: [*numbers] for topic, numbers in each.assigned_partitions if numbers}
        for member, each in oracle.assign(cluster, joined).items()
    }


@given(PARTITIONS, NAMES, SLOTS)
def test_round_robin_is_kafkas(
    partitions: dict[str, int], names: list[tuple[str, str | None]], slots: int
) -> None:
    """Members with the same topics and slots get what Kafka's round robin gives them."""
    members = [Member(name, TOPICS, slots, instance_id=instance) for name, instance in names]
    assert ours(RoundRobinKeyRangeAssignor(), partitions, members) == kafkas(
        RoundRobinPartitionAssignor, partitions, members
    )


@given(PARTITIONS, NAMES, SLOTS, st.data())
def test_range_is_kafkas(
    partitions: dict[str, int],
    names: list[tuple[str, str | None]],
    slots: int,
    data: st.DataObject,
) -> None:
    """Members of the same slots and any topics get what Kafka's range assignor gives them."""
    topics = st.sets(st.sampled_from(TOPICS))
    members = [
        Member(name, data.draw(topics), slots, instance_id=instance) for name, instance in names
    ]
    assert ours(RangeKeyRangeAssignor(), partitions, members) == kafkas(
        RangePartitionAssignor, partitions, members
    )


@given(PARTITIONS, st.lists(st.sets(st.sampled_from(TOPICS), min_size=1), min_size=1, max_size=6))
def test_round_robin_passes_over_who_did_not_subscribe(
    partitions: dict[str, int], subscriptions: list[set[str]]
) -> None:
    """With different topics the circle goes on from member to member, as Kafka documents it.

    The rule is said again here, as kafka-python's own code fails on such groups.
    """
    members = [Member(f"m{i}", topics) for i, topics in enumerate(subscriptions)]
    expected: dict[str, defaultdict[str, list[int]]] = {m.id: defaultdict(list) for m in members}
    circle = cycle(members)
    for topic in sorted(partitions):
        if any(topic in member.topics for member in members):
            for partition in range(partitions[topic]):
                member = next(member for member in circle if topic in member.topics)
                expected[member.id][topic].append(partition)
    assert ours(RoundRobinKeyRangeAssignor(), partitions, members) == expected


@pytest.mark.parametrize(
    "assignor",
    [RoundRobinKeyRangeAssignor(), RangeKeyRangeAssignor(), StickyKeyRangeAssignor()],
    ids=lambda assignor: assignor.name,
)
@given(PARTITIONS, st.lists(st.integers(1, 4), min_size=1, max_size=6), st.booleans())
def test_what_cannot_be_shared_is_dealt_as_if_nobody_asked(
    assignor: KeyRangeAssignor, partitions: dict[str, int], slots: list[int], willing: bool
) -> None:
    """It is the same whether the members do not allow sharing or the topics do not."""
    members = [Member(f"m{i}", TOPICS, n, allow_key_share=willing) for i, n in enumerate(slots)]
    closed = assignor.assign(partitions, members, shareable_topics=() if willing else None)
    plain = [Member(member.id, TOPICS, member.slots) for member in members]
    assert closed == assignor.assign(partitions, plain)
