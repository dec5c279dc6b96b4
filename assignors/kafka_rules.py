"""Kafka's round-robin and range assignments of whole partitions.

They apply to topics that are not shared. If all members have the same number of slots, the results
equal those of Kafka's `RoundRobinAssignor` and `RangeAssignor`. Otherwise a member gets partitions
in proportion to its slots. Seven partitions for a with 2 slots and b with 1:

    round robin   the cycle is a b a: every member once, then those with a second slot, ...
                  a: 0 2 3 5 6    b: 1 4
    range         the quota of a is 14/3 and of b 7/3; the remainder after the whole parts 4 and 2
                  goes to the largest fraction
                  a: 0 1 2 3 4    b: 5 6
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from assignors.contract import Group, Member


def round_robin(group: Group, topics: Iterable[str]) -> Iterator[tuple[str, str, int]]:
    """Assign the partitions of all topics to the members in turn.

    Members that do not subscribe to a topic are skipped.

    Args:
        group: The members.
        topics: The topics to assign; each must have a subscriber.

    Yields:
        Member id, topic and partition.
    """
    circle = [
        member
        for turn in range(max((member.slots for member in group.members), default=0))
        for member in group.members
        if member.slots > turn
    ]
    places_of: dict[int, list[int]] = {}
    at = 0
    for topic in topics:
        audience = group.audience_of[topic]
        if audience not in places_of:
            ids = {member.id for member in group.audiences[audience]}
            places_of[audience] = [i for i, member in enumerate(circle) if member.id in ids]
        places = places_of[audience]
        for partition in range(group.topics[topic]):
            place = places[bisect_left(places, at) % len(places)]
            yield circle[place].id, topic, partition
            at = (place + 1) % len(circle)


def ranges(group: Group, topics: Iterable[str]) -> Iterator[tuple[str, str, int]]:
    """Assign each member a contiguous run of the partitions of each topic.

    Args:
        group: The members.
        topics: The topics to assign; each must have a subscriber.

    Yields:
        Member id, topic and partition.
    """
    owners_of: dict[tuple[int, int], list[str]] = {}
    for topic in topics:
        count = group.topics[topic]
        key = (group.audience_of[topic], count)
        if key not in owners_of:
            members = group.subscribers(topic)
            runs = zip(members, quotas(count, members), strict=True)
            owners_of[key] = [member.id for member, length in runs for _ in range(length)]
        for partition, owner in enumerate(owners_of[key]):
            yield owner, topic, partition


def quotas(count: int, members: Sequence[Member]) -> list[int]:
    """Divide a number of partitions among members in proportion to their slots.

    Each member gets the whole part of its quota. The remainder goes, one partition each, to the
    members with the largest fractions; equal fractions keep the order of the members.

    Args:
        count: How many partitions, from 0.
        members: The members, at least one.

    Returns:
        The number of partitions of each member, in the given order; the sum is `count`.
    """
    slots = sum(member.slots for member in members)
    due = [divmod(count * member.slots, slots) for member in members]
    left = count - sum(whole for whole, _ in due)
    largest = sorted(range(len(due)), key=lambda i: -due[i][1])[:left]
    result = [whole for whole, _ in due]
    for i in largest:
        result[i] += 1
    return result
