"""Start offsets of the current leaders; truncated records were above them (KIP-320)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

Partition = tuple[str, int]
_DEBUG_CONSUMER = -2


def leader_starts(admin: Any, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """Return the start offset of each partition's current leader, as far as it is known.

    An unclean election truncates a log at this offset or below. If several elections took place,
    Kafka does not report which of them truncated the log.

    Args:
        admin: kafka-python's admin client.
        partitions: The partitions.

    Raises:
        kafka.errors.KafkaError: A broker refused, or none answers.
    """
    wanted = set(partitions)
    by_leader: dict[int, dict[Partition, int]] = {}
    for topic in admin.describe_topics(sorted({topic for topic, _ in wanted})):
        for found in topic["partitions"]:
            tp = (topic["name"], found["partition_index"])
            if tp in wanted and found["leader_id"] >= 0 and found["leader_epoch"] > 0:
                by_leader.setdefault(found["leader_id"], {})[tp] = found["leader_epoch"] - 1
    starts: dict[Partition, int] = {}
    for node, epochs in by_leader.items():
        starts |= admin._manager.run(_ask, admin, node, epochs)  # noqa: SLF001 - no public way
    return starts


async def _ask(admin: Any, node: int, epochs: dict[Partition, int]) -> dict[Partition, int]:
    """Return the end offsets of leader epochs that the leader knows."""
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
