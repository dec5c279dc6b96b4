"""The writer's engine: what is asked of Kafka, read from a log, and written to it.

confluent-kafka reads and writes the records. Questions about topics, offsets and transactions go
through kafka-python's admin client: librdkafka has no requests for open transactions, and of a
refused login it reports only a time-out.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from functools import partial
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final

from coopconsume.closing import RaisedAs
from coopconsume.errors import NotAuthorized
from coopconsume.fenced.engine import EngineDoubt, OpenTransaction
from coopconsume.fenced.failures import doubt_of, doubt_of_confluent
from coopconsume.fenced.kafka_channel import KafkaChannel
from coopconsume.fenced.log import Ends, LogId, Rows
from coopconsume.kafka import kafka_python_compat
from coopconsume.kafka.call_limit import Deadline, call_in_time, time_left
from coopconsume.kafka.headers import message_headers, quick_headers
from coopconsume.kafka.librdkafka import client_config, record_consumer
from coopconsume.kafka.security import access
from coopconsume.kafka.transactions import check_brokers, fence_producers
from coopconsume.record import time_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from coopconsume.fenced.config import FencedSettings

#: Milliseconds that a request may take, where the user does not say.
_REQUEST_MS: Final = 10_000
#: Seconds that the first connection may take.
CONNECT: Final = 10.0
#: Seconds that a coordinator may load its transactions, as after the start of its broker.
_LOADS_IN: Final = 10.0
_EARLIEST, _LATEST = -2, -1
#: Records taken at once: with their headers few enough not to wake Python's garbage collector.
_MANY: Final = 128
_milliseconds: Final = itemgetter(1)
_begin: Final = attrgetter("current_transaction_start_offset")


class Engine:
    """A client of Kafka for one log and one thread at a time.

    A connection or an answer may take ``timeout`` seconds; never above 10, where the user does not
    say, and not beyond the deadlines whose blocks the calling thread is in.

    Raises:
        InvalidOption: A setting of security that librdkafka does not take.
    """

    #: Whether the names of headers are read with care, since one was met that is not UTF-8.
    _is_careful = False

    def __init__(self, settings: FencedSettings, timeout: float = CONNECT) -> None:
        self._settings = settings
        self._connect = min(timeout, CONNECT)
        # What cannot be used is refused before anything is opened.
        client_config(settings.kafka)
        self._admin: Any = None
        self._consumer: Any = None

    def topic_id(self, topic: str) -> str | None:
        """Returns Kafka's id of a topic, as text; None if there is no such topic."""
        from kafka import errors

        with self.asking(topic) as admin:
            (found,) = call_in_time(admin.describe_topics, [topic])
            if found["error_code"] == errors.UnknownTopicOrPartitionError.errno:
                return None
            if found["error_code"]:
                raise errors.for_code(found["error_code"])
        return str(found["topic_id"])

    def is_compacted(self, topic: str) -> bool:
        """Whether the topic's cleanup policy compacts; False without the right to ask."""
        from kafka.admin import ConfigResource, ConfigResourceType

        wanted = ConfigResource(ConfigResourceType.TOPIC, topic, ["cleanup.policy"])
        try:
            with self.asking(topic) as admin:
                found = call_in_time(admin.describe_configs, [wanted], config_filter="all")
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
            found = call_in_time(admin.list_partition_offsets, {at: which}, level, _REQUEST_MS)
            return int(found[at].offset)

    def open_transactions(self, topic: str, partition: int) -> Sequence[OpenTransaction]:
        """Returns the open transactions in a log, the oldest first."""
        from kafka import TopicPartition
        from kafka.errors import CoordinatorLoadInProgressError

        at, deadline = TopicPartition(topic, partition), Deadline(min(_LOADS_IN, time_left()))
        with self.asking(topic) as admin:
            while True:
                try:
                    return call_in_time(_open_transactions, admin, at)
                except CoordinatorLoadInProgressError:
                    if deadline.is_over:
                        raise
                deadline.pause()

    def read(
        self, topic: str, partition: int, start: int, stop: int, timeout: float
    ) -> Iterator[Rows]:
        """Reads committed records from one offset to below another one, which is stable, in order.

        Raises:
            EngineDoubt: No record has come for ``timeout`` seconds.
        """
        if start >= stop:
            return
        reading = RaisedAs(partial(doubt_of_confluent, self._settings, topic), self.close)
        with reading:
            consumer = self._seek(topic, partition, start)
        position, deadline = start, Deadline(timeout)
        while position < stop:
            with reading:
                rows, reached = self._poll(consumer, position, stop)
            if reached != position:
                position, deadline = reached, Deadline(timeout)
            elif deadline.is_over:
                raise EngineDoubt(f"no records of {topic}-{partition} from offset {position}")
            if rows:
                yield rows

    def _seek(self, topic: str, partition: int, start: int) -> Any:
        """Returns a consumer of a partition from an offset on."""
        from confluent_kafka import TopicPartition

        if self._consumer is None:
            self._consumer = record_consumer(
                self._settings.kafka,
                {
                    "isolation.level": "read_committed",
                    "fetch.wait.max.ms": 20,
                    "fetch.message.max.bytes": 8 << 20,
                },
            )
        self._consumer.assign([TopicPartition(topic, partition, start)])
        return self._consumer

    def _poll(self, consumer: Any, position: int, stop: int) -> tuple[Rows, int]:
        """Returns the next records below an offset, and how far it has come."""
        from confluent_kafka import KafkaError, KafkaException, Message

        # With a time to wait, it would wait until there are as many.
        messages = consumer.consume(_MANY, 0) or consumer.consume(1, 0.05)
        errors = [*filter(None, map(Message.error, messages))]
        if errors:
            messages = [message for message in messages if message.error() is None]
        reached = messages[-1].offset() + 1 if messages else position
        for error in errors:
            if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                reached = stop  # All that is stable was seen: that is as far as was asked for.
                break
            if error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
                # That one is about the group's coordinator, which librdkafka looks for and a reader
                # without a group that counts has no use for.
                raise KafkaException(error)
        while messages and messages[-1].offset() >= stop:
            messages.pop()
        try:
            read = map(message_headers, messages) if self._is_careful else quick_headers(messages)
            headers = [*read]
        except SystemError:  # A name is not UTF-8.
            self._is_careful = True
            self._seek(messages[0].topic(), messages[0].partition(), position)
            return Rows.of(()), position
        rows = Rows((
            map(Message.offset, messages), map(_milliseconds, map(Message.timestamp, messages)),
            map(Message.key, messages), map(Message.value, messages), headers,
        ))  # fmt: skip
        return rows, reached

    def channel(self, log: LogId, transactional_id: str | None, timeout: float) -> KafkaChannel:
        """Returns a new producer.

        Raises:
            EngineNotUsable: The brokers are too old for transactions to be safe.
        """
        with self.asking(log.topic) as admin:
            check_brokers(admin)
        fence = partial(self._fence, log.topic)
        return KafkaChannel(self._settings, log, transactional_id, timeout, fence)

    def _fence(self, topic: str, name: str, timeout_ms: int, deadline: Deadline) -> None:
        with self.asking(topic) as admin:
            call_in_time(fence_producers, admin, name, timeout_ms, lambda: deadline.left)

    def close(self) -> None:
        """Closes the connections; harmless when repeated."""
        for client in (self._admin, self._consumer):
            if client is not None:
                with suppress(Exception):
                    client.close()
        self._admin = self._consumer = None

    def _config(self) -> dict[str, Any]:
        given = {"request_timeout_ms": int(1000 * self._connect)} | self._settings.client_config()
        return given | {"bootstrap_timeout_ms": int(1000 * min(self._connect, time_left()))}

    @contextmanager
    def asking(self, topic: str) -> Iterator[Any]:
        """Yields the admin client, for a call about a topic; a failure is a doubt."""
        with RaisedAs(partial(doubt_of, self._settings, topic), self.close):
            if self._admin is None:
                from kafka.admin import KafkaAdminClient

                config = self._config()
                call_in_time(access.look, config, self._settings.kafka)
                self._admin = kafka_python_compat.connected(KafkaAdminClient, **config)
            yield self._admin


