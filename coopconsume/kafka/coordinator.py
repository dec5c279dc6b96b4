"""Requests to Kafka's group coordinators: the state, members and offsets of groups."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assignors.errors import ProtocolMismatch
from assignors.wire import Subscription
from coopconsume.kafka import kafka_python_compat

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: The state that brokers report for an unknown group.
DEAD = "Dead"
_UNKNOWN_GROUP = 69


@dataclass(frozen=True)
class KafkaMember:
    """A member of a group, as its coordinator describes it.

    Attributes:
        id: Kafka's member id.
        instance_id: Its ``group.instance.id``, if it is static.
        client_id: Its ``client.id``.
        host: The address it connects from.
        subscription: The data it joined with; None during a rebalance and for members of other
            libraries.
    """

    id: str
    instance_id: str | None
    client_id: str
    host: str
    subscription: Subscription | None


@dataclass(frozen=True)
class KafkaGroup:
    """A group, as its coordinator describes it.

    Attributes:
        state: ``Stable``, ``Empty``, ``PreparingRebalance``, ``CompletingRebalance`` or ``Dead``.
        assignor: The assignor that its members agreed on; empty during a rebalance.
        members: Its members.
    """

    state: str = DEAD
    assignor: str = ""
    members: tuple[KafkaMember, ...] = ()


def describe(admin: Any, groups: Sequence[str]) -> dict[str, KafkaGroup]:
    """Return the descriptions of groups from their coordinators.

    Args:
        admin: kafka-python's admin client.
        groups: The group ids.

    Raises:
        kafka.errors.KafkaError: A coordinator refused, or none answers.
    """
    # The client's describe_groups converts all bytes to text, which loses the user data.
    answers = kafka_python_compat.run(admin, _ask, groups)
    return {answer.group_id: _group(answer) for answer in answers}


async def _ask(admin: Any, groups: Sequence[str]) -> list[Any]:
    from kafka.protocol.admin import DescribeGroupsRequest

    nodes = await kafka_python_compat.coordinators(admin, groups)
    answers: list[Any] = []
    for node in sorted(set(nodes.values())):
        request = DescribeGroupsRequest(groups=[g for g in groups if nodes[g] == node])
        answers += (await kafka_python_compat.send(admin, request, node)).groups
    return answers


def stable_offsets(
    admin: Any, group: str, partitions: Iterable[tuple[str, int]]
) -> dict[tuple[str, int], tuple[int, str | None]]:
    """Return offsets of a group, with metadata, that no open transaction can change (KIP-447).

    Args:
        admin: kafka-python's admin client.
        group: The group id.
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
    return kafka_python_compat.run(admin, _ask_stable, group, topics)


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
        groups=[of_group(group_id=group, topics=wanted)],
        require_stable=True,
        min_version=8,
        max_version=8,
    )
    nodes = await kafka_python_compat.coordinators(admin, [group])
    answer = await kafka_python_compat.send(admin, request, nodes[group])
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
    """Decode the subscription of a member; None for members of other libraries."""
    from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

    try:
        decoded = ConsumerProtocolSubscription.decode(metadata)
        return Subscription.from_bytes(bytes(decoded.user_data or b""))
    except (ProtocolMismatch, ValueError, struct.error):
        return None
