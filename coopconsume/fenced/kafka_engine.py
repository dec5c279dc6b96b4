"""The writer's engine on kafka-python; its producers are in `kafka_channel`."""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from coopconsume.errors import NotAuthorized
from coopconsume.fenced.engine import Channel, Engine, EngineDoubt
from coopconsume.fenced.kafka_channel import CONNECT, REQUEST_MS, KafkaChannel, doubt_of
from coopconsume.kafka.security import access
from coopconsume.kafka.settings import hurry_metadata

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from coopconsume.fenced.log import LogId, Raw
    from coopconsume.fenced.settings import Settings

_EARLIEST, _LATEST = -2, -1
_FETCH: Final = {
    "fetch_max_wait_ms": 20,
    "max_partition_fetch_bytes": 8 << 20,
    "fetch_max_bytes": 64 << 20,
    "max_poll_records": 10_000,
    # So long it also sleeps until it knows the partition's leader.
    "retry_backoff_ms": 5,
}


class KafkaPythonEngine(Engine):
    """The engine on kafka-python's admin client, consumer and producers.

    Args:
        settings: How to reach Kafka.
        timeout: Seconds that a connection or an answer may take; never above 10, where the user
            does not say.
    """

    def __init__(self, settings: Settings, timeout: float = CONNECT) -> None:
        self._settings = settings
        self._connect_ms = int(1000 * min(timeout, CONNECT))
        self._admin: Any = None
        self._consumer: Any = None

    def topic_id(self, topic: str) -> str | None:
        """Kafka's id of a topic, as text; None if there is no such topic."""
        with self.asking(topic) as admin:
            (found,) = admin.describe_topics([topic])
        if found["error_code"]:
            from kafka import errors

            if found["error_code"] == errors.UnknownTopicOrPartitionError.errno:
                return None
            raise doubt_of(errors.for_code(found["error_code"])(), self._settings, topic)
        return str(found["topic_id"])

    def is_compacted(self, topic: str) -> bool:
        """Whether the topic's cleanup policy compacts; False where that may not be asked."""
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

    def _offset(
        self, topic: str, partition: int, *, is_start: bool = False, is_stable: bool = False
    ) -> int:
        from kafka import IsolationLevel, TopicPartition

        level = IsolationLevel.READ_COMMITTED if is_stable else IsolationLevel.READ_UNCOMMITTED
        at = TopicPartition(topic, partition)
        wanted = {at: _EARLIEST if is_start else _LATEST}
        with self.asking(topic) as admin:
            return int(admin.list_partition_offsets(wanted, level, REQUEST_MS)[at].offset)

    def open_transactions(self, topic: str, partition: int) -> Mapping[int, str | None]:
        """Producers with an open transaction there, by id, and their transactional ids."""
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
    ) -> Iterator[list[Raw]]:
        """Committed records from one offset to below another one, that is stable, in order."""
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
                bootstrap_timeout_ms=self._connect_ms, metrics_enabled=False,
            )  # fmt: skip
            hurry_metadata(self._consumer)
        if at not in self._consumer.assignment():
            self._consumer.assign([at])
        return self._consumer

    def channel(self, log: LogId, transactional_id: str | None, timeout: float) -> Channel:
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
        return {
            "request_timeout_ms": min(REQUEST_MS, self._connect_ms)
        } | self._settings.client_config()

    @contextmanager
    def asking(self, topic: str) -> Iterator[Any]:
        """The admin client of kafka-python, for a call about a topic; what fails is a doubt."""
        with self._as_doubts(topic):
            if self._admin is None:
                from kafka.admin import KafkaAdminClient

                config = self._config()
                access.look(config, self._settings.kafka)
                self._admin = KafkaAdminClient(**config, bootstrap_timeout_ms=self._connect_ms)
            yield self._admin

    @contextmanager
    def _as_doubts(self, topic: str) -> Iterator[None]:
        """Raises errors of the clients as `EngineDoubt`, and drops the clients."""
        from kafka.errors import KafkaError

        try:
            yield
        except (KafkaError, OSError, AssertionError) as error:
            self.close()
            raise doubt_of(error, self._settings, topic) from error
