"""The writer's engine on confluent-kafka (librdkafka): faster, and its commits can be resumed."""

from __future__ import annotations

import logging
import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from coopconsume.errors import InvalidOption, NotAuthorized
from coopconsume.fenced.engine import EngineDoubt
from coopconsume.fenced.errors import AppendRefused, EngineNotUsable
from coopconsume.fenced.log import Ends, PlainRaw
from coopconsume.security import access, sasl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from coopconsume.errors import CoopConsumeError
    from coopconsume.fenced.log import Entry, LogId, Raw
    from coopconsume.fenced.settings import Settings

logger = logging.getLogger(__name__)

NAME: Final = "confluent-kafka"
_ASK: Final = 10.0
_BATCH_BYTES: Final = 1 << 20
_MANY: Final = 10_000
_RESUME: Final = 0.5
#: Settings that librdkafka knows by Kafka's names; those of TLS and SASL have names of its own.
_PLAIN: Final = (
    "bootstrap.servers", "client.id", "client.rack", "security.protocol", "sasl.mechanism",
    "connections.max.idle.ms", "metadata.max.age.ms", "reconnect.backoff.ms",
    "reconnect.backoff.max.ms", "retry.backoff.ms",
)  # fmt: skip
_RENAMED: Final = {
    "ssl.truststore.location": "ssl.ca.location",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.key.password": "ssl.key.password",
    "ssl.endpoint.identification.algorithm": "ssl.endpoint.identification.algorithm",
}


def config_of(settings: Settings) -> dict[str, Any]:
    """The settings in librdkafka's words.

    Raises:
        InvalidOption: A setting of security that this engine does not take.
    """
    kafka = settings.kafka
    config: dict[str, Any] = {name: str(kafka[name]) for name in _PLAIN if name in kafka}
    config["allow.auto.create.topics"] = False
    config |= {new: str(kafka[old]) for old, new in _RENAMED.items() if kafka.get(old)}
    if kafka.get("ssl.keystore.location"):
        # One PEM file with the key and its certificates.
        config["ssl.key.location"] = config["ssl.certificate.location"] = str(
            kafka["ssl.keystore.location"]
        )
    if "ssl.endpoint.identification.algorithm" in kafka and not config.get(
        "ssl.endpoint.identification.algorithm"
    ):
        config["ssl.endpoint.identification.algorithm"] = "none"
    if "SASL" in kafka.get("security.protocol", ""):
        if kafka.get("sasl.mechanism", "").upper() == "OAUTHBEARER":
            remedy = "use the engine kafka-python"
            raise InvalidOption("kafka.sasl.mechanism", "OAUTHBEARER with confluent-kafka", remedy)
        login = sasl.client_config(kafka)
        config["sasl.username"] = str(login["sasl_plain_username"])
        config["sasl.password"] = str(login["sasl_plain_password"])
    return config


