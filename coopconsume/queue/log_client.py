"""The interface of a replica's log, and the Kafka clients that write and read it as a topic."""

from __future__ import annotations

import logging
import math
import time
import uuid
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from coopconsume.errors import BrokerUnreachable, CoopConsumeError, NotAuthorized
from coopconsume.errors.queue import QueueLogFormat, QueueNotFound
from coopconsume.kafka import librdkafka
from coopconsume.kafka.identity import is_other_topic
from coopconsume.kafka.one_partition import OnePartition
from coopconsume.kafka.security import access, sasl

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from coopconsume.options import Options


log = logging.getLogger(__name__)

#: Milliseconds in which a broker has to answer.
CONNECT_MS: Final = 5_000
_MOST_BYTES: Final = 64 << 20
_FETCH_WAIT_MS: Final = 250
_AT_ONCE: Final = 2_000
#: Seconds in which a topic may be deleted, created again and written to, before that is asked.
_UNWATCHED: Final = 1.0

#: Position, queue and row. Positions grow; the first one is 0 or more.
LogRecord: TypeAlias = "tuple[int, bytes | None, bytes | None]"


class LogClient(ABC):
    """Writes and reads the log of a replica. One thread writes, and one reads.

    Any thread may call `write_now`. The other methods raise `CoopConsumeError`, `OSError` or an
    error of kafka-python; then they may be called again.

    Attributes:
        place: The log, for messages; without secrets.
        identity: The id of the topic or table, which one that takes its place does not have; empty
            before `prepare`.
        snapshot_every: The number of rows after which a snapshot replaces the start of the log.
    """

    place: str
    identity = ""
    snapshot_every: ClassVar[int]

    @abstractmethod
    def prepare(self, *, create: bool) -> None:
        """Creates the log if it does not exist.

        Raises:
            QueueNotFound: It does not exist, and `create` is False.
            QueueLogFormat: It cannot be the log of a replica.
        """

    @abstractmethod
    def write(self, rows: Sequence[bytes]) -> None:
        """Sends rows; some may be lost. The first call connects."""

    @abstractmethod
    def write_now(self, row: bytes) -> bool:
        """Sends a row if that takes no waiting; returns whether it is sent."""

    @abstractmethod
    def delete_before(self, position: int) -> None:
        """Deletes rows that a snapshot replaces; as many as this log can."""

    @abstractmethod
    def end_writing(self) -> None:
        """Waits a moment for what was sent, and closes the connection."""

    @abstractmethod
    def begin_reading(self) -> tuple[int, int]:
        """Begins at the first position; returns it, and the end of the log."""

    @abstractmethod
    def read(self, seconds: float) -> Sequence[LogRecord] | None:
        """Waits for the next records; None: they were deleted, so that reading has to begin again.

        Raises:
            NotAuthorized: The log may not be read.
        """

    @abstractmethod
    def position(self) -> int:
        """Returns the position that is read next."""

    @abstractmethod
    def end_reading(self) -> None:
        """Closes the connection; harmless when repeated."""

    @abstractmethod
    def explained(self, error: Exception) -> CoopConsumeError:
        """Returns the error for users of an error that a method raised."""


