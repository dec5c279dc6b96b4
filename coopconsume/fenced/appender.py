"""Appends batches to logs, and finds out what happened to them after any failure."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from coopconsume.errors.fenced import (
    AppendOutcomeUnknown,
    AppendRefused,
    FencedLogError,
    LogBlocked,
    LogUnavailable,
    OffsetMismatch,
    ProducerBusy,
    ProducerFenced,
)
from coopconsume.fenced.engine import EngineDoubt
from coopconsume.fenced.log import RETAINED, Appended, Position
from coopconsume.fenced.requests import Request
from coopconsume.fenced.session import WriterSession, send
from coopconsume.kafka.call_limit import Deadline

#: Share of the time for an append; the rest is for finding out what happened to it.
_FIRST: Final = 0.6

Group = Mapping[WriterSession, Sequence[Request]]
"""Batches of one log, each with its own condition and answer; or one batch of each of several logs,
with the same id, which are appended to all of the logs or to none."""
_Missed = list[tuple[WriterSession, Request, OffsetMismatch]]


class Appender:
    """Appends to the logs of some sessions by one producer, one group after another."""

    def __init__(self, *sessions: WriterSession) -> None:
        self._sessions = sessions
        self._first = sessions[0]
        #: Ids of the batches that this run has sent, and did not find in their place.
        self._sent: set[str] = set()

    def acquire(self, deadline: Deadline) -> None:
        """Takes the logs, also after a doubt; all earlier appends are decided then."""
        left = [*self._sessions]
        while True:
            problem = "others kept writing to it"
            try:
                with deadline:
                    self._look(deadline)
                    for session in self._sessions:
                        session.connect(deadline, self._first.channel)
                    while left and left[0].acquire(deadline):
                        left.pop(0)
                if not left:
                    return
            except EngineDoubt as doubt:
                self.drop()
                if doubt.refusal is not None:
                    raise doubt.refusal from doubt
                problem = doubt.problem
            except BaseException:
                self.drop()
                raise
            if deadline.is_over:
                self.drop()
                raise LogUnavailable(*self._first.log.tp, "acquire", problem)
            deadline.pause()

    def _look(self, deadline: Deadline) -> None:
        """Looks at all logs before one of them is taken."""
        lost = None
        for session in self._sessions:
            try:
                session.look(deadline)
            except (ProducerBusy, ProducerFenced) as error:
                lost = lost or error
        if lost is not None:
            raise lost

    def drop(self) -> None:
        """Drops the producer; the next `acquire` decides its last transaction."""
        for session in self._sessions:
            session.drop()

    def run(self, group: Group, deadline: Deadline) -> None:
        """Appends the batches of a group, in one transaction if possible, and settles them.

        What keeps the rest of a group from being appended is raised, too.
        """
        self._sent.clear()
        try:
            with self._first.reporting("append"), deadline:
                for session, requests in group.items():
                    for request in requests:
                        is_asked = request.may_repeat and not session.fenced
                        if is_asked or request.batch_id in session.doubtful:
                            self._look_up(session, request, deadline)
                self._append(group, deadline)
        except BaseException as error:
            self.fail(group, error)
            raise

    # -- ids that the log may have -------------------------------------------------------------

    def _look_up(self, session: WriterSession, request: Request, deadline: Deadline) -> None:
        """Settles a request whose batch the log has, or may have had."""
        batch_id, at = request.batch_id, session.doubtful.get(request.batch_id)
        if batch_id not in session.fold.batches and session.channel is None:
            try:
                self.acquire(deadline)
            except ProducerFenced:  # What was sent before may be in the logs.
                if not any(batch_id in each.doubtful for each in self._sessions):
                    raise
        if at is None:
            found = session.find_by_id(batch_id, deadline)
        else:
            found = session.find_batch(batch_id, at, deadline)
        if found is not None:
            _answer(session, request, found, deadline)
        elif at is not None and batch_id in session.doubtful:
            if session.start() > at:
                request.settle(session.unknown(batch_id, RETAINED))
            elif session.fenced:
                request.settle(session.fenced_error())

    # -- to append -----------------------------------------------------------------------------

    def _append(self, group: Group, deadline: Deadline) -> None:
        most = max(map(len, group.values()))
        while self._left(group, deadline):
            if not self._is_up_to_date(group, deadline):
                continue
            # What was just read may have an id of the group.
            chosen, missed = self._choose(self._left(group, deadline), most, deadline)
            if not chosen:
                self._refresh(group, deadline)
                chosen, missed = self._choose(self._left(group, deadline), most, deadline)
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
                for session, requests in chosen.items():
                    for request in requests:
                        request.settle(session.fold.batches[request.batch_id])
                self._settle_missed(missed, deadline)
                continue
            self._refresh(group, deadline)
            if deadline.is_over and self._choose(self._left(group, deadline), most, deadline)[0]:
                raise self._unavailable("others kept writing to it")
            deadline.pause()

    def _left(self, group: Group, deadline: Deadline, *, is_refreshed: bool = False) -> Group:
        """Settles the requests of a group whose batch the log has; returns the unsettled ones."""
        left = {}
        for session, requests in group.items():
            batches, doubtful = session.fold.batches, session.doubtful
            some = []
            for request in requests:
                if request.outcome is not None:
                    continue
                known = batches.get(request.batch_id)
                if known is not None:
                    _answer(session, request, known, deadline)
                elif request.batch_id in doubtful and session.channel:
                    request.settle(session.unknown(request.batch_id, RETAINED))
                else:
                    some.append(request)
            if some:
                left[session] = some
        if not left or len(left) == len(group):
            return left
        settled = {session: group[session][0] for session in group if session not in left}
        outcomes = [request.outcome for request in settled.values()]
        error = next((each for each in outcomes if isinstance(each, BaseException)), None)
        if error is None and not is_refreshed:
            self._search(left, deadline)
            return self._left(group, deadline, is_refreshed=True)
        for (request,) in left.values():
            request.settle(error or AppendRefused(
                f"batch_id {request.batch_id!r}: of the logs only "
                f"{', '.join(str(session.log) for session in settled)} has a batch of this id: "
                "give each append an id of its own"
            ))  # fmt: skip
        return {}

    def _search(self, left: Group, deadline: Deadline) -> None:
        """Looks in some logs for a batch that others have: they were read before it, or after."""
        for session, (request,) in left.items():
            with suppress(ProducerFenced):
                self._refresh([session], deadline)
            session.find_by_id(request.batch_id, deadline)

    def _choose(
        self, left: Group, most: int, deadline: Deadline
    ) -> tuple[dict[WriterSession, list[Request]], _Missed]:
        """Returns the requests whose expectation holds if they follow each other from here on.

        The others come with their errors. Of several logs all are chosen or none.
        """
        found: dict[WriterSession, list[Request]] = {}
        missed: _Missed = []
        for session, requests in left.items():
            keys = [key for request in requests[:most] for key in request.wanted.keys]
            position, last = session.position, dict(session.last_seqs(keys, deadline))
            chosen = []
            for request in requests[:most]:
                mismatch = request.wanted.mismatch(session.log, position, last)
                if mismatch is not None:
                    missed.append((session, request, mismatch))
                    continue
                chosen.append(request)
                for seq, row in enumerate(request.rows if last else (), position.next_seq):
                    if row.key in last:
                        last[row.key] = seq
                count = len(request.rows)
                position = Position(position.next_offset + count, position.next_seq + count)
            if chosen:
                found[session] = chosen
        return (found if len(found) == len(left) else {}), missed

    def _is_up_to_date(self, group: Group, deadline: Deadline) -> bool:
        """Whether nothing stands against an append; else the log was taken again."""
        for session in group:
            session.check_owner()
        if self._first.channel is None:
            self.acquire(deadline)
            return False
        try:
            for session in group:
                session.look_again(deadline)
        except EngineDoubt as doubt:
            self.drop()
            self._strike({}, doubt, deadline)
            return False
        except BaseException:
            self.drop()
            raise
        return True

    def _attempt(self, chosen: Group, deadline: Deadline) -> bool:
        at = {session: session.offset for session in chosen}
        try:
            parts = {session: session.draft(requests) for session, requests in chosen.items()}
            return send(parts, Deadline(_FIRST * deadline.left))
        except FencedLogError:
            self.drop()  # Nothing was sent.
            raise
        except BaseException:
            self.drop()
            for session, requests in chosen.items():
                for request in requests:
                    session.doubtful.setdefault(request.batch_id, at[session])
                    self._sent.add(request.batch_id)
            raise

    def refresh(self, deadline: Deadline) -> None:
        """Reads on to the end of each log, after a doubt by taking it again."""
        if self._first.channel is None:
            self.acquire(deadline)
        else:
            self._refresh(self._sessions, deadline)

    def _refresh(self, sessions: Iterable[WriterSession], deadline: Deadline) -> None:
        for session in sessions:
            with session.reporting("reading"), deadline:
                session.refresh(deadline)

    def _settle_missed(self, missed: _Missed, deadline: Deadline) -> None:
        """Settles requests that expect another place than the log has for them."""
        for session, request, mismatch in missed:
            # The batch may be the reason. A sequence number is never above its offset.
            batch_id, since = request.batch_id, request.wanted.value
            if request.is_given and (found := session.find_batch(batch_id, since, deadline)):
                _answer(session, request, found, deadline)
            request.settle(mismatch)

    # -- after a doubt -------------------------------------------------------------------------

    def _strike(self, sent: Group, doubt: EngineDoubt, deadline: Deadline) -> None:
        """Finds out what happened to the last append, once its producer is dropped."""
        try:
            self.acquire(deadline)
        except Exception as error:
            error.add_note(f"before it: {doubt.problem}")
            raise
        if doubt.refusal is not None and {*map(len, sent.values())} == {1}:
            for session, (request,) in sent.items():
                if request.batch_id not in session.fold.batches:
                    request.settle(doubt.refusal)
        elif deadline.is_over:
            raise self._unavailable(doubt.problem) from doubt

    def fail(self, group: Group, error: BaseException) -> None:
        """Settles requests with an error, or as unknown if their batches may be in the logs."""
        for session, requests in group.items():
            for request in requests:
                known = session.fold.batches.get(request.batch_id)
                if known is not None and not request.may_repeat:
                    request.settle(known)
                if self._may_be_there(group, request.batch_id):
                    notes = getattr(error, "__notes__", [])
                    problem = "; ".join([str(error) or type(error).__name__, *notes])
                    first = 0 if known is None else known.first_offset
                    unknown = session.unknown(request.batch_id, problem, first)
                    unknown.__cause__ = error
                    request.settle(unknown)
                elif isinstance(error, FencedLogError):
                    request.settle(copy.copy(error))  # Each thread raises an error of its own.
                elif isinstance(error, Exception):
                    request.settle(error)
                else:
                    request.settle(self._unavailable("the writer was interrupted"))

    def _may_be_there(self, sessions: Iterable[WriterSession], batch_id: str) -> bool:
        """Whether a batch that was sent is or may be in the logs."""
        doubts = [(s, s.doubtful[batch_id]) for s in sessions if batch_id in s.doubtful]
        if (doubts or batch_id in self._sent) and any(batch_id in s.fold.batches for s in sessions):
            return True
        # A session is fenced by a record above all that it may have written.
        return bool(doubts) and not any(
            s.fenced and s.known_from <= at and not s.fold.has_forgotten for s, at in doubts
        )

    def resolve(self, batch_id: str, since: int | None, deadline: Deadline) -> Appended | None:
        """Finds out what happened to an append: see `FencedWriter.resolve`."""
        session, found = self._first, self._first.fold.batches.get(batch_id)
        if found is not None:
            return found
        at = session.doubtful.get(batch_id, 0 if since is None else since)
        try:
            with session.reporting("reading"), deadline:
                if not session.fenced and session.channel is None:
                    self.acquire(deadline)
                elif not session.fenced and session.is_shared:
                    session.refresh(deadline)  # Others may have written it meanwhile.
                found = session.find_batch(batch_id, at, deadline)
        except FencedLogError as error:
            if session.fenced:
                found = session.find_batch(batch_id, at, deadline)
            elif isinstance(error, ProducerFenced | LogUnavailable | LogBlocked):
                raise session.unknown(batch_id, str(error), at) from error
            else:
                raise
        if found is None and batch_id in session.doubtful and session.start() > at:
            raise session.unknown(batch_id, RETAINED, at)
        return found

    def _unavailable(self, problem: str) -> LogUnavailable:
        return LogUnavailable(*self._first.log.tp, "append", problem)


def _answer(session: WriterSession, request: Request, found: Appended, deadline: Deadline) -> None:
    """Settles a request by the batch of its id, which may be that of another append."""
    try:
        if request.may_repeat:
            session.check_answer(found, request.rows, deadline)
        request.settle(found)
    except (AppendRefused, AppendOutcomeUnknown) as error:
        request.settle(error)
