"""The writer's engine on confluent-kafka (librdkafka): faster, and its commits can be resumed.

Its producers are in `confluent_channel`.
"""

from __future__ import annotations

import logging
import time
import uuid
from typing import TYPE_CHECKING, Any, Final

from coopconsume.errors import NotAuthorized
from coopconsume.errors.fenced import EngineNotUsable
from coopconsume.fenced.confluent_channel import ConfluentChannel
from coopconsume.fenced.confluent_client import as_doubts
from coopconsume.fenced.engine import Engine, EngineDoubt
from coopconsume.fenced.log import PlainRaw
from coopconsume.kafka.librdkafka import client_config
from coopconsume.kafka.security import access

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from coopconsume.fenced.log import LogId, Raw
    from coopconsume.fenced.settings import Settings

logger = logging.getLogger(__name__)

NAME: Final = "confluent-kafka"
_ASK: Final = 10.0
#: Records taken at once: with their headers few enough not to wake Python's garbage collector.
_MANY: Final = 64
_row: Final = PlainRaw._make


class ConfluentEngine(Engine):
    """The engine on confluent-kafka's admin client, consumer and producers.

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
        self._config = client_config(settings.kafka)
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
        policy = found.get("cleanup.policy")  # None without the right to read it
        return policy is not None and "compact" in str(policy.value)

    def _offset(
        self, topic: str, partition: int, *, is_start: bool = False, is_stable: bool = False
    ) -> int:
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        level = IsolationLevel.READ_COMMITTED if is_stable else IsolationLevel.READ_UNCOMMITTED
        spec = OffsetSpec.earliest() if is_start else OffsetSpec.latest()
        at = TopicPartition(topic, partition)
        return int(self._ask(topic, "list_offsets", {at: spec}, isolation_level=level).offset)

    def open_transactions(self, topic: str, partition: int) -> Mapping[int, str | None]:
        """Producers with an open transaction there, asked by kafka-python: librdkafka cannot."""
        from coopconsume.fenced.kafka_engine import KafkaPythonEngine

        engine = KafkaPythonEngine(self._settings, self._patience)
        try:
            return engine.open_transactions(topic, partition)
        finally:
            engine.close()

    def _ask(self, topic: str, call: str, wanted: Any, **more: Any) -> Any:
        """Make a call of the admin client about one thing."""
        from confluent_kafka.admin import AdminClient

        with as_doubts(self._settings, topic):
            if self._admin is None:
                # librdkafka repeats a failed login until the timeout, and reports only the timeout.
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
            with as_doubts(self._settings, topic):
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

        with as_doubts(self._settings, topic):
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
        offset = message.offset()
        if offset >= stop:
            return rows, True
        _, timestamp = message.timestamp()
        headers = message.headers() or []
        rows.append(_row((offset, timestamp, message.key(), message.value(), headers)))
    return rows, bool(rows) and rows[-1].offset == stop - 1


def _as_uuid(found: Any) -> str:
    """Formats a topic's id as kafka-python does; librdkafka returns two halves of 64 bits."""
    most = found.get_most_significant_bits() % 2**64
    return str(uuid.UUID(int=most << 64 | found.get_least_significant_bits() % 2**64))