class ConfluentEngine:
    """The engine on confluent-kafka's admin client, consumer and producers.

    Args:
        settings: How to reach Kafka.
        timeout: Seconds that an answer may take; never above 10.

    Raises:
        EngineNotUsable: It is not installed.
        InvalidOption: A setting of security that this engine does not take.
    """

    def __init__(self, settings: Settings, timeout: float = _ASK) -> None:
        try:
            import confluent_kafka  # noqa: F401
        except ImportError:
            raise EngineNotUsable(NAME, "install coopconsume[confluent]") from None
        self._settings = settings
        self._config = config_of(settings)
        self._patience = min(timeout, _ASK)
        self._admin: Any = None
        self._consumer: Any = None

    def topic_id(self, topic: str) -> str | None:
        """Kafka's id of a topic, as text; None if there is no such topic."""
        from confluent_kafka import KafkaError, TopicCollection

        try:
            found = self._ask(topic, "describe_topics", TopicCollection([topic]))
        except EngineDoubt as doubt:
            cause = doubt.__cause__
            if cause is not None and cause.args:
                code = getattr(cause.args[0], "code", lambda: None)()
                if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    return None
            raise
        return _as_uuid(found.topic_id)

    def is_compacted(self, topic: str) -> bool:
        """Whether the topic's cleanup policy compacts; False where that may not be asked."""
        from confluent_kafka.admin import ConfigResource, ResourceType

        try:
            found = self._ask(
                topic, "describe_configs", [ConfigResource(ResourceType.TOPIC, topic)]
            )
        except EngineDoubt as doubt:
            if isinstance(doubt.refusal, NotAuthorized):
                return False
            raise
        policy = found.get("cleanup.policy")  # without the right to ask there is none
        return policy is not None and "compact" in str(policy.value)

    def start(self, topic: str, partition: int) -> int:
        """The first offset that is kept."""
        from confluent_kafka.admin import OffsetSpec

        return self._offset(topic, partition, OffsetSpec.earliest(), stable=False)

    def ends(self, topic: str, partition: int) -> Ends:
        """Where the log ends; the end is looked up before the last stable offset."""
        from confluent_kafka.admin import OffsetSpec

        end = self._offset(topic, partition, OffsetSpec.latest(), stable=False)
        return Ends(self._offset(topic, partition, OffsetSpec.latest(), stable=True), end)

    def _offset(self, topic: str, partition: int, spec: Any, *, stable: bool) -> int:
        from confluent_kafka import IsolationLevel, TopicPartition

        level = IsolationLevel.READ_COMMITTED if stable else IsolationLevel.READ_UNCOMMITTED
        at = TopicPartition(topic, partition)
        return int(self._ask(topic, "list_offsets", {at: spec}, isolation_level=level).offset)

    def open_transactions(self, topic: str, partition: int) -> tuple[int, ...]:
        """Nothing: librdkafka cannot ask for it."""
        del topic, partition
        return ()

    def _ask(self, topic: str, call: str, wanted: Any, **more: Any) -> Any:
        """Make a call of the admin client about one thing."""
        from confluent_kafka.admin import AdminClient

        with _telling(self._settings, topic):
            if self._admin is None:
                # librdkafka tries to log in until its time is up, and tells of nothing but that.
                access.look(self._settings.client_config(), self._settings.kafka)
                self._admin = AdminClient(self._config, logger=logger)
            futures = getattr(self._admin, call)(wanted, request_timeout=self._patience, **more)
            (future,) = futures.values()
            return future.result(2 * self._patience)

    def read(
        self, topic: str, partition: int, start: int, stop: int, timeout: float
    ) -> Iterator[list[Raw]]:
        """Committed records from one offset to below another one, that is stable, in order."""
        if start >= stop:
            return
        consumer = self._reader(topic, partition, start)
        until = time.monotonic() + timeout
        done = False
        while not done:
            with _telling(self._settings, topic):
                messages = consumer.consume(_MANY, 0.05)
                rows, done = _rows(messages, stop)
            if messages:
                until = time.monotonic() + timeout
            elif time.monotonic() > until:
                raise EngineDoubt(f"no records of {topic}-{partition} in time")
            if rows:
                yield rows

    def _reader(self, topic: str, partition: int, start: int) -> Any:
        from confluent_kafka import Consumer, TopicPartition

        with _telling(self._settings, topic):
            if self._consumer is None:
                self._consumer = Consumer(
                    self._config
                    | {
                        "group.id": "none", "enable.auto.commit": False,
                        "enable.partition.eof": True, "isolation.level": "read_committed",
                        "auto.offset.reset": "error", "fetch.wait.max.ms": 20,
                        "fetch.message.max.bytes": 8 << 20,
                    },
                    logger=logger,
                )  # fmt: skip
            self._consumer.assign([TopicPartition(topic, partition, start)])
        return self._consumer

    def channel(self, log: LogId, transactional_id: str | None, timeout: float) -> ConfluentChannel:
        """A new producer."""
        return ConfluentChannel(self._settings, log, transactional_id, timeout)

    def close(self) -> None:
        """Close the connections; harmless when repeated."""
        if self._consumer is not None:
            self._consumer.close()
        self._admin = self._consumer = None


def _rows(messages: Sequence[Any], stop: int) -> tuple[list[Raw], bool]:
    """Records below an offset, and whether it is reached."""
    from confluent_kafka import KafkaError, KafkaException

    rows: list[Raw] = []
    for message in messages:
        error = message.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                # All that is stable was seen, and that is as far as was asked for.
                return rows, True
            if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                # librdkafka looks for the group's coordinator, which a reader without a group
                # that counts has no use for.
                continue
            raise KafkaException(error)
        if message.offset() >= stop:
            return rows, True
        rows.append(
            PlainRaw(
                message.offset(), message.timestamp()[1], message.key(), message.value(),
                message.headers() or [],
            )
        )  # fmt: skip
    return rows, bool(rows) and rows[-1].offset == stop - 1


