"""Settles the answers of the handlers of one slot, and collects the outcomes. Task-side."""

from __future__ import annotations

import logging
import math
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from coopconsume.record import (
    Record,
    ordering_key_of,
    with_added,
)
from coopconsume.state.value import State
from coopconsume.values.conversion import misfit
from coopconsume.values.shown import ERROR_CHARS, shown
from coopconsume.worker.blocked_lanes import BlockedLanes
from coopconsume.worker.failure_streak import FailureStreak
from coopconsume.worker.handler_answers import (
    FailedAttempt,
    as_rows,
    error_text,
    trace_of,
    verdict_on,
)
from coopconsume.worker.input_rows import STAMP, InputRow, wanted_rows
from coopconsume.worker.output_rows import OutputRows
from coopconsume.worker.record_history import RecordHistory
from coopconsume.worker.report import DeadLetter, Failure, GivenUp, SlotEnd
from coopconsume.worker.report_draft import ReportDraft

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable

    from coopconsume.record import Fields, Headers, RetryPolicy
    from coopconsume.worker.report import BatchSpec, SlotReport

log = logging.getLogger(__name__)

#: Frames that the library's own code needs, and more.
_FRAMES = 1_000


class WorkerEnded(Exception):
    """The error of a record whose handler ended its worker."""


class Changed(NamedTuple):
    """A handler's answer beside a change of its state, checked.

    Attributes:
        rows: Its output rows, as `OutputRows.checked` returns them; None: it has none.
        cells: The row of the changelog, in the same form.
        state: The state.
        value: The value, as the changelog has it.
        expires: When it is gone; None: it stays.
    """

    rows: Any
    cells: list[Any]
    state: State
    value: Any
    expires: dt.datetime | None


