"""The writer's engine that writes with confluent-kafka: faster, and its commits can be resumed.

It asks about topics, offsets and transactions with kafka-python: librdkafka has no requests for
open transactions, and of a refused login it reports only a time-out.
"""

from __future__ import annotations

from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from coopconsume.closing import RaisedAs
from coopconsume.fenced.engine import EngineDoubt, LogAppend
from coopconsume.fenced.kafka_engine import Engine, KafkaChannel, doubt_of_confluent
from coopconsume.kafka.call_limit import Deadline
from coopconsume.kafka.librdkafka import record_consumer, record_producer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coopconsume.fenced.config import FencedSettings
    from coopconsume.fenced.log import Consumed, LogId

#: The least ``delivery.timeout.ms``, as records wait up to 10 s (``linger.ms``) for the flush.
_LEAST_DELIVERY_MS: Final = 10_100
_RESUME: Final = 0.5


class ConfluentEngine(Engine):
    """The engine that writes with confluent-kafka's producers."""

    def channel(self, log: LogId, transactional_id: str | None, timeout: float) -> KafkaChannel:
        """Returns a new producer."""
        return ConfluentChannel(self._settings, log, transactional_id, timeout)


class ConfluentChannel(KafkaChannel):
    """A producer of confluent-kafka."""

    def __init__(
        self, settings: FencedSettings, log: LogId, transactional_id: str | None, timeout: float
    ) -> None:
        self._settings = settings
        self._as_doubts = RaisedAs(partial(doubt_of_confluent, settings, log.topic))
        kafka = settings.kafka
        size = settings.max_request_size
        delivery_ms = max(int(1000 * timeout), _LEAST_DELIVERY_MS)
        transaction_ms = int(kafka.get("transaction.timeout.ms", 60_000))
        config: dict[str, Any] = {
            "enable.idempotence": True, "linger.ms": 10_000, "batch.size": size,
            "batch.num.messages": 1_000_000, "message.max.bytes": size + 4096,
            "queue.buffering.max.messages": 1_000_000, "retry.backoff.ms": 5,
        }  # fmt: skip
        if kafka.get("compression.type"):
            config["compression.type"] = kafka["compression.type"]
        if transactional_id is not None:
            delivery_ms = min(delivery_ms, max(transaction_ms, _LEAST_DELIVERY_MS))
            config["transactional.id"] = transactional_id
            config["transaction.timeout.ms"] = max(transaction_ms, delivery_ms)
        with self._as_doubts:
            self._producer = record_producer(kafka, config | {"delivery.timeout.ms": delivery_ms})

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
        from confluent_kafka import TopicPartition

        offsets = [TopicPartition(*name, offset) for name, offset in consumed.offsets.items()]
        # Only a consumer makes the metadata of a group; it never joins the group.
        made = partial(record_consumer, self._settings.kafka, {"group.id": consumed.group})
        with self._as_doubts, closing(made()) as one:
            group = one.consumer_group_metadata()

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
