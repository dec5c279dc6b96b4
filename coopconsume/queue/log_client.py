"""The interface of a replica's log, and the log in a topic."""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias

from coopconsume.errors import BrokerUnreachable, CoopConsumeError
from coopconsume.errors.queue import QueueLogFormat, QueueNotFound
from coopconsume.kafka.identity import is_other_topic
from coopconsume.kafka.one_partition import OnePartition
from coopconsume.kafka.security import access

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    """A log in a Kafka topic of one partition.

    Args:
        queue: The group and the topic of the queue: the key of the rows.
        topic: The topic.
        options: The options of its cluster.

    Raises:
        InvalidOption: A setting of security that the client does not take.
    """

    snapshot_every = 10_000
    #: When it was certain that the log is that of `topic_id`, on the monotonic clock.
    _watched_at = -math.inf

    def __init__(self, queue: str, topic: str, options: Options) -> None:
        self.place = f"topic {topic} of {options.kafka['bootstrap.servers']}"
        self._queue = queue
        self._key = queue.encode()
        request_ms = int(options.kafka.get("request.timeout.ms", CONNECT_MS))
        super().__init__(
            topic,
            options.kafka,
            options.client_config(),
            answer=CONNECT_MS / 1000,
            fetch_ms=_FETCH_WAIT_MS,
            producer={
                "request.timeout.ms": request_ms,
                "message.timeout.ms": request_ms + CONNECT_MS,
                "message.max.bytes": _MOST_BYTES,
                "retry.backoff.ms": int(options.kafka.get("retry.backoff.ms", 50)),
            },
        )

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
        self.send(rows, self._key)

    def write_now(self, row: bytes) -> bool:
        """Sends a row once the producer exists."""
        from kafka.errors import KafkaError

        if self._producer is None:
            return False
        try:
            self._produce(row, self._key)
        except KafkaError:
            return False
        return True

    def read(self, seconds: float) -> Sequence[LogRecord] | None:
        """Waits for the next records; None also if the topic was created again.

        The client reads a topic by its name, so the brokers are asked for its id once a second.
        """
        if time.monotonic() - self._watched_at > _UNWATCHED:
            if is_other_topic(self.topic_id, self.described_id()):
                return None
            self._watched_at = time.monotonic()
        return super().read(seconds)

    def explained(self, error: Exception) -> CoopConsumeError:
        """Returns a missing right, or that the brokers cannot be reached."""
        if isinstance(error, CoopConsumeError):
            return error
        return access.refused(error, self._kafka, [self._topic]) or BrokerUnreachable(
            self._kafka["bootstrap.servers"], f"{type(error).__name__}: {error}"
        )
