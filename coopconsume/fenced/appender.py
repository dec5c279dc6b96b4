"""An append from beginning to end: tried, judged, tried again, and its truth found out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from coopconsume.fenced.core import Expectation
from coopconsume.fenced.deadline import Deadline
from coopconsume.fenced.engine import EngineDoubt
from coopconsume.fenced.errors import (
    AppendOutcomeUnknown,
    AppendRefused,
    FencedLogError,
    LogBlocked,
    LogUnavailable,
    OffsetMismatch,
    ProducerFenced,
)
from coopconsume.fenced.log import Appended, Entry
from coopconsume.fenced.session import MARK_KEY, new_batch_id

if TYPE_CHECKING:
    from coopconsume.fenced.engine import Engine
    from coopconsume.fenced.fold import Batch
    from coopconsume.fenced.session import Session
    from coopconsume.fenced.stamp import Kind

#: Of the time for an append; the rest is for finding out what came of it.
_FIRST: Final = 0.6


class Appender:
    """Appends through a session, one batch after another.

    Args:
        session: The hold on the log.
        engine: The Kafka client.
    """

    def __init__(self, session: Session, engine: Engine) -> None:
        self._session = session
        self._engine = engine
        self._doubtful: dict[str, int] = {}  # ids and earliest offsets; decided by acquiring

    def acquire(self, deadline: Deadline) -> None:
        """Take the log, or take it again after a doubt; all earlier appends are decided then."""
        self._session.acquire(deadline)
        self._doubtful.clear()

    def append(
        self,
        rows: list[Entry],
        wanted: Expectation,
        batch_id: str | None,
        deadline: Deadline,
        *,
        is_new: bool = False,
    ) -> Appended:
        """Append a batch: see `FencedWriter.append`.

        Args:
            rows: The records.
            wanted: What is expected.
            batch_id: Its id, where the user gave one.
            deadline: When to give up.
            is_new: Whether the caller knows that the log has no batch of this id.
        """
        if batch_id is not None and not is_new:
            found = self._known(batch_id) or self._look_up(batch_id, deadline)
            if found is not None:
                self._check_contents(found, rows, deadline)
                return found
        return self._append(rows, wanted, batch_id, deadline, "data")

    def _look_up(self, batch_id: str, deadline: Deadline) -> Appended | None:
        """The batch of an id, anywhere in what the session has of the log."""
        session = self._session
        try:
            if not session.is_open:
                self.acquire(deadline)
            if not session.has_id(batch_id, deadline):
                return None
        except EngineDoubt as doubt:
            raise self._unavailable("reading batch ids", doubt.problem) from doubt
        return self._search(batch_id, 0, deadline)

    def _check_contents(self, found: Appended, rows: list[Entry], deadline: Deadline) -> None:
        """Whether a batch of the log has just these records.

        Raises:
            AppendRefused: It has others.
        """
        session = self._session
        if session.is_compacted:
            return  # Records may be gone that are in newer batches, too.
        same = found.count == len(rows)
        if same:
            try:
                there = session.records(found.first_offset, found.last_offset + 1, deadline)
            except EngineDoubt as doubt:
                raise self._unavailable("reading", doubt.problem) from doubt
            wanted = [(row.key, row.value, [*row.headers]) for row in rows]
            same = [(row.key, row.value, [*row.headers[1:]]) for row in there] == wanted
        if not same:
            raise AppendRefused(
                f"batch_id {found.batch_id!r}: the log has a batch of this id with other records, "
                f"at offset {found.first_offset}: give each batch an id of its own"
            )

    def checkpoint(self, deadline: Deadline) -> int:
        """Write a record without data; returns its offset."""
        rows = [Entry(b"", MARK_KEY)]
        return self._append(rows, Expectation(), None, deadline, "checkpoint").first_offset

    def _append(
        self,
        rows: list[Entry],
        wanted: Expectation,
        given: str | None,
        deadline: Deadline,
        kind: Kind,
    ) -> Appended:
        session, attempt = self._session, 0
        batch_id = given or new_batch_id()
        while True:
            if self._known(batch_id) is None and not session.is_open:
                self._reopen(batch_id, deadline)
            found = self._known(batch_id) or self._look(wanted, given, deadline)
            if found is not None:
                return found
            at = session.offset
            try:
                first = Deadline(_FIRST * deadline.left)
                placed = session.attempt(rows, batch_id, first, kind=kind)
            except EngineDoubt as doubt:
                self._strike(batch_id, at, doubt, deadline)
                continue
            except BaseException:
                session.drop()
                raise
            if placed is not None:
                return _appended(session.fold.batches[batch_id])
            attempt += 1
            self.refresh(deadline)
            if deadline.is_over and wanted.missed(session.position) is None:
                raise self._unavailable("append", "others kept writing to it")
            deadline.pause(attempt)

    def _look(self, wanted: Expectation, given: str | None, deadline: Deadline) -> Appended | None:
        """Compare what is expected with the place where the log goes on, read anew if need be.

        Returns:
            The batch, if it is in the log already: that may be why the log goes on elsewhere.
        """
        session = self._session
        if wanted.missed(session.position) is None:
            return None
        self.refresh(deadline)
        missed = wanted.missed(session.position)
        if missed is None:
            return None
        if given is not None:
            # A sequence number is never above its offset.
            found = self._search(given, wanted.value, deadline)
            if found is not None:
                return found
        position = session.position
        raise OffsetMismatch(
            session.log.topic, session.log.partition, *missed, wanted.by or "offset",
            position.next_offset, position.next_seq,
        )  # fmt: skip

    # -- after a doubt -------------------------------------------------------------------------

    def _strike(self, batch_id: str, at: int, doubt: EngineDoubt, deadline: Deadline) -> None:
        """Drop the producer, and find out what came of its last append.

        Raises:
            AppendOutcomeUnknown: It cannot be found out in time.
            ProducerFenced: The log is lost, and the batch is not in it.
        """
        self._session.drop()
        self._doubtful[batch_id] = at
        self._reopen(batch_id, deadline, doubt)
        if self._known(batch_id) is None and doubt.refusal is not None:
            raise doubt.refusal

    def _reopen(self, batch_id: str, deadline: Deadline, doubt: EngineDoubt | None = None) -> None:
        """Take the log again as its owner; if that fails, tell what that means for a batch."""
        session = self._session
        try:
            self.acquire(deadline)
        except (ProducerFenced, LogUnavailable, LogBlocked) as error:
            if self._known(batch_id) is not None:
                return
            at = self._doubtful.get(batch_id)
            if at is None or session.fenced:
                # By a record above all that this session may have written: it is decided.
                raise
            why = "" if doubt is None else f"{doubt.problem}; then: "
            raise AppendOutcomeUnknown(
                session.log.topic, session.log.partition, batch_id, at, f"{why}{error}"
            ) from error

    def _known(self, batch_id: str) -> Appended | None:
        batch = self._session.fold.batches.get(batch_id)
        return None if batch is None else _appended(batch)

    def refresh(self, deadline: Deadline) -> None:
        """Read what others have written: see `FencedWriter.refresh`."""
        session = self._session
        try:
            session.refresh(deadline)
        except EngineDoubt as doubt:
            raise self._unavailable("reading", doubt.problem) from doubt

    def last_batch(self, prefix: str, since: int, deadline: Deadline) -> Appended | None:
        """The last batch of some: see `FencedWriter.last_batch`."""
        try:
            found = self._session.last_batch(prefix, since, deadline)
        except EngineDoubt as doubt:
            raise self._unavailable("reading", doubt.problem) from doubt
        return None if found is None else _appended(found)

    def resolve(self, batch_id: str, since: int | None, deadline: Deadline) -> Appended | None:
        """Find out what came of an append: see `FencedWriter.resolve`."""
        session = self._session
        found = self._known(batch_id)
        if found is not None:
            return found
        at = self._doubtful.get(batch_id, 0 if since is None else since)
        try:
            if not session.fenced and not session.is_open:
                self.acquire(deadline)
            return self._known(batch_id) or self._search(batch_id, at, deadline)
        except FencedLogError as error:
            if session.fenced:
                return self._known(batch_id) or self._search(batch_id, at, deadline)
            if isinstance(error, ProducerFenced | LogUnavailable | LogBlocked):
                raise AppendOutcomeUnknown(
                    session.log.topic, session.log.partition, batch_id, at, str(error)
                ) from error
            raise

    def _search(self, batch_id: str, since: int, deadline: Deadline) -> Appended | None:
        """Look for a batch in what the session has of the log."""
        session = self._session
        try:
            first = max(since, self._engine.start(session.log.topic, session.log.partition))
            batches = session.batches(session.fold_from(first), first, session.offset, deadline)
            found = next((b for b in batches if b.stamp.batch == batch_id), None)
        except EngineDoubt as doubt:
            raise self._unavailable("reading", doubt.problem) from doubt
        return None if found is None else _appended(found)

    def _unavailable(self, operation: str, problem: str) -> LogUnavailable:
        log = self._session.log
        return LogUnavailable(log.topic, log.partition, operation, problem)


def _appended(batch: Batch) -> Appended:
    stamp = batch.stamp
    return Appended(stamp.batch, batch.first_offset, batch.seq, stamp.n, stamp.epoch)
