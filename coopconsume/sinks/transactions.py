"""A producer that writes records and the group's offsets in one transaction (KIP-98, KIP-447)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from coopconsume.fenced.config import FencedSettings
from coopconsume.fenced.engine import EngineDoubt
from coopconsume.fenced.kafka_engine import KafkaChannel
from coopconsume.fenced.log import LogId
from coopconsume.kafka.call_limit import Deadline
from coopconsume.kafka.producer import MOST_BYTES
from coopconsume.sinks.base import NULL_HEADERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from coopconsume.kafka.producer import Message
    from coopconsume.options import Options

_PREFIX: Final = "coopconsume-out"
# Kafka's default. A batch that is larger than the topic takes is split by kafka-python, and its
# halves are never acknowledged within a transaction.
_BATCH_BYTES: Final = 16 << 10
_LINGER_MS: Final = 5


class TransactionChannel(KafkaChannel):
    """A transactional producer that is discarded after an operation with an unknown outcome.

    Args:
        options: The options of the consumer.
        topic: The output topic.
        transactional_id: The transactional id.
        timeout: Seconds that a record may wait to be sent and acknowledged.

    Raises:
        EngineNotUsable: kafka-python lacks a private hook, or the brokers are older than 3.6.
        EngineDoubt: No broker answers.
    """

    def __init__(self, options: Options, topic: str, transactional_id: str, timeout: float) -> None:
        more = {
            "max_request_size": MOST_BYTES, "batch_size": _BATCH_BYTES, "linger_ms": _LINGER_MS,
            "key_serializer": _serializer(),
        }  # fmt: skip
        log = LogId(topic, "", 0)
        super().__init__(FencedSettings(options.kafka), log, transactional_id, timeout, more)

    def send(self, messages: Iterable[Message], timeout: float) -> None:
        """Writes records within the transaction and waits for their acknowledgement.

        Raises:
            EngineDoubt: A record was not acknowledged in time.
        """
        deadline = Deadline(timeout)
        with self._as_doubts:
            send = self._producer.send
            futures = [send(m.topic, m.value, m, partition=m.partition) for m in messages]
            self._producer.flush(timeout)
            # Each future is checked, as batches fail independently.
            offsets = [f.get(deadline.left).offset for f in futures]
        if min(offsets, default=0) < 0:
            raise EngineDoubt("a record was acknowledged without its offset")

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
        from kafka import TopicPartition
        from kafka.structs import OffsetAndMetadata

        values = {
            TopicPartition(*tp): OffsetAndMetadata(offset, mark, -1)
            for tp, (offset, mark) in offsets.items()
        }

        def add_offsets() -> None:
            self._producer.send_offsets_to_transaction(values, group)

        self._within(timeout, add_offsets)


def transactional_id(group: str, topic: str, partition: int) -> str:
    """Returns the transactional id of the publisher of a partition's outputs in a group.

    Each part is prefixed by its length, so that ids of different parts differ.
    """
    parts = (group, topic, str(partition))
    return ".".join([_PREFIX, *(f"{len(part)}:{part}" for part in parts)])


def _serializer() -> Any:
    """Returns a serializer that extracts key and headers from a `Message`.

    ``send()`` refuses a record with neither key nor value, which Kafka accepts. It cannot write a
    null header. Such a header becomes an empty one, and `NULL_HEADERS` contains its index.
    """
    from kafka.serializer import Serializer

    class _MessageSerializer(Serializer):  # type: ignore[misc]
        def serialize(
            self,
            topic: str,  # noqa: ARG002
            headers: list[tuple[str, bytes]],
            data: Message,
        ) -> bytes | None:
            headers[:] = [(name, value or b"") for name, value in data.headers]
            nulls = [str(i) for i, (_, value) in enumerate(data.headers) if value is None]
            if nulls:
                headers.append((NULL_HEADERS, ",".join(nulls).encode()))
            return data.key

    return _MessageSerializer()
