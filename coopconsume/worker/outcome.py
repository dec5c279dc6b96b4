"""Collects the outcomes of the rows of one slot and settles the answers of handlers. Task-side."""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
import time
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
from coopconsume.worker.handler_answers import (
    FailedAttempt,
    as_rows,
    error_text,
    trace_of,
    verdict_on,
)
from coopconsume.worker.histogram import Histogram
from coopconsume.worker.input_rows import HASH, STAMP, InputRow, wanted_rows
from coopconsume.worker.output_rows import OutputRows
from coopconsume.worker.realtime.read_progress import ReadProgress
from coopconsume.worker.report import (
    DeadLetter,
    Failure,
    GivenUp,
    PartitionReport,
    Reads,
    SlotReport,
    SlotStats,
    pack_chunks,
    pack_done,
)

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Mapping, Sequence

    from coopconsume.record import Headers, RetryPolicy
    from coopconsume.worker.report import BatchSpec, PartitionWork

    #: (first, last) key hashes.
    Ranges = Sequence[tuple[int, int]]

log = logging.getLogger(__name__)

#: Running records with which a slot still gives back the others; with more it keeps all.
MOST_KEPT = 10_000
#: Frames that the library's own code needs, and more.
_FRAMES = 1_000
#: A lane without rows.
_NO_LANE = -(1 << 63)


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
    """The outcomes of the rows of one slot; settles the answers of handlers."""

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
        self.policy = policy
        self.outputs = None if output_schema is None else OutputRows(output_schema)
        self.changes = None if spec.state is None else OutputRows(spec.state.schema.rows)
        self.dead_letters = dead_letters
        self.work: dict[int, PartitionWork] = dict(spec.work[slot])
        self.report = SlotReport(batch=spec.batch, slot=slot, pid=os.getpid())
        self.parts = {p: PartitionReport() for p in self.work}
        #: By partition and lane, the lowest offset that is not done: no higher one may start.
        self.blocked: dict[int, dict[int, int]] = {p: dict(w.blocked) for p, w in self.work.items()}
        #: Chunks of what is done: offsets in ascending order, and their timestamps.
        self.done: dict[int, list[pa.RecordBatch]] = {p: [] for p in self.work}
        self._filtered: dict[int, list[pa.Array]] = {p: [] for p in self.work}
        #: How the workers of records have ended, see `PartitionWork.ended`.
        self._ended_with = {(p, o): how for p, w in self.work.items() for o, how in w.ended.items()}
        #: Records that are given up without a call, see `PartitionWork.given_up`.
        self._given_up = {
            (p, o): one for p, w in self.work.items() for o, one in w.given_up.items()
        }
        self.retried = any(
            w.attempts or w.added or w.ended or w.given_up for w in self.work.values()
        )
        #: By partition and offset, the headers that handlers have added to records that may be
        #: handled here again.
        self.added: dict[int, dict[int, Headers]] = {p: dict(w.added) for p, w in self.work.items()}
        #: The number of the answer that is settled; kept up only for failures, and at the end.
        self.number = 0
        self._failed_at = 0
        #: Types of errors whose trace is reported.
        self._traced: set[str] = set()
        self._streak = spec.streaks.get(slot, 0)
        self._has_counted_end = False
        #: Held while an outcome is noted, and while a progressive report is taken.
        self.lock = threading.Lock()
        #: Handler calls that have ended; `flush` updates it.
        self.ended = 0
        #: Adds to `done` the rows that are done so far; called with the lock held.
        self.flush: Callable[[], None] = lambda: None
        #: Whether the driver wants the records that were not started.
        self.is_relief_wanted = self._has_given_back = False
        #: The rows that handlers may run on, as in `SlotReport.kept`; called with the lock held.
        self.at_work: Callable[[], list[tuple[int, int, int]]] = list
        #: The first row of each handler call, as (partition, offset); called with the lock held.
        self.calls: Callable[[], list[tuple[int, int]]] = lambda: [
            row[:2] for row in self.at_work()
        ]
        #: When `oldest_call` saw each of them first.
        self._seen: dict[tuple[int, int], float] = {}
        #: Key ranges whose records do not start, by partition, and the driver's number for them.
        self._withheld: Mapping[int, Ranges] = {}
        self._withheld_by = 0
        #: The running rows of these ranges, as in the last report.
        self._named_leaving: list[tuple[int, int, int]] | None = None
        #: Leaves the retries of these ranges to a later batch; called with the time, and with the
        #: lock held.
        self.leave_withheld: Callable[[float], None] = lambda _now: None
        #: Starts nothing more; called once, with the lock held, before the running rows are noted.
        self.give_back: Callable[[], None] = lambda: None
        #: Whether a row waits only because all handlers are busy.
        self.is_held_up: Callable[[], bool] = lambda: False
        #: Of a real-time slot; used with the lock held.
        self.reading = ReadProgress(self.work)
        #: Calls and failures that progressive reports contained.
        self._reported = 0, 0
        #: Schedules a retry of a record within this batch; returns whether it does.
        self.retry_here: Callable[[InputRow, Failure], bool] = lambda _row, _failure: False

    def lane(self, row: InputRow) -> int:
        """Returns the lane of a row, unique in its partition: see `key_queues`."""
        ordering = self.spec.ordering
        return row.key_hash if ordering == "key" else 0 if ordering == "partition" else ~row.offset

    def is_blocked(self, row: InputRow) -> bool:
        """Whether a lower record of its lane is not done, or its key is withheld."""
        return self.is_behind(row) or self.is_withheld(row.part, row.key_hash)

    def is_behind(self, row: InputRow) -> bool:
        """Whether a lower record of its lane is not done."""
        return row.offset > self.blocked[row.part].get(self.lane(row), row.offset)

    def is_withheld(self, part: int, key_hash: int) -> bool:
        """Whether no record of a key may start any more."""
        return bool(self._withheld) and any(
            first <= key_hash <= last for first, last in self._withheld.get(part, ())
        )

    def without_withheld(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the rows of an Arrow batch whose keys may start; called with the lock held."""
        if not self._withheld:
            return batch
        keys = zip(batch.column(0).to_pylist(), batch.column(HASH).to_pylist(), strict=True)
        keep = [not self.is_withheld(part, key_hash) for part, key_hash in keys]
        return batch if all(keep) else batch.filter(pa.array(keep))

    def attempt(self, part: int, offset: int) -> int:
        """Returns the number of the attempt that the next handler call is, from 1."""
        return self.work[part].attempts.get(offset, 0) + 1

    def headers(self, part: int, offset: int, own: Headers) -> Headers:
        """Returns the headers of a record, with those that handlers have added to it."""
        added = self.added[part].get(offset)
        return own if added is None else with_added(own, added)

    def is_spent(self, attempt: int) -> bool:
        """Whether a record had all its attempts; the last one ended its worker."""
        most = self.policy.max_attempts
        return most is not None and attempt > most

    @property
    def has_uncalled(self) -> bool:
        """Whether some records of the slot may be settled without a call, see `is_uncalled`."""
        return bool(self._ended_with or self._given_up) or any(
            self.is_spent(n + 1) for w in self.work.values() for n in w.attempts.values()
        )

    def is_uncalled(self, row: InputRow, attempt: int) -> bool:
        """Whether a record is settled without a call.

        An operator decided to give it up, or its last call ended its worker and does not count yet,
        or it had all its attempts.
        """
        at = row.part, row.offset
        return at in self._given_up or at in self._ended_with or self.is_spent(attempt)

    def settle_uncalled(self, row: InputRow, record: Record) -> bool:
        """Settles a record as `is_uncalled` says; as `settle`."""
        given_up = self._given_up.pop((row.part, row.offset), None)
        if given_up is not None:
            return self._give_up(row, record._replace(attempt=record.attempt - 1), given_up)
        how = self._ended_with.pop((row.part, row.offset), None)
        if how is not None:
            ended = WorkerEnded(how)
            self._count_before_calls(error_text(ended))
            return self._failed(row, record, ended, called=False)
        spent = record._replace(attempt=record.attempt - 1)
        error = WorkerEnded("its worker ended with its last attempt")
        return self._failed(row, spent, error, called=False)

    def block(self, row: InputRow) -> None:
        """Notes a row that waits behind an earlier one of its lane."""
        self.parts[row.part].blocked.append((row.offset, row.key_hash))

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

    def settle(self, row: InputRow, record: Record, answer: Any) -> bool:
        """Settles a checked answer or a handler's error; returns whether the record is done."""
        if isinstance(answer, BaseException):
            return self._failed(row, record, answer)
        if type(answer) is Changed:
            assert self.changes is not None
            self.changes.add(answer.cells, row.part, row.offset, row.key_hash)
            answer.state.pass_on(answer.value, answer.expires)
            answer = answer.rows
            if answer is None:
                return True
        if self.outputs is not None:
            self.outputs.add(answer, row.part, row.offset, row.key_hash)
        return True

    def _failed(
        self, row: InputRow, record: Record, error: BaseException, *, called: bool = True
    ) -> bool:
        self.report.stats.failures += 1
        attempt = record.attempt
        added = self.added[row.part].get(row.offset, ())
        verdict = verdict_on(error, attempt, self.policy, added)
        text = verdict.text
        if called and not verdict.is_asked_for:
            self._count_in_a_row(text, again=attempt > self.attempt(row.part, row.offset))
        if verdict.is_rejected and not self.dead_letters:
            where = f"{record.topic}-{record.partition}@{record.offset}"
            self.report.end.fatal = (
                f"the handler rejected {where} ({text}) but dead letters have no destination: "
                "give foreach(dead_letter=…), or raise Retry"
            )
        elif verdict.is_given_up and self.dead_letters:
            self._add_letter(row, record, text, trace_of(error), verdict.headers)
            parks = self.spec.park or verdict.is_parked
            return not parks or self._wait(row, attempt, math.inf, verdict)
        is_new = called and not verdict.is_asked_for and _kind(text) not in self._traced
        return self._wait(row, attempt, verdict.wait, verdict, trace_of(error) if is_new else "")

    def _give_up(self, row: InputRow, record: Record, given_up: GivenUp) -> bool:
        """Gives a record up as an operator decided; as `settle`. It has no letter without a place.

        It is no failure: a decision neither opens the circuit breaker nor ends the job.
        """
        reason, added = given_up.reason[:ERROR_CHARS], self.added[row.part].get(row.offset, ())
        if self.dead_letters:
            self._add_letter(row, record, reason, "", added)
        if not given_up.park:
            return True
        verdict = FailedAttempt(
            reason, math.inf, is_rejected=False, is_given_up=True, is_asked_for=True, headers=added
        )
        return self._wait(row, record.attempt, math.inf, verdict)

    def _add_letter(
        self, row: InputRow, record: Record, reason: str, trace: str, added: Headers
    ) -> None:
        headers = with_added(record.headers, added)
        self.report.dead.append(DeadLetter(
            *record[:6], headers, record.attempt, reason, trace, added, row.key_hash,
            self._dealt_by(row),
        ))  # fmt: skip

    def _wait(
        self, row: InputRow, attempt: int, wait: float, verdict: FailedAttempt, trace: str = ""
    ) -> bool:
        failure = Failure(
            row.offset,
            row.key_hash,
            self._dealt_by(row),
            attempt,
            wait,
            verdict.text,
            trace,
            verdict.headers,
        )
        if not self.retry_here(row, failure):
            self.postpone(row, failure)
            return False
        if failure.headers:
            self.added[row.part][row.offset] = failure.headers
        if self.spec.realtime is not None:
            self.parts[row.part].retrying.append(self._traced_once(failure))
        return False

    def _dealt_by(self, row: InputRow) -> bytes | None:
        return ordering_key_of(row.headers) if self.spec.has_ordering_keys else row.key

    def postpone(self, row: InputRow, failure: Failure) -> None:
        """Leaves a failed record, and so all later ones of its lane, to a later batch."""
        self.added[row.part].pop(row.offset, None)
        self.parts[row.part].failed.append(self._traced_once(failure))
        if self.spec.ordering != "none":
            blocked, lane = self.blocked[row.part], self.lane(row)
            blocked[lane] = min(row.offset, blocked.get(lane, row.offset))

    def _traced_once(self, failure: Failure) -> Failure:
        """Returns a failure that is reported: with its trace if it is the first of its type."""
        if failure.trace:
            if _kind(failure.error) in self._traced:
                failure = replace(failure, trace="")
            self._traced.add(_kind(failure.error))
        return failure

    def _count_in_a_row(self, text: str, *, again: bool) -> None:
        if self.number == self._failed_at:
            return  # It is of the same call.
        before = self._streak if self.number == self._failed_at + 1 else 0
        # A record that fails several times within a batch counts once.
        self._streak = max(1, before + (not again))
        self._failed_at = self.number
        self._look_at_streak(text)

    def _count_before_calls(self, text: str) -> None:
        """Counts the end of a worker as one failure, however many records it is charged to."""
        if self._has_counted_end:
            return
        self._has_counted_end = True
        self._streak = 1 + (self._streak if self.number == self._failed_at else 0)
        self._failed_at = self.number
        self._look_at_streak(text)

    def _look_at_streak(self, text: str) -> None:
        if 0 < self.spec.break_after <= self._streak:
            self.report.end.tripped = text

    def add_done(self, part: int, offsets: Sequence[int], times: Sequence[int]) -> None:
        """Notes offsets and timestamps of records that are done."""
        columns = [pa.array(column, pa.int64()) for column in (offsets, times)]
        done = pa.RecordBatch.from_arrays(columns, names=["offset", "timestamp"])
        self.done[part].append(done.take(pc.sort_indices(columns[0])))

    def count_starts(self, batch: pa.RecordBatch, at: pa.Array, weight: int = 1) -> None:
        """Counts the times from the timestamps of rows to their first handler call.

        Args:
            batch: The rows.
            at: When the handler of each was called, in seconds since the epoch; NaN: it was not.
            weight: How often each counts, 1 or more.
        """
        stamps = batch.column(STAMP)
        is_first = pc.and_(pc.is_finite(at), pc.greater_equal(stamps, 0))
        if self.retried:
            rows = zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
            attempts = pa.array([self.attempt(part, offset) for part, offset in rows], pa.int64())
            is_first = pc.and_(is_first, pc.equal(attempts, 1))
        times = pc.subtract(at, pc.divide(stamps, 1000.0))
        self.report.stats.starts.add_all(times.filter(is_first), weight)

    def resume_from(self, part: int, offset: int) -> None:
        """Notes that rows of a partition from an offset on were not read, except reported ones."""
        report = self.parts[part]
        report.resume = offset if report.resume is None else min(report.resume, offset)

    def resume_from_start(self) -> None:
        """Notes that no rows were read, except reported ones."""
        for part, work in self.work.items():
            self.resume_from(part, work.ranges[0][0])

    def fail(self, error: BaseException) -> None:
        """Notes that the library's own code has failed in the slot.

        What no report names counts as not read.
        """
        if sys.getrecursionlimit() < _FRAMES:
            sys.setrecursionlimit(_FRAMES)  # A handler may have lowered it.
        log.error("slot %d has failed", self.report.slot, exc_info=error)
        self.report.end.error = self.report.end.error or error_text(error)

    def failed(self, error: BaseException) -> SlotReport:
        """Returns the final report of a slot that an error has ended."""
        self.fail(error)
        return self.close()

    def wanted(self, raw: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the rows of an Arrow batch that the slot may start, and counts them."""
        self.report.stats.value_bytes += raw.nbytes
        batch = wanted_rows(raw, self.work)
        self.report.stats.rows += batch.num_rows
        return batch

    def skip(self, batch: pa.RecordBatch) -> None:
        """Notes that an Arrow batch, and all that comes after it, was not read."""
        for part in self.work:
            offsets = batch.column(1)
            if len(self.work) > 1:
                offsets = offsets.filter(pc.equal(batch.column(0), part))
            if len(offsets):
                self.resume_from(part, offsets[0].as_py())

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
            dropped = self.without_withheld(dropped)
            parts, offsets = dropped.column(0), dropped.column(1)
            self.report.stats.rows += dropped.num_rows
            for part in () if self._has_given_back else self.work:
                found = offsets.filter(pc.equal(parts, part))
                self._filtered[part].append(found)
                self.report.stats.filtered += len(found)
        return batch.filter(pc.invert(marks))

    def add_work(self, part: int, work: PartitionWork) -> None:
        """Notes the failures so far of offsets that a real-time slot gets; needs the lock."""
        if work.attempts or work.added or work.ended or work.given_up:
            before = self.work[part]
            attempts = {**before.attempts, **work.attempts}
            self.work[part] = replace(before, attempts=attempts)
            self.added[part].update(work.added)
            self._ended_with |= {(part, offset): how for offset, how in work.ended.items()}
            self._given_up |= {(part, offset): one for offset, one in work.given_up.items()}
            self.retried = True

    def count_reads(self, reads: Reads) -> None:
        """Notes what a real-time slot has read since the last call; called with the lock held."""
        self.report.stats.reads = Reads(*map(sum, zip(self.report.stats.reads, reads, strict=True)))

    def take_report(self, seq: int, *, positions: bool = True) -> SlotReport | None:
        """Takes what is done and failed since the last call, as a progressive report.

        Args:
            seq: Its number.
            positions: Whether new positions alone are worth a report.

        Returns:
            None if there is nothing to report.
        """
        with self.lock:
            self.flush()
            kept, leaving = self._kept(), self._leaving()
            settled = (self.done, self._filtered, self.reading.offsets)
            is_real_time = self.spec.realtime is not None
            is_news = any(
                any(any(map(len, each[p])) for each in settled)
                or self.parts[p].failed
                or (is_real_time and (self.parts[p].blocked or self.parts[p].retrying))
                for p in self.work
            )
            is_news = is_news or kept is not None or leaving is not None
            if not (is_news or (positions and self.reading.positions)):
                return None
            done, self.done = self.done, {part: [] for part in self.work}
            filtered, self._filtered = self._filtered, {part: [] for part in self.work}
            self.report.stats.filtered = 0
            reads, self.report.stats.reads = self.report.stats.reads, Reads()
            starts, self.report.stats.starts = self.report.stats.starts, Histogram()
            calls, self.report.stats.calls = self.report.stats.calls, Histogram()
            failed = {part: report.failed for part, report in self.parts.items()}
            for report in self.parts.values():
                report.failed = []
            followed = self._followed() if is_real_time else {}
            dead, self.report.dead = self.report.dead, []
            outputs, changes = (
                None if one is None else one.take() for one in (self.outputs, self.changes)
            )
            (ended, failures), self._reported = (
                self._reported,
                (self.ended, self.report.stats.failures),
            )
            ended, failures = self._reported[0] - ended, self._reported[1] - failures
        packed = {part: pack_done(chunks) for part, chunks in done.items()}
        partitions = {
            part: replace(
                followed.get(part, _NOTHING), done=packed[part][0], times=packed[part][1],
                failed=failed[part], filtered=pack_chunks(filtered[part]),
            )
            for part in self.work
            if any(map(len, [*done[part], *filtered[part]])) or failed[part] or part in followed
        }  # fmt: skip
        n_filtered = sum(len(chunk) for chunks in filtered.values() for chunk in chunks)
        return SlotReport(
            self.spec.batch, self.report.slot, self.report.pid, seq, partitions, dead,
            outputs=None if outputs is None else outputs.encode(),
            changes=None if changes is None else changes.encode(),
            gates={} if kept is None else dict(self.report.gates), kept=kept, leaving=leaving,
            stats=SlotStats(
                handled=ended, failures=failures, filtered=n_filtered, reads=reads, starts=starts,
                calls=calls,
            ),
        )  # fmt: skip

    def oldest_call(self, now: float) -> tuple[int, int, float] | None:
        """Returns partition, offset and seconds of the handler call that has run for longest.

        Seconds count from the first look at which the call ran.

        Args:
            now: The time of this look.
        """
        with self.lock:
            self.flush()
            calls = self.calls()
        self._seen = {at: self._seen.get(at, now) for at in calls}
        if not self._seen:
            return None
        oldest = min(self._seen, key=self._seen.__getitem__)
        return *oldest, now - self._seen[oldest]

    def withhold(self, number: int, ranges: Mapping[int, Ranges]) -> None:
        """Starts no more records of some key ranges; running ones end and are reported.

        Args:
            number: The driver's, for `SlotReport.leaving`.
            ranges: (first, last) key hashes, by partition; those of earlier calls stay withheld.
        """
        with self.lock:
            if number == self._withheld_by:
                return
            held = self._withheld
            self._withheld = {
                part: tuple({*held.get(part, ()), *ranges.get(part, ())}) for part in self.work
            }
            self._withheld_by, self._named_leaving = number, None
            for part in self._withheld:
                # Runners check rows one by one only if something is blocked.
                self.blocked[part][_NO_LANE] = -1
            self.leave_withheld(time.monotonic())

    def _leaving(self) -> tuple[int, list[tuple[int, int, int]]] | None:
        """Returns the running rows of withheld key ranges if they changed; needs the lock."""
        if not self._withheld_by:
            return None
        found = [row for row in self.at_work() if self.is_withheld(row[0], row[2])]
        if found == self._named_leaving:
            return None
        self._named_leaving = found
        return self._withheld_by, found

    def want_relief(self) -> None:
        """Gives back the records that were not started, with the next progressive report."""
        self.is_relief_wanted = True

    def _kept(self) -> list[tuple[int, int, int]] | None:
        """Gives back the records that were not started, if that is wanted and a handler runs.

        Returns:
            The rows that handlers run on; None: nothing is given back.
        """
        is_wanted, self.is_relief_wanted = self.is_relief_wanted, False
        if not is_wanted or self._has_given_back or not 0 < len(self.at_work()) <= MOST_KEPT:
            return None
        self._has_given_back = True
        self.give_back()
        self.flush()
        return self.at_work()

    def _followed(self) -> dict[int, PartitionReport]:
        """Takes what a real-time slot has read since the last call; called with the lock held."""
        found = self.reading.take()
        for part, report in self.parts.items():
            if report.blocked or report.retrying:
                followed = found.setdefault(part, PartitionReport())
                followed.blocked, report.blocked = report.blocked, []
                followed.retrying, report.retrying = report.retrying, []
        return found

    def close(self) -> SlotReport:
        """Returns the final report: what is in no progressive report."""
        if self.report.end.error:
            self.resume_from_start()
        for part, followed in self._followed().items():
            report = self.parts[part]
            report.read, report.position = followed.read, followed.position
            report.holes, report.blocked = followed.holes, followed.blocked
            report.retrying, report.reached = followed.retrying, followed.reached
        for part, report in self.parts.items():
            report.done, report.times = pack_done(self.done[part])
            report.filtered = pack_chunks(self._filtered[part])
        self.report.stats.handled -= self._reported[0]
        self.report.stats.failures -= self._reported[1]
        self.report.partitions = self.parts
        self.report.end.streak = self._streak if self.number == self._failed_at else 0
        if self.outputs is not None:
            self.report.outputs = self.outputs.encode()
        if self.changes is not None:
            self.report.changes = self.changes.encode()
        return self.report


_NOTHING = PartitionReport()


def _kind(error: str) -> str:
    """Returns the type of an error, by its text."""
    return error.partition(":")[0]
