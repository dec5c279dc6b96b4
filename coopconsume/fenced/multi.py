"""`MultiLogWriter`: one conditional append over several logs, by one Kafka transaction."""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from coopconsume.closing import Acquired
from coopconsume.errors import InvalidOption
from coopconsume.errors.fenced import (
    AppendOutcomeUnknown,
    AppendRefused,
    LogUnavailable,
    OffsetMismatch,
    ProducerFenced,
    WriterNotOpen,
)
from coopconsume.fenced.config import FencedSettings
from coopconsume.fenced.deadline import Deadline
from coopconsume.fenced.engine import EngineDoubt, repeat
from coopconsume.fenced.log import MULTI, UNCHECKED, Entry, check_batch_id, entries, expectation
from coopconsume.fenced.requests import MARK_KEY, Request, new_batch_id
from coopconsume.fenced.session import WriterSession, send
from coopconsume.fenced.view import open_engine
from coopconsume.fenced.writer_config import WriterConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from coopconsume.fenced.kafka_engine import Engine, KafkaChannel
    from coopconsume.fenced.log import Appended, Expected, LastSeqs, Records
    from coopconsume.fenced.stamp import Kind
    from coopconsume.fenced.writer_config import EpochSource


LogName = tuple[str, int]
"""A topic and a partition."""
_Pieces = dict[WriterSession, Request]
LOGS_HEADER: Final = "fw-logs"
"""Header of the first record in each log: all logs of the append, with their record counts."""


@dataclass(frozen=True)
class Write:
    """The part of an append for one log.

    Attributes:
        records: As for `FencedWriter.append`. If empty, only the condition is checked; a checkpoint
            record then takes an offset.
        expected_seq: Expected sequence number of the first record; -1: unchecked.
        expected_offset: Expected offset of the first record; -1: unchecked.
        expected_key_seq: As for `FencedWriter.append`.
    """

    records: Records = ()
    expected_seq: Expected = UNCHECKED
    expected_offset: Expected = UNCHECKED
    expected_key_seq: LastSeqs | int = UNCHECKED


