"""The writer's engine on kafka-python: its admin client, its consumer and its producers.

kafka-python 3.0 may report a commit that was an abort, and a fenced producer may abort its
successor's transaction by raising its own epoch. Both come from its automatic bump of the producer
epoch (KIP-360), which `kafka_python_compat` switches off. Beyond that: every future is awaited, an
offset below 0 is a doubt, commits have deadlines, and after any doubt a producer is dropped
(`EngineDoubt`).
"""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from coopconsume.errors import CoopConsumeError, NotAuthorized
from coopconsume.errors.fenced import AppendRefused, EngineNotUsable
from coopconsume.fenced.engine import EngineDoubt
from coopconsume.fenced.log import Ends, Raw, Rows
from coopconsume.kafka import kafka_python_compat
from coopconsume.kafka.call_limit import NoAnswerInTime, call_within
from coopconsume.kafka.security import access, sasl
from coopconsume.kafka.settings import hurry_metadata

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from coopconsume.fenced.config import FencedSettings
    from coopconsume.fenced.engine import LogAppend
    from coopconsume.fenced.log import Consumed, LogId

NAME: Final = "kafka-python"
#: Milliseconds that a request may take, where the user does not say.
_REQUEST_MS: Final = 10_000
#: Seconds that the first connection may take.
CONNECT: Final = 10.0
# Every request of a transaction that is tried again sleeps for so long in the sender, and the
# consumer until it knows the partition's leader.
_BACKOFF_MS: Final = 5
# One append is one Kafka batch: records wait for the flush, not for a clock.
_LINGER_MS: Final = 10_000
_BATCH_BYTES: Final = 1 << 20
#: Brokers from here on verify that a record belongs to an open transaction (KIP-890, part 1).
_OLDEST: Final = (3, 6)
_EARLIEST, _LATEST = -2, -1
_fields: Final = attrgetter(*Raw._fields)


class Engine:
    """The engine on kafka-python's clients, for one log and one thread at a time.

    A connection or an answer may take ``timeout`` seconds; never above 10, where the user does not
    say.
    """

    def __init__(self, settings: FencedSettings, timeout: float = CONNECT) -> None:
        self._settings = settings
        self._connect_ms = int(1000 * min(timeout, CONNECT))
        self._admin: Any = None
        self._consumer: Any = None

    def topic_id(self, topic: str) -> str | None:
        """Returns Kafka's id of a topic, as text; None if there is no such topic."""
        with self.asking(topic) as admin:
            (found,) = admin.describe_topics([topic])
        if found["error_code"]:
            from kafka import errors

            if found["error_code"] == errors.UnknownTopicOrPartitionError.errno:
                return None
            raise doubt_of(errors.for_code(found["error_code"])(), self._settings, topic)
        return str(found["topic_id"])

    def is_compacted(self, topic: str) -> bool:
        """Whether the topic's cleanup policy compacts; False without the right to ask."""
        from kafka.admin import ConfigResource, ConfigResourceType

        wanted = ConfigResource(ConfigResourceType.TOPIC, topic, ["cleanup.policy"])
        try:
            with self.asking(topic) as admin:
                found = admin.describe_configs([wanted], config_filter="all")
        except EngineDoubt as doubt:
            if isinstance(doubt.refusal, NotAuthorized):
                return False
            raise
        config = next(iter(found.values()))[topic]  # empty without the right to read it
        return "compact" in str(config.get("cleanup.policy", {}).get("value"))

    def start(self, topic: str, partition: int) -> int:
        """Returns the first offset that is kept."""
        return self._offset(topic, partition, _EARLIEST)

    def ends(self, topic: str, partition: int) -> Ends:
        """Returns where the log ends; the end is looked up before the last stable offset."""
        end = self._offset(topic, partition, _LATEST)
        return Ends(stable=self._offset(topic, partition, _LATEST, is_stable=True), end=end)

    def _offset(self, topic: str, partition: int, which: int, *, is_stable: bool = False) -> int:
        from kafka import IsolationLevel, TopicPartition

        level = IsolationLevel.READ_COMMITTED if is_stable else IsolationLevel.READ_UNCOMMITTED
        at = TopicPartition(topic, partition)
        with self.asking(topic) as admin:
            return int(admin.list_partition_offsets({at: which}, level, _REQUEST_MS)[at].offset)

    def open_transactions(self, topic: str, partition: int) -> Mapping[int, str | None]:
        """Returns the transactional ids of open transactions in a log, by producer id.

        An id is None if no coordinator knows it. The result is empty without the right to ask.
        """
        from kafka import TopicPartition

        at = TopicPartition(topic, partition)
        ids: list[int] = []
        try:
            with self.asking(topic) as admin:
                found = admin.describe_producers([at])[at].active_producers
                ids = [p.producer_id for p in found if p.current_transaction_start_offset >= 0]
                listed = admin.list_transactions(producer_id_filters=ids) if ids else {}
        except EngineDoubt:
            listed = {}  # There is no right to ask.
        names = {t.producer_id: str(t.transactional_id) for ts in listed.values() for t in ts}
        return {id_: names.get(id_) for id_ in ids}

    def read(
        self, topic: str, partition: int, start: int, stop: int, timeout: float
    ) -> Iterator[Rows]:
        """Reads committed records from one offset to below another one, which is stable, in order.

        Raises:
            EngineDoubt: No record has come for ``timeout`` seconds.
        """
        from kafka import TopicPartition

        if start >= stop:
            return
        at = TopicPartition(topic, partition)
        with self._as_doubts(topic):
            consumer = self._reader(at)
            consumer.seek(at, start)
        waits_until = time.monotonic() + timeout
        position = start
        while position < stop:
            with self._as_doubts(topic):
                rows = consumer.poll(timeout_ms=200).get(at, [])
                now = consumer.position(at)
            if now == position and time.monotonic() > waits_until:
                raise EngineDoubt(f"no records of {topic}-{partition} from offset {position}")
            if now != position:
                waits_until = time.monotonic() + timeout
            position = now
            while rows and rows[-1].offset >= stop:
                rows.pop()
            if rows:
                yield Rows.of(map(_fields, rows))

    def _reader(self, at: Any) -> Any:
        from kafka import KafkaConsumer

        if self._consumer is None:
            self._consumer = KafkaConsumer(
                **self._config() | {"retry_backoff_ms": _BACKOFF_MS}, group_id=None,
                enable_auto_commit=False, auto_offset_reset="none",
                isolation_level="read_committed", allow_auto_create_topics=False,
                bootstrap_timeout_ms=self._connect_ms, metrics_enabled=False, fetch_max_wait_ms=20,
                max_partition_fetch_bytes=8 << 20, fetch_max_bytes=64 << 20,
                max_poll_records=10_000,
            )  # fmt: skip
            hurry_metadata(self._consumer)
        if at not in self._consumer.assignment():
            self._consumer.assign([at])
        return self._consumer

    def channel(self, log: LogId, transactional_id: str | None, timeout: float) -> KafkaChannel:
        """Returns a new producer."""
        return KafkaChannel(self._settings, log, transactional_id, timeout)

    def close(self) -> None:
        """Closes the connections; harmless when repeated."""
        for client in (self._admin, self._consumer):
            if client is not None:
                with suppress(Exception):
                    client.close()
        self._admin = self._consumer = None

    def _config(self) -> dict[str, Any]:
        request_ms = min(_REQUEST_MS, self._connect_ms)
        return {"request_timeout_ms": request_ms} | self._settings.client_config()

    @contextmanager
    def asking(self, topic: str) -> Iterator[Any]:
        """Yields the admin client, for a call about a topic; a failure is a doubt."""
        with self._as_doubts(topic):
            if self._admin is None:
                from kafka.admin import KafkaAdminClient

                config = self._config()
                access.look(config, self._settings.kafka)
                self._admin = KafkaAdminClient(**config, bootstrap_timeout_ms=self._connect_ms)
            yield self._admin

    def _as_doubts(self, topic: str) -> AbstractContextManager[None]:
        return as_doubts(self._settings, topic, self.close)


