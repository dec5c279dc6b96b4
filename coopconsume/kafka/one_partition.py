"""A topic of one partition that is a log, and kafka-python's clients that write and read it."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from coopconsume.kafka.creation import WITHOUT_RETENTION, make_topic
from coopconsume.kafka.identity import is_other_topic
from coopconsume.kafka.kafka_python_compat import connected, end_producer

if TYPE_CHECKING:
    from collections.abc import Sequence


class OnePartition:
    """Creates, writes, reads and shortens a topic of one partition.

    One thread writes, and one reads. Each client connects when it is first needed. All methods
    raise errors of kafka-python.

    Args:
        topic: The topic.
        config: kafka-python's settings of all clients.
        answer_ms: Milliseconds that a new topic or an answer of a broker may take.
        fetch_ms: Milliseconds that a request for records waits for the next one.
        **producer: More settings of the producer.
    """

    _producer: Any = None
    _consumer: Any = None
    #: The id of the topic when `partitions` was called last.
    topic_id = ""

    def __init__(
        self, topic: str, config: dict[str, Any], *, answer_ms: int, fetch_ms: int, **producer: Any
    ) -> None:
        from kafka import TopicPartition

        self._topic, self._at = topic, TopicPartition(topic, 0)
        self._config, self._answer_ms = config, answer_ms
        # A record that is written twice or late does no harm.
        self._producer_config = config | {
            "acks": "all", "enable_idempotence": False, "linger_ms": 0, "metrics_enabled": False,
            "max_in_flight_requests_per_connection": 1, **producer,
        }  # fmt: skip
        self._consumer_config = config | {
            "group_id": None, "enable_auto_commit": False, "auto_offset_reset": "none",
            "fetch_max_wait_ms": fetch_ms, "max_poll_records": 2_000, "metrics_enabled": False,
        }  # fmt: skip

    def _admin(self) -> Any:
        from kafka.admin import KafkaAdminClient

        return closing(connected(KafkaAdminClient, **self._config))

    def partitions(self, *, create: bool, replicas: int | None = None) -> int:
        """Returns the number of the topic's partitions; 0: it does not exist.

        Args:
            create: Whether to create the topic, without retention, if it does not exist.
            replicas: The number of its replicas then; None for the brokers' default.
        """
        with self._admin() as admin:
            (found,) = admin.describe_topics([self._topic])
            if found["error_code"]:
                if not create:
                    return 0
                make_topic(admin, self._topic, 1, WITHOUT_RETENTION, replicas)
            admin.wait_for_topics([self._topic], timeout_ms=self._answer_ms)
            (found,) = admin.describe_topics([self._topic])
        self.topic_id = str(found.get("topic_id", ""))
        return len(found["partitions"])

    def described_id(self) -> str:
        """Returns the id that the topic has now; empty if it is not known."""
        with self._admin() as admin:
            (found,) = admin.describe_topics([self._topic])
        return "" if found["error_code"] else str(found.get("topic_id", ""))

    def delete_before(self, position: int) -> None:
        """Lets Kafka delete the records below an offset."""
        with self._admin() as admin:
            admin.delete_records({self._at: position})

    def send(self, value: bytes, key: bytes | None = None) -> Any:
        """Sends a record; returns its future. It waits until the partition's leader is known."""
        if self._producer is None:
            from kafka import KafkaProducer

            self._producer = KafkaProducer(**self._producer_config)
        return self._producer.send(self._topic, key=key, value=value, partition=0)

    def begin_reading(self) -> tuple[int, int]:
        """Begins at the first offset; returns it, and the end of the log."""
        from kafka import KafkaConsumer

        if self._consumer is None:
            self._consumer = connected(KafkaConsumer, **self._consumer_config)
            self._consumer.assign([self._at])
        start = self._consumer.beginning_offsets([self._at], timeout_ms=self._answer_ms)[self._at]
        end = self.end()
        self._consumer.seek(self._at, start)
        return start, end

    def end(self) -> int:
        """Returns the end of the log."""
        # Without a limit it would wait forever for the leader of the partition.
        found = self._consumer.end_offsets([self._at], timeout_ms=self._answer_ms)
        return int(found[self._at])

    def position(self) -> int:
        """Returns the offset that is read next."""
        return int(self._consumer.position(self._at))

    def read(self, seconds: float) -> Sequence[tuple[int, bytes | None, bytes | None]] | None:
        """Waits for the next records: offset, key and value; None: they were deleted."""
        from kafka.errors import OffsetOutOfRangeError

        try:
            found = self._consumer.poll(timeout_ms=max(1, int(1000 * seconds)))
        except OffsetOutOfRangeError:
            return None
        return [(record.offset, record.key, record.value) for record in found.get(self._at, [])]

    def is_other_topic(self) -> bool:
        """Returns whether the topic that is read was created again since `partitions` was called.

        It costs no request: the client learns of it as a fetch fails.
        """
        found = self._consumer._client.cluster.topic_id(self._topic)  # noqa: SLF001 - no public way
        return is_other_topic(self.topic_id, "" if found is None else str(found))

    def end_reading(self) -> None:
        """Closes the consumer; harmless when repeated."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def end_writing(self) -> None:
        """Waits up to 3 s for what was sent, and closes the producer."""
        from kafka.errors import KafkaTimeoutError

        if self._producer is not None:
            # The producer's own `close` raises at its timeout, and leaves its thread running.
            try:
                with suppress(KafkaTimeoutError):
                    self._producer.flush(timeout=3)
            finally:
                end_producer(self._producer)
