"""A member of a queue with its replicas: the pure core, driven by real logs and a real clock."""

from __future__ import annotations

import logging
import queue
import random
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

from coopconsume.errors.base import CoopConsumeError
from coopconsume.errors.queue import QueueUnavailable
from coopconsume.kafka.identity import is_other_topic
from coopconsume.queue.log import LogRows
from coopconsume.queue.member import QueueMember
from coopconsume.queue.replica import ReplicaState
from coopconsume.queue.replica_log import (
    AtEnd,
    Began,
    ReaderEvent,
    RecordsRead,
    ReplicaFailed,
    ReplicaLog,
)
from coopconsume.queue.replica_notes import replica_notes
from coopconsume.queue.requests import AppendRow
from coopconsume.queue.rows import ReplicaRow, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from coopconsume.queue.acknowledgements import Settled, Settlement
    from coopconsume.queue.acquisitions import Granted
    from coopconsume.queue.rows import Offsets
    from coopconsume.queue.settings import QueueSettings
    from coopconsume.queue.source_log import SourceLog


log = logging.getLogger(__name__)

_LONGEST_WAIT = 0.5
_KEPT_ROWS = 256
_ALL_REPLICAS = 5.0
#: Seconds after which a log that could not be understood is read again from its start.
_READ_AGAIN = 10.0
#: Seconds after which a row that begins a partition is written again where it was lost.
_BEGIN_EVERY = 5.0


