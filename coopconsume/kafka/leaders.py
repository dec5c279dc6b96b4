"""Where the leaders of partitions began to write: what was cut from a log lay beyond (KIP-320)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

Partition = tuple[str, int]
_DEBUG_CONSUMER = -2


def leader_starts(admin: Any, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """The offset at which each partition's present leader began; of those that it is known of.

    An election that is not clean cuts a log there at the latest. That of the leader before the
    present one is not told: nothing says which of several elections cut it.

    Args:
        admin: kafka-python's admin client.
        partitions: Which.

    Raises:
        kafka.errors.KafkaError: A broker refused, or none answers.
    """
    wanted = set(partitions)
    places: dict[int, dict[Partition, int]] = {}
    for topic in admin.describe_topics(sorted({topic for topic, _ in wanted})):
        for found in topic["partitions"]:
            tp = (topic["name"], found["partition_index"])
            if tp in wanted and found["leader_id"] >= 0 and found["leader_epoch"] > 0:
                places.setdefault(found["leader_id"], {})[tp] = found["leader_epoch"] - 1
    starts: dict[Partition, int] = {}
    for node, epochs in places.items():
        starts |= admin._manager.run(_ask, admin, node, epochs)  # noqa: SLF001 - no public way
    return starts


async def _ask(admin: Any, node: int, epochs: dict[Partition, int]) -> dict[Partition, int]:
    """Where epochs ended, so far as the leader knows them."""
    from kafka.protocol.consumer import OffsetForLeaderEpochRequest as Request

    topics: dict[str, list[Any]] = {}
    for (topic, partition), epoch in epochs.items():
        one = Request.OffsetForLeaderTopic.OffsetForLeaderPartition(
            partition=partition, current_leader_epoch=-1, leader_epoch=epoch
        )
        topics.setdefault(topic, []).append(one)
    request = Request(
        replica_id=_DEBUG_CONSUMER,
        topics=[Request.OffsetForLeaderTopic(topic=t, partitions=ps) for t, ps in topics.items()],
    )
    answer = await admin._manager.send(request, node_id=node)  # noqa: SLF001 - no public way
    return {
        (topic.topic, found.partition): found.end_offset
        for topic in answer.topics
        for found in topic.partitions
        if not found.error_code and found.end_offset >= 0
    }
