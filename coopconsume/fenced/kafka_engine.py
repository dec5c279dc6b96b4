"""The writer's engine on kafka-python, under rules that keep its faults away.

kafka-python 3.0 may report a commit that was an abort, and a producer that was fenced may, by
raising its own epoch, abort its successor's transaction. Both come from its automatic bump of the
producer epoch (KIP-360), which is switched off here by a private hook; that the hook is there is
looked at with each producer. Beyond that: every future is awaited, an offset below 0 is a doubt,
commits have deadlines, and after any doubt a producer is dropped (`EngineDoubt`).
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from coopconsume.errors import CoopConsumeError, NotAuthorized
from coopconsume.fenced.engine import EngineDoubt
from coopconsume.fenced.errors import AppendRefused, EngineNotUsable
from coopconsume.fenced.log import Ends
from coopconsume.security import access, sasl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from coopconsume.fenced.log import Entry, LogId, Raw
    from coopconsume.fenced.settings import Settings

log = logging.getLogger(__name__)

NAME: Final = "kafka-python"
_EARLIEST, _LATEST = -2, -1
_CONNECT: Final = 10.0
_ASK_MS: Final = 10_000
# Every request of a transaction that is tried again sleeps for so long in the sender.
_BACKOFF_MS: Final = 5
# One append is one Kafka batch: records wait for the flush, not for a clock.
_LINGER_MS: Final = 10_000
_BATCH_BYTES: Final = 1 << 20
#: Transactions are safe against late requests from here on (KIP-890, part 1).
_OLDEST: Final = (3, 6)
_FETCH: Final = {
    "fetch_max_wait_ms": 20,
    "max_partition_fetch_bytes": 8 << 20,
    "fetch_max_bytes": 64 << 20,
    "max_poll_records": 10_000,
}
_HOOKS: Final = ("_transaction_manager", "_sender", "_closed", "_unregister_cleanup")


class KafkaPythonEngine:
    """The engine on kafka-python's admin client, consumer and producers.

    Args:
        settings: How to reach Kafka.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._admin: Any = None
        self._consumer: Any = None

    def topic_id(self, topic: str) -> str | None:
        """Kafka's id of a topic, as text; None if there is no such topic."""
        with self._asking(topic) as admin:
            (found,) = admin.describe_topics([topic])
        if found["error_code"]:
            from kafka import errors

            if found["error_code"] == errors.UnknownTopicOrPartitionError.errno:
                return None
            raise _doubt(errors.for_code(found["error_code"])(), self._settings, topic)
        return str(found["topic_id"])

    def is_compacted(self, topic: str) -> bool:
        """Whether the topic's cleanup policy compacts; False where that may not be asked."""
        from kafka.admin import ConfigResource, ConfigResourceType

        wanted = ConfigResource(ConfigResourceType.TOPIC, topic, ["cleanup.policy"])
        try:
            with self._asking(topic) as admin:
                found = admin.describe_configs([wanted], config_filter="all")
        except EngineDoubt as doubt:
            if isinstance(doubt.refusal, NotAuthorized):
                return False
            raise
        policy = next(iter(found.values()))[topic]["cleanup.policy"]["value"]
        return "compact" in str(policy)

    def start(self, topic: str, partition: int) -> int:
        """The first offset that is kept."""
        return self._offset(topic, partition, _EARLIEST, stable=False)

    def ends(self, topic: str, partition: int) -> Ends:
        """Where the log ends; the end is looked up before the last stable offset."""
        end = self._offset(topic, partition, _LATEST, stable=False)
        return Ends(stable=self._offset(topic, partition, _LATEST, stable=True), end=end)

    def _offset(self, topic: str, partition: int, spec: int, *, stable: bool) -> int:
        from kafka import IsolationLevel, TopicPartition

        level = IsolationLevel.READ_COMMITTED if stable else IsolationLevel.READ_UNCOMMITTED
        at = TopicPartition(topic, partition)
        with self._asking(topic) as admin:
            return int(admin.list_partition_offsets({at: spec}, level, _ASK_MS)[at].offset)

    def open_transactions(self, topic: str, partition: int) -> tuple[int, ...]:
        """Ids of producers with an open transaction there; nothing where that cannot be asked."""
        from kafka import TopicPartition

        at = TopicPartition(topic, partition)
        try:
            with self._asking(topic) as admin:
                found = admin.describe_producers([at])[at].active_producers
        except EngineDoubt:
            return ()
        return tuple(p.producer_id for p in found if p.current_transaction_start_offset >= 0)

    def read(
        self, topic: str, partition: int, start: int, stop: int, timeout: float
    ) -> Iterator[list[Raw]]:
        """Committed records from one offset to below another one, that is stable, in order."""
        from kafka import TopicPartition

        if start >= stop:
            return
        at = TopicPartition(topic, partition)
        with self._telling(topic):
            consumer = self._reader(at)
            consumer.seek(at, start)
        waits_until = time.monotonic() + timeout
        position = start
        while position < stop:
            with self._telling(topic):
                rows = consumer.poll(timeout_ms=200).get(at, [])
                now = consumer.position(at)
            if now == position and time.monotonic() > waits_until:
                raise EngineDoubt(f"no records of {topic}-{partition} from offset {position}")
            if now != position:
                waits_until = time.monotonic() + timeout
            position = now
            if rows and rows[-1].offset >= stop:
                rows = [row for row in rows if row.offset < stop]
            if rows:
                yield rows

    def _reader(self, at: Any) -> Any:
        from kafka import KafkaConsumer

        if self._consumer is None:
            config = self._config() | _FETCH
            self._consumer = KafkaConsumer(
                **config, group_id=None, enable_auto_commit=False, auto_offset_reset="none",
                isolation_level="read_committed", allow_auto_create_topics=False,
                bootstrap_timeout_ms=int(1000 * _CONNECT), metrics_enabled=False,
            )  # fmt: skip
        if at not in self._consumer.assignment():
            self._consumer.assign([at])
        return self._consumer

    def channel(self, log: LogId, transactional_id: str | None, timeout: float) -> KafkaChannel:
        """A new producer."""
        return KafkaChannel(self._settings, log, transactional_id, timeout)

    def close(self) -> None:
        """Close the connections; harmless when repeated."""
        for client in (self._admin, self._consumer):
            if client is not None:
                with suppress(Exception):
                    client.close()
        self._admin = self._consumer = None

    def _config(self) -> dict[str, Any]:
        return {"request_timeout_ms": _ASK_MS} | self._settings.client_config()

    @contextmanager
    def _asking(self, topic: str) -> Iterator[Any]:
        with self._telling(topic):
            if self._admin is None:
                from kafka.admin import KafkaAdminClient

                config = self._config()
                access.look(config, self._settings.kafka)
                self._admin = KafkaAdminClient(**config, bootstrap_timeout_ms=int(1000 * _CONNECT))
            yield self._admin

    @contextmanager
    def _telling(self, topic: str) -> Iterator[None]:
        """Tell what fails as a doubt; the clients are made anew, as they may be the reason."""
        from kafka.errors import KafkaError

        try:
            yield
        except (KafkaError, OSError, AssertionError) as error:
            self.close()
            raise _doubt(error, self._settings, topic) from error