class KafkaChannel:
    """A producer of kafka-python: after any doubt it is dropped, never used again.

    Without a transactional id it only appends. Times are seconds.

    Raises:
        EngineNotUsable: kafka-python lacks a private hook that is needed, or the brokers are too
            old for transactions to be safe.
        EngineDoubt: No broker answers.
    """

    def __init__(
        self,
        settings: FencedSettings,
        log: LogId,
        transactional_id: str | None,
        timeout: float,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        from kafka import KafkaProducer

        self._log = log
        self._settings = settings
        # The hook is set before anything is sent, but for the id of a producer without
        # transactions, which nobody else has.
        given = settings.producer_config()
        request_ms = given.setdefault("request_timeout_ms", _REQUEST_MS)
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
        with self._as_doubts():
            self._producer: Any = KafkaProducer(**config)
        hurry_metadata(self._producer)
        problem = kafka_python_compat.restrict_producer(self._producer, _OLDEST)
        if problem:
            self.drop()
            raise EngineNotUsable(NAME, problem)

    def init(self, timeout: float) -> None:
        """Fences every earlier producer of the transactional id, and decides its transaction."""
        self._within(timeout, self._producer.init_transactions)

    def begin(self) -> None:
        """Begins a transaction."""
        with self._as_doubts():
            self._producer.begin_transaction()

    def append(self, parts: Sequence[LogAppend], timeout: float) -> list[list[int]]:
        """Appends records, acknowledged by all replicas in sync; returns the offset of each."""
        send = self._producer.send
        until = time.monotonic() + timeout
        kafka_python_compat.keep_batches_whole(self._producer)
        with self._as_doubts():
            sent = [
                [
                    send(log.topic, value, key, [stamp, *more], log.partition, timestamp)
                    for (value, key, more, timestamp), stamp in zip(entries, headers, strict=True)
                ]
                for log, entries, headers, _ in parts
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

    def commit(self, timeout: float) -> None:
        """Commits the transaction."""
        self._within(timeout, self._producer.commit_transaction)

    def abort(self, timeout: float) -> None:
        """Aborts the transaction."""
        self._within(timeout, self._producer.abort_transaction)

    def drop(self) -> None:
        """Stops using it at once; a request under way may still take effect."""
        kafka_python_compat.end_producer(self._producer)

    def _within(self, timeout: float, call: Callable[..., None]) -> None:
        """Makes a call that has to end in time."""
        until = time.monotonic() + timeout
        try:
            with self._as_doubts():  # The call knows no deadline of its own.
                call_within(lambda: until - time.monotonic(), call)
        except NoAnswerInTime:
            raise EngineDoubt(f"{call.__name__} took longer than {timeout:.1f} s") from None

    def _as_doubts(self) -> AbstractContextManager[None]:
        return as_doubts(self._settings, self._log.topic)


@contextmanager
def as_doubts(
    settings: FencedSettings, topic: str, drop: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Raises errors of kafka-python as `EngineDoubt`, after a call that drops its clients."""
    from kafka.errors import KafkaError

    try:
        yield
    except (KafkaError, OSError, AssertionError) as error:
        drop()
        raise doubt_of(error, settings, topic) from error


def doubt_of(error: BaseException, settings: FencedSettings, topic: str) -> EngineDoubt:
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
