"""Writes records to Kafka and waits until all brokers in sync have them; a thin edge."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from coopconsume.errors import NotAuthorized, OutputNotWritten, OutputRefused
from coopconsume.kafka.security import access, sasl

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from coopconsume.options import Options

#: The broker and the topic say how large a record may be, not the client.
MOST_BYTES = 256 << 20
_DELIVERY = 120.0
#: The header of an output record that names the input record, as ``topic-partition@offset``.
ORIGIN_HEADER = "coopconsume.origin"
#: A header that names, by their places from 0, the headers whose empty value stands for none.
NULL_HEADERS = "coopconsume.null_headers"


class Message(NamedTuple):
    """A record to be written.

    Attributes:
        topic: Where.
        key, value: What; both may be None.
        headers: Names with bytes or None.
        partition: Where exactly; None leaves it to the hash of the key, as Kafka's own clients do.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    partition: int | None = None


class Producer:
    """Connects when first used; idempotent, acknowledged by all replicas in sync.

    It may be used by several threads; one of them writes at a time.

    Args:
        options: Of the consumer, whose ``kafka.*`` settings serve here, too.
        what: What is written, for errors.
    """

    def __init__(self, options: Options, what: str) -> None:
        self._options = options
        self._what = what
        self._client: Any = None
        self._lock = threading.Lock()

    def write(self, messages: Iterable[Message]) -> None:
        """Write records; returns when all of them are acknowledged.

        Raises:
            AuthenticationFailed, NotAuthorized: The cluster refuses this user.
            OutputNotWritten: One of them was not acknowledged; others may be there.
            OutputRefused: The topic never takes one of them, as it is too large or malformed.
        """
        with self._lock:
            self._write(messages)

    def _write(self, messages: Iterable[Message]) -> None:
        from kafka.errors import KafkaError, TopicAuthorizationFailedError

        topic = ""
        try:
            if self._client is None:
                self._client = self._connected()
            sent = []
            for message in messages:
                topic = message.topic
                # The serializer takes the message apart, see below.
                future = self._client.send(
                    topic, key=message, value=message.value, partition=message.partition
                )
                sent.append((topic, future))
            self._client.flush(timeout=_DELIVERY)
            for name, future in sent:
                topic = name
                future.get(timeout=_DELIVERY)
        except (KafkaError, OSError) as error:
            self.close()
            kafka = self._options.kafka
            if isinstance(error, TopicAuthorizationFailedError):
                raise NotAuthorized("WRITE", "TOPIC", topic, sasl.user(kafka)) from None
            refused = access.refused(error, kafka, [topic])
            if refused is not None:
                raise refused from None
            cause = f"{type(error).__name__}: {error}"
            kind = OutputRefused if isinstance(error, _never_taken()) else OutputNotWritten
            raise kind(self._what, f"topic {topic!r}", cause) from error

    def close(self) -> None:
        """Disconnect; harmless when repeated."""
        client, self._client = self._client, None
        if client is not None:
            client.close(timeout=5)

    def _connected(self) -> Any:
        from kafka import KafkaProducer

        config = self._options.client_config()
        return KafkaProducer(
            **config, acks="all", enable_idempotence=True, linger_ms=5,
            delivery_timeout_ms=int(_DELIVERY * 1000), max_request_size=MOST_BYTES,
            allow_auto_create_topics=False, key_serializer=apart(),
        )  # fmt: skip


def _never_taken() -> tuple[type[Exception], ...]:
    """The errors of kafka-python for a record that a topic does not take, however often."""
    from kafka import errors

    return (
        errors.MessageSizeTooLargeError, errors.RecordListTooLargeError,
        errors.InvalidRecordError, errors.InvalidTimestampError,
    )  # fmt: skip


def apart() -> Any:
    """Makes key and headers of a whole message.

    ``send()`` itself refuses a record with neither key nor value, which Kafka has. What it cannot
    write at all is a header without a value: it becomes an empty one, and `NULL_HEADERS` tells.
    """
    from kafka.serializer import Serializer

    class _Apart(Serializer):  # type: ignore[misc]
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

    return _Apart()
