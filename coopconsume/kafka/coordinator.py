"""Groups as Kafka's coordinators see them: their state, and who is in them."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assignors.errors import ProtocolMismatch
from assignors.wire import Subscription

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: The state of a group that Kafka does not know, as older brokers call it.
DEAD = "Dead"
_UNKNOWN_GROUP = 69


@dataclass(frozen=True)
class KafkaMember:
    """A member as its coordinator sees it.

    Attributes:
        id: Kafka's member id.
        instance_id: Its ``group.instance.id``, if it is static.
        client_id: Its ``client.id``.
        host: The address it connects from.
        subscription: What it joined with; None while the group rebalances, and of members that are
            not this library's.
    """

    id: str
    instance_id: str | None
    client_id: str
    host: str
    subscription: Subscription | None


@dataclass(frozen=True)
class KafkaGroup:
    """A group as its coordinator sees it.

    Attributes:
        state: ``Stable``, ``Empty``, ``PreparingRebalance``, ``CompletingRebalance`` or ``Dead``.
        assignor: The assignor that its members agreed on; empty while it rebalances.
        members: Its members.
    """

    state: str = DEAD
    assignor: str = ""
    members: tuple[KafkaMember, ...] = ()


def describe(admin: Any, groups: Sequence[str]) -> dict[str, KafkaGroup]:
    """Ask the coordinators of some groups.

    Args:
        admin: kafka-python's admin client.
        groups: Their ids.

    Raises:
        kafka.errors.KafkaError: A coordinator refused, or none answers.
    """
    # The client's own describe_groups makes text of all bytes, from which they cannot be got back.
    answers = admin._manager.run(_ask, admin, groups)  # noqa: SLF001 - as said
    return {answer.group_id: _group(answer) for answer in answers}


async def _ask(admin: Any, groups: Sequence[str]) -> list[Any]:
    from kafka.protocol.admin import DescribeGroupsRequest

    places = await admin._find_coordinator_ids(groups)  # noqa: SLF001 - no public way
    answers: list[Any] = []
    for node in sorted(set(places.values())):
        request = DescribeGroupsRequest(groups=[g for g in groups if places[g] == node])
        answers += (await admin._manager.send(request, node_id=node)).groups  # noqa: SLF001
    return answers


def forget(admin: Any) -> None:
    """Have kafka-python's admin client look up coordinators anew.

    By itself it never does, and goes on asking one that has handed over its groups, or has died.
    """
    admin._manager.cluster._coordinators.clear()  # noqa: SLF001 - no public way


def stable_offsets(
    admin: Any, group: str, partitions: Iterable[tuple[str, int]]
) -> dict[tuple[str, int], tuple[int, str | None]]:
    """Returns offsets of a group, with metadata, that no open transaction can change (KIP-447).

    Args:
        admin: kafka-python's admin client.
        group: Its id.
        partitions: Topics and partitions; those without an offset are left out of the answer.

    Raises:
        kafka.errors.UnstableOffsetCommitError: A transaction is still open; ask again.
        kafka.errors.KafkaError: The coordinator refused, or does not answer.
    """
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    if not topics:
        return {}
    found: dict[tuple[str, int], tuple[int, str | None]] = admin._manager.run(  # noqa: SLF001 - no public way
        _ask_stable, admin, group, topics
    )
    return found


async def _ask_stable(
    admin: Any, group: str, topics: Mapping[str, list[int]]
) -> dict[tuple[str, int], tuple[int, str | None]]:
    from kafka.errors import for_code
    from kafka.protocol.consumer import OffsetFetchRequest as Request

    of_group = Request.OffsetFetchRequestGroup
    wanted = [
        of_group.OffsetFetchRequestTopics(name=topic, partition_indexes=partitions)
        for topic, partitions in topics.items()
    ]
    request = Request(
        groups=[of_group(group_id=group, topics=wanted)], require_stable=True,
        min_version=8, max_version=8,
    )  # fmt: skip
    nodes = await admin._find_coordinator_ids([group])  # noqa: SLF001
    answer = await admin._manager.send(request, node_id=nodes[group])  # noqa: SLF001
    (of_ours,) = answer.groups
    offsets = {}
    for code in (answer.error_code, of_ours.error_code):
        if code:
            raise for_code(code)(f"offsets of group {group}")
    for topic in of_ours.topics:
        for one in topic.partitions:
            if one.error_code:
                at = f"{topic.name}-{one.partition_index}"
                raise for_code(one.error_code)(f"offset of group {group} in {at}")
            if one.committed_offset >= 0:
                offsets[topic.name, one.partition_index] = one.committed_offset, one.metadata
    return offsets


def _group(answer: Any) -> KafkaGroup:
    from kafka.errors import for_code

    if answer.error_code == _UNKNOWN_GROUP:
        return KafkaGroup()
    if answer.error_code:
        raise for_code(answer.error_code)(f"group {answer.group_id}")
    members = tuple(
        KafkaMember(
            member.member_id,
            member.group_instance_id or None,
            member.client_id,
            member.client_host.removeprefix("/"),
            read_subscription(bytes(member.member_metadata or b"")),
        )
        for member in answer.members
    )
    return KafkaGroup(answer.group_state, answer.protocol_data, members)


def read_subscription(metadata: bytes) -> Subscription | None:
    """What a member of ours told its leader, from the metadata it joined with; None of others."""
    from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

    try:
        told = ConsumerProtocolSubscription.decode(metadata)
        return Subscription.from_bytes(bytes(told.user_data or b""))
    except (ProtocolMismatch, ValueError, struct.error):
        return None
