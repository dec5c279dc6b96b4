"""`MultiLogWriter`: one conditional append over several logs, by one Kafka transaction."""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from coopconsume.errors import InvalidOption
from coopconsume.errors.fenced import AppendRefused
from coopconsume.fenced.log import (
    MULTI,
    UNCHECKED,
    Entry,
    check_batch_id,
    checked_size,
    entries,
    expectation,
)
from coopconsume.fenced.requests import MARK_KEY, Request, new_batch_id
from coopconsume.fenced.writer import BaseWriter
from coopconsume.fenced.writer_config import WriterConfig, WriterOptions
from coopconsume.kafka.call_limit import Deadline

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from coopconsume.fenced.log import Appended, Expected, LastSeqs, Records
    from coopconsume.fenced.session import WriterSession
    from coopconsume.fenced.stamp import Kind

LogName = tuple[str, int]
"""A topic and a partition."""
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


class MultiLogWriter(BaseWriter):
    """Appends to several logs of one cluster at once: to all of them, or to none.

    If one log does not meet its condition, nothing is appended to any log. By default it shares the
    logs with others and fences nobody; with ``shared=False`` it owns all of them. A later owner of
    one of the logs fences it. Readers of a log see its part once the transaction has ended there. A
    conditional append of a writer that reads several logs never rests on a part of it.

    Example:
        >>> logs = [("accounts", 0), ("orders", 3)]
        >>> with MultiLogWriter({"kafka.bootstrap.servers": "localhost:9092"}, logs) as writer:
        ...     writer.append({
        ...         ("accounts", 0): Write([b"-10"], expected_seq=writer.next_seq("accounts", 0)),
        ...         ("orders", 3): Write([b"paid"]),
        ...     })

    Args:
        options: As for `FencedWriter`.
        logs: The logs, each once.
        **how: The fields of `WriterConfig`, except ``checkpoint_every``; ``shared`` is True by
            default, and the visibility ``filter`` is for one log alone.

    Raises:
        OptionError, EngineNotUsable: As for `FencedWriter`.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        logs: Iterable[LogName],
        **how: Unpack[WriterOptions],
    ) -> None:
        names = sorted(logs)  # Of two writers at once, the one with the first log gets the others.
        if not names or len(set(names)) < len(names):
            raise InvalidOption("logs", repr(names), "give one or more logs, each once")
        how.setdefault("shared", True)
        config = WriterConfig(**how)
        self._is_alone = len(names) == 1 and not config.shared
        producer_id = None if self._is_alone else f"{MULTI}{uuid.uuid4().hex}"
        if config.visibility == "filter" and len(names) > 1:
            remedy = "an append to several logs is a transaction: give read_committed"
            raise InvalidOption("visibility", "filter", remedy)
        if config.checkpoint_every is not None:
            remedy = "leave it out, and append a `Write` without records now and then"
            raise InvalidOption("checkpoint_every", repr(config.checkpoint_every), remedy)
        super().__init__(options, names, config, producer_id)

    def next_seq(self, topic: str, partition: int = 0) -> int:
        """Sequence number that the next record of a log will get, as far as this writer knows."""
        return self._session((topic, partition)).position.next_seq

    def next_offset(self, topic: str, partition: int = 0) -> int:
        """Offset that the next record of a log will get, as far as this writer knows."""
        return self._session((topic, partition)).position.next_offset

    def acquire(self) -> Self:
        """Reads where the logs go on, or takes them; nothing if this writer is open.

        If it fails after it has looked at all logs, it may have fenced the owners of some.

        Raises:
            ProducerBusy, ProducerFenced, LogBlocked, LogReplaced, LogCorrupt, LogUnavailable: As
                for `FencedWriter.acquire`.
        """
        with self._lock:
            if self._state != "open":
                self._check_open("not open")
                self._appender.acquire(Deadline(self._timeout))
                self._state = "open"
            return self

    def refresh(self) -> None:
        """Reads what others have written; fails as `FencedWriter.refresh` does."""
        with self._lock:
            self._check_open()
            self._appender.refresh(Deadline(self._timeout))

    def last_batch(self, topic: str, partition: int, prefix: str) -> Appended | None:
        """Returns the last batch in a log whose id has a prefix: see `FencedWriter.last_batch`."""
        return self._last_batch(self._session((topic, partition)), prefix)

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
            ProducerFenced: A log has a later owner; this call appended nothing.
            AppendOutcomeUnknown: As for `FencedWriter.append`, but there is no ``resolve``: append
                the records again with the batch id. All other errors are as there, too.
        """
        check_batch_id(batch_id)
        may_repeat = batch_id is not None and not is_new
        pieces = self._pieces(writes, batch_id or new_batch_id(), may_repeat=may_repeat)
        with self._lock:
            self._check_open()
            with suppress(Exception):  # The requests have it.
                self._appender.run(pieces, Deadline(self._timeout))
        return {session.log.tp: request.result() for session, (request,) in pieces.items()}

    def _pieces(
        self, writes: Mapping[LogName, Write], batch_id: str, *, may_repeat: bool
    ) -> dict[WriterSession, list[Request]]:
        if not writes:
            raise AppendRefused("writes: give one at least")
        pieces: dict[WriterSession, list[Request]] = {}
        for name, write in writes.items():
            session = self._session(name)
            records = list(write.records)
            rows = entries(records) if records else [Entry(b"", MARK_KEY)]
            checked_size(rows, self._settings.max_request_size, is_filtered=session.is_filtered)
            wanted = expectation(
                write.expected_offset, write.expected_seq, rows, key_seq=write.expected_key_seq,
                check=self._settings.checks(name[0]),
            )  # fmt: skip
            kind: Kind = "data" if records else "checkpoint"
            piece = Request(rows, wanted, batch_id, is_given=may_repeat, kind=kind)
            pieces[session] = [piece]
        if self._is_alone:  # as a `FencedWriter`
            return pieces
        counts = (f"{of.log}:{len(p.rows) * (p.kind == 'data')}" for of, (p,) in pieces.items())
        header = LOGS_HEADER, ",".join(sorted(counts)).encode()
        for (piece,) in pieces.values():
            first = piece.rows[0]
            piece.rows[0] = first._replace(headers=[header, *first.headers])
        return pieces

    def _session(self, name: LogName) -> WriterSession:
        if name not in self._sessions:
            raise AppendRefused(f"{name}: this writer has no such log; name it when it is made")
        return self._sessions[name]
