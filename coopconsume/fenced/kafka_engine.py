"""The writer's engine that asks and writes with kafka-python's admin client and producers.

It reads with confluent-kafka, as `ConfluentEngine` does, which also writes with it: kafka-python's
consumer takes some hundreds of milliseconds for its first records, and knows fewer codecs.

kafka-python 3.0 may report a commit that was an abort, and a fenced producer may abort its
successor's transaction by raising its own epoch. Both come from its automatic bump of the producer
epoch (KIP-360), which `kafka_python_compat` switches off. Beyond that: every future is awaited, an
offset below 0 is a doubt, commits have deadlines, and after any doubt a producer is dropped
(`EngineDoubt`).
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from functools import partial
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final

from coopconsume.closing import RaisedAs
from coopconsume.errors import NotAuthorized
from coopconsume.errors.fenced import AppendRefused, EngineNotUsable
from coopconsume.fenced.engine import EngineDoubt, LogAppend, OpenTransaction
from coopconsume.fenced.log import Consumed, Ends, LogId, Rows
from coopconsume.kafka import kafka_python_compat
from coopconsume.kafka.call_limit import Deadline, call_in_time, call_within, time_left
from coopconsume.kafka.headers import message_headers, quick_headers
from coopconsume.kafka.librdkafka import client_config, kafka_error, record_consumer
from coopconsume.kafka.security import access
from coopconsume.kafka.settings import hurry_metadata
from coopconsume.record import time_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from coopconsume.fenced.config import FencedSettings

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
#: Brokers from here on verify that a record belongs to an open transaction (KIP-890, part 1).
_OLDEST: Final = (3, 6)
_EARLIEST, _LATEST = -2, -1
#: Records taken at once: with their headers few enough not to wake Python's garbage collector.
_MANY: Final = 128
_milliseconds: Final = itemgetter(1)
_begin: Final = attrgetter("current_transaction_start_offset")


def doubt_of(settings: FencedSettings, topic: str, error: BaseException) -> EngineDoubt | None:
    """What a failure of a client means; a missing right or a wrong record is a refusal."""
    from kafka import errors

    if not isinstance(error, errors.KafkaError | OSError | AssertionError):
        return None
    text = str(error) or type(error).__name__
    refusal = access.refused(error, settings.kafka, [topic], "WRITE")
    if isinstance(error, errors.MessageSizeTooLargeError | errors.RecordListTooLargeError):
        refusal = AppendRefused(f"the records are too large for {topic}: {text}")
    elif isinstance(error, errors.KafkaConfigurationError):
        refusal = EngineNotUsable(NAME, text)
    elif isinstance(error, errors.InvalidRecordError):
        refusal = AppendRefused(f"{topic} does not take the records: {text}")
    is_gone = isinstance(error, errors.OffsetOutOfRangeError)
    return EngineDoubt(text, refusal, is_out_of_range=is_gone)


def doubt_of_confluent(
    settings: FencedSettings, topic: str, error: BaseException
) -> EngineDoubt | None:
    """What a failure of confluent-kafka means; of a broker's error, what it does above."""
    from confluent_kafka import KafkaError, KafkaException

    # A consumer that was closed raises RuntimeError.
    known = (KafkaException, BufferError, SystemError, RuntimeError, OSError)
    if not isinstance(error, known):
        return None
    kind: Any = error.args[0] if error.args else None
    if isinstance(kind, KafkaError):
        return doubt_of(settings, topic, kafka_error(kind))
    return EngineDoubt(str(error))


class Engine:
    """The engine that writes with kafka-python, for one log and one thread at a time.

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

        with self.asking(topic) as admin:
            return call_in_time(_open_transactions, admin, TopicPartition(topic, partition))

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

        self._as_doubts = RaisedAs(partial(doubt_of, settings, log.topic))
        # The hook is set before anything is sent, but for the id of a producer without
        # transactions, which nobody else has.
        given = settings.producer_config()
        request_ms = given.setdefault("request_timeout_ms", _REQUEST_MS)
        config = given | {
            "acks": "all", "batch_size": settings.max_request_size, "enable_idempotence": True,
            "linger_ms": _LINGER_MS, "retry_backoff_ms": _BACKOFF_MS,
            "max_block_ms": int(1000 * timeout),
            "delivery_timeout_ms": max(int(1000 * timeout), request_ms + _LINGER_MS),
            "bootstrap_timeout_ms": int(1000 * min(timeout, CONNECT, time_left())),
            "allow_auto_create_topics": False, "metrics_enabled": False, **(more or {}),
        }  # fmt: skip
        if transactional_id is not None:
            config["transactional_id"] = transactional_id
        with self._as_doubts:
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
        with self._as_doubts:
            self._producer.begin_transaction()

    def append(self, parts: Sequence[LogAppend], timeout: float) -> list[list[int]]:
        """Appends records, acknowledged by all replicas in sync; returns the offset of each."""
        send = self._producer.send
        deadline = Deadline(timeout)
        kafka_python_compat.keep_batches_whole(self._producer)
        with self._as_doubts:
            sent = [
                [
                    send(log.topic, value, key, [stamp, *more], log.partition, timestamp)
                    for (value, key, more, timestamp), stamp in zip(entries, headers, strict=True)
                ]
                for log, entries, headers, *_ in parts
            ]
            self._producer.flush(timeout)
            # Each one, as an error of one batch says nothing of another.
            offsets = [[f.get(deadline.left).offset for f in futures] for futures in sent]
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
        deadline = Deadline(timeout)
        with self._as_doubts:  # The call knows no deadline of its own.
            call_within(lambda: deadline.left, call)
