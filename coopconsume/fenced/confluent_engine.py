"""The writer's engine on confluent-kafka (librdkafka): faster, and its commits can be resumed.

It reads and writes with librdkafka, and asks about topics, offsets and transactions with
kafka-python: librdkafka has no requests for open transactions, and of a refused login it reports
only a time-out.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from coopconsume.closing import RaisedAs
from coopconsume.fenced import kafka_engine
from coopconsume.fenced.engine import EngineDoubt, LogAppend
from coopconsume.fenced.kafka_engine import CONNECT, Engine, KafkaChannel
from coopconsume.fenced.log import Consumed, LogId, Rows
from coopconsume.kafka.call_limit import Deadline
from coopconsume.kafka.librdkafka import client_config, package

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coopconsume.fenced.config import FencedSettings

logger = logging.getLogger(__name__)

#: Records taken at once: with their headers few enough not to wake Python's garbage collector.
_MANY: Final = 128
#: The least ``delivery.timeout.ms``, as records wait up to 10 s (``linger.ms``) for the flush.
_LEAST_DELIVERY_MS: Final = 10_100
_RESUME: Final = 0.5
_milliseconds: Final = itemgetter(1)


def doubt_of(settings: FencedSettings, topic: str, error: BaseException) -> EngineDoubt | None:
    """What a failure of the client means; of a broker's error, what it does with kafka-python."""
    from confluent_kafka import KafkaError, KafkaException
    from kafka.errors import for_code

    # A consumer that was closed raises RuntimeError.
    known = (KafkaException, BufferError, SystemError, RuntimeError, OSError)
    if not isinstance(error, known):
        return None
    kind: Any = error.args[0] if error.args else None
    code = kind.code() if isinstance(kind, KafkaError) else 0
    if code == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001
        code = KafkaError.OFFSET_OUT_OF_RANGE
    if code > 0:
        return kafka_engine.doubt_of(settings, topic, for_code(code)(kind.str()))
    return EngineDoubt(str(error))


class ConfluentEngine(Engine):
    """The engine on confluent-kafka's consumer and producers, and kafka-python's admin client.

    Raises:
        EngineNotUsable: It is not installed.
        InvalidOption: A setting of security that this engine does not take.
    """

    _doubt_of = staticmethod(doubt_of)

    def __init__(self, settings: FencedSettings, timeout: float = CONNECT) -> None:
        package()
        super().__init__(settings, timeout)
        self._librdkafka = client_config(settings.kafka)

    def _seek(self, topic: str, partition: int, start: int) -> Any:
        from confluent_kafka import Consumer, TopicPartition

        if self._consumer is None:
            config = self._librdkafka | {
                "group.id": "none", "enable.auto.commit": False, "enable.partition.eof": True,
                "isolation.level": "read_committed", "auto.offset.reset": "error",
                "fetch.wait.max.ms": 20, "fetch.message.max.bytes": 8 << 20,
            }  # fmt: skip
            self._consumer = Consumer(config, logger=logger)
        self._consumer.assign([TopicPartition(topic, partition, start)])
        return self._consumer

    def _poll(self, consumer: Any, position: int, stop: int) -> tuple[Rows, int]:
        from confluent_kafka import KafkaError, KafkaException, Message

        # With a time to wait, it would wait until there are as many.
        messages = consumer.consume(_MANY, 0) or consumer.consume(1, 0.05)
        errors = [*filter(None, map(Message.error, messages))]
        if errors:
            messages = [message for message in messages if message.error() is None]
        if messages:
            position = messages[-1].offset() + 1
        for error in errors:
            if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                position = stop  # All that is stable was seen: that is as far as was asked for.
                break
            if error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
                # That one is about the group's coordinator, which librdkafka looks for and a reader
                # without a group that counts has no use for.
                raise KafkaException(error)
        while messages and messages[-1].offset() >= stop:
            messages.pop()
        rows = Rows((
            map(Message.offset, messages), map(_milliseconds, map(Message.timestamp, messages)),
            map(Message.key, messages), map(Message.value, messages),
            [message.headers() or () for message in messages],
        ))  # fmt: skip
        return rows, position

    def channel(self, log: LogId, transactional_id: str | None, timeout: float) -> KafkaChannel:
        """Returns a new producer."""
        return ConfluentChannel(self._settings, log, transactional_id, timeout)


class ConfluentChannel(KafkaChannel):
    """A producer of confluent-kafka."""

    def __init__(
        self, settings: FencedSettings, log: LogId, transactional_id: str | None, timeout: float
    ) -> None:
        from confluent_kafka import Producer

        self._settings = settings
        self._as_doubts = RaisedAs(partial(doubt_of, settings, log.topic))
        kafka = settings.kafka
        size = settings.max_request_size
        delivery_ms = max(int(1000 * timeout), _LEAST_DELIVERY_MS)
        transaction_ms = int(kafka.get("transaction.timeout.ms", 60_000))
        config = client_config(kafka)
        if kafka.get("compression.type"):
            config["compression.type"] = kafka["compression.type"]
        if transactional_id is not None:
            delivery_ms = min(delivery_ms, max(transaction_ms, _LEAST_DELIVERY_MS))
            config["transactional.id"] = transactional_id
            config["transaction.timeout.ms"] = max(transaction_ms, delivery_ms)
        config |= {
            "acks": "all", "enable.idempotence": True, "linger.ms": 10_000, "batch.size": size,
            "batch.num.messages": 1_000_000, "message.max.bytes": size + 4096,
            "queue.buffering.max.messages": 1_000_000, "retry.backoff.ms": 5,
            "delivery.timeout.ms": delivery_ms,
        }  # fmt: skip
        with self._as_doubts:
            self._producer = Producer(config, logger=logger)

    def append(self, parts: Sequence[LogAppend], timeout: float) -> list[list[int]]:
        """Appends records, acknowledged by all replicas in sync; returns the offset of each."""
        errors: list[Any] = []
        found: list[list[int]] = []
        with self._as_doubts:
            produce = self._producer.produce
            for log, entries, headers, *_ in parts:
                offsets: list[int] = []
                found.append(offsets)

                # The records of one partition are delivered in their order.
                def delivered(error: Any, message: Any, offsets: list[int] = offsets) -> None:
                    if error is None:
                        offsets.append(message.offset())
                    else:
                        errors.append(error)

                topic, partition = log.topic, log.partition
                for (value, key, more, timestamp), stamp in zip(entries, headers, strict=True):
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
        with self._as_doubts:
            # Only a consumer makes the metadata of a group; it never joins the group.
            config = client_config(self._settings.kafka) | {"group.id": consumed.group}
            consumer = Consumer(config, logger=logger)
            try:
                group = consumer.consumer_group_metadata()
            finally:
                consumer.close()

        send = self._producer.send_offsets_to_transaction
        self._within(timeout, partial(send, offsets, group))

    def drop(self) -> None:
        """Stops using it at once; a request under way may still take effect."""
        from confluent_kafka import KafkaException

        with suppress(KafkaException):  # it cannot be used anyway
            self._producer.purge()

    def _within(self, timeout: float, call: Callable[..., None]) -> None:
        """Repeats a call, which continues where it stopped, until it ends or its time is over."""
        from confluent_kafka import KafkaException

        deadline = Deadline(timeout)
        with self._as_doubts:
            while True:
                try:
                    return call(max(0.1, min(_RESUME, deadline.left)))
                except KafkaException as error:
                    if not error.args[0].retriable() or deadline.is_over:
                        raise
