"""A producer that writes records and the group's offsets in one transaction (KIP-98, KIP-447)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from coopconsume.fenced.config import FencedSettings
from coopconsume.fenced.kafka_channel import Delivery, Fence, KafkaChannel
from coopconsume.fenced.log import LogId
from coopconsume.kafka.call_limit import Deadline
from coopconsume.kafka.producer import MOST_BYTES
from coopconsume.kafka.transactions import group_metadata

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from coopconsume.kafka.producer import Message
    from coopconsume.options import Options

_PREFIX: Final = "coopconsume-out"
_LINGER_MS: Final = 5
#: Seconds until records are produced again after the producer's queue was full.
_FULL: Final = 0.1


class TransactionChannel(KafkaChannel):
    """A transactional producer that is discarded after an operation with an unknown outcome.

    Args:
        options: The options of the consumer.
        topic: The output topic.
        transactional_id: The transactional id.
        timeout: Seconds that a record may wait to be sent and acknowledged.
        fence: Fences the producers of a transactional id.

    Raises:
        InvalidOption: A setting that librdkafka does not take.
    """

    def __init__(
        self, options: Options, topic: str, transactional_id: str, timeout: float, fence: Fence
    ) -> None:
        more = {"linger.ms": _LINGER_MS, "message.max.bytes": MOST_BYTES}
        log = LogId(topic, "", 0)
        settings = FencedSettings(options.kafka)
        super().__init__(settings, log, transactional_id, timeout=timeout, fence=fence, more=more)

    def send(self, messages: Iterable[Message], timeout: float) -> None:
        """Writes records within the transaction and waits for their acknowledgement.

        Raises:
            EngineDoubt: A record was not acknowledged in time.
        """
        deadline = Deadline(timeout)
        delivery = Delivery()
        with self._as_doubts:
            for message in messages:
                self._produce(message, delivery, deadline)
            self._flush(deadline.left, [delivery])

    def _produce(self, message: Message, delivery: Delivery, deadline: Deadline) -> None:
        """Produces a record; waits while the producer's queue is full."""
        partition = -1 if message.partition is None else message.partition
        headers = list(message.headers)
        delivery.count += 1
        while True:
            try:
                self._producer.produce(
                    message.topic,
                    message.value,
                    message.key,
                    partition,
                    delivery.delivered,
                    headers=headers,
                )
            except BufferError:
                if deadline.is_over or delivery.error is not None:
                    raise
                self._producer.poll(_FULL)
            else:
                return

    def add_offsets(
        self, offsets: Mapping[tuple[str, int], tuple[int, str]], group: Any, timeout: float
    ) -> None:
        """Adds offsets of a group to the transaction.

        Args:
            offsets: The offsets with their metadata, by topic and partition.
            group: The group id, or kafka-python's group metadata of this member; with it the
                broker refuses a member of an earlier generation (KIP-447).
            timeout: The time limit in seconds.

        Raises:
            EngineDoubt: The outcome is not known.
        """
        from confluent_kafka import TopicPartition

        place = (group,) if isinstance(group, str) else group[:4]
        values = [TopicPartition(*tp, *value) for tp, value in offsets.items()]
        metadata = group_metadata(*place)
        self._within(timeout, "send_offsets_to_transaction", values, metadata)


def transactional_id(group: str, topic: str, partition: int) -> str:
    """Returns the transactional id of the publisher of a partition's outputs in a group.

    Each part is prefixed by its length, so that ids of different parts differ.
    """
    parts = (group, topic, str(partition))
    return ".".join([_PREFIX, *(f"{len(part)}:{part}" for part in parts)])
