"""Appends groups of batches, and finds out what happened to them after any failure."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Final

from coopconsume.errors.fenced import (
    AppendOutcomeUnknown,
    AppendRefused,
    FencedLogError,
    LogBlocked,
    LogUnavailable,
    OffsetMismatch,
    ProducerFenced,
)
from coopconsume.fenced.deadline import Deadline
from coopconsume.fenced.engine import EngineDoubt
from coopconsume.fenced.log import RETAINED, Position

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coopconsume.fenced.log import Appended
    from coopconsume.fenced.requests import Request
    from coopconsume.fenced.session import WriterSession

#: Share of the time for an append; the rest is for finding out what happened to it.
_FIRST: Final = 0.6


class Appender:
    """Appends through a session, one group after another."""

    def __init__(self, session: WriterSession) -> None:
        self._session = session
        #: Earliest offsets of sent batches whose outcome is not known, by id.
        self._doubtful: dict[str, int] = {}
        #: Ids of the batches that this run has sent, and did not find in their place.
        self._sent: set[str] = set()

    def acquire(self, deadline: Deadline) -> None:
        """Takes the log, also after a doubt; all earlier appends are decided then.

        A doubt about an append remains if retention has overtaken it.
        """
        self._session.acquire(deadline)
        for batch_id, at in list(self._doubtful.items()):
            if at < self._session.known_from and self._known(batch_id) is None:
                found = self._session.find_batch(batch_id, at, deadline)
                if found is None and self._session.start() > at:
                    continue
            del self._doubtful[batch_id]

    def run(self, group: Sequence[Request], deadline: Deadline) -> None:
        """Appends the batches of a group, in one transaction if possible, and settles them.

        Each batch is all or nothing and has its own answer. What keeps the rest of a group from
        being appended is raised, too.
        """
        self._sent.clear()
        try:
            with self._session.reporting("append"):
                for request in group:
                    if request.may_repeat:
                        self._look_up(request, deadline)
                self._append(group, deadline)
        except BaseException as error:
            self._fail(group, error)
            raise

    # -- ids that the log may have -------------------------------------------------------------

    def _look_up(self, request: Request, deadline: Deadline) -> None:
        """Settles a request whose batch the log has, or may have had."""
        batch_id, found = request.batch_id, self._known(request.batch_id)
        if found is None:
            if not self._session.is_open:
                self.acquire(deadline)
            found = self._session.find_by_id(batch_id, deadline)
        if found is not None:
            self._answer(request, found, deadline)
        elif batch_id in self._doubtful:
            request.settle(self._unknown(batch_id, RETAINED))

    def _answer(self, request: Request, found: Appended, deadline: Deadline) -> None:
        """Settles a request by the batch of its id, which may be that of another append."""
        try:
            if request.may_repeat:
                self._session.check_answer(found, request.rows, deadline)
            request.settle(found)
        except (AppendRefused, AppendOutcomeUnknown) as error:
            request.settle(error)

    def answer(self, request: Request, deadline: Deadline) -> None:
        """Settles a request of a session that has lost the log, if the log may have its batch."""
        batch_id = request.batch_id
        if batch_id in self._doubtful or self._known(batch_id) is not None:
            found = self.resolve(batch_id, None, deadline)
            if found is not None:
                self._answer(request, found, deadline)
            request.settle(self._session.fenced_error())

    # -- to append -----------------------------------------------------------------------------

    def _append(self, group: Sequence[Request], deadline: Deadline) -> None:
        most = len(group)
        while self._left(group, deadline):
            if not self._is_up_to_date(deadline):
                continue
            # What was just read may have an id of the group.
            chosen, missed = self._choose(self._left(group, deadline)[:most], deadline)
            if not chosen:
                self._session.refresh(deadline)
                chosen, missed = self._choose(self._left(group, deadline)[:most], deadline)
            if not chosen:
                self._settle_missed(missed, deadline)
                continue
            try:
                placed = self._attempt(chosen, deadline)
            except EngineDoubt as doubt:
                self._strike(chosen, doubt, deadline)
                most = most if doubt.refusal is None else 1
                continue
            if placed:
                for request in chosen:
                    request.settle(self._session.fold.batches[request.batch_id])
                self._settle_missed(missed, deadline)
                continue
            self._session.refresh(deadline)
            if deadline.is_over and self._choose(self._left(group, deadline), deadline)[0]:
                raise self._unavailable("others kept writing to it")
            deadline.pause()

    def _choose(
        self, requests: Sequence[Request], deadline: Deadline
    ) -> tuple[list[Request], list[tuple[Request, OffsetMismatch]]]:
        """Returns the requests whose expectation holds if they follow each other from here on.

        The others come with their errors.
        """
        session = self._session
        keys = [key for request in requests for key in request.wanted.keys]
        position, last = session.position, dict(session.last_seqs(keys, deadline))
        chosen, others = [], []
        for request in requests:
            mismatch = request.wanted.mismatch(session.log, position, last)
            if mismatch is not None:
                others.append((request, mismatch))
                continue
            chosen.append(request)
            for seq, row in enumerate(request.rows if last else (), position.next_seq):
                if row.key in last:
                    last[row.key] = seq
            count = len(request.rows)
            position = Position(position.next_offset + count, position.next_seq + count)
        return chosen, others

    def _is_up_to_date(self, deadline: Deadline) -> bool:
        """Whether nothing stands against an append; else the log was taken again."""
        if not self._session.is_open:
            self.acquire(deadline)
            return False
        try:
            self._session.look_again(deadline)
        except EngineDoubt as doubt:
            self._session.drop()
            self._strike((), doubt, deadline)
            return False
        except BaseException:
            self._session.drop()
            raise
        return True

    def _attempt(self, chosen: Sequence[Request], deadline: Deadline) -> bool:
        session, at = self._session, self._session.offset
        try:
            return session.attempt(chosen, Deadline(_FIRST * deadline.left))
        except FencedLogError:
            session.drop()  # Nothing was sent.
            raise
        except BaseException:
            session.drop()
            for request in chosen:
                self._doubtful.setdefault(request.batch_id, at)
                self._sent.add(request.batch_id)
            raise

    def _left(self, group: Sequence[Request], deadline: Deadline) -> list[Request]:
        """Settles the requests of a group whose batch the log has; returns the unsettled ones."""
        batches, doubtful = self._session.fold.batches, self._doubtful
        left = [request for request in group if not request.done()]
        for request in left:
            known = batches.get(request.batch_id)
            if known is not None:
                self._answer(request, known, deadline)
            elif request.batch_id in doubtful and self._session.is_open:
                request.settle(self._unknown(request.batch_id, RETAINED))
        return [request for request in left if not request.done()]

    def _settle_missed(
        self, others: list[tuple[Request, OffsetMismatch]], deadline: Deadline
    ) -> None:
        """Settles requests that expect another place than the log has for them."""
        for request, mismatch in others:
            found = None
            if request.is_given:
                # The batch may be the reason. A sequence number is never above its offset.
                found = self._session.find_batch(request.batch_id, request.wanted.value, deadline)
            if found is not None:
                self._answer(request, found, deadline)
            request.settle(mismatch)

    # -- after a doubt -------------------------------------------------------------------------

    def _strike(self, sent: Sequence[Request], doubt: EngineDoubt, deadline: Deadline) -> None:
        """Finds out what happened to the last append, once its producer is dropped."""
        try:
            self.acquire(deadline)
        except Exception as error:
            error.add_note(f"before it: {doubt.problem}")
            raise
        if doubt.refusal is not None and len(sent) == 1 and not self._known(sent[0].batch_id):
            sent[0].settle(doubt.refusal)
        elif deadline.is_over:
            raise self._unavailable(doubt.problem) from doubt

    def _fail(self, group: Sequence[Request], error: BaseException) -> None:
        session = self._session
        for request in group:
            at, known = self._doubtful.get(request.batch_id), self._known(request.batch_id)
            if known is not None and not request.may_repeat:
                request.settle(known)
            # A session is fenced by a record above all that it may have written.
            is_decided = session.fenced and session.known_from <= (at or 0)
            may_be_there = at is not None and not is_decided
            if may_be_there or (known is not None and request.batch_id in self._sent):
                notes = getattr(error, "__notes__", [])
                problem = "; ".join([str(error) or type(error).__name__, *notes])
                first = 0 if known is None else known.first_offset
                unknown = self._unknown(request.batch_id, problem, first)
                unknown.__cause__ = error
                request.settle(unknown)
            elif isinstance(error, FencedLogError):
                request.settle(copy.copy(error))  # Each thread raises an error of its own.
            elif isinstance(error, Exception):
                request.settle(error)
            else:
                request.settle(self._unavailable("the writer was interrupted"))

    def _known(self, batch_id: str) -> Appended | None:
        return self._session.fold.batches.get(batch_id)

    def resolve(self, batch_id: str, since: int | None, deadline: Deadline) -> Appended | None:
        """Finds out what happened to an append: see `FencedWriter.resolve`."""
        session, found = self._session, self._known(batch_id)
        if found is not None:
            return found
        at = self._doubtful.get(batch_id, 0 if since is None else since)
        try:
            with session.reporting("reading"):
                if not session.fenced and not session.is_open:
                    self.acquire(deadline)
                found = session.find_batch(batch_id, at, deadline)
        except FencedLogError as error:
            if session.fenced:
                found = self._session.find_batch(batch_id, at, deadline)
            elif isinstance(error, ProducerFenced | LogUnavailable | LogBlocked):
                raise self._unknown(batch_id, str(error), at) from error
            else:
                raise
        if found is None and batch_id in self._doubtful and self._session.start() > at:
            raise self._unknown(batch_id, RETAINED, at)
        return found

    def _unavailable(self, problem: str) -> LogUnavailable:
        return LogUnavailable(*self._session.log.tp, "append", problem)

    def _unknown(self, batch_id: str, problem: str, at: int = 0) -> AppendOutcomeUnknown:
        first = self._doubtful.get(batch_id, at)
        return AppendOutcomeUnknown(*self._session.log.tp, batch_id, first, problem)
