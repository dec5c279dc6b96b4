"""Ends of leader epochs: what an election left of a log (KIP-320)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coopconsume.kafka import kafka_python_compat

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commits.model import TopicPartition

_DEBUG_CONSUMER = -2


def epoch_ends(
    admin: Any, epochs: Mapping[TopicPartition, int | None]
) -> dict[TopicPartition, int]:
    """Return where leader epochs end in the logs of the current leaders, as far as it is known.

    An unclean election truncates the records of an earlier leader epoch. A record that was seen
    under an epoch is still there if its offset is below the end of that epoch.

    Args:
        admin: kafka-python's admin client.
        epochs: The leader epoch by partition; None: the one before the current leader's. If several
            elections took place since a record was written, that one need not be its own.

    Raises:
        kafka.errors.KafkaError: A broker refused, or none answers.
    """
    from kafka.errors import LeaderNotAvailableError

    by_leader: dict[int, dict[TopicPartition, int]] = {}
    for topic in admin.describe_topics(sorted({topic for topic, _ in epochs})):
        for found in topic["partitions"]:
            tp = (topic["name"], found["partition_index"])
            if tp not in epochs:
                continue
            epoch, current = epochs[tp], found["leader_epoch"]
            if found["leader_id"] < 0:
                raise LeaderNotAvailableError(f"{tp[0]}-{tp[1]} has no leader")
            epoch = current - 1 if epoch is None else epoch
            if epoch >= 0:
                by_leader.setdefault(found["leader_id"], {})[tp] = epoch
    ends: dict[TopicPartition, int] = {}
    for node, asked in by_leader.items():
        ends |= kafka_python_compat.run(admin, _ask, node, asked)
    return ends


async def _ask(
    admin: Any, node: int, epochs: dict[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the end offsets of leader epochs that the leader knows."""
    from kafka.errors import for_code
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
    answer = await kafka_python_compat.send(admin, request, node)
    ends = {}
    for topic in answer.topics:
        for found in topic.partitions:
            if found.error_code:
                name = f"{topic.topic}-{found.partition}"
                raise for_code(found.error_code)(f"the end of a leader epoch of {name}")
            if found.end_offset >= 0:
                ends[topic.topic, found.partition] = found.end_offset
    return ends
