"""Writes and reads a replica's log: a thread reads rows, another one writes; no call waits."""

from __future__ import annotations

import logging
import queue
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from coopconsume.errors import CoopConsumeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coopconsume.queue.log_client import LogClient, LogRecord


log = logging.getLogger(__name__)

_POLL = 0.5
_RETRY = 0.5
_WAITING_EVENTS = 1_000
_PAUSE = 0.02
_TOGETHER = 1_000


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
    """The log is read from its first offset on.

    Attributes:
        start: That offset.
        identity: The identity of the log; empty if it is not known.
    """

    start: int
    identity: str = ""


@dataclass(frozen=True, slots=True)
class RecordsRead(ReaderEvent):
    """Records of the log."""

    records: Sequence[LogRecord]


@dataclass(frozen=True, slots=True)
class AtEnd(ReaderEvent):
    """The log was read up to the end that it had when the reader began."""


@dataclass(frozen=True, slots=True)
class ReplicaFailed(ReaderEvent):
    """The replica does not work; without a permanent error it is tried again."""

    error: BaseException
    is_permanent: bool


class ReplicaLog:
    """Writes and reads the log of one replica.

    Args:
        number: The number of the replica.
        client: Writes and reads the log, which is created if it does not exist.
        events: Gets what the reader sees.
        patience: Seconds after which a row that could not be written is dropped.
        create: Whether to create the log.
    """

    def __init__(
        self,
        number: int,
        client: LogClient,
        events: queue.SimpleQueue[ReaderEvent],
        patience: float,
        *,
        create: bool = True,
    ) -> None:
        self.place = client.place
        self.snapshot_every = client.snapshot_every
        #: Why rows are not written at the moment.
        self.problem: BaseException | None = None
        self._number = number
        self._client = client
        self._events = events
        self._patience = patience
        self._create = create
        self._ended = threading.Event()
        self._again, self._pause = threading.Event(), _RETRY
        #: The time of each row; a position up to which to delete; None at the end.
        self._rows: queue.SimpleQueue[tuple[float, bytes | int | None]] = queue.SimpleQueue()
        #: What was ever put in the queue, and how much of it the writing thread has finished.
        self._queued = self._finished = 0
        self._threads = [
            threading.Thread(target=run, name=f"coopconsume-queue-{number}", daemon=True)
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
        if self._queued != self._finished or not self._client.write_now(row):
            self._put_row(row)

    def read_again(self, pause: float) -> None:
        """Read the log from its start again, after a pause."""
        self._pause = pause
        self._again.set()

    def shorten(self, upto: int) -> None:
        """Delete the rows below a position that a snapshot replaces."""
        self._put_row(upto)

    def _put_row(self, row: bytes | int | None) -> None:
        self._queued += 1
        self._rows.put((time.monotonic(), row))

    def close(self, patience: float = 5.0) -> None:
        """Write the rows that wait and end both threads."""
        self._put_row(None)
        writer, reader = self._threads
        if writer.is_alive():
            writer.join(patience)
        self._ended.set()
        if reader.is_alive():
            reader.join(patience)

    def _keep_writing(self) -> None:
        is_last = False
        while not (is_last or self._ended.is_set()):
            waiting = [self._rows.get()]
            with suppress(queue.Empty):
                while len(waiting) < _TOGETHER:
                    waiting.append(self._rows.get_nowait())
            for kind, same in groupby(waiting, key=lambda item: type(item[1])):
                is_last = is_last or kind is type(None)
                self._write([*same])
            self._finished += len(waiting)
        self._client.end_writing()

    def _write(self, items: Sequence[tuple[float, bytes | int | None]]) -> None:
        """Write rows, or delete what was asked for; try again until it is too late."""
        while not self._ended.is_set():
            fresh = [row for at, row in items if time.monotonic() - at < self._patience]
            rows = [row for row in fresh if isinstance(row, bytes)]
            try:
                if rows:
                    self._client.write(rows)
                for upto in fresh:
                    if isinstance(upto, int):
                        self._client.delete_before(upto)
            except BaseException as error:  # noqa: BLE001 - a consumer without a majority shows it
                log.debug("a row was not written to %s: %s", self.place, error)
                self.problem = error
                self._ended.wait(_RETRY)
            else:
                self.problem = None
                return

    def _keep_reading(self) -> None:
        from kafka.errors import KafkaError

        while not self._ended.is_set():
            try:
                self._read()
            except (CoopConsumeError, KafkaError, OSError) as error:
                log.debug("%s is not read: %s", self.place, error)
                shown = self._client.explained(error)
                now, is_permanent = time.monotonic(), not shown.retriable
                self._put(ReplicaFailed(self._number, now, shown, is_permanent))
            except BaseException as error:
                log.exception("%s cannot be read", self.place)
                self._put(ReplicaFailed(self._number, time.monotonic(), error, is_permanent=True))
            self._ended.wait(self._pause if self._again.is_set() else _RETRY)

    def _put(self, event: ReaderEvent) -> None:
        # A queue with a bound hands over more slowly.
        while self._events.qsize() >= _WAITING_EVENTS:  # while the consumer is at work
            if self._ended.wait(_PAUSE):
                return
        self._events.put(event)

    def _read(self) -> None:
        client = self._client
        self._again.clear()
        client.prepare(create=self._create)
        try:
            position, end = client.begin_reading()
            self._put(Began(self._number, time.monotonic(), position, client.identity))
            is_behind = True
            while not (self._ended.is_set() or self._again.is_set()):
                if is_behind and position >= end:
                    is_behind = False
                    self._put(AtEnd(self._number, time.monotonic()))
                records = client.read(_POLL)
                if records is None:
                    if is_behind:
                        raise ConnectionError("rows are gone that no snapshot replaces yet")
                    return  # shortened while this reader was away, or created again
                if records:
                    self._put(RecordsRead(self._number, time.monotonic(), records))
                if is_behind:
                    position = client.position()
        finally:
            client.end_reading()