def _open_transactions(admin: Any, at: Any) -> list[OpenTransaction]:
    from kafka import errors

    found = _open_in(admin, at)
    listed = admin.list_transactions(producer_id_filters=[*found]) if found else {}
    names = {t.producer_id: str(t.transactional_id) for ts in listed.values() for t in ts}
    of: Any = {}
    with suppress(errors.KafkaError):  # A coordinator may not know it any more, or not yet.
        of = admin.describe_transactions([*names.values()]) if names else {}
    # One that its coordinator ended after the first look would seem to hang.
    left = {id_: _begin(p) for id_, p in _open_in(admin, at).items()} if found else {}
    transactions = [
        OpenTransaction(
            id_, p.producer_epoch, _begin(p), time_of(p.last_timestamp), names.get(id_),
            about and str(about.state.value), about and about.transaction_timeout_ms,
        )
        for id_, p in found.items() for about in [of.get(names.get(id_))]
        if left.get(id_) == _begin(p)
    ]  # fmt: skip
    return sorted(transactions, key=attrgetter("first_offset"))


def _open_in(admin: Any, at: Any) -> dict[int, Any]:
    """Returns the producers with an open transaction in a partition, by their ids."""
    producers = admin.describe_producers([at])[at].active_producers
    return {p.producer_id: p for p in producers if _begin(p) >= 0}
