"""A producer of kafka-python, under rules that keep its faults away.

kafka-python 3.0 may report a commit that was an abort, and a fenced producer may abort its
successor's transaction by raising its own epoch. Both come from its automatic bump of the producer
epoch (KIP-360), which `kafka_python_compat` switches off. Beyond that: every future is awaited, an
offset below 0 is a doubt, commits have deadlines, and after any doubt a producer is dropped
(`EngineDoubt`).
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from coopconsume.errors import CoopConsumeError, NotAuthorized
from coopconsume.errors.fenced import AppendRefused, EngineNotUsable
from coopconsume.fenced.engine import Channel, EngineDoubt
from coopconsume.kafka import kafka_python_compat
from coopconsume.kafka.security import access, sasl
from coopconsume.kafka.settings import hurry_metadata

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from coopconsume.fenced.engine import Part
    from coopconsume.fenced.log import Consumed, LogId
    from coopconsume.fenced.settings import Settings

NAME: Final = "kafka-python"
#: Milliseconds that a request may take, where the user does not say.
REQUEST_MS: Final = 10_000
#: Seconds that the first connection may take.
CONNECT: Final = 10.0
# Every request of a transaction that is tried again sleeps for so long in the sender.
_BACKOFF_MS: Final = 5
# One append is one Kafka batch: records wait for the flush, not for a clock.
_LINGER_MS: Final = 10_000
_BATCH_BYTES: Final = 1 << 20
#: Brokers from here on verify that a record belongs to an open transaction (KIP-890, part 1).
_OLDEST: Final = (3, 6)


class KafkaChannel(Channel):
    """A producer of kafka-python.

    Raises:
        EngineNotUsable: kafka-python lacks a private hook that is needed, or the brokers are too
            old for transactions to be safe.
        EngineDoubt: No broker answers.
    """

    def __init__(
        self,
        settings: Settings,
        log: LogId,
        transactional_id: str | None,
        timeout: float,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        from kafka import KafkaProducer
        from kafka.errors import KafkaError

        self._log = log
        self._settings = settings
        # The hook is set before anything is sent, but for the id of a producer without
        # transactions, which nobody else has.
        given = settings.producer_config()
        request_ms = given.setdefault("request_timeout_ms", REQUEST_MS)
        size = given.setdefault("max_request_size", _BATCH_BYTES)
        config = given | {
            "acks": "all", "batch_size": size, "enable_idempotence": True,
            "linger_ms": _LINGER_MS, "retry_backoff_ms": _BACKOFF_MS,
            "max_block_ms": int(1000 * timeout),
            "delivery_timeout_ms": max(int(1000 * timeout), request_ms + _LINGER_MS),
            "bootstrap_timeout_ms": int(1000 * min(timeout, CONNECT)),
            "allow_auto_create_topics": False, "metrics_enabled": False, **(more or {}),
        }  # fmt: skip
        if transactional_id is not None:
            config["transactional_id"] = transactional_id
        try:
            self._producer = KafkaProducer(**config)
        except (KafkaError, OSError) as error:
            raise doubt_of(error, settings, log.topic) from error
        hurry_metadata(self._producer)
        problem = kafka_python_compat.restrict_producer(self._producer, _OLDEST)
        if problem:
            self.drop()
            raise EngineNotUsable(NAME, problem)

    def append(self, parts: Sequence[Part], timeout: float) -> list[list[int]]:
        """Appends records, acknowledged by all replicas in sync; returns the offset of each."""
        send = self._producer.send
        until = time.monotonic() + timeout
        kafka_python_compat.keep_batches_whole(self._producer)
        with self._as_doubts():
            sent = [
                [
                    send(log.topic, value, key, [stamp, *more], log.partition, timestamp)
                    for (value, key, more, timestamp), stamp in zip(entries, stamps, strict=True)
                ]
                for log, entries, stamps in parts
            ]
            self._producer.flush(timeout)
            # Each one, as an error of one batch says nothing of another.
            offsets = [
                [f.get(max(0.0, until - time.monotonic())).offset for f in futures]
                for futures in sent
            ]
        if min(map(min, offsets)) < 0:
            raise EngineDoubt("a record was acknowledged without its offset")
        return offsets

    def send_offsets(self, consumed: Consumed, timeout: float) -> None:
        """Adds offsets of a consumer group to the transaction."""
        from kafka import TopicPartition
        from kafka.structs import OffsetAndMetadata

        offsets = {
            TopicPartition(*name): OffsetAndMetadata(offset, "", -1)
            for name, offset in consumed.offsets.items()
        }

        def send_offsets() -> None:
            self._producer.send_offsets_to_transaction(offsets, consumed.group)

        self._within(timeout, send_offsets)

    def drop(self) -> None:
        """Stops using it at once; a request under way may still take effect."""
        kafka_python_compat.end_producer(self._producer)

    def _within(self, timeout: float, call: Callable[[], None]) -> None:
        """Make a call that knows no deadline of its own."""
        errors: list[BaseException] = []
        done = threading.Event()

        def run() -> None:
            try:
                call()
            except BaseException as error:  # noqa: BLE001 - it is raised by the other thread
                errors.append(error)
            done.set()

        threading.Thread(target=run, name=f"{self._log}-{call.__name__}", daemon=True).start()
        if not done.wait(max(0.0, timeout)):
            raise EngineDoubt(f"{call.__name__} took longer than {timeout:.1f} s")
        with self._as_doubts():
            for error in errors:
                raise error

    @contextmanager
    def _as_doubts(self) -> Iterator[None]:
        from kafka.errors import KafkaError

        try:
            yield
        except (KafkaError, OSError, AssertionError) as error:
            raise doubt_of(error, self._settings, self._log.topic) from error


def doubt_of(error: BaseException, settings: Settings, topic: str) -> EngineDoubt:
    """What a failure of kafka-python's means; a missing right or a wrong record is a refusal."""
    from kafka import errors

    text = str(error) or type(error).__name__
    refusal: CoopConsumeError | None = access.refused(error, settings.kafka, [topic])
    if isinstance(error, errors.TopicAuthorizationFailedError):
        refusal = NotAuthorized("WRITE", "TOPIC", topic, sasl.user(settings.kafka))
    elif isinstance(error, errors.MessageSizeTooLargeError | errors.RecordListTooLargeError):
        refusal = AppendRefused(f"the records are too large for {topic}: {text}")
    elif isinstance(error, errors.KafkaConfigurationError):
        refusal = EngineNotUsable(NAME, text)
    elif isinstance(error, errors.InvalidRecordError):
        refusal = AppendRefused(f"{topic} does not take the records: {text}")
    is_gone = isinstance(error, errors.OffsetOutOfRangeError)
    return EngineDoubt(text, refusal, is_out_of_range=is_gone)
