"""A replica's log in a Kafka topic: a thread reads rows, another one writes; no call waits."""

from __future__ import annotations

import logging
import queue
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coopconsume.errors import BrokerUnreachable, CoopConsumeError
from coopconsume.errors.queue import QueueLogFormat, QueueNotFound
from coopconsume.kafka.security import access
from coopconsume.queue.log_client import CONNECT_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coopconsume.options import Options
    from coopconsume.queue.log_client import LogClient

__all__ = ["AtEnd", "Began", "KafkaReplica", "ReaderEvent", "RecordsRead", "ReplicaFailed"]

log = logging.getLogger(__name__)

_CONFIG = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
_POLL = 0.5
_RETRY = 0.5
_WAITING_EVENTS = 1_000
_PAUSE = 0.02


@dataclass(frozen=True, slots=True)
class ReaderEvent:
    """Something that a replica's reader saw.

    Attributes:
        replica: The number of the replica.
        at: The monotonic time in seconds when it was seen.
    """

    replica: int
    at: float


@dataclass(frozen=True, slots=True)
class Began(ReaderEvent):
    """The log is read from its first offset on."""

    start: int


@dataclass(frozen=True, slots=True)
class RecordsRead(ReaderEvent):
    """Records of the log: offset, key and value."""

    records: Sequence[tuple[int, bytes | None, bytes | None]]


@dataclass(frozen=True, slots=True)
class AtEnd(ReaderEvent):
    """The log was read up to the end that it had when the reader began."""


@dataclass(frozen=True, slots=True)
class ReplicaFailed(ReaderEvent):
    """The replica does not work; without a permanent error it is tried again."""

    error: Exception
    is_permanent: bool


