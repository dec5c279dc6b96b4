"""The producer of a fenced log, with or without transactions, by confluent-kafka.

Kafka's own rules make it safe: a producer that takes a transactional id fences the one before, and
an append is acknowledged by all replicas in sync. Beyond that: every record's answer is looked at,
an offset below 0 is a doubt, calls have deadlines, and after any doubt a producer is dropped
(`EngineDoubt`).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from coopconsume.closing import RaisedAs
from coopconsume.fenced.engine import EngineDoubt, LogAppend
from coopconsume.fenced.failures import doubt_of, doubt_of_confluent
from coopconsume.kafka.call_limit import Deadline
from coopconsume.kafka.librdkafka import record_producer
from coopconsume.kafka.transactions import group_metadata

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from coopconsume.fenced.config import FencedSettings
    from coopconsume.fenced.log import Consumed, LogId

#: One append is one Kafka batch: records wait for the flush, not for a clock.
_LINGER_MS: Final = 10_000
#: The least ``delivery.timeout.ms``, as records wait for the flush.
_LEAST_DELIVERY_MS: Final = 10_100
#: Milliseconds for an answer of a broker, where the user does not say.
_REQUEST_MS: Final = 10_000
#: The least ``socket.timeout.ms``.
_LEAST_REQUEST_MS: Final = 10
_TRANSACTION_MS: Final = 60_000
_RESUME: Final = 0.5


Fence: TypeAlias = "Callable[[str, int, Deadline], None]"
"""Fences the producers of a transactional id whose transactions have a timeout in milliseconds; see
`coopconsume.kafka.transactions.fence_producers`."""


@dataclass
class Delivery:
    """Records that were produced, and the answers to them; those of a partition come in order.

    Attributes:
        count: How many were produced.
        offsets: Offsets of those that have arrived.
        error: The first error.
    """

    count: int = 0
    offsets: list[int] = field(default_factory=list)
    error: Any = None

    def delivered(self, error: Any, message: Any) -> None:
        """Takes the answer to one of them."""
        if error is None:
            self.offsets.append(message.offset())
        elif self.error is None:
            self.error = error


class KafkaChannel:
    """A producer: after any doubt it is dropped, never used again.

    Args:
        settings: The settings.
        log: The log, for errors.
        transactional_id: The transactional id; without one it only appends.
        timeout: Seconds that a record may wait to be sent and acknowledged.
        fence: Fences the producers of a transactional id.
        more: Settings by librdkafka's names.

    Raises:
        InvalidOption: A setting that librdkafka does not take.
    """

    def __init__(
        self,
        settings: FencedSettings,
        log: LogId,
        transactional_id: str | None,
        timeout: float,
        fence: Fence,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        self._settings = settings
        self._topic = log.topic
        self._fence = fence
        self._id = transactional_id
        self._as_doubts = RaisedAs(partial(doubt_of_confluent, settings, log.topic))
        kafka = settings.kafka
        size = settings.max_request_size
        delivery_ms = max(int(1000 * timeout), _LEAST_DELIVERY_MS)
        self._transaction_ms = int(kafka.get("transaction.timeout.ms", _TRANSACTION_MS))
        request_ms = int(kafka.get("request.timeout.ms", _REQUEST_MS))
        config: dict[str, Any] = {
            "enable.idempotence": True, "linger.ms": _LINGER_MS, "batch.size": size,
            "batch.num.messages": 1_000_000, "message.max.bytes": size + 4096,
            "queue.buffering.max.messages": 1_000_000, "retry.backoff.ms": 5,
            "socket.timeout.ms": max(request_ms, _LEAST_REQUEST_MS),
        }  # fmt: skip
        if kafka.get("compression.type"):
            config["compression.type"] = kafka["compression.type"]
        if transactional_id is not None:
            delivery_ms = min(delivery_ms, max(self._transaction_ms, _LEAST_DELIVERY_MS))
            self._transaction_ms = max(self._transaction_ms, delivery_ms)
            config["transactional.id"] = transactional_id
            # It would connect to a broker at most every 50 ms, and look only every 500 ms whether
            # it has one that can be asked for the coordinator. Each append wakes all connections,
            # so others have no more than they need.
            config["enable.sparse.connections"] = False
            config["transaction.timeout.ms"] = self._transaction_ms
        config |= {"delivery.timeout.ms": delivery_ms} | dict(more or {})
        with self._as_doubts:
            self._producer: Any = record_producer(kafka, config)

    def init(self, timeout: float) -> None:
        """Fences every earlier producer of the transactional id, and decides its transaction."""
        assert self._id is not None
        deadline = Deadline(timeout)
        with RaisedAs(partial(doubt_of, self._settings, self._topic)):
            self._fence(self._id, self._transaction_ms, deadline)
        self._within(deadline.left, "init_transactions")

    def begin(self) -> None:
        """Begins a transaction."""
        with self._as_doubts:
            self._producer.begin_transaction()

    def append(self, parts: Sequence[LogAppend], timeout: float) -> list[list[int]]:
        """Appends records, acknowledged by all replicas in sync; returns the offset of each."""
        deliveries = [Delivery(len(part.entries)) for part in parts]
        with self._as_doubts:
            for (log, entries, headers, *_), delivery in zip(parts, deliveries, strict=True):
                topic, partition, delivered = log.topic, log.partition, delivery.delivered
                for (value, key, more, timestamp), stamp in zip(entries, headers, strict=True):
                    # 0 is the client's clock.
                    self._producer.produce(
                        topic, value, key, partition, delivered, timestamp=timestamp or 0,
                        headers=[stamp, *more],
                    )  # fmt: skip
            self._flush(timeout, deliveries)
        return [delivery.offsets for delivery in deliveries]

    def _flush(self, timeout: float, deliveries: Sequence[Delivery]) -> None:
        """Waits until records have arrived; each is looked at, as batches fail one by one."""
        from confluent_kafka import KafkaException

        self._producer.flush(timeout)
        for delivery in deliveries:
            if delivery.error is not None:
                raise KafkaException(self._reason(delivery.error))
        if any(len(one.offsets) != one.count for one in deliveries):
            raise EngineDoubt("a record was not acknowledged in time")
        if any(min(one.offsets, default=0) < 0 for one in deliveries):
            raise EngineDoubt("a record was acknowledged without its offset")

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
        group = group_metadata(consumed.group)
        self._within(timeout, "send_offsets_to_transaction", offsets, group)

    def commit(self, timeout: float) -> None:
        """Commits the transaction."""
        self._within(timeout, "commit_transaction")

    def abort(self, timeout: float) -> None:
        """Aborts the transaction."""
        self._within(timeout, "abort_transaction")

    def drop(self) -> None:
        """Stops using it at once; a request under way may still take effect.

        Its threads end here, also while somebody keeps an error whose frames have this channel.
        """
        from confluent_kafka import KafkaException

        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(KafkaException):  # it cannot be used anyway
                producer.purge()

    def _within(self, timeout: float, call: str, *args: object) -> None:
        """Repeats a call, which continues where it stopped, until it ends or its time is over."""
        from confluent_kafka import KafkaException

        deadline = Deadline(timeout)
        with self._as_doubts:
            while True:
                try:
                    seconds = max(0.1, min(_RESUME, deadline.left))
                    getattr(self._producer, call)(*args, seconds)
                except KafkaException as error:
                    if not error.args[0].retriable() or deadline.is_over:
                        raise
                else:
                    return
