"""What an elected process has: its log, and all of it applied."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from coopconsume.errors.fenced import AppendRefused, FencedLogError, WriterNotOpen
from coopconsume.fenced.core import entries
from coopconsume.fenced.log import LogRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from coopconsume.fenced.exclusive import ExclusiveProducer
    from coopconsume.fenced.log import Appended, Entry
    from coopconsume.fenced.reader import LogReader


class Replica:
    """Applies each record of a log once, whether it was read or written by this process.

    Attributes:
        next_seq: Sequence number of the next record to be applied.
    """

    def __init__(self, reader: LogReader, apply: Callable[[LogRecord], None]) -> None:
        self.next_seq = 0
        self._reader = reader
        self._apply = apply

    def replay(self, stop: int) -> None:
        """Reads on to an offset."""
        for record in self._reader.read(stop):
            self.deliver(record)

    def keep_up(self) -> None:
        """Reads what is decided now; an open transaction is not waited for."""
        for record in self._reader.read(stable=True):
            self.deliver(record)

    def deliver(self, record: LogRecord) -> None:
        """Applies a record, unless it was applied when this process wrote it."""
        if record.seq >= self.next_seq:
            self.next_seq = record.seq + 1
            self._apply(record)


class Leader:
    """The hold of an elected process on its log. `LeaderElection` makes it."""

    def __init__(self, producer: ExclusiveProducer, replica: Replica) -> None:
        self._producer = producer
        self._replica = replica
        self._lock = threading.RLock()
        self._is_behind = False
        self._resigned = False

    @property
    def epoch(self) -> int:
        """The epoch under which it leads; greater than that of all before it."""
        return self._producer.epoch

    @property
    def next_seq(self) -> int:
        """Sequence number of the next record."""
        return self._producer.writer.next_seq

    def leads(self) -> bool:
        """Whether it leads as far as known; asks nobody unless its place was lost."""
        if self._resigned or not self._producer.is_open:
            return False
        try:
            self._producer.check()
        except FencedLogError as error:
            return error.retriable
        return True

    def append(
        self,
        records: Iterable[Entry | tuple[bytes | None, bytes | None] | bytes],
        *,
        batch_id: str | None = None,
    ) -> Appended:
        """Writes records to the log, all or nothing, directly behind all that is applied.

        They are applied before it returns.

        Raises:
            ProducerFenced: Another one leads; nothing of it is in the log.
            AppendOutcomeUnknown: It may be in the log; the next call finds out and applies it.
            AppendRefused, LogBlocked, LogUnavailable, WriterNotOpen: As for `FencedWriter.append`.
        """
        rows = entries(records)
        with self._lock:
            self._refuse()
            self.catch_up()
            self._is_behind = True
            try:
                added = self._producer.append(
                    rows,
                    expected_seq=self._replica.next_seq,
                    batch_id=batch_id,
                )
            except AppendRefused:
                self._is_behind = False
                raise
            self._is_behind = False
            now = int(1000 * time.time())
            for number, row in enumerate(rows):
                self._replica.deliver(
                    LogRecord(
                        added.first_seq + number, added.first_offset + number, added.epoch,
                        added.batch_id, row.key, row.value, tuple(row.headers),
                        now if row.timestamp is None else row.timestamp,
                    )
                )  # fmt: skip
            return added

    def catch_up(self) -> None:
        """After a doubt: finds out what came of it, and applies it if it is in the log.

        Raises:
            ProducerFenced, LogBlocked, LogUnavailable, WriterNotOpen: As for `confirm`.
        """
        with self._lock:
            self._refuse()
            if self._is_behind:
                self._replica.replay(self._producer.confirm())
                self._is_behind = False

    def confirm(self) -> None:
        """Makes sure that this process led at some moment of this call, all of the log applied.

        What is read from its state within the call's time is then not the past.

        Raises:
            ProducerFenced: Another one leads.
            LogBlocked, LogUnavailable, WriterNotOpen: As for `FencedWriter.refresh`.
        """
        with self._lock:
            self._refuse()
            self.catch_up()
            self._producer.confirm()

    def resign(self) -> None:
        """Leads no more; the election gives the log back and stands again."""
        with self._lock:
            self._resigned = True

    def _refuse(self) -> None:
        if self._resigned:
            raise WriterNotOpen(self._producer.topic, self._producer.partition, "resigned")
