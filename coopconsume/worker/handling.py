"""The time box of a slot, and the serial runner: one record after another in the task's thread.

A record that fails blocks its lane (see `coopconsume.worker.key_queues`) for the rest of the
batch, and no other. Task-side code.
"""

from __future__ import annotations

import math
import os
import threading
import time
from array import array
from bisect import bisect_left
from itertools import chain, repeat, starmap
from operator import length_hint
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from coopconsume.record import Record
from coopconsume.state.value import State
from coopconsume.worker.input_rows import (
    HASH,
    KEY,
    OFFSET,
    STAMP,
    VALUE,
    InputRow,
    headers_of,
    wanted_rows,
)

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from coopconsume.worker.crash_journal import CrashJournal
    from coopconsume.worker.outcome import TaskOutcome
    from coopconsume.worker.report import BatchSpec

    Handler = Callable[[Record], Any]

#: Exit status of a worker that is ended because a handler ran too long, or would start too late.
#: Its task fails, and the driver plans its records again.
OUTLIVED = 70
#: Where a call takes less than this on average, in seconds, the clock is read once for a block of
#: so many rows.
_FAST = 5e-6
_BLOCK = 16
#: Seconds between two reads of the clock after which the process may have been frozen.
_LONG = 0.1


class TimeBox:
    """Limits the time in which a slot may start handlers, and ends the worker if one runs too long.

    A worker that runs no handler then, and is only late to report, is not ended: what it has done
    would be lost.

    Attributes:
        is_over: Nothing more may start. A flag, since it is read for each record, and reading the
            clock costs more.
        is_closed: Also the time of running handlers is over. If it is set once a record is entered
            in the journal, `refuse` takes the place of the handler.
        stopped: Why not even a first record may start (`SlotReport.stopped`); empty: it may.
        may_start: Whether the slot's lease holds at an instant. A thread sets `is_over` when the
            lease ends. If the process was frozen, `run_serial` may come to it first: it looks
            itself where much time has passed between two reads of the clock.

    Args:
        spec: The batch.
        journal: Names the running records if the worker has to be ended.
        end: Ends this process at once, with an exit status.
    """

    def __init__(
        self, spec: BatchSpec, journal: CrashJournal, end: Callable[[int], Any] = os._exit
    ) -> None:
        self._time = spec.batch_time
        self._grace = spec.handler_timeout
        self._end_process = end
        self._deadline: float | None = None
        self._ended = threading.Event()
        #: Set as the slot is halted, and as it ends.
        self._woken = threading.Event()
        self._lock = threading.Lock()
        self._halted_at: float | None = None
        self._on_halt: list[Callable[[], None]] = []
        self.journal = journal
        self.is_over = False
        self.is_closed = False
        self.stopped = ""
        self.started = 0.0
        self.may_start: Callable[[float], bool] = lambda _now: True

    def begin(self) -> float:
        """Starts the time box at the first record; later calls only return its end.

        Returns:
            The instant after which nothing starts, on this process's monotonic clock.
        """
        if self._deadline is None:
            self.started = time.monotonic()
            self._deadline = time.monotonic() + self._time
            self.is_over = self.is_over or self._time <= 0
            if not self.stopped:  # Otherwise no handler runs, so nothing needs watching.
                threading.Thread(
                    target=self._watch, name="coopconsume-time-box", daemon=True
                ).start()
        return self._deadline

    def _watch(self) -> None:
        """In a thread of its own."""
        self._woken.wait(self._time)
        self.is_over = True
        over = time.monotonic() if self._halted_at is None else self._halted_at
        if self._ended.wait(max(0.0, over + self._grace - time.monotonic())):
            return
        self.halt("time", time.monotonic())
        # In this order: a handler that starts meanwhile is either seen here or refused.
        self.is_closed = True
        # A thread cannot be stopped, so only the end of the process ends a handler for certain.
        if self.journal.is_at_work:
            self.end_worker()

    def halt(self, why: str, since: float) -> None:
        """Starts nothing more; called from any thread.

        Args:
            why: The reason, as in `SlotReport.stopped`.
            since: When that began, on the monotonic clock. Running handlers have the handler
                timeout from then on.
        """
        with self._lock:
            if self._halted_at is not None:
                return
            self._halted_at = since
            self.stopped = self.stopped or why
            self.is_over = True
            calls = list(self._on_halt)
        self._woken.set()
        for call in calls:
            call()

    def give_back(self) -> None:
        """Starts nothing more; running handlers keep their time limit."""
        # In this order: a thread that sees is_over must see the reason.
        self.stopped = self.stopped or "relief"
        self.is_over = True

    def on_halt(self, call: Callable[[], None]) -> None:
        """Calls a function once the slot is halted; immediately if it is halted already."""
        with self._lock:
            self._on_halt.append(call)
            is_halted = self._halted_at is not None
        if is_halted:
            call()

    def check_lease(self) -> None:
        """Sets `is_over` if the lease has ended."""
        if not self.may_start(time.monotonic()):
            self.stopped = self.stopped or "lease"
            self.is_over = True

    def end_worker(self, seats: Iterable[int] | None = None) -> None:
        """Ends the worker process, since the handlers of some seats, or of all, ran too long."""
        for seat in [None] if seats is None else seats:
            self.journal.mark_overdue(seat)
        self._end_process(OUTLIVED)

    def enter(self, seat: int, part: int, offset: int) -> None:
        """A handler starts with a record."""
        self.enter_all([(part, offset)], seat)

    def enter_all(self, rows: Sequence[tuple[int, int]], first: int = 0) -> None:
        """A handler starts with several records: (part, offset)."""
        for seat, (part, offset) in enumerate(rows, first):
            self.journal.enter(seat, part, offset)
        if self.is_closed:
            self.refuse()

    def refuse(self) -> None:
        """Ends the worker process before a handler starts after its time; no record is charged."""
        self.journal.leave_all()
        self._end_process(OUTLIVED)

    def end(self) -> None:
        """The slot has finished: no handler is watched any more."""
        self._ended.set()
        self._woken.set()


