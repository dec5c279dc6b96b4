"""Producers of confluent-kafka (librdkafka), and its errors as `EngineDoubt`."""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from coopconsume.errors import NotAuthorized
from coopconsume.errors.fenced import AppendRefused
from coopconsume.fenced.engine import Channel, EngineDoubt
from coopconsume.kafka.librdkafka import client_config
from coopconsume.kafka.security import sasl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from coopconsume.errors import CoopConsumeError
    from coopconsume.fenced.engine import Part
    from coopconsume.fenced.log import Consumed, LogId
    from coopconsume.fenced.settings import Settings

logger = logging.getLogger(__name__)

_BATCH_BYTES: Final = 1 << 20
_RESUME: Final = 0.5


class ConfluentChannel(Channel):
    """A producer of confluent-kafka.

    Raises:
        EngineDoubt: It cannot be made.
    """

    def __init__(
        self, settings: Settings, log: LogId, transactional_id: str | None, timeout: float
    ) -> None:
        from confluent_kafka import Producer

        self._settings = settings
        self._log = log
        kafka = settings.kafka
        size = int(kafka.get("max.request.size", _BATCH_BYTES))
        timeout_ms = max(1000, int(1000 * timeout))
        config = client_config(settings.kafka) | {
            "acks": "all", "enable.idempotence": True, "linger.ms": 10_000, "batch.size": size,
            "batch.num.messages": 1_000_000, "message.max.bytes": size + 4096,
            "queue.buffering.max.messages": 1_000_000, "retry.backoff.ms": 5,
            "delivery.timeout.ms": max(timeout_ms, 10_100),
        }  # fmt: skip
        if kafka.get("compression.type"):
            config["compression.type"] = kafka["compression.type"]
        if transactional_id is not None:
            config["transactional.id"] = transactional_id
            config["transaction.timeout.ms"] = int(kafka.get("transaction.timeout.ms", 60_000))
            config["delivery.timeout.ms"] = min(
                config["delivery.timeout.ms"], max(config["transaction.timeout.ms"], 10_100)
            )
            config["transaction.timeout.ms"] = max(
                config["transaction.timeout.ms"], config["delivery.timeout.ms"]
            )
        with self._as_doubts():
            self._producer = Producer(config, logger=logger)

    def append(self, parts: Sequence[Part], timeout: float) -> list[list[int]]:
        """Appends records, acknowledged by all replicas in sync; returns the offset of each."""
        errors: list[Any] = []
        found: list[list[int]] = []
        with self._as_doubts():
            produce = self._producer.produce
            for log, entries, stamps in parts:
                found.append([])
                delivered = _collect(found[-1], errors)
                topic, partition = log.topic, log.partition
                for (value, key, more, timestamp), stamp in zip(entries, stamps, strict=True):
                    # 0 is the client's clock.
                    produce(
                        topic, value, key, partition, delivered, timestamp=timestamp or 0,
                        headers=[stamp, *more],
                    )  # fmt: skip
            self._producer.flush(timeout)
            if errors:
                from confluent_kafka import KafkaException

                raise KafkaException(self._reason(errors[0]))
        if list(map(len, found)) != [len(part.entries) for part in parts]:
            raise EngineDoubt("a record was not acknowledged in time")
        if min(map(min, found)) < 0:
            raise EngineDoubt("a record was acknowledged without its offset")
        return found

    def _reason(self, error: Any) -> Any:
        """Returns why a record failed; if it was purged, why its transaction failed.

        Only a call that the state of the transaction refuses shows that error.
        """
        from confluent_kafka import KafkaError, KafkaException

        if error.code() == KafkaError._PURGE_QUEUE:  # noqa: SLF001
            try:
                self._producer.begin_transaction()
            except KafkaException as refused:
                return refused.args[0]
        return error

    def send_offsets(self, consumed: Consumed, timeout: float) -> None:
        """Adds offsets of a consumer group to the transaction."""
        from confluent_kafka import Consumer, TopicPartition

        offsets = [TopicPartition(*name, offset) for name, offset in consumed.offsets.items()]
        with self._as_doubts():
            # Only a consumer makes the metadata of a group; it never joins the group.
            config = client_config(self._settings.kafka) | {"group.id": consumed.group}
            consumer = Consumer(config, logger=logger)
            try:
                group = consumer.consumer_group_metadata()
            finally:
                consumer.close()

        def send_offsets(seconds: float) -> None:
            self._producer.send_offsets_to_transaction(offsets, group, seconds)

        self._within(timeout, send_offsets)

    def drop(self) -> None:
        """Stops using it at once; a request under way may still take effect."""
        from confluent_kafka import KafkaException

        try:
            self._producer.purge()
        except KafkaException:
            return  # it cannot be used anyway

    def _as_doubts(self) -> AbstractContextManager[None]:
        return as_doubts(self._settings, self._log.topic)

    def _within(self, timeout: float, call: Callable[[float], None]) -> None:
        """Repeats a call, which continues where it stopped, until it ends or its time is over."""
        from confluent_kafka import KafkaException

        until = time.monotonic() + timeout
        with self._as_doubts():
            while True:
                try:
                    call(max(0.1, min(_RESUME, until - time.monotonic())))
                except KafkaException as error:
                    if not error.args[0].retriable() or time.monotonic() >= until:
                        raise
                else:
                    return


def _collect(offsets: list[int], errors: list[Any]) -> Callable[[Any, Any], None]:
    """A callback for the records of one partition, which are delivered in their order."""

    def delivered(error: Any, message: Any) -> None:
        if error is None:
            offsets.append(message.offset())
        else:
            errors.append(error)

    return delivered


@contextmanager
def as_doubts(settings: Settings, topic: str) -> Iterator[None]:
    """Raises errors of the client as `EngineDoubt`."""
    try:
        yield
    except Exception as error:
        from confluent_kafka import KafkaException

        # A consumer that was closed raises RuntimeError.
        known = (KafkaException, BufferError, SystemError, RuntimeError, OSError)
        if not isinstance(error, known):
            raise
        refusal = _refusal(error, settings, topic)
        raise EngineDoubt(str(error), refusal, is_out_of_range=_is_gone(error)) from error


def _is_gone(error: BaseException) -> bool:
    """Whether the brokers do not have an offset that was to be read."""
    from confluent_kafka import KafkaError

    kind = error.args[0] if error.args else None
    gone = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)  # noqa: SLF001
    return isinstance(kind, KafkaError) and kind.code() in gone


def _refusal(error: BaseException, settings: Settings, topic: str) -> CoopConsumeError | None:
    from confluent_kafka import KafkaError

    kind = error.args[0] if error.args else None
    if not isinstance(kind, KafkaError):
        return None
    user = sasl.user(settings.kafka)
    if kind.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return NotAuthorized("WRITE", "TOPIC", topic, user)
    if kind.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        return NotAuthorized("WRITE", "TRANSACTIONAL_ID", "", user)
    if kind.code() in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD):
        return AppendRefused(f"{topic} does not take the records: {kind.str()}")
    return None
