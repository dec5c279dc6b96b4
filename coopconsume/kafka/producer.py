"""Writes records to Kafka and waits until all in-sync replicas have them."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from coopconsume.errors import OutputNotWritten, OutputRefused
from coopconsume.kafka.partitioner import default_partition
from coopconsume.kafka.security import access

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from coopconsume.options import Options

#: The broker and the topic limit the size of a record, not the client.
MOST_BYTES = 256 << 20
_DELIVERY = 120.0
#: Seconds without a write after which the connection is closed. Once kafka-python has heard that a
#: topic it wrote to is deleted, its sender's thread is busy until it is closed.
_IDLE = 10.0
#: The header of an output record that names the input record, as ``topic-partition@offset``.
ORIGIN_HEADER = "coopconsume.origin"
#: A header with the indexes, from 0, of the headers whose value was null.
NULL_HEADERS = "coopconsume.null_headers"


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


class Producer:
    """An idempotent producer with ``acks=all``; it connects at a write and closes when it is idle.

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
        self._written_at = 0.0
        self._closing: threading.Timer | None = None

    def write(self, messages: Iterable[Message]) -> None:
        """Write records and wait until all of them are acknowledged.

        Raises:
            AuthenticationFailed, NotAuthorized: The cluster refuses this user.
            OutputNotWritten: A record was not acknowledged; others may have been written.
            OutputRefused: The topic refuses a record because it is too large or malformed.
        """
        with self._lock:
            self._write(messages)
            self._written_at = time.monotonic()
            if self._closing is None:
                self._close_later(_IDLE)

    def _close_later(self, seconds: float) -> None:
        self._closing = threading.Timer(seconds, self._close_if_idle)
        self._closing.daemon = True
        self._closing.start()

    def _close_if_idle(self) -> None:
        with self._lock:
            if self._closing is None:
                return
            left = self._written_at + _IDLE - time.monotonic()
            if left > 0:
                self._close_later(left)
            else:
                self.close()

    def _write(self, messages: Iterable[Message]) -> None:
        from kafka.errors import KafkaError

        topic = ""
        try:
            if self._client is None:
                self._client = self._connected()
            sent = []
            for message in messages:
                topic = message.topic
                partition = message.partition
                if message.ordering_key is not None:
                    count = len(self._client.partitions_for(topic))
                    partition = default_partition(message.ordering_key, count)
                # The serializer extracts key and headers, see below.
                future = self._client.send(
                    topic, key=message, value=message.value, partition=partition
                )
                sent.append((topic, future))
            self._client.flush(timeout=_DELIVERY)
            for name, future in sent:
                topic = name
                future.get(timeout=_DELIVERY)
        except (KafkaError, OSError) as error:
            self.close()
            refused = access.refused(error, self._options.kafka, [topic], "WRITE")
            if refused is not None:
                raise refused from None
            cause = f"{type(error).__name__}: {error}"
            kind = OutputRefused if isinstance(error, _permanent_errors()) else OutputNotWritten
            raise kind(self._what, f"topic {topic!r}", cause) from error

    def close(self) -> None:
        """Close the connection. Repeated calls have no effect."""
        client, self._client = self._client, None
        timer, self._closing = self._closing, None
        if timer is not None:
            timer.cancel()
        if client is not None:
            client.close(timeout=5)

    def _connected(self) -> Any:
        from kafka import KafkaProducer

        config = self._options.client_config()
        return KafkaProducer(
            **config, acks="all", enable_idempotence=True, linger_ms=5,
            delivery_timeout_ms=int(_DELIVERY * 1000), max_request_size=MOST_BYTES,
            allow_auto_create_topics=False, key_serializer=message_serializer(),
        )  # fmt: skip


def _permanent_errors() -> tuple[type[Exception], ...]:
    """Return the errors of kafka-python for records that a topic always refuses."""
    from kafka import errors

    return (
        errors.MessageSizeTooLargeError, errors.RecordListTooLargeError,
        errors.InvalidRecordError, errors.InvalidTimestampError,
    )  # fmt: skip


def message_serializer() -> Any:
    """Return a serializer that extracts key and headers from a `Message`.

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