def run_serial(  # noqa: C901 - one loop, called for each record
    batches: Iterable[pa.RecordBatch], handler: Handler, outcome: TaskOutcome, time_box: TimeBox
) -> None:
    """Handles the rows one after another in the task's own thread; by far the cheapest runner."""
    report, blocked, cells = outcome.report, outcome.blocked, time_box.journal.cells
    code, place = time_box.journal.FIRST, time_box.journal.FIRST + 1
    handled, lock = 0, outcome.lock
    progress = RowProgress(outcome, time_box.check_lease)
    keeps = progress.keep
    outcome.give_back = time_box.give_back
    for raw in batches:
        report.value_bytes += raw.nbytes
        batch = wanted_rows(raw, outcome.work)
        report.rows += batch.num_rows
        hashes, at_work = batch.column(HASH), None
        numbers, reads = progress.begin(batch)
        time_box.begin()
        for i, part, offset, record, _ in records_of(batch, outcome, numbers, reads):
            if time_box.is_over and (handled or time_box.stopped):
                report.timed_out = True
                at_work, cells[code] = None, 0  # No handler runs from now on.
                progress.skip(i)
                outcome.resume_from(part, record.offset)
                continue
            if blocked[part] and outcome.is_blocked(row := _row(part, hashes[i], record)):
                progress.skip(i)
                outcome.block(row)
                continue
            handled += 1
            cells[place] = offset
            if part != at_work:
                at_work, cells[code] = part, part + 1
                if time_box.is_closed:
                    time_box.refuse()
            try:
                answer = handler(record)
                if answer is not None:
                    is_kept = type(answer) is State and keeps(i, answer)
                    answer = None if is_kept else outcome.checked(answer)
            except BaseException as error:  # noqa: BLE001 - SystemExit too costs its record alone
                answer = error
            if answer is not None:
                outcome.number = handled
                at_work, cells[code] = None, 0
                with lock:
                    if not outcome.settle(_row(part, hashes[i], record), record, answer):
                        progress.failed(i)
                        time_box.is_over = time_box.is_over or bool(report.tripped)
                    progress.settled = i + 1
        cells[code] = 0
        progress.end()
        report.handled = outcome.number = handled


