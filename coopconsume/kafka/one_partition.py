"""A topic of one partition that is a log: it is made, written, read and shortened."""

from __future__ import annotations

import uuid
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from coopconsume.kafka.call_limit import Deadline
from coopconsume.kafka.creation import WITHOUT_RETENTION, make_topic
from coopconsume.kafka.kafka_python_compat import connected
from coopconsume.kafka.librdkafka import client_config, kafka_error, record_producer
from coopconsume.kafka.records import RecordReader

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Seconds that what was sent may take at the end.
_LAST: Final = 3.0
#: Seconds between two looks at what has arrived.
_LOOK: Final = 0.1


class OnePartition:
    """Creates, writes, reads and shortens a topic of one partition.

    One thread writes, and one reads. Each client connects when it is first needed. All methods
    raise errors of kafka-python.

    Args:
        topic: The topic.
        kafka: How to reach its cluster, by Kafka's names.
        config: The same by the names of kafka-python.
        answer: Seconds that a new topic or an answer of a broker may take.
        fetch_ms: Milliseconds that a request for records waits for the next one.
        producer: Settings of the producer by librdkafka's names.

    Raises:
        InvalidOption: A setting of security that librdkafka does not take.
    """

    _producer: Any = None
    _reader: RecordReader | None = None
    _asks: Any = None
    #: The id of the topic when `partitions` was called last.
    topic_id = ""

    def __init__(
        self,
        topic: str,
        kafka: Mapping[str, str],
        config: Mapping[str, Any],
        *,
        answer: float,
        fetch_ms: int,
        producer: Mapping[str, Any],
    ) -> None:
        self._topic, self._at = topic, (topic, 0)
        self._kafka = kafka
        self._config = {**config, "bootstrap_timeout_ms": int(1000 * answer)}
        self._answer, self._fetch_ms = answer, fetch_ms
        # A record that is written twice or late does no harm.
        self._producer_settings = {
            "linger.ms": 0, "max.in.flight": 1, "socket.nagle.disable": True, **producer
        }  # fmt: skip
        # What cannot be used is refused before anything is opened.
        client_config(self._kafka)

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
            admin.wait_for_topics([self._topic], timeout_ms=int(1000 * self._answer))
            (found,) = admin.describe_topics([self._topic])
        self.topic_id = str(found.get("topic_id", ""))
        return len(found["partitions"])

    def described_id(self) -> str:
        """Returns the id that the topic has now, by a client that stays connected."""
        from confluent_kafka import KafkaException, TopicCollection
        from confluent_kafka.admin import AdminClient
        from kafka.errors import KafkaTimeoutError

        if self._asks is None:
            self._asks = AdminClient(client_config(self._kafka) | {"log_level": 0})
        asked = self._asks.describe_topics(
            TopicCollection([self._topic]), request_timeout=self._answer
        )
        try:
            found = asked[self._topic].result(self._answer).topic_id
        except KafkaException as error:
            raise kafka_error(error.args[0]) from error
        except TimeoutError as error:
            raise KafkaTimeoutError(str(error)) from error
        high, low = found.get_most_significant_bits(), found.get_least_significant_bits()
        return str(uuid.UUID(int=(high % 2**64 << 64) + low % 2**64))

    def delete_before(self, position: int) -> None:
        """Lets Kafka delete the records below an offset."""
        from kafka import TopicPartition

        with self._admin() as admin:
            admin.delete_records({TopicPartition(*self._at): position})

    def send(self, values: Sequence[bytes], key: bytes | None = None) -> None:
        """Sends records and does not wait; some may be lost. The first call makes the producer."""
        if self._producer is None:
            self._producer = record_producer(self._kafka, self._producer_settings)
        for value in values:
            self._producer.poll(0)  # so that its queue has space
            self._produce(value, key)

    def append(self, values: Sequence[bytes], timeout: float) -> Sequence[int]:
        """Appends records and waits until all replicas in sync have them; returns their offsets."""
        from kafka.errors import KafkaTimeoutError

        offsets: list[int] = []
        errors: list[Any] = []

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                offsets.append(message.offset())
            else:
                errors.append(error)

        self.send(())
        for value in values:
            self._produce(value, None, delivered)
        deadline = Deadline(timeout)
        while len(offsets) + len(errors) < len(values):
            self._producer.poll(min(_LOOK, deadline.left))
            if deadline.is_over:
                raise KafkaTimeoutError(f"{self._topic} is not written within {timeout:g} s")
        if errors:
            raise kafka_error(errors[0])
        return offsets

    def _produce(self, value: bytes, key: bytes | None, delivered: Any = None) -> None:
        from confluent_kafka import KafkaException
        from kafka.errors import KafkaTimeoutError

        try:
            self._producer.produce(self._topic, value, key, 0, delivered)
        except BufferError as error:
            raise KafkaTimeoutError(str(error)) from error
        except KafkaException as error:
            raise kafka_error(error.args[0]) from error

    def begin_reading(self) -> tuple[int, int]:
        """Begins at the first offset; returns it, and the end of the log."""
        if self._reader is None:
            self._reader = RecordReader(
                self._kafka,
                {"fetch.wait.max.ms": self._fetch_ms, "isolation.level": "read_uncommitted"},
                patience=self._answer,
            )
        start, end = self._reader.bounds(self._at)
        self._reader.assign({self._at: start})
        return start, end

    def end(self) -> int:
        """Returns the end of the log."""
        assert self._reader is not None
        return self._reader.bounds(self._at)[1]

    def position(self) -> int:
        """Returns the offset that is read next."""
        assert self._reader is not None
        return self._reader.positions[self._at]

    def read(self, seconds: float) -> Sequence[tuple[int, bytes | None, bytes | None]] | None:
        """Waits for the next records: offset, key and value; None: they were deleted."""
        assert self._reader is not None
        if self._producer is not None:
            self._producer.poll(0)  # drops reports; not in `send`, which may be in a hurry
        taken = self._reader.read(seconds)
        if taken.lost:
            return None
        records = taken.records.get(self._at, ())
        return [(record.offset(), record.key(), record.value()) for record in records]

    def end_reading(self) -> None:
        """Closes the reader; harmless when repeated."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def end_writing(self) -> None:
        """Waits up to 3 s for what was sent."""
        if self._producer is not None:
            self._producer.flush(_LAST)
