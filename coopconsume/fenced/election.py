"""`LeaderElection`: one of several processes leads, with all of the log seen before it writes."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from coopconsume.closing import Closing
from coopconsume.errors.fenced import FencedLogError, ProducerFenced, WriterNotOpen
from coopconsume.fenced.exclusive import ExclusiveProducer
from coopconsume.fenced.log import Appended, LogRecord, Records, entries
from coopconsume.fenced.ownership import AccessMode, OwnershipStore
from coopconsume.fenced.ownership.registry import check_lease
from coopconsume.fenced.reader import LogReader
from coopconsume.fenced.writer_config import WriterConfig, WriterOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

log = logging.getLogger(__name__)

_WATCH = 0.1  # seconds between two looks whether a leader still leads
_AGAIN = 1.0  # seconds before the next try where Kafka or the registry was away
_KEEP_UP = 1.0  # seconds between two looks of one that waits at what the leader writes


@dataclass
class Replica:
    """Applies each record of a log once, whether it was read or written by this process.

    Attributes:
        next_seq: Sequence number of the next record to be applied.
    """

    _reader: LogReader
    _apply: Callable[[LogRecord], None]
    next_seq: int = 0

    def read(self, stop: int | None = None) -> None:
        """Reads on to an offset; by default what is decided now, without waiting."""
        self.deliver(self._reader.read(stop, stable=stop is None))

    def deliver(self, records: Iterable[LogRecord]) -> None:
        """Applies records, unless they were applied when this process wrote them."""
        for record in records:
            if record.seq >= self.next_seq:
                self.next_seq = record.seq + 1
                self._apply(record)


class Leader:
    """The hold of an elected process on its log. `LeaderElection` makes it.

    Attributes:
        epoch: The epoch under which it leads; greater than that of all before it.
    """

    def __init__(self, producer: ExclusiveProducer, replica: Replica) -> None:
        self.epoch: Final = producer.epoch
        self._producer = producer
        self._replica = replica
        self._lock = threading.RLock()
        self._is_behind = False
        self._resigned = False

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

    def append(self, records: Records, *, batch_id: str | None = None) -> Appended:
        """Writes records to the log, all or nothing, directly behind all that is applied.

        They are applied before it returns. It fails as `FencedWriter.append` does. After an
        `AppendOutcomeUnknown`, the next call finds out what happened, and applies it.
        """
        rows = entries(records)
        with self._lock:
            self.catch_up()
            self._is_behind = True
            expected = self._replica.next_seq
            added = self._producer.append(rows, expected_seq=expected, batch_id=batch_id)
            now = int(1000 * time.time())
            self._replica.deliver(
                LogRecord(
                    added.first_seq + number,
                    added.first_offset + number,
                    epoch=added.epoch,
                    batch_id=added.batch_id,
                    key=row.key,
                    value=row.value,
                    headers=tuple(row.headers),
                    timestamp=now if row.timestamp is None else row.timestamp,
                )
                for number, row in enumerate(rows)
            )
            self._is_behind = False
            return added

    def catch_up(self) -> None:
        """After a doubt: finds out what happened, and applies what is in the log, as `confirm`."""
        with self._lock:
            if self._resigned:
                raise WriterNotOpen(self._producer.topic, self._producer.partition, "resigned")
            if self._is_behind:
                self._replica.read(self._producer.confirm())
                self._is_behind = False

    def confirm(self) -> None:
        """Makes sure that this process led at some moment of this call, all of the log applied.

        What is read from its state within the call's time is then not the past. It fails as
        `ExclusiveProducer.confirm` does.
        """
        with self._lock:
            self.catch_up()
            self._producer.confirm()

    def resign(self) -> None:
        """Leads no more; the election gives the log back and stands again."""
        with self._lock:
            self._resigned = True


class LeaderElection(Closing):
    """Elects one leader among all that stand for the same log, and shows each the log.

    A candidate reads the log as it grows. Before `on_elected` is called, every record that counts
    was applied. The leader can use the log as the write-ahead log of its state: a record that it
    appends is applied once it is in the log. One thread calls all callbacks, except those of the
    leader's own appends.

    Example:
        >>> state = {}
        >>> def apply(record):
        ...     state[record.key] = record.value
        >>> with LeaderElection({"kafka.bootstrap.servers": "…"}, "state", apply=apply) as election:
        ...     leader = election.lead()  # waits until this process leads
        ...     leader.append([(b"key", b"value")])

    Args:
        options, topic, partition: As for `FencedWriter`. The topic may be compacted, if all records
            have keys.
        apply: Gets each record of the log once, in order, in whichever process: from the log, or
            when this process wrote it.
        on_candidate: Called when it begins to wait.
        on_elected: Called with the leader, when everything before it is applied.
        on_lost: Called when it does not lead any more: another one does, or it resigned.
        store: Makes what the registry is kept in, for each candidacy; by default the topic
            ``__fw_ownership`` of the same cluster.
        lease: Seconds without a heartbeat after which a leader is considered dead; 0: never.
        **how: As for `ExclusiveProducer`; the engine by its name.

    Attributes:
        leader: The leader, if this process is it as far as known.

    Raises:
        OptionError, EngineNotUsable: As they say.
        ValueError: The lease is negative.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        topic: str,
        partition: int = 0,
        *,
        apply: Callable[[LogRecord], None] | None = None,
        on_candidate: Callable[[], None] | None = None,
        on_elected: Callable[[Leader], None] | None = None,
        on_lost: Callable[[], None] | None = None,
        store: Callable[[], OwnershipStore] | None = None,
        lease: float = 10.0,
        **how: Unpack[WriterOptions],
    ) -> None:
        check_lease(lease)
        config = WriterConfig(**how)
        self._reader = LogReader(
            options,
            topic,
            partition,
            engine=config.engine,
            timeout=config.timeout,
            compacted=config.compacted,
        )
        self._make: Callable[[], ExclusiveProducer] = lambda: ExclusiveProducer(
            options,
            topic,
            partition,
            mode=AccessMode.WAIT_FOR_EXCLUSIVE,
            store=None if store is None else store(),
            lease=lease,
            meanwhile=self._keep_up,
            **how,
        )
        self._replica = Replica(self._reader, apply or (lambda _: None))
        self._on_candidate = on_candidate or (lambda: None)
        self._on_elected = on_elected or (lambda _: None)
        self._on_lost = on_lost or (lambda: None)
        self._log = topic, partition
        self._read_at = 0.0
        self._changed = threading.Condition()
        self.leader: Leader | None = None
        self._is_announced = False
        self._producer: ExclusiveProducer | None = None
        self._stopped = threading.Event()
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    @property
    def leader_name(self) -> str | None:
        """Who has the log, by the registry; None if nobody does, or before `start`."""
        return None if self._producer is None else self._producer.held_by()

    def start(self) -> Self:
        """Begins to stand for election, in a thread; harmless when repeated."""
        if self._thread is None:
            name = "coopconsume-election"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()
        return self

    def lead(self, timeout: float | None = None) -> Leader:
        """Waits until this process leads, and `on_elected` has returned.

        Args:
            timeout: Seconds; None: without end.

        Raises:
            TimeoutError: It does not lead by then; it stands on.
            WriterNotOpen: It was closed.
            FencedLogError: Why it does not stand any more.
        """
        self.start()
        with self._changed:
            done = self._changed.wait_for(
                lambda: self._is_announced or self._failure or self._stopped.is_set(), timeout
            )
            if self._failure is not None:
                raise self._failure
            if not done:
                raise TimeoutError(f"not elected within {timeout} s")
            if self.leader is None:
                raise WriterNotOpen(*self._log, "closed")
            return self.leader

    def resign(self) -> None:
        """Hands the lead to the next candidate, and joins the end of the queue."""
        if leader := self.leader:
            leader.resign()

    def close(self) -> None:
        """Withdraws or stops leading; the next candidate leads. Harmless when repeated."""
        with self._changed:
            self._stopped.set()
            self._changed.notify_all()
            producer = self._producer
        if producer is not None:
            producer.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._reader.close()

    def __enter__(self) -> Self:
        return self.start()

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                try:
                    self._stand()
                except FencedLogError as error:
                    if not (error.retriable or isinstance(error, ProducerFenced)):
                        raise
                    log.info("candidate again: %s", error)
                    self._stopped.wait(_AGAIN if error.retriable else 0)
        except BaseException as error:  # `lead` raises it
            if not self._stopped.is_set():
                log.exception("no candidate any more")
                with self._changed:
                    self._failure = error
                    self._changed.notify_all()

    def _stand(self) -> None:
        producer = self._make()
        with self._changed:
            self._producer = producer
        try:
            if self._stopped.is_set():
                return
            self._on_candidate()
            producer.acquire()
            self._replica.read(producer.writer.opened_at)
            self._replica.next_seq = producer.writer.next_seq
            self._lead(Leader(producer, self._replica))
        finally:
            producer.close()

    def _lead(self, leader: Leader) -> None:
        with self._changed:
            self.leader = leader
        try:
            self._on_elected(leader)
            with self._changed:
                self._is_announced = True
                self._changed.notify_all()
            while not self._stopped.is_set() and leader.leads():
                self._stopped.wait(_WATCH)
        finally:
            leader.resign()  # waits for what it is doing
            with self._changed:
                self.leader, self._is_announced = None, False
                self._changed.notify_all()
            self._on_lost()

    def _keep_up(self) -> None:
        now = time.monotonic()
        if now - self._read_at < _KEEP_UP:
            return
        self._read_at = now
        try:
            self._replica.read()
        except FencedLogError as error:  # a place in the queue is not lost for that
            if not error.retriable:
                raise
            log.info("keeping up with the leader: %s", error)