class KafkaLog(OnePartition, LogClient):
    """A log in a Kafka topic of one partition, through kafka-python.

    Args:
        queue: The group and the topic of the queue: the key of the rows.
        topic: The topic.
        options: The options of its cluster.

    Raises:
        EngineNotUsable: The client is not installed.
        InvalidOption: A setting of security that the client does not take.
    """

    snapshot_every = 10_000
    #: When it was certain that the log is that of `topic_id`, on the monotonic clock.
    _watched_at = -math.inf
    #: Whether the client says by itself which topic it reads.
    _says_topic: ClassVar[bool] = True

    def __init__(self, queue: str, topic: str, options: Options) -> None:
        self.place = f"topic {topic} of {options.kafka['bootstrap.servers']}"
        self._queue = queue
        self._key = queue.encode()
        self._kafka = options.kafka
        config = options.client_config() | {"bootstrap_timeout_ms": CONNECT_MS}
        request_ms = config.get("request_timeout_ms", CONNECT_MS)
        super().__init__(
            topic, config, answer_ms=CONNECT_MS, fetch_ms=_FETCH_WAIT_MS, max_block_ms=CONNECT_MS,
            request_timeout_ms=request_ms, delivery_timeout_ms=request_ms + CONNECT_MS,
            retry_backoff_ms=config.get("retry_backoff_ms", 50), max_request_size=_MOST_BYTES,
            allow_auto_create_topics=False,
        )  # fmt: skip

    def prepare(self, *, create: bool) -> None:
        """Creates the topic if it does not exist, and waits for its leader."""
        access.look(self._config, self._kafka)
        self._watched_at = time.monotonic()
        count = self.partitions(create=create)
        if not count:
            raise QueueNotFound(self._queue, self.place)
        if count != 1:
            raise QueueLogFormat(self.place, f"{count} partitions", "one partition")
        self.identity = self.topic_id

    def write(self, rows: Sequence[bytes]) -> None:
        """Sends rows."""
        for row in rows:
            self.send(row, self._key)

    def read(self, seconds: float) -> Sequence[LogRecord] | None:
        """Waits for the next records; None also if they are of a topic that was created again.

        kafka-python learns of that as a fetch fails. After a time without a fetch, and now and then
        for a client that does not say it, the brokers are asked.
        """
        is_due = time.monotonic() - self._watched_at > _UNWATCHED
        found = self._fetch(seconds)
        if is_due:
            is_other = is_other_topic(self.topic_id, self.described_id())
        else:
            is_other = self.is_other_topic()
        if is_due or self._says_topic:
            self._watched_at = time.monotonic()
        return None if is_other else found

    def _fetch(self, seconds: float) -> Sequence[LogRecord] | None:
        """Waits for the next records; None if they were deleted."""
        return super().read(seconds)

    def write_now(self, row: bytes) -> bool:
        """Sends a row once the topic's partition is known: without it `send` waits."""
        from kafka.errors import KafkaError

        producer = self._producer
        if producer is None or not producer._metadata.partitions_for_topic(self._topic):  # noqa: SLF001
            return False
        try:
            self.send(row, self._key)
        except KafkaError:
            return False
        return True

    def explained(self, error: Exception) -> CoopConsumeError:
        """Returns a missing right, or that the brokers cannot be reached."""
        if isinstance(error, CoopConsumeError):
            return error
        return access.refused(error, self._kafka, [self._topic]) or BrokerUnreachable(
            self._kafka["bootstrap.servers"], f"{type(error).__name__}: {error}"
        )