class KafkaReplica:
    """Writes and reads the log of one replica.

    Args:
        number: The number of the replica.
        topic: Its topic, which is created if it does not exist.
        options: The options of its cluster.
        client: Writes and reads the topic.
        queue_name: The group and the topic of the queue.
        events: Gets what the reader sees.
        patience: Seconds after which a row that could not be written is dropped.
        create: Whether to create the topic.
    """

    def __init__(
        self,
        number: int,
        topic: str,
        options: Options,
        client: LogClient,
        queue_name: str,
        events: queue.SimpleQueue[ReaderEvent],
        patience: float,
        *,
        create: bool = True,
    ) -> None:
        self.place = f"topic {topic} of {options.kafka['bootstrap.servers']}"
        self._number = number
        self._topic = topic
        self._options = options
        self._config = options.client_config()
        self._client = client
        self._key = queue_name.encode()
        self._events = events
        self._patience = patience
        self._create = create
        self._ended = threading.Event()
        self._rows: queue.SimpleQueue[tuple[float, bytes | int] | None] = queue.SimpleQueue()
        #: What was ever put in the queue, and how much of it the writing thread has finished.
        self._queued = self._finished = 0
        self._threads = [
            threading.Thread(target=run, name=f"coopconsume-queue-{topic}", daemon=True)
            for run in (self._keep_writing, self._keep_reading)
        ]

    def start(self) -> None:
        """Start both threads."""
        for thread in self._threads:
            thread.start()

    def append(self, row: bytes) -> None:
        """Append an encoded row, unless the log is out of reach for too long."""
        # A thread is woken only if it has to wait: that takes a good part of a hold's time. A row
        # never overtakes one that waits.
        if self._queued != self._finished or not self._client.write_now(self._key, row):
            self._put_row(row)

    def shorten(self, upto: int) -> None:
        """Let Kafka delete the records below an offset that a snapshot replaces."""
        self._put_row(upto)

    def _put_row(self, row: bytes | int) -> None:
        self._queued += 1
        self._rows.put((time.monotonic(), row))

    def close(self, patience: float = 5.0) -> None:
        """Write the rows that wait and end both threads."""
        self._rows.put(None)
        writer, reader = self._threads
        if writer.is_alive():
            writer.join(patience)
        self._ended.set()
        if reader.is_alive():
            reader.join(patience)

    def _keep_writing(self) -> None:
        from kafka.errors import KafkaError

        while not self._ended.is_set():
            item = self._rows.get()
            if item is None:
                break
            at, row = item
            while not self._ended.is_set() and time.monotonic() - at < self._patience:
                try:
                    if isinstance(row, int):
                        self._delete(row)
                    else:
                        self._client.write(self._key, row)
                    break
                except (KafkaError, OSError) as error:
                    log.debug("a row was not written to %s: %s", self.place, error)
                    self._ended.wait(_RETRY)
            self._finished += 1
        self._client.end_writing()

    def _delete(self, upto: int) -> None:
        from kafka import TopicPartition
        from kafka.admin import KafkaAdminClient

        admin = KafkaAdminClient(**self._config, bootstrap_timeout_ms=CONNECT_MS)
        try:
            admin.delete_records({TopicPartition(self._topic, 0): upto})
        finally:
            admin.close()

    def _keep_reading(self) -> None:
        from kafka.errors import KafkaError

        while not self._ended.is_set():
            try:
                self._read()
            except CoopConsumeError as error:
                self._put(ReplicaFailed(self._number, time.monotonic(), error, not error.retriable))
            except (KafkaError, OSError) as error:
                log.debug("%s is not read: %s", self.place, error)
                refused = access.refused(error, self._options.kafka, [self._topic])
                shown = refused or BrokerUnreachable(
                    self._options.kafka["bootstrap.servers"], f"{type(error).__name__}: {error}"
                )
                failed = ReplicaFailed(self._number, time.monotonic(), shown, refused is not None)
                self._put(failed)
            self._ended.wait(_RETRY)

    def _put(self, event: ReaderEvent) -> None:
        # A queue with a bound hands over more slowly.
        while self._events.qsize() >= _WAITING_EVENTS:  # while the consumer is at work
            if self._ended.wait(_PAUSE):
                return
        self._events.put(event)

    def _read(self) -> None:
        self._ensure_topic()
        client = self._client
        try:
            start, end = client.begin_reading()
            self._put(Began(self._number, time.monotonic(), start))
            position, is_behind = start, True
            while not self._ended.is_set():
                if is_behind and position >= end:
                    is_behind = False
                    self._put(AtEnd(self._number, time.monotonic()))
                records = client.read(_POLL)
                if records is None:
                    return  # shortened while this reader was away, or created again
                if records:
                    self._put(RecordsRead(self._number, time.monotonic(), records))
                    position = records[-1][0] + 1
                elif is_behind:
                    position = client.position()
        finally:
            client.end_reading()

    def _ensure_topic(self) -> None:
        from kafka.admin import KafkaAdminClient, NewTopic
        from kafka.errors import TopicAlreadyExistsError

        access.look(self._config, self._options.kafka)
        admin = KafkaAdminClient(**self._config, bootstrap_timeout_ms=CONNECT_MS)
        try:
            found = _described(admin, self._topic)
            if found is None and not self._create:
                raise QueueNotFound(self._key.decode(), self.place)
            if found is None:
                try:
                    admin.create_topics([NewTopic(self._topic, 1, -1, topic_configs=_CONFIG)])
                except TopicAlreadyExistsError:
                    log.debug("another consumer has created %s", self.place)
            while not self._ended.is_set() and found is None:
                self._ended.wait(0.05)
                found = _described(admin, self._topic)
            if found is not None and found != 1:
                raise QueueLogFormat(self.place, f"{found} partitions", "one partition")
        finally:
            admin.close()


def _described(admin: Any, topic: str) -> int | None:
    """Return the number of partitions; None if the topic does not exist or has no leader yet."""
    (found,) = admin.describe_topics([topic])
    partitions = found["partitions"]
    if found["error_code"] or not partitions or partitions[0]["error_code"]:
        return None
    return len(partitions)