class QueueSession:
    """Runs the protocol while its methods are called. One thread calls them.

    Args:
        settings: The settings of the queue.
        create: Whether to create the topics of the replicas. If not, nothing is written.

    Attributes:
        member: The state machine.
    """

    def __init__(self, settings: QueueSettings, *, create: bool = True) -> None:
        self._settings = settings
        self._is_writing = create
        count = len(settings.replicas)
        holder = uuid.uuid4().hex
        self.member = QueueMember(holder, count, settings.hold, random.Random())  # noqa: S311
        self._events: queue.SimpleQueue[ReaderEvent] = queue.SimpleQueue()
        self.replicas = [
            ReplicaLog(number, client, self._events, settings.hold, create=create)
            for number, client in enumerate(settings.clients())
        ]
        #: The last rows that were written here, by their bytes: each is read again soon.
        self._written: dict[bytes | None, ReplicaRow] = {}
        self.rows = [
            LogRows(replica.place, settings.name, self._written) for replica in self.replicas
        ]
        self._failures: dict[int, ReplicaFailed] = {}
        #: Replicas whose log has a part that is missing here, until they are read again.
        self._halves: set[int] = set()
        #: The identities of the logs that are read, and those that are noted outside of the logs.
        self.identities: dict[int, str] = {}
        self._former: dict[int, str] = {}
        self._is_compared = False
        self._named: set[tuple[int, str]] = set()
        self._read: set[int] = set()
        #: By replica, the position up to which a snapshot replaces the log that was not read yet,
        #: and the length of the log when it was written.
        self._snapshots: dict[int, tuple[int, int]] = {}
        self._logs: Mapping[int, SourceLog] = {}
        self._begun_at = 0.0
        self._is_started = False

    def open(self, timeout: float) -> None:
        """Read the replicas: all of them that can be read, or after a while a majority.

        Raises:
            CoopConsumeError: So many logs cannot be read that the others are no majority; the
                error of one of them.
            QueueUnavailable: No majority can be read in time.
        """
        if not self._is_started:
            self._is_started = True
            for replica in self.replicas:
                replica.start()
        count = len(self.replicas)
        patient = time.monotonic() + min(_ALL_REPLICAS, timeout / 2)
        self._until(
            lambda: all(n in self._read or self._is_broken(n) for n in range(count)),
            patient - time.monotonic(),
        )
        self.wait_until_read(timeout)

    @property
    def has_majority(self) -> bool:
        """Whether a majority of the logs was read up to their ends.

        A log is read again from its start after an error or a cut connection. Until it was read up
        to its end, what is missing in its state is no sign of anything.
        """
        return len(self._read) > len(self.replicas) // 2

    def wait_until_read(self, timeout: float) -> None:
        """Wait until a majority of the logs was read up to their ends.

        Raises:
            CoopConsumeError: So many logs cannot be read that the others are no majority.
            QueueUnavailable: No majority can be read in time.
        """
        if not self._until(lambda: self.has_majority, timeout):
            raise self._unavailable("reading their logs", timeout)

    def begin(self, logs: Mapping[int, SourceLog], timeout: float) -> None:
        """Begin partitions where their logs are not known, and wait for a majority.

        Raises:
            QueueUnavailable: No majority has them in time.
        """
        now = time.monotonic()
        if logs != self._logs or now - self._begun_at >= _BEGIN_EVERY:
            self._logs, self._begun_at = dict(logs), now
            self._send(self.member.begin(logs, self._read))
        has_begun = self.member.replicas.has_begun
        if not self._until(lambda: self.has_majority and has_begun(logs), timeout):
            raise self._unavailable("beginning partitions", timeout)

    def problem(self, replica: int) -> BaseException | None:
        """Return why the log of a replica cannot be read; None if it was read, or not yet."""
        failure = self._failures.get(replica)
        return None if failure is None else failure.error

    def _is_broken(self, replica: int) -> bool:
        failure = self._failures.get(replica)
        return failure is not None and failure.is_permanent

    def _check_majority(self) -> None:
        """Raises the error of a broken replica if the others are no majority."""
        count = len(self.replicas)
        broken = [n for n in range(count) if self._is_broken(n)]
        if count - len(broken) <= count // 2:
            raise self._failures[broken[0]].error

    def is_read(self, replica: int) -> bool:
        """Return whether the log of a replica was read up to its end."""
        return replica in self._read

    def acquire(self, limit: int, ends: Mapping[int, int], timeout: float) -> Granted | None:
        """Acquire free offsets; None if nothing is free, or no majority answers in time.

        A later call returns the result of a call that was interrupted or has not waited for it.
        """
        earlier = self.member.granted()
        if earlier is not None:
            return earlier
        rows = self.member.acquire(limit, ends, time.monotonic())
        if not rows:
            return None
        self._send(rows)
        self._until(lambda: not self.member.is_acquiring, min(timeout, self._settings.hold))
        return self.member.granted()

    def settle(
        self, kind: Settlement, offsets: Offsets, delay: float = 0.0, *, is_delivered: bool = True
    ) -> Settled:
        """Start an acknowledgement; `wait` waits for it."""
        settled, rows = self.member.settle(
            kind, offsets, time.monotonic(), delay, is_delivered=is_delivered
        )
        self._send(rows)
        return settled

    def wait(self, settled: Sequence[Settled], timeout: float) -> None:
        """Wait until the fate of acknowledgements is known.

        Raises:
            QueueUnavailable: A majority does not answer in time. They are repeated by later calls.
        """
        if not self._until(lambda: all(one.is_complete for one in settled), timeout):
            raise self._unavailable("an acknowledgement", timeout)

    def tombstone(self, offsets: Offsets) -> None:
        """Mark offsets without records as done."""
        self._send(self.member.tombstone(offsets))

    def run(self, seconds: float) -> None:
        """Run the protocol until something new was read, at most for some seconds."""
        self._step(seconds)
        self._drain()

    def close(self) -> None:
        """Write what waits, and for how long holds were watched; end the threads."""
        reached = self._read - self._failures.keys()
        self._send(one for one in self.member.leave(time.monotonic()) if one.replica in reached)
        for replica in self.replicas:
            replica.close()

    def _until(self, is_so: Callable[[], bool], timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        self._drain()
        while not is_so():
            left = deadline - time.monotonic()
            if left <= 0:  # perhaps this process was frozen
                self._drain()
                return is_so()
            self._step(left)
            if self._events.empty():
                self._check_majority()
        return True

    def _step(self, seconds: float) -> None:
        """Do what is due; then wait for the next event. The caller may have its result by then."""
        self._tick()
        due = self.member.next_due()
        wait = min(seconds, _LONGEST_WAIT)
        if due is not None:
            wait = min(wait, due - time.monotonic())
        with suppress(queue.Empty):
            self._take(self._events.get(timeout=max(0.001, wait)))

    def _drain(self) -> None:
        """Take what was read already; then do what is due."""
        while True:
            try:
                self._take(self._events.get_nowait())
            except queue.Empty:
                break
        self._check_majority()
        self._tick()

    def _tick(self) -> None:
        self._send(self.member.tick(time.monotonic()))

    def _take(self, event: ReaderEvent) -> None:
        """Take what a reader saw. A broken replica is read again."""
        replica = event.replica
        if isinstance(event, Began):
            self._halves.discard(replica)
        elif replica in self._halves and not isinstance(event, ReplicaFailed):
            return
        try:
            self._follow(event)
        except CoopConsumeError as error:
            self._drop(replica, event.at, _READ_AGAIN)
            self._fail(ReplicaFailed(replica, event.at, error, is_permanent=True))
        except BaseException:  # also an interrupt
            self._drop(replica, event.at, 0.0)
            raise

    def _drop(self, replica: int, at: float, pause: float) -> None:
        """Forgets a broken log until it is read again from its start."""
        self._halves.add(replica)
        self._read.discard(replica)
        self.member.restore(replica, ReplicaState(), at)
        self.replicas[replica].read_again(pause)

    def _began(self, event: Began) -> None:
        replica = event.replica
        before = self.identities.get(replica, "")
        if is_other_topic(before, event.identity):
            self._former[replica] = before
        self.identities[replica] = event.identity
        self.member.restore(replica, self.rows[replica].begin(event.start), event.at)

    def note_former(self, identities: Mapping[int, str]) -> None:
        """Compare replicas with those that are noted elsewhere: a single replica may be lost."""
        is_first, self._is_compared = not self._is_compared, True
        self._former = {**identities, **self._former}
        if is_first or identities:
            self._note_replicas()

    def _note_replicas(self) -> None:
        """Note which logs the replicas have; name those that were replaced."""
        now = {n: identity for n, identity in self.identities.items() if identity}
        notes = replica_notes(self.member.replicas.states, now, self._former, self._read)
        for number in sorted({n for row in notes.values() for n, (was, _) in row.items() if was}):
            if (number, now[number]) not in self._named:
                self._named.add((number, now[number]))
                log.warning(
                    "%s was deleted and created again; what only it had noted is lost",
                    self.replicas[number].place,
                )
        holder = self.member.holder
        self._send(
            AppendRow(replica, ReplicaRow("begin", holder, replicas=row))
            for replica, row in notes.items()
        )

    def _fail(self, failure: ReplicaFailed) -> None:
        before = self._failures.get(failure.replica)
        self._failures[failure.replica] = failure
        if failure.is_permanent and (before is None or str(before.error) != str(failure.error)):
            log.warning("%s is not used: %s", self.replicas[failure.replica].place, failure.error)

    def _follow(self, event: ReaderEvent) -> None:
        replica, at = event.replica, event.at
        rows = self.rows[replica]
        if isinstance(event, Began):
            self._read.discard(replica)  # what it has is not known before its end is read again
            self._began(event)
        elif isinstance(event, AtEnd):
            rows.check()
            self._read.add(replica)
            self._failures.pop(replica, None)
            if self.has_majority:
                self._send(self.member.begin(self._logs, self._read))
                if self._is_compared:
                    self._note_replicas()
        elif isinstance(event, ReplicaFailed):
            self._fail(event)
        elif isinstance(event, RecordsRead):
            for offset, key, value in event.records:
                for step in rows.take(offset, key, value):
                    if isinstance(step, ReplicaState):
                        self.member.restore(replica, step, at)
                    else:
                        self._send(self.member.take(replica, *step, at))
            self._shorten(replica)

    def _send(self, rows: Iterable[AppendRow]) -> None:
        if not self._is_writing:
            return
        last, encoded = None, b""
        for replica, row in rows:
            if row is not last:  # rows to several replicas are the same object
                last, encoded = row, encode(row)
                self._written[encoded] = row
            self.replicas[replica].append(encoded)
        while len(self._written) > _KEPT_ROWS:
            del self._written[next(iter(self._written))]

    def _shorten(self, replica: int) -> None:
        """Replaces the start of a long log by a snapshot, and deletes it once that can be read."""
        rows, log = self.rows[replica], self.replicas[replica]
        written, since = self._snapshots.get(replica, (None, 0))
        if written is not None and rows.start >= written:
            del self._snapshots[replica]
            log.shorten(written)
            since = 0
        # If a snapshot is lost, the next one comes after as many rows.
        is_due = rows.length - since >= log.snapshot_every
        if is_due and rows.is_whole and replica in self._read:
            upto, state = rows.next_offset, self.member.replicas.states[replica].snapshot()
            self._snapshots[replica] = upto, rows.length
            row = ReplicaRow("snapshot", self.member.holder, positions=(upto,), state=state)
            self._send([AppendRow(replica, row)])

    def _unavailable(self, waiting_for: str, timeout: float) -> QueueUnavailable:
        problems = {
            n: self._failures[n].error if n in self._failures else replica.problem
            for n, replica in enumerate(self.replicas)
        }
        silent = [
            f"{replica.place}" if problems[n] is None else f"{replica.place} ({problems[n]})"
            for n, replica in enumerate(self.replicas)
            if problems[n] is not None or n not in self._read or len(self.replicas) == 1
        ]
        shown = "; ".join(silent) or "no single one, but too few at a time"
        return QueueUnavailable(self._settings.name, waiting_for, timeout, shown)