class KafkaChannel:
    """A producer of kafka-python, of one life.

    Args:
        settings: How to reach Kafka.
        log: The log.
        transactional_id: Kafka's; None for a producer without transactions.
        timeout: Seconds that a record may wait to be sent and acknowledged.

    Raises:
        EngineNotUsable: kafka-python lacks a private hook that is needed, or the brokers are too
            old for transactions to be safe.
        EngineDoubt: No broker answers.
    """

    def __init__(
        self, settings: Settings, log: LogId, transactional_id: str | None, timeout: float
    ) -> None:
        from kafka import KafkaProducer
        from kafka.errors import KafkaError

        self._log = log
        self._settings = settings
        # The hook is set before anything is sent, but for the id of a producer without
        # transactions, which nobody else has.
        given = settings.producer_config()
        request_ms = given.setdefault("request_timeout_ms", _ASK_MS)
        size = given.setdefault("max_request_size", _BATCH_BYTES)
        config = given | {
            "acks": "all", "batch_size": size, "enable_idempotence": True,
            "linger_ms": _LINGER_MS, "retry_backoff_ms": _BACKOFF_MS,
            "max_block_ms": int(1000 * timeout),
            "delivery_timeout_ms": max(int(1000 * timeout), request_ms + _LINGER_MS),
            "bootstrap_timeout_ms": int(1000 * min(timeout, _CONNECT)),
            "allow_auto_create_topics": False, "metrics_enabled": False,
        }  # fmt: skip
        if transactional_id is not None:
            config["transactional_id"] = transactional_id
        try:
            self._producer = KafkaProducer(**config)
        except (KafkaError, OSError) as error:
            raise _doubt(error, settings, log.topic) from error
        problem = _tame(self._producer)
        if problem:
            self.drop()
            raise EngineNotUsable(NAME, problem)

    def init(self, timeout: float) -> None:
        """Fence every earlier producer of the same transactional id, its transaction decided."""
        self._within(timeout, self._producer.init_transactions)

    def begin(self) -> None:
        """Begin a transaction."""
        with self._telling():
            self._producer.begin_transaction()

    def append(
        self, entries: Sequence[Entry], headers: Sequence[list[tuple[str, bytes]]], timeout: float
    ) -> list[int]:
        """Append records, acknowledged by all; returns the offset of each."""
        topic, partition = self._log.topic, self._log.partition
        until = time.monotonic() + timeout
        with self._telling():
            send = self._producer.send
            futures = [
                send(
                    topic, entry.value, entry.key, [*stamp, *entry.headers], partition,
                    entry.timestamp,
                )
                for entry, stamp in zip(entries, headers, strict=True)
            ]  # fmt: skip
            self._producer.flush(timeout)
            # Each one, as an error of one batch says nothing of another.
            offsets = [f.get(max(0.0, until - time.monotonic())).offset for f in futures]
        if min(offsets) < 0:
            raise EngineDoubt("a record was acknowledged without its offset")
        return offsets

    def commit(self, timeout: float) -> None:
        """Commit the transaction."""
        self._within(timeout, self._producer.commit_transaction)

    def abort(self, timeout: float) -> None:
        """Abort the transaction."""
        self._within(timeout, self._producer.abort_transaction)

    def drop(self) -> None:
        """Let go of it at once; whatever it was doing may still happen."""
        producer = self._producer
        if not getattr(producer, "_closed", True):
            producer._unregister_cleanup()  # noqa: SLF001
            producer._sender.force_close()  # noqa: SLF001
            # Its own close would first wait for what is under way.
            producer._closed = True  # noqa: SLF001

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
        with self._telling():
            for error in errors:
                raise error

    @contextmanager
    def _telling(self) -> Iterator[None]:
        from kafka.errors import KafkaError

        try:
            yield
        except (KafkaError, OSError, AssertionError) as error:
            raise _doubt(error, self._settings, self._log.topic) from error


def _tame(producer: Any) -> str:
    """Switch the automatic bump of the producer's epoch off; returns why not, if it cannot be."""
    manager = getattr(producer, "_transaction_manager", None)
    if not callable(getattr(manager, "_supports_epoch_bump", None)):
        return "it has no _supports_epoch_bump to switch off; use a version of 3.0"
    missing = [hook for hook in _HOOKS if not hasattr(producer, hook)]
    if missing:
        return f"it has no {missing[0]}; use a version of 3.0"
    manager._supports_epoch_bump = lambda: False  # type: ignore[union-attr] # noqa: SLF001
    found = producer.config["api_version"]
    if found < _OLDEST:
        return f"the brokers are of version {_dotted(found)}; {_dotted(_OLDEST)} is needed"
    return ""


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _doubt(error: BaseException, settings: Settings, topic: str) -> EngineDoubt:
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
    return EngineDoubt(text, refusal)