class ConfluentChannel:
    """A producer of confluent-kafka, of one life.

    Args:
        settings: How to reach Kafka.
        log: The log.
        transactional_id: Kafka's; None for a producer without transactions.
        timeout: Seconds that a record may wait to be sent and acknowledged.

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
        config = config_of(settings) | {
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
        with _telling(settings, log.topic):
            self._producer = Producer(config, logger=logger)

    def init(self, timeout: float) -> None:
        """Fence every earlier producer of the same transactional id, its transaction decided."""
        self._resume(timeout, self._producer.init_transactions)

    def begin(self) -> None:
        """Begin a transaction."""
        with _telling(self._settings, self._log.topic):
            self._producer.begin_transaction()

    def append(
        self, entries: Sequence[Entry], headers: Sequence[list[tuple[str, bytes]]], timeout: float
    ) -> list[int]:
        """Append records, acknowledged by all; returns the offset of each."""
        from confluent_kafka import KafkaException

        topic, partition = self._log.topic, self._log.partition
        offsets: list[int] = []
        errors: list[Any] = []

        def delivered(error: Any, message: Any) -> None:
            # One producer keeps the order of what it delivers.
            (errors if error is not None else offsets).append(error or message.offset())

        with _telling(self._settings, topic):
            produce = self._producer.produce
            for entry, stamp in zip(entries, headers, strict=True):
                more = {} if entry.timestamp is None else {"timestamp": entry.timestamp}
                produce(
                    topic, entry.value, entry.key, partition,
                    headers=[*stamp, *entry.headers], on_delivery=delivered, **more,
                )  # fmt: skip
            self._producer.flush(timeout)
            if errors:
                raise KafkaException(self._reason(errors[0]))
        if len(offsets) != len(entries) or min(offsets) < 0:
            raise EngineDoubt("a record was not acknowledged in time, or without its offset")
        return offsets

    def _reason(self, error: Any) -> Any:
        """What a record really failed by: of one that was purged with its transaction, by that's.

        Only a call that the transaction's state refuses tells it.
        """
        from confluent_kafka import KafkaError, KafkaException

        if error.code() == KafkaError._PURGE_QUEUE:  # noqa: SLF001
            try:
                self._producer.begin_transaction()
            except KafkaException as told:
                return told.args[0]
        return error

    def commit(self, timeout: float) -> None:
        """Commit the transaction."""
        self._resume(timeout, self._producer.commit_transaction)

    def abort(self, timeout: float) -> None:
        """Abort the transaction."""
        self._resume(timeout, self._producer.abort_transaction)

    def drop(self) -> None:
        """Let go of it at once; whatever it was doing may still happen."""
        from confluent_kafka import KafkaException

        try:
            self._producer.purge()
        except KafkaException:
            return  # it is dead anyhow

    def _resume(self, timeout: float, call: Callable[[float], None]) -> None:
        """Make a call that goes on where it stopped, if it is made again."""
        from confluent_kafka import KafkaException

        until = time.monotonic() + timeout
        with _telling(self._settings, self._log.topic):
            while True:
                try:
                    call(max(0.1, min(_RESUME, until - time.monotonic())))
                except KafkaException as error:
                    if not error.args[0].retriable() or time.monotonic() >= until:
                        raise
                else:
                    return


@contextmanager
def _telling(settings: Settings, topic: str) -> Iterator[None]:
    from concurrent.futures import TimeoutError as FutureTimeoutError

    from confluent_kafka import KafkaException

    try:
        yield
    except (KafkaException, BufferError, SystemError, FutureTimeoutError, OSError) as error:
        raise EngineDoubt(str(error), _refusal(error, settings, topic)) from error


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


def _as_uuid(found: Any) -> str:
    """A topic's id in the words of kafka-python: librdkafka tells two halves of 64 bits."""
    most = found.get_most_significant_bits() % 2**64
    return str(uuid.UUID(int=most << 64 | found.get_least_significant_bits() % 2**64))
