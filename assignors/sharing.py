"""KIP-X's reverse assignment: consumers are assigned to partitions if they outnumber them.

A topic is shared if it is shareable, at least two of its subscribers allow sharing, and their
slots outnumber its partitions. As in KIP-X, members that do not allow sharing get nothing of such
a topic. Every slot is assigned to one partition, and each partition is split evenly among its
slots, so that the pieces of a partition differ by at most one hash. The slots of a member are
adjacent. Its pieces of a partition are therefore adjacent too, and are merged into one share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from assignors.ranges import FULL, KeyRange
from assignors.shares import Share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from assignors.contract import Group, Member

Deal = list[list[tuple[str, int]]]
"""For every partition of a topic its members in order, each with its number of slots."""


def shared_topics(group: Group) -> list[str]:
    """Return the topics in which consumers are assigned to partitions, sorted."""
    slots = []
    for audience in group.audiences:
        sharers = _sharers(audience)
        slots.append(sum(member.slots for member in sharers) if len(sharers) > 1 else 0)
    return [
        topic
        for topic, count in group.topics.items()
        if group.may_be_shared(topic) and slots[group.audience_of[topic]] > count
    ]


def deal_or_divide(
    group: Group,
    deal: Callable[[int, Sequence[Member]], Deal],
    divide: Callable[[Group, Iterable[str]], Iterator[tuple[str, str, int]]],
) -> Iterator[tuple[str, Share]]:
    """Assign members to the partitions of shared topics, and whole partitions of the others.

    Args:
        group: The members.
        deal: The rule for shared topics, as for `deal_shares`.
        divide: Kafka's rule for the others; it assigns each partition to a member.

    Yields:
        Every share with the id of its owner.
    """
    shared = dict.fromkeys(shared_topics(group))
    yield from deal_shares(group, shared, deal)
    whole = [topic for topic in group.topics if topic not in shared]
    for member_id, topic, partition in divide(group, whole):
        yield member_id, Share(topic, partition)


def deal_shares(
    group: Group, topics: Iterable[str], deal: Callable[[int, Sequence[Member]], Deal]
) -> Iterator[tuple[str, Share]]:
    """Split the partitions of shared topics.

    Args:
        group: The members.
        topics: Topics from `shared_topics`.
        deal: The rule that assigns slots to partitions, given the number of partitions and the
            members that allow sharing.

    Yields:
        Every share with the id of its owner.
    """
    layouts: dict[tuple[int, int], list[list[tuple[str, KeyRange]]]] = {}
    for topic in topics:
        count = group.topics[topic]
        key = (group.audience_of[topic], count)
        if key not in layouts:
            dealt = deal(count, _sharers(group.subscribers(topic)))
            layouts[key] = [list(_cut(partition)) for partition in dealt]
        for partition, pieces in enumerate(layouts[key]):
            for member_id, key_range in pieces:
                yield member_id, Share(topic, partition, key_range)


def _sharers(members: Iterable[Member]) -> list[Member]:
    return [member for member in members if member.allow_key_share]


def _cut(partition: Sequence[tuple[str, int]]) -> Iterator[tuple[str, KeyRange]]:
    """Split the hash space evenly by slots, with the pieces of a member merged."""
    total = sum(slots for _, slots in partition)
    start = 0
    for member_id, slots in partition:
        end = start + slots
        yield member_id, KeyRange(FULL.size * start // total, FULL.size * end // total - 1)
        start = end