class ConfluentLog(KafkaLog):
    """The same through confluent-kafka: a hold takes less than half of the time."""

    _says_topic = False

    def __init__(self, queue: str, topic: str, options: Options) -> None:
        super().__init__(queue, topic, options)
        self._library = librdkafka.package()
        self._librdkafka = librdkafka.client_config(self._kafka)
        self._asks: Any = None

    def write(self, rows: Sequence[bytes]) -> None:
        """Sends rows."""
        request_ms = int(self._kafka.get("request.timeout.ms", CONNECT_MS))
        try:
            if self._producer is None:
                config = {"retry.backoff.ms": 50} | self._librdkafka | {
                    "acks": "all", "max.in.flight": 1, "linger.ms": 0,
                    "socket.nagle.disable": True, "request.timeout.ms": request_ms,
                    "message.timeout.ms": request_ms + CONNECT_MS,
                    "message.max.bytes": _MOST_BYTES,
                }  # fmt: skip
                self._producer = self._library.Producer(config, logger=log)
            for row in rows:
                self._producer.poll(0)  # so that its queue has space
                self._producer.produce(self._topic, key=self._key, value=row, partition=0)
        except (self._library.KafkaException, BufferError) as error:
            raise ConnectionError(str(error)) from error

    def write_now(self, row: bytes) -> bool:
        """Sends a row once the producer exists."""
        if self._producer is None:
            return False
        try:
            self._producer.produce(self._topic, key=self._key, value=row, partition=0)
        except (self._library.KafkaException, BufferError):
            return False
        return True

    def end_writing(self) -> None:
        """Waits up to 3 s for what was sent."""
        if self._producer is not None:
            self._producer.flush(3)

    def begin_reading(self) -> tuple[int, int]:
        """Begins at the first offset."""
        config = self._librdkafka | {
            "group.id": "none", "enable.auto.commit": False, "auto.offset.reset": "error",
            "fetch.wait.max.ms": _FETCH_WAIT_MS, "enable.partition.eof": True,
        }  # fmt: skip
        try:
            self._consumer = self._library.Consumer(config, logger=log)
            at = self._library.TopicPartition(self._topic, 0)
            start, end = self._consumer.get_watermark_offsets(at, CONNECT_MS / 1000)
            self._consumer.assign([self._library.TopicPartition(self._topic, 0, start)])
        except self._library.KafkaException as error:
            raise ConnectionError(str(error)) from error
        self._position = int(start)
        return int(start), int(end)

    def is_other_topic(self) -> bool:
        """Returns False: the client does not say which topic it reads."""
        return False

    def described_id(self) -> str:
        """Returns the id of the topic, by a client that stays connected."""
        from confluent_kafka import TopicCollection
        from confluent_kafka.admin import AdminClient

        if self._asks is None:
            self._asks = AdminClient(self._librdkafka, logger=log)
        asked = self._asks.describe_topics(
            TopicCollection([self._topic]), request_timeout=CONNECT_MS / 1000
        )
        try:
            found = asked[self._topic].result(CONNECT_MS / 1000).topic_id
        except (self._library.KafkaException, TimeoutError) as error:
            raise ConnectionError(str(error)) from error
        high, low = found.get_most_significant_bits(), found.get_least_significant_bits()
        return str(uuid.UUID(int=(high % 2**64 << 64) + low % 2**64))

    def _fetch(self, seconds: float) -> Sequence[LogRecord] | None:  # noqa: C901 - a case an error
        try:
            found = self._consumer.consume(_AT_ONCE, 0)
            if not found:
                if self._producer is not None:
                    self._producer.poll(0)  # drops reports; not in `write_now`, which is in a hurry
                # With a time to wait, it would wait until there are as many as it may return.
                found = self._consumer.consume(1, seconds)
        except self._library.KafkaException as failure:
            raise ConnectionError(str(failure)) from failure
        codes = self._library.KafkaError
        records = []
        for message in found:
            error = message.error()
            if error is None:
                records.append((message.offset(), message.key(), message.value()))
            elif error.code() == codes._PARTITION_EOF:  # noqa: SLF001
                self._position = message.offset()  # also behind the marker of a transaction
            elif error.code() in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE):  # noqa: SLF001
                return None
            elif error.code() == codes.TOPIC_AUTHORIZATION_FAILED:
                raise NotAuthorized("READ", "TOPIC", self._topic, sasl.user(self._kafka))
            elif error.code() == codes.UNKNOWN_TOPIC_OR_PART:
                raise ConnectionError(error.str())
            else:  # The client goes on by itself, as after a lost connection.
                log.debug("topic %s: %s", self._topic, error.str())
        if records:
            self._position = records[-1][0] + 1
        return records

    def position(self) -> int:
        """Returns the offset that is read next."""
        return self._position

    def end_reading(self) -> None:
        """Closes the connection."""
        if self._consumer is not None:
            self._consumer.close()


#: The clients by their names.
ENGINES: Final[Mapping[str, Callable[[str, str, Options], LogClient]]] = {
    "kafka-python": KafkaLog,
    "confluent-kafka": ConfluentLog,
}
