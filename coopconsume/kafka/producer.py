"""Writes records to Kafka and waits until all in-sync replicas have them."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from coopconsume.errors import OutputNotWritten, OutputRefused
from coopconsume.kafka.librdkafka import kafka_error, record_producer
from coopconsume.kafka.partitioner import default_partition
from coopconsume.kafka.security import access

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kafka.errors import KafkaError

    from coopconsume.options import Options

log = logging.getLogger(__name__)

#: The broker and the topic limit the size of a record, not the client.
MOST_BYTES = 256 << 20
_DELIVERY = 120.0
#: Seconds for one answer of a broker.
_ANSWER = 10.0
#: Seconds after which the partitions of a topic are counted again, as with Kafka's own producers.
_COUNTS = 300.0
#: Seconds between two looks at what has arrived.
_POLL = 0.1
#: The partition that the hash of the key selects.
_ANY = -1
#: The header of an output record that names the input record, as ``topic-partition@offset``.
ORIGIN_HEADER = "coopconsume.origin"


class Message(NamedTuple):
    """A record to write.

    Attributes:
        topic: The topic.
        key, value: Bytes or None.
        headers: Names with bytes or None.
        partition: The partition; None selects it by the hash of the key, as Kafka's clients do.
        ordering_key: Selects the partition in place of the key; None: the key does.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    partition: int | None = None
    ordering_key: bytes | None = None


@dataclass
class _Sent:
    """The records of a write: the topic of the last one, and the errors of any with its topic."""

    topic: str = ""
    failed: list[tuple[str, Any]] = field(default_factory=list)


class Producer:
    """An idempotent producer of confluent-kafka with ``acks=all``; it connects at the first write.

    It is thread-safe; one thread writes at a time.

    Args:
        options: The options of the consumer; the producer uses their ``kafka.*`` settings.
        what: The kind of the records, for errors.
    """

    def __init__(self, options: Options, what: str) -> None:
        self._options = options
        self._what = what
        self._client: Any = None
        self._lock = threading.Lock()
        #: The number of partitions of each topic, and when it has to be counted again.
        self._partitions: dict[str, tuple[int, float]] = {}
        #: Whether another thread waits for the end of a write, to close.
        self._is_closing = False
        #: What a broker has refused permanently, such as the login.
        self._refusal: KafkaError | None = None

    def write(self, messages: Iterable[Message]) -> None:
        """Write records and wait until all of them are acknowledged.

        Raises:
            AuthenticationFailed, NotAuthorized: The cluster refuses this user.
            OutputNotWritten: A record was not acknowledged; others may have been written.
            OutputRefused: The topic refuses a record because it is too large or malformed.
        """
        with self._lock:
            self._write(messages)

    def _write(self, messages: Iterable[Message]) -> None:
        from confluent_kafka import KafkaException
        from kafka.errors import KafkaError

        sent = _Sent()
        try:
            if self._client is None:
                self._client = self._connected()
            for message in messages:
                sent.topic = message.topic
                self._send(message, sent)
            self._wait(sent)
        except (KafkaException, KafkaError, OSError) as failure:
            self._drop()
            error = kafka_error(failure.args[0]) if isinstance(failure, KafkaException) else failure
            refused = access.refused(error, self._options.kafka, [sent.topic], "WRITE")
            if refused is not None:
                raise refused from None
            cause = f"{type(error).__name__}: {error}"
            kind = OutputRefused if isinstance(error, _permanent_errors()) else OutputNotWritten
            raise kind(self._what, f"topic {sent.topic!r}", cause) from error

    def _wait(self, sent: _Sent) -> None:
        """Wait until all records are acknowledged; raise the first error."""
        from kafka.errors import KafkaTimeoutError

        deadline = time.monotonic() + _DELIVERY
        while self._client.flush(_POLL) and self._refusal is None:
            if self._is_closing:
                raise KafkaTimeoutError("not acknowledged before it was closed")
            if time.monotonic() > deadline:
                raise KafkaTimeoutError(f"not acknowledged within {_DELIVERY:g} s")
        if sent.failed:
            sent.topic, error = sent.failed[0]
            raise kafka_error(error)
        if self._refusal is not None:
            raise self._refusal

    def _send(self, message: Message, sent: _Sent) -> None:
        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                sent.failed.append((message.topic, error))

        partition = message.partition
        if message.ordering_key is not None:
            partition = default_partition(message.ordering_key, self._count(message.topic))
        while True:
            try:
                self._client.produce(
                    message.topic, message.value, message.key,
                    _ANY if partition is None else partition, delivered,
                    headers=list(message.headers),
                )  # fmt: skip
            except BufferError:  # Its queue is full.
                self._client.poll(_POLL)
                if sent.failed or self._refusal is not None or self._is_closing:
                    return  # The wait for what was sent raises it.
            else:
                self._client.poll(0)
                return

    def _count(self, topic: str) -> int:
        """Return the number of a topic's partitions, as it was at most five minutes ago."""
        from confluent_kafka import KafkaException

        count, until = self._partitions.get(topic, (0, 0.0))
        if time.monotonic() < until:
            return count
        try:
            described = self._client.list_topics(topic, _ANSWER).topics[topic]
        except KafkaException as error:
            self._client.poll(0)  # The client says here alone that the login was refused.
            raise self._refusal or kafka_error(error.args[0]) from None
        if described.error is not None:
            raise kafka_error(described.error)
        count = len(described.partitions)
        self._partitions[topic] = (count, time.monotonic() + _COUNTS)
        return count

    def close(self) -> None:
        """Close the connection; a write of another thread fails. Repeated calls have no effect."""
        self._is_closing = True
        with self._lock:
            self._drop()
            self._is_closing = False

    def _drop(self) -> None:
        client, self._client = self._client, None
        self._partitions, self._refusal = {}, None
        if client is not None:
            client.purge()
            client.flush(_POLL)

    def _connected(self) -> Any:
        return record_producer(
            self._options.kafka,
            {
                "enable.idempotence": True,
                "linger.ms": 5,
                "delivery.timeout.ms": int(_DELIVERY * 1000),
                "message.max.bytes": MOST_BYTES,
                "error_cb": self._heard,
            },
        )

    def _heard(self, error: Any) -> None:
        """Take an error of no record; librdkafka retries by itself unless it is final."""
        from kafka.errors import SaslAuthenticationFailedError

        found = kafka_error(error)
        if error.fatal() or isinstance(found, SaslAuthenticationFailedError):
            self._refusal = found
        else:
            log.debug("a producer of %s: %s", self._what, error.str())


def _permanent_errors() -> tuple[type[Exception], ...]:
    """Return the errors of kafka-python for records that a topic always refuses."""
    from kafka import errors

    return (
        errors.MessageSizeTooLargeError,
        errors.RecordListTooLargeError,
        errors.InvalidRecordError,
        errors.InvalidTimestampError,
    )