class TaskOutcome:
    """The outcomes of the rows of one slot; settles the answers of handlers.

    Attributes:
        work: What the slot may start, by part.
        outputs: The rows that handlers returned; None: they are dropped.
        changes: The changes of the state; None: there is no state.
        history: What earlier calls have left of the records.
        lanes: Which rows may not start.
        streak: Failures in a row.
        draft: What no report has yet.
        lock: Held while an outcome is noted, and while a progressive report is taken.
        on_settled: Called once, with the lock held, as soon as the handler of a record has
            answered; None: nobody waits for that.
        timed_out, fatal, read_error, error: As in `SlotEnd`.
    """

    def __init__(
        self,
        spec: BatchSpec,
        slot: int,
        policy: RetryPolicy,
        output_schema: pa.Schema | None,
        *,
        dead_letters: bool,
    ) -> None:
        self.spec = spec
        self.slot = slot
        self.policy = policy
        self.work = spec.work[slot]
        self.outputs = None if output_schema is None else OutputRows(output_schema)
        self.changes = None if spec.state is None else OutputRows(spec.state.schema.rows)
        self.history = RecordHistory(self.work, policy)
        self.lanes = BlockedLanes(self.work, spec.ordering)
        self.streak = FailureStreak(spec.break_after, spec.streaks.get(slot, 0))
        self.draft = ReportDraft(spec, slot, self.outputs, self.changes)
        self.lock = threading.Lock()
        self.on_settled: Callable[[], None] | None = None
        self.timed_out = False
        self.fatal = self.read_error = self.error = ""
        self._has_dead_letters = dead_letters
        #: Whether it has given back its records.
        self.has_given_back = False
        #: Types of errors whose trace is reported.
        self._traced: set[str] = set()

    # -- the rows that come

    def wanted(self, raw: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the rows of an Arrow batch that the slot may start, and counts them."""
        self.draft.value_bytes += raw.nbytes
        batch = wanted_rows(raw, self.work)
        self.draft.rows += batch.num_rows
        return batch

    def skip(self, batch: pa.RecordBatch) -> None:
        """Notes that an Arrow batch, and all that comes after it, was not read."""
        for part in self.work:
            offsets = batch.column(1)
            if len(self.work) > 1:
                offsets = offsets.filter(pc.equal(batch.column(0), part))
            if len(offsets):
                self.draft.resume_from(part, offsets[0].as_py())

    def drop_filtered(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Notes the rows of an Arrow batch that do not pass the filter as settled.

        They need no order, since no handler sees them. A slot that has given its records back
        settles none of them, since they are planned again. Those of withheld keys are their next
        owner's, which may have another filter.

        Args:
            batch: The rows.

        Returns:
            The other rows, without the mark.
        """
        if not self.spec.filters:
            return batch
        marks = batch.column(batch.num_columns - 1)
        batch = batch.select(range(batch.num_columns - 1))
        if not pc.any(marks).as_py():
            return batch
        dropped = wanted_rows(batch.filter(marks), self.work)
        with self.lock:
            dropped = self.lanes.without_withheld(dropped)
            parts, offsets = dropped.column(0), dropped.column(1)
            self.draft.rows += dropped.num_rows
            for part in () if self.has_given_back else self.work:
                found = offsets.filter(pc.equal(parts, part))
                self.draft.partitions[part].filtered.append(found)
        return batch.filter(pc.invert(marks))

    def count_starts(self, batch: pa.RecordBatch, at: pa.Array, weight: int = 1) -> None:
        """Counts the times from the timestamps of rows to their first handler call.

        Args:
            batch: The rows.
            at: When the handler of each was called, in seconds since the epoch; NaN: it was not.
            weight: How often each counts, 1 or more.
        """
        stamps, history = batch.column(STAMP), self.history
        is_first = pc.and_(pc.is_finite(at), pc.greater_equal(stamps, 0))
        if history.is_known:
            rows = zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
            has_failed = pa.array([history.has_failed(*row) for row in rows], pa.bool_())
            is_first = pc.and_not(is_first, has_failed)
        times = pc.subtract(at, pc.divide(stamps, 1000.0))
        self.draft.starts.add_all(times.filter(is_first), weight)

    # -- answers

    def checked(self, answer: Any) -> Any:
        """Checks a handler's answer and returns it in the form of `settle`; None: it is done.

        It is part of the handler's call: what it raises is the handler's error.

        Raises:
            BaseException: The answer is neither an outcome nor rows that fit the output schema.
        """
        outputs = self.outputs
        if self.changes is not None and type(answer) is State:
            return self._changed(self.changes, answer)
        if type(answer) is dict:  # Most answers are; the questions of `as_rows` take longer.
            return None if outputs is None else outputs.checked((answer,))
        rows = as_rows(answer, wanted=outputs is not None)
        if not isinstance(rows, list) or outputs is None:
            return rows
        return outputs.checked(rows) if rows else None

    def _changed(self, changes: OutputRows, state: State) -> Any:
        """Checks a change of the state, and the answer that comes with it."""
        rows = None if state.answer is None else self.checked(state.answer)
        if isinstance(rows, BaseException):
            return rows
        value, expires = state.left()
        try:
            value = changes.check_of("value")(value)
        except Exception as error:
            schema = f"the state schema ({changes.schema.field('value').type})"
            raise misfit(f"the state {shown(value)} that the handler set", schema, error) from error
        return Changed(rows, [state.key, value, expires], state, value, expires)

    def settle(self, row: InputRow, fields: Fields, answer: Any) -> Failure | None:
        """Settles a checked answer or a handler's error.

        Args:
            row: The row.
            fields: The record of the row.
            answer: The answer or the error.

        Returns:
            None if the record is done. If it has failed, its failure: the runner has to `retry` it
            itself, or to `postpone` it.
        """
        if isinstance(answer, BaseException):
            return self._failed(row, Record._make(fields), answer)
        if type(answer) is Changed:
            assert self.changes is not None
            self.changes.add(answer.cells, row.part, row.offset, row.key_hash)
            answer.state.pass_on(answer.value, answer.expires)
            answer = answer.rows
            if answer is None:
                return None
        if self.outputs is not None:
            self.outputs.add(answer, row.part, row.offset, row.key_hash)
        return None

    def say_settled(self) -> None:
        """Calls `on_settled`, once: a record is settled. The lock is held."""
        call, self.on_settled = self.on_settled, None
        if call is not None:
            call()

    def settle_uncalled(self, row: InputRow, fields: Fields) -> Failure | None:
        """Settles a record as `RecordHistory.is_uncalled` says; as `settle`."""
        record = Record._make(fields)
        given_up = self.history.take_given_up(row)
        if given_up is not None:
            return self._give_up(row, record._replace(attempt=record.attempt - 1), given_up)
        how = self.history.take_end(row)
        if how is not None:
            ended = WorkerEnded(how)
            self.streak.count_before_calls(error_text(ended))
            return self._failed(row, record, ended, called=False)
        spent = record._replace(attempt=record.attempt - 1)
        error = WorkerEnded("its worker ended with its last attempt")
        return self._failed(row, spent, error, called=False)

    def retry(self, row: InputRow, failure: Failure) -> None:
        """Notes that the runner makes the next attempt of a failed record itself."""
        self.history.keep_added(row, failure.headers)
        if self.spec.realtime is not None:
            self.draft.partitions[row.part].retrying.append(self._traced_once(failure))

    def postpone(self, row: InputRow, failure: Failure) -> None:
        """Leaves a failed record, and so all later ones of its lane, to a later batch."""
        self.history.forget_added(row)
        self.draft.partitions[row.part].failed.append(self._traced_once(failure))
        self.lanes.block(row)

    def _failed(
        self, row: InputRow, record: Record, error: BaseException, *, called: bool = True
    ) -> Failure | None:
        self.draft.failures += 1
        attempt, history = record.attempt, self.history
        verdict = verdict_on(error, attempt, self.policy, history.added_to(row))
        attempt -= not verdict.is_counted
        text = verdict.text
        if called and not verdict.is_asked_for:
            self.streak.count(text, again=attempt > history.attempt(row.part, row.offset))
        if verdict.is_rejected and not self._has_dead_letters:
            where = f"{record.topic}-{record.partition}@{record.offset}"
            self.fatal = (
                f"the handler rejected {where} ({text}) but dead letters have no destination: "
                "give foreach(dead_letter=…), or raise Retry"
            )
        elif verdict.is_given_up and self._has_dead_letters:
            self._add_letter(row, record, text, trace_of(error), verdict.headers)
            parks = self.spec.park or verdict.is_parked
            return self._failure(row, attempt, math.inf, verdict) if parks else None
        is_new = called and not verdict.is_asked_for and _kind(text) not in self._traced
        trace = trace_of(error) if is_new else ""
        return self._failure(row, attempt, verdict.wait, verdict, trace)

    def _give_up(self, row: InputRow, record: Record, given_up: GivenUp) -> Failure | None:
        """Gives a record up as an operator decided; as `settle`. It has no letter without a place.

        It is no failure: a decision neither opens the circuit breaker nor ends the job.
        """
        reason, added = given_up.reason[:ERROR_CHARS], self.history.added_to(row)
        if self._has_dead_letters:
            self._add_letter(row, record, reason, "", added)
        if not given_up.park:
            return None
        verdict = FailedAttempt(
            reason, math.inf, is_rejected=False, is_given_up=True, is_asked_for=True, headers=added
        )
        return self._failure(row, record.attempt, math.inf, verdict)

    def _add_letter(
        self, row: InputRow, record: Record, reason: str, trace: str, added: Headers
    ) -> None:
        headers = with_added(record.headers, added)
        self.draft.dead.append(DeadLetter(
            *record[:6], headers, record.attempt, reason, trace, added, row.key_hash,
            self._dealt_by(row),
        ))  # fmt: skip

    def _failure(
        self, row: InputRow, attempt: int, wait: float, verdict: FailedAttempt, trace: str = ""
    ) -> Failure:
        return Failure(
            row.offset,
            row.key_hash,
            self._dealt_by(row),
            attempt,
            wait,
            verdict.text,
            trace,
            verdict.headers,
        )

    def _dealt_by(self, row: InputRow) -> bytes | None:
        return ordering_key_of(row.headers) if self.spec.has_ordering_keys else row.key

    def _traced_once(self, failure: Failure) -> Failure:
        """Returns a failure that is reported: with its trace if it is the first of its type."""
        if failure.trace:
            if _kind(failure.error) in self._traced:
                failure = replace(failure, trace="")
            self._traced.add(_kind(failure.error))
        return failure

    # -- the end

    def resume_from_start(self) -> None:
        """Notes that no rows were read, except reported ones."""
        for part, work in self.work.items():
            self.draft.resume_from(part, work.ranges[0][0])

    def leave(self, part: int, offset: int) -> None:
        """Leaves the rows of a partition from an offset on to a later batch: it is too late."""
        self.timed_out = True
        self.draft.resume_from(part, offset)

    def fail(self, error: BaseException) -> None:
        """Notes that the library's own code has failed in the slot.

        What no report names counts as not read.
        """
        if sys.getrecursionlimit() < _FRAMES:
            sys.setrecursionlimit(_FRAMES)  # A handler may have lowered it.
        log.error("slot %d has failed", self.slot, exc_info=error)
        self.error = self.error or error_text(error)

    def close(
        self, end: SlotEnd, *, busy: float = 0.0, restored: tuple[int, float] = (0, 0.0)
    ) -> SlotReport:
        """Returns the final report: what is in no progressive report.

        Args:
            end: What is known of the end of the slot beside its outcomes.
            busy: As in `SlotStats`.
            restored: As in `SlotStats`.
        """
        if self.error:
            self.resume_from_start()
        end = replace(
            end, timed_out=self.timed_out and not end.stopped, tripped=self.streak.tripped,
            streak=self.streak.at_end, fatal=self.fatal, read_error=self.read_error,
            error=self.error,
        )  # fmt: skip
        return self.draft.close(end, busy, restored)


def _kind(error: str) -> str:
    """Returns the type of an error, by its text."""
    return error.partition(":")[0]