class MultiLogWriter(Acquired):
    """Appends to several logs of one cluster at once: to all of them, or to none.

    It shares the logs with others and fences nobody. If one log does not meet its condition,
    nothing is appended to any log. An owner that takes one of the logs by `FencedWriter` fences
    this writer. Readers of a log see its part once the transaction has ended there. A conditional
    append of a writer that reads several logs never rests on a part of it.

    Example:
        >>> logs = [("accounts", 0), ("orders", 3)]
        >>> with MultiLogWriter({"kafka.bootstrap.servers": "localhost:9092"}, logs) as writer:
        ...     writer.append({
        ...         ("accounts", 0): Write([b"-10"], expected_seq=writer.next_seq("accounts", 0)),
        ...         ("orders", 3): Write([b"paid"]),
        ...     })

    Args:
        options, engine, timeout: As for `FencedWriter`.
        logs: The logs, each once; all appends are visible to readers of committed records.
        epochs: Asked whether the logs belong to this writer's owner, which has opened them: it
            writes in the owner's place, and every later owner fences it. By default it shares the
            logs.

    Raises:
        OptionError, EngineNotUsable: As for `FencedWriter`.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        logs: Iterable[LogName],
        *,
        epochs: EpochSource | None = None,
        engine: str | Engine = "kafka-python",
        timeout: float = 30.0,
    ) -> None:
        names = list(logs)
        if not names or len(set(names)) < len(names):
            raise InvalidOption("logs", repr(names), "give one or more logs, each once")
        name = uuid.uuid4().hex
        shared = WriterConfig(owner=name, epochs=epochs, shared=True, timeout=timeout)
        self._settings = FencedSettings.parse(options)
        self._timeout = timeout
        self._engine = open_engine(engine, self._settings, timeout)
        self._id = f"{MULTI}{name}"
        self._sessions = {
            log: WriterSession(self._engine, *log, shared, pinned=epochs is not None)
            for log in names
        }
        self._first = self._sessions[names[0]]
        self._channel: KafkaChannel | None = None
        self._is_open = False
        self._lock = threading.RLock()

    def next_seq(self, topic: str, partition: int = 0) -> int:
        """Sequence number that the next record of a log will get, as far as this writer knows."""
        return self._sessions[topic, partition].position.next_seq

    def next_offset(self, topic: str, partition: int = 0) -> int:
        """Offset that the next record of a log will get, as far as this writer knows."""
        return self._sessions[topic, partition].position.next_offset

    def acquire(self) -> Self:
        """Reads where the logs go on; nothing if this writer is open.

        Raises:
            ProducerFenced, LogBlocked, LogReplaced, LogCorrupt, LogUnavailable: As for
                `FencedWriter.acquire`.
        """
        with self._lock:
            if not self._is_open:
                self._acquire(Deadline(self._timeout))
                self._is_open = True
            return self

    def refresh(self) -> None:
        """Reads what others have written; fails as `FencedWriter.refresh` does."""
        with self._lock:
            self._check_open()
            self._refresh(self._sessions.values(), Deadline(self._timeout))

    def close(self) -> None:
        """Closes the connections; harmless when repeated."""
        with self._lock:
            self._drop()
            self._is_open = False
            self._engine.close()

    def append(
        self, writes: Mapping[LogName, Write], *, batch_id: str | None = None, is_new: bool = False
    ) -> dict[LogName, Appended]:
        """Appends to several logs, to all of them or to none.

        Args:
            writes: What to write to which log.
            batch_id: Id of the batch, the same in each log: see `FencedWriter.append`.
            is_new: As there.

        Returns:
            The place of the records in each log.

        Raises:
            OffsetMismatch: A log goes on elsewhere; nothing was appended to any log.
            ProducerFenced: A log has an owner; this call appended nothing.
            AppendOutcomeUnknown: As for `FencedWriter.append`, but there is no ``resolve``: append
                the records again with the batch id. All other errors are as there, too.
        """
        check_batch_id(batch_id)
        may_repeat = batch_id is not None and not is_new
        pieces = self._pieces(writes, batch_id or new_batch_id(), may_repeat=may_repeat)
        with self._lock:
            self._check_open()
            deadline = Deadline(self._timeout)
            if batch_id is not None and may_repeat:
                self._take_again(batch_id, {}, deadline)
                for session in pieces:
                    with session.reporting("reading batch ids"):
                        session.find_by_id(batch_id, deadline)
            return self._append(pieces, deadline)

    def _pieces(
        self, writes: Mapping[LogName, Write], batch_id: str, *, may_repeat: bool
    ) -> _Pieces:
        if not writes:
            raise AppendRefused("writes: give one at least")
        pieces: _Pieces = {}
        for name, write in writes.items():
            if name not in self._sessions:
                raise AppendRefused(f"{name}: this writer has no such log; name it when it is made")
            records = list(write.records)
            rows = entries(records) if records else [Entry(b"", MARK_KEY)]
            wanted = expectation(
                write.expected_offset, write.expected_seq, rows, key_seq=write.expected_key_seq,
                check=self._settings.checks(name[0]),
            )  # fmt: skip
            kind: Kind = "data" if records else "checkpoint"
            pieces[self._sessions[name]] = Request(
                rows, wanted, batch_id, is_given=may_repeat, kind=kind
            )
        counts = (f"{of.log}:{len(p.rows) * (p.kind == 'data')}" for of, p in pieces.items())
        header = LOGS_HEADER, ",".join(sorted(counts)).encode()
        for piece in pieces.values():
            first = piece.rows[0]
            piece.rows[0] = first._replace(headers=[header, *first.headers])
        return pieces

    def _append(self, pieces: _Pieces, deadline: Deadline) -> dict[LogName, Appended]:
        batch_id = next(iter(pieces.values())).batch_id
        refusal: Exception | None = None
        sent: dict[WriterSession, int] = {}
        while True:
            self._take_again(batch_id, sent, deadline)
            try:
                there = self._there(pieces, deadline)
            except LogUnavailable as error:
                if not sent:
                    raise
                first, at = next(iter(sent.items()))
                raise AppendOutcomeUnknown(*first.log.tp, batch_id, at, str(error)) from error
            if there:
                return there
            if refusal is not None:
                raise refusal
            try:
                placed = self._attempt(pieces, sent, deadline)
            except EngineDoubt as doubt:
                refusal = doubt.refusal
                continue
            if placed:
                return {session.log.tp: session.fold.batches[batch_id] for session in pieces}
            self._refresh(pieces, deadline)
            if deadline.is_over:
                problem = "others kept writing to them"
                raise LogUnavailable(*self._first.log.tp, "append", problem)
            deadline.pause()

    def _attempt(self, pieces: _Pieces, sent: dict[WriterSession, int], deadline: Deadline) -> bool:
        """Appends once; returns whether the records are in the logs. If not, they never will be.

        Raises:
            EngineDoubt: What was ``sent`` from an offset of each log on may be there.
        """
        sent.clear()
        try:
            self._check_expected(pieces, deadline)
            if any(p.batch_id in session.fold.batches for session, p in pieces.items()):
                return False  # Another append took the id meanwhile.
            parts = {session: session.draft([piece]) for session, piece in pieces.items()}
            sent |= {session: session.offset for session in parts}
            assert self._channel is not None
            placed = send(self._channel, parts, deadline)
        except OffsetMismatch:
            raise  # Nothing is in doubt.
        except BaseException:
            self._drop()
            raise
        if not placed:
            sent.clear()
        return placed

    def _there(self, pieces: _Pieces, deadline: Deadline) -> dict[LogName, Appended]:
        """Returns the places of an append that the logs have; empty if no log has its id.

        Raises:
            AppendRefused: Another append has the id.
        """
        there: dict[LogName, Appended] = {}
        for session, piece in pieces.items():
            found = session.fold.batches.get(piece.batch_id)
            if found is not None:
                there[session.log.tp] = found
                with session.reporting("reading"):
                    if piece.may_repeat:
                        session.check_answer(found, piece.rows, deadline)
        if there and len(there) < len(pieces):
            raise AppendRefused(
                f"batch_id {next(iter(there.values())).batch_id!r}: of the logs only "
                f"{', '.join(map(str, there))} has a batch of this id: give each append an id of "
                "its own"
            )
        return there

    def _check_expected(self, pieces: _Pieces, deadline: Deadline) -> None:
        for session in pieces:
            session.look_again(deadline)
        for is_refreshed in (False, True):
            mismatch = None
            for session, piece in pieces.items():
                with session.reporting("reading keys"):
                    last = session.last_seqs(piece.wanted.keys, deadline)
                position = session.position
                mismatch = mismatch or piece.wanted.mismatch(session.log, position, last)
            if mismatch is None:
                return
            if is_refreshed:
                raise mismatch
            self._refresh(pieces, deadline)

    def _take_again(
        self, batch_id: str, sent: Mapping[WriterSession, int], deadline: Deadline
    ) -> None:
        """Opens a new producer after a doubt, which decides the transaction before."""
        if self._channel is not None:
            return
        cause = None
        problem = "retention has removed records"
        try:
            self._acquire(deadline)
        except Exception as error:
            # If one log has a new owner and not the batch, no log has it.
            is_nowhere = isinstance(error, ProducerFenced) and any(
                session.fenced and session.known_from <= at and batch_id not in session.fold.batches
                for session, at in sent.items()
            )
            if is_nowhere or not sent:
                raise
            problem, cause = str(error) or type(error).__name__, error
        else:
            if all(session.known_from <= at for session, at in sent.items()):
                return
        first, at = next(iter(sent.items()))
        raise AppendOutcomeUnknown(*first.log.tp, batch_id, at, problem) from cause

    def _acquire(self, deadline: Deadline) -> None:
        repeat(deadline, lambda: self._join(deadline), self._drop, self._first.log)

    def _join(self, deadline: Deadline) -> bool:
        if self._channel is None:
            self._channel = self._engine.channel(self._first.log, self._id, deadline.seconds)
            self._channel.init(deadline.left)
        for session in self._sessions.values():
            session.join(self._channel, deadline)
        return True

    def _refresh(self, sessions: Iterable[WriterSession], deadline: Deadline) -> None:
        for session in sessions:
            with session.reporting("reading"):
                session.refresh(deadline)

    def _drop(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.drop()

    def _check_open(self) -> None:
        if not self._is_open:
            raise WriterNotOpen(*self._first.log.tp, "not open")