class RowProgress:
    """How far a slot is in the Arrow batch that it handles row by row.

    Another thread may ask for it at any time, at no cost for the loop over the rows: the length
    hint of the iterator of row numbers shows which row was drawn last, and all rows before it are
    finished.

    Attributes:
        settled: At least so many rows, from the first one on, have their answers in the outcome.
        started: When the first row of each block was drawn for its handler call, in seconds since
            the epoch; NaN: it was not called. A block is one row, or `_BLOCK` rows of a handler
            that takes so little time that to read the clock for each call would cost as much.

    Args:
        outcome: Takes what is done.
        stood_still: Called at a read of the clock that comes long after the one before.
    """

    def __init__(self, outcome: TaskOutcome, stood_still: Callable[[], None]) -> None:
        self._outcome = outcome
        self._stood_still = stood_still
        self._read_at = 0.0
        self._batch: pa.RecordBatch | None = None
        self._numbers: Iterator[int] = iter(())
        self._skipped: list[int] = []
        self.started = array("d")
        #: Changes of the state that are kept by columns: rows in ascending order, values, and when
        #: these are gone.
        self._changed: list[int] = []
        self._values: list[Any] = []
        self._expiry: list[dt.datetime | None] = []
        changes = outcome.changes
        by_key = changes is not None and not outcome.spec.has_ordering_keys
        self._check = changes.check_of("value") if changes is not None and by_key else None
        self._first = 0
        self._block = 1
        self._is_fast = False
        self.settled = 0
        outcome.flush = self.flush
        outcome.at_work = self.at_work

    def begin(self, batch: pa.RecordBatch) -> tuple[Iterator[int], Iterator[None]]:
        """Begins with an Arrow batch.

        Returns:
            The numbers of its rows, and an iterator with an item for each row that reads the clock
            at the first row of each block.
        """
        with self._outcome.lock:
            self._batch, self._numbers, self._skipped = batch, iter(range(batch.num_rows)), []
            self._first = self.settled = 0
            self._block = _BLOCK if self._is_fast and batch.num_rows % _BLOCK == 0 else 1
            self.started = array("d")
        reads = starmap(self._read_clock, repeat(()))
        if self._block > 1:
            others = [repeat(None)] * (self._block - 1)
            return self._numbers, chain.from_iterable(zip(reads, *others))  # noqa: B905
        return self._numbers, reads

    def _read_clock(self) -> None:
        now = time.time()
        self.started.append(now)
        # The clock may have been set back meanwhile.
        if not 0.0 <= now - self._read_at < _LONG:
            self._stood_still()
        self._read_at = now

    def skip(self, number: int) -> None:
        """Notes a row whose handler is not called."""
        if number % self._block == 0:
            self.started[number // self._block] = math.nan
        self._skipped.append(number)

    def keep(self, number: int, state: State) -> bool:
        """Keeps the change of the state that the handler of a row has made.

        Returns:
            False: `TaskOutcome.settle` has to do it, as there are output rows, or as the value does
            not surely fit.
        """
        if self._check is None or state.answer is not None:
            return False
        value, expires = state.left()
        try:
            value = self._check(value)
        except Exception:  # noqa: BLE001 - whatever it is, Arrow has the last word
            return False
        state.pass_on(value, expires)
        self._values.append(value)
        self._expiry.append(expires)
        self._changed.append(number)
        return True

    def failed(self, number: int) -> None:
        """Notes a row that was handled and is not done. Called with the outcome's lock held."""
        self._skipped.append(number)
        self._outcome.ended += 1

    def flush(self) -> None:
        """Notes the rows that are done so far. Called with the outcome's lock held."""
        if self._batch is not None:
            # Looked at before the list of skipped rows, to which a row is added before the next
            # one is drawn.
            self._done(max(self._first, self.settled, self._drawn - 1))

    @property
    def _drawn(self) -> int:
        """Rows of the Arrow batch that were drawn; the handler may be at work on the last one."""
        assert self._batch is not None
        rows: int = self._batch.num_rows
        return rows - length_hint(self._numbers)

    def at_work(self) -> list[tuple[int, int, int]]:
        """Returns the rows that were drawn and are not known to be finished or skipped.

        The handler runs on the last one at most. Called with the outcome's lock held.
        """
        if self._batch is None:
            return []
        part, offset, key_hash = (self._batch.column(n) for n in (0, OFFSET, HASH))
        drawn = range(max(self._first, self.settled), self._drawn)
        return [
            (part[i].as_py(), offset[i].as_py(), key_hash[i].as_py())
            for i in drawn
            if i not in self._skipped
        ]

    def end(self) -> None:
        """All rows of the Arrow batch are finished."""
        assert self._batch is not None
        with self._outcome.lock:
            rows = self._batch.num_rows
            self._done(rows)
            self._batch = None
        self._is_fast = rows > 0 and time.time() - self.started[0] < rows * _FAST

    def _done(self, end: int) -> None:
        assert self._batch is not None
        if self._changed:
            self._add_changes(self._batch, end)
        first, self._first = self._first, end
        skipped = [i - first for i in self._skipped if first <= i < end]
        self._outcome.ended += end - first - len(skipped)
        rows = self._batch.slice(first, end - first)
        block = self._block
        blocks = slice(-(-first // block), -(-end // block))
        at = self.started[blocks]
        # Without a copy: this is done for each record.
        starts = pa.Array.from_buffers(pa.float64(), len(at), [None, pa.py_buffer(at)])
        begin = rows
        if block > 1:
            begin = rows.take(
                pa.array(range(blocks.start * block - first, len(rows), block), pa.int64())
            )
        self._outcome.count_starts(begin, starts, block)
        self._count_calls(starts, self.started[blocks.stop : blocks.stop + 1])
        done_rows(self._outcome, rows, skipped)

    def _add_changes(self, batch: pa.RecordBatch, end: int) -> None:
        """Adds the changes of the rows before one; the handler may add others meanwhile."""
        changes, count = self._outcome.changes, bisect_left(self._changed, end)
        assert changes is not None
        rows, values, expiry = self._changed[:count], self._values[:count], self._expiry[:count]
        del self._changed[:count], self._values[:count], self._expiry[:count]
        found = batch.take(pa.array(rows, pa.int64()))
        _, value_type, expires_type = changes.schema.types
        changes.add_columns([
            found.column(KEY), pa.array(values, value_type), pa.array(expiry, expires_type),
            found.column(0), found.column(OFFSET), found.column(HASH),
        ])  # fmt: skip

    def _count_calls(self, starts: pa.Array, following: array[float]) -> None:
        """Counts the times of calls: each lasts until the next one, as each clock read has a cost.

        Settling a failed record counts as part of its call.
        """
        begun = starts.filter(pc.is_finite(starts))
        if len(begun):
            last = [at for at in following if math.isfinite(at)] or [time.time()]
            ends = pa.concat_arrays([begun[1:], pa.array(last)])
            calls = self._outcome.report.calls
            calls.add_all(pc.subtract(ends, begun))
            # Of a block, one call counts with all of the time.
            calls.counts[0] += (self._block - 1) * len(begun)


def _row(part: int, key_hash: pa.Int64Scalar, record: Record) -> InputRow:
    return InputRow(part, record.offset, key_hash.as_py(), *record[3:7])


def records_of(
    batch: pa.RecordBatch, outcome: TaskOutcome, numbers: Iterator[int], reads: Iterator[None]
) -> Iterator[tuple[int, int, int, Record, None]]:
    """Yields the rows as handlers see them, with row number, part and offset.

    With each row its number is taken from ``numbers``, and then an item of ``reads``. Records are
    made one at a time, without a line of Python for each.
    """
    rows, names = batch.num_rows, outcome.spec.partitions
    offsets, keys, values, stamps = (
        batch.column(n).to_pylist() for n in (OFFSET, KEY, VALUE, STAMP)
    )
    topics: Iterable[str]
    of_parts: Iterable[int]
    if len(outcome.work) == 1:
        (part,) = outcome.work
        parts = [part] * rows
        topics, of_parts = repeat(names[part][0], rows), repeat(names[part][1], rows)
    else:
        parts = batch.column(0).to_pylist()
        topics = map([topic for topic, _ in names].__getitem__, parts)
        of_parts = map([number for _, number in names].__getitem__, parts)
    attempts: Iterable[int] = repeat(1, rows)
    headers = headers_of(batch)
    if outcome.retried:
        attempts = map(outcome.attempt, parts, offsets)
        headers = map(outcome.headers, parts, offsets, headers)
    fields = zip(topics, of_parts, offsets, keys, values, stamps, headers, attempts, strict=True)
    records = map(tuple.__new__, repeat(Record), fields)  # `Record._make` is Python.
    return zip(numbers, parts, offsets, records, reads)  # noqa: B905


def done_rows(outcome: TaskOutcome, batch: pa.RecordBatch, skipped: list[int]) -> None:
    """Notes the rows of a batch as done, except those at some indexes."""
    parts_and_done = batch.select([0, OFFSET, STAMP])
    if skipped:
        left = set(skipped)
        keep = pa.array([i for i in range(batch.num_rows) if i not in left], pa.int64())
        parts_and_done = parts_and_done.take(keep)
    parts, done = parts_and_done.column(0), parts_and_done.select([1, 2])
    for part, chunks in outcome.done.items():
        whole = len(outcome.done) == 1
        chunks.append(done if whole else done.filter(pc.equal(parts, part)))
