"""The input and output of an assignor and the base class of all assignors.

The leader of a consumer group calls `assign` with the number of partitions of each topic and with
the members of the group. The result maps every member to its shares:

    members = [Member("a", ["t"], allow_key_share=True), Member("b", ["t"], allow_key_share=True)]
    RangeKeyRangeAssignor().assign({"t": 1}, members) == {
        "a": (Share("t", 0, KeyRange(0, 2**62 - 1)),),
        "b": (Share("t", 0, KeyRange(2**62, 2**63 - 1)),),
    }

For any input, every hash of every partition of a subscribed topic is assigned to exactly one
subscriber. Members that do not allow sharing get whole partitions only, and topics that are not
shareable are assigned as whole partitions only. A topic without subscribers is not assigned. A
subscription to a topic that does not exist has no effect until the topic exists.

The result does not depend on the order of members and topics. Members are sorted in Kafka's order:
first those with an instance id, by that id, so that a restart under a new member id changes
nothing; then the others, by member id.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from assignors.errors import InvalidMember, InvalidTopic

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from assignors.shares import Share


@dataclass(frozen=True, slots=True)
class Member:
    """A consumer of the group.

    Attributes:
        id: Kafka's member id.
        topics: The topics it subscribes to, sorted, without duplicates.
        slots: How many tasks it runs in parallel, from 1. A member with n slots counts as
            n consumers.
        allow_key_share: Whether it may get parts of partitions (KIP-X's `allowKeyShare`).
        instance_id: Kafka's `group.instance.id` of a static member.
        owned: The shares of its previous assignment, for the sticky assignor.

    Raises:
        InvalidMember: If the id is empty, `slots` is not a whole number from 1, or `topics` is
            a single string.
    """

    id: str
    topics: Collection[str]
    slots: int = 1
    allow_key_share: bool = False
    instance_id: str | None = None
    owned: tuple[Share, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id:
            raise InvalidMember(self.id, "its id must be a non-empty string")
        if not isinstance(self.slots, int) or isinstance(self.slots, bool) or self.slots < 1:
            raise InvalidMember(self.id, f"slots must be a whole number from 1, not {self.slots!r}")
        if isinstance(self.topics, str):
            raise InvalidMember(
                self.id, f"topics must be a list of strings, not one string: [{self.topics!r}]"
            )
        object.__setattr__(self, "topics", tuple(sorted(set(self.topics))))
        object.__setattr__(self, "owned", tuple(self.owned))

    @property
    def order(self) -> tuple[bool, str, str]:
        """The sort key of a member: instance ids first, then member ids."""
        return (self.instance_id is None, self.instance_id or "", self.id)


class Group:
    """The input of an assignor, validated and sorted.

    Attributes:
        members: All members in order.
        topics: The topics with partitions and subscribers, sorted, with the number of partitions.
        audiences: The distinct sets of subscribers, each in order. Topics with the same
            subscribers have the same audience, so that a thousand members that subscribe to ten
            thousand topics do not cost ten million steps.
        audience_of: The index in `audiences` of each topic's subscribers.
    """

    def __init__(
        self,
        partitions: Mapping[str, int],
        members: Sequence[Member],
        shareable_topics: Collection[str] | None = None,
    ) -> None:
        self.members = tuple(sorted(members, key=lambda member: member.order))
        _check_ids(self.members)
        self._shareable = None if shareable_topics is None else frozenset(shareable_topics)
        self.topics: dict[str, int] = {}
        self.audiences: list[tuple[Member, ...]] = []
        self.audience_of: dict[str, int] = {}

        alike: defaultdict[Collection[str], list[int]] = defaultdict(list)
        for index, member in enumerate(self.members):
            alike[member.topics].append(index)
        classes: defaultdict[str, list[int]] = defaultdict(list)
        for number, topics in enumerate(alike):
            for topic in topics:
                classes[topic].append(number)
        indexes = list(alike.values())
        known: dict[tuple[int, ...], int] = {}
        for topic, count in sorted(partitions.items()):
            if not isinstance(count, int) or isinstance(count, bool) or count < 0:
                raise InvalidTopic(topic, f"expected a number of partitions from 0, not {count!r}")
            if not count or topic not in classes:
                continue
            key = tuple(classes[topic])
            if key not in known:
                known[key] = len(self.audiences)
                subscribers = sorted(index for number in key for index in indexes[number])
                self.audiences.append(tuple(self.members[index] for index in subscribers))
            self.topics[topic] = count
            self.audience_of[topic] = known[key]

    def subscribers(self, topic: str) -> tuple[Member, ...]:
        """Return the members that subscribe to a topic, in order; at least one."""
        return self.audiences[self.audience_of[topic]]

    def may_be_shared(self, topic: str) -> bool:
        """Return whether the topic may be split between members."""
        return self._shareable is None or topic in self._shareable


def _check_ids(members: Iterable[Member]) -> None:
    seen: set[str] = set()
    for member in members:
        if member.id in seen:
            raise InvalidMember(member.id, "is in the group twice; member ids must be unique")
        seen.add(member.id)


class KeyRangeAssignor(ABC):
    """Base class of the assignors. They are pure and deterministic.

    Attributes:
        name: The protocol name that the members of a group agree on.
    """

    name: ClassVar[str]

    def assign(
        self,
        partitions: Mapping[str, int],
        members: Sequence[Member],
        *,
        shareable_topics: Collection[str] | None = None,
    ) -> dict[str, tuple[Share, ...]]:
        """Assign shares to members.

        Args:
            partitions: The number of partitions of each topic that exists.
            members: The members of the group, in any order.
            shareable_topics: The topics that may be split between members (KIP-X's
                `accept.range.fetch`); None means all of them.

        Returns:
            The shares of every member in order, empty for a member that gets nothing. Shares of
            one member in one partition neither overlap nor touch.

        Raises:
            InvalidMember: If two members have the same id.
            InvalidTopic: If a number of partitions is not a whole number from 0.
        """
        group = Group(partitions, members, shareable_topics)
        shares: dict[str, list[Share]] = {member.id: [] for member in group.members}
        for member_id, share in self._shares(group):
            shares[member_id].append(share)
        return {member_id: tuple(sorted(mine)) for member_id, mine in shares.items()}

    @abstractmethod
    def _shares(self, group: Group) -> Iterable[tuple[str, Share]]:
        """Yield every share with the id of its owner, in any order."""
