"""Runs the part of a batch that belongs to one slot, in a Spark task.

The rows of a slot arrive in ascending offsets within each partition. The serial runner is here,
too: one record after another in the task's thread. A record that fails blocks its lane (see
`coopconsume.worker.key_queues`) for the rest of the batch, and no other. Task-side code: it needs
only the standard library, pyarrow and PySpark's worker.
"""

from __future__ import annotations

import math
import os
import pickle
import sys
import time
from array import array
from bisect import bisect_left
from dataclasses import replace
from functools import partial
from itertools import chain, repeat, starmap
from operator import length_hint
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from coopconsume.errors.state import StateNotReadable
from coopconsume.record import Record
from coopconsume.state.value import State
from coopconsume.values.callables import NameNotFound, is_async, object_named
from coopconsume.worker.async_runner import run_coroutines
from coopconsume.worker.crash_journal import CrashJournal, Deadline, journal_path, read_journal
from coopconsume.worker.fail_stop import FailStop
from coopconsume.worker.frame_runner import FrameHandler, run_frames
from coopconsume.worker.handler_life import OpenFailed, has_life
from coopconsume.worker.host_locks import WorkerLock
from coopconsume.worker.input_rows import (
    HASH,
    KEY,
    OFFSET,
    STAMP,
    VALUE,
    InputRow,
    headers_of,
)
from coopconsume.worker.left_report import (
    end_worker_with,
    remove_old_reports,
    take_left_report,
)
from coopconsume.worker.outcome import TaskOutcome
from coopconsume.worker.process_timer import process_timer
from coopconsume.worker.report import SlotEnd, SlotReport, pack_offsets
from coopconsume.worker.thread_runner import run_threads
from coopconsume.worker.time_box import TimeBox

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from commits.model import TopicPartition
    from coopconsume.decoding import Decoding
    from coopconsume.record import RetryPolicy
    from coopconsume.state.slot_state import SlotState
    from coopconsume.worker.channel.client import SlotChannel
    from coopconsume.worker.open_handlers import OpenHandlers
    from coopconsume.worker.report import BatchSpec

    Handler = Callable[[Record], Any]
    Send = Callable[[bytes], None]

REPORT_SCHEMA = "slot int, report binary"
#: Where a call takes less than this on average, in seconds, the clock is read once for a block of
#: so many rows.
_FAST = 5e-6
_BLOCK = 16
#: Seconds between two reads of the clock after which the process may have been frozen.
_LONG = 0.1

_current_slot = -1


def current_slot() -> int:
    """Returns the number of the slot that runs the calling handler, from 0; -1 elsewhere."""
    return _current_slot


def resolve_handler(handler: Handler | str) -> Handler:
    """Returns a handler that is given as an object or as ``module:function``.

    Raises:
        ImportError: The module cannot be imported.
        NameNotFound: The text is not of that form, or names nothing callable.
    """
    if isinstance(handler, FrameHandler):
        return replace(handler, function=resolve_handler(handler.function))
    if not isinstance(handler, str):
        return handler
    found = object_named(handler)
    if not callable(found):
        module, _, name = handler.partition(":")
        raise NameNotFound(f"{module} has no function {name}")
    return found  # type: ignore[no-any-return]


class SlotRunner:
    """The function of a batch's tasks, for ``DataFrame.mapInArrow``.

    Args:
        spec: The batch.
        handler: A function of a `Record`, or ``module:function``.
        policy: When failed records are tried again.
        output_schema: The schema of the rows that handlers return; None: they are dropped.
        dead_letters: Whether records may be given up.
        send: Sends the pickled report at the end of the task; None: the report is in its row.
    """

    def __init__(
        self,
        spec: BatchSpec,
        handler: Handler | str,
        policy: RetryPolicy,
        output_schema: pa.Schema | None,
        *,
        dead_letters: bool,
        send: Send | None,
    ) -> None:
        self._spec = spec
        self._handler = handler
        self._policy = policy
        self._output_schema = output_schema
        self._dead_letters = dead_letters
        self._send = send

    @property
    def slots(self) -> tuple[int, ...]:
        """The slots, by the index of their task."""
        return self._spec.slots

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Runs one task; yields one row: the slot's number, and its report unless it was sent."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        slot = self._spec.slots[context.partitionId()]
        if context.attemptNumber() == 0:
            yield self.first_attempt(slot, batches)
        else:
            for _ in batches:
                pass
            yield self._answer(slot, self.after_a_crash(slot))

    def first_attempt(self, slot: int, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
        """Handles the records of a slot; returns the task's row.

        If the library's own code fails, it does not return: the worker ends, and the second attempt
        of the task reports that. What runs in the worker next would fail as well.
        """
        try:
            report = self.run(slot, self._rows(batches))
            if not report.end.error:
                return self._answer(slot, report)
        except BaseException as error:  # noqa: BLE001 - of the library, of Spark or of the host
            report = self._outcome(slot).failed(error)
            report.end.crashed = True  # What it has done since its last report is not known.
        end = partial(_exit, report.end.error)
        return end_worker_with(report, journal_path(self._spec, slot), end)

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Returns the rows that Spark passes to a task."""
        return (self._with_part(batch) for batch in batches if batch.num_rows)

    def _answer(self, slot: int, report: SlotReport) -> pa.RecordBatch:
        """Sends a report; returns the task's row."""
        report.end.clock = time.time()
        payload = pickle.dumps(report)
        if self._send is not None:
            self._send(payload)
        sent = [None if self._send else payload]
        return pa.RecordBatch.from_arrays(
            [pa.array([slot], pa.int32()), pa.array(sent, pa.binary())], names=["slot", "report"]
        )

    def _with_part(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Adds the column ``part``, which Spark does not send if there is only one."""
        if len(self._spec.partitions) > 1:
            return batch
        part = pa.repeat(pa.scalar(0, pa.int32()), batch.num_rows)
        return pa.RecordBatch.from_arrays(
            [part, *batch.columns], names=["part", *batch.schema.names]
        )

    def run(self, slot: int, batches: Iterable[pa.RecordBatch]) -> SlotReport:
        """Handles a slot's rows and reports their outcomes."""
        spec = self._spec
        if spec.channel is None:
            return self._run(slot, iter(batches), None)
        from coopconsume.worker.channel.client import SlotChannel

        # Before it asks for a lease: with its driver's end it gets none any more.
        lock = WorkerLock(spec.channel.workers)
        # It connects while Spark still reads and sorts.
        channel = SlotChannel(spec.channel, spec.run, spec.batch, slot, is_locked=lock.is_held)
        try:
            report = self._run(slot, iter(batches), channel)
        finally:
            channel.close()
        if not report.end.error:  # Else the process ends, and whatever it runs with it.
            lock.release()
        return report

    def _run(
        self, slot: int, rows: Iterator[pa.RecordBatch], channel: SlotChannel | None
    ) -> SlotReport:
        first = next(rows, None)  # Returns once Spark has read and sorted.
        late = time.time() - self._spec.latest_start
        if late > 0:
            # The driver may have died, and other members may own the shares.
            return self._start_nothing(slot, rows, SlotEnd(late=late))
        error = "" if channel is None or first is None else channel.wait()
        if error:
            return self._start_nothing(slot, rows, SlotEnd(channel_error=error))
        return self._handle(slot, chain(() if first is None else (first,), rows), channel)

    def _start_nothing(self, slot: int, rows: Iterable[pa.RecordBatch], end: SlotEnd) -> SlotReport:
        """Reads the rows without starting any; returns the report of that.

        Args:
            slot: The slot.
            rows: Its rows.
            end: Why it starts none.
        """
        outcome = self._outcome(slot)
        for _ in rows:
            pass
        outcome.resume_from_start()
        outcome.report.end = end
        return outcome.close()

    def _ready(self, slot: int) -> tuple[Handler, SlotState | None] | SlotEnd:
        """Returns the handler, open, and the state; or why the slot starts nothing."""
        spec, handler, state = self._spec, resolve_handler(self._handler), None
        try:
            if has_life(handler):
                handler = self._opened(handler, slot)
            if spec.decoding is not None:
                handler = _typed(handler, spec.decoding)
            if spec.state is not None:
                from coopconsume.state.slot_state import SlotState

                state = SlotState(spec.state, slot)
        except OpenFailed as error:
            return SlotEnd(open_error=str(error))
        except StateNotReadable as error:
            return SlotEnd(state_error=str(error))
        late = time.time() - spec.latest_start
        if late > 0:  # Both may have taken long.
            if state is not None:
                state.close()
            return SlotEnd(late=late)
        return handler if state is None else state.wrapped(handler), state

    def _opened(self, handler: Handler, slot: int) -> Handler:
        """Returns a handler that is open in this process; the first slot of a run opens it.

        Raises:
            OpenFailed: It cannot be opened.
        """
        from coopconsume.worker.between_tasks import close_at_the_end
        from coopconsume.worker.open_handlers import HANDLERS

        def late(why: str) -> None:
            report = self._start_nothing(slot, (), SlotEnd(open_error=why))
            end_worker_with(report, journal_path(self._spec, slot))

        close_at_the_end()
        return HANDLERS.get(handler, self._spec, slot, late)  # type: ignore[no-any-return]

    def _handle(
        self, slot: int, batches: Iterable[pa.RecordBatch], channel: SlotChannel | None
    ) -> SlotReport:
        global _current_slot  # noqa: PLW0603 - a worker process runs one task at a time
        spec = self._spec
        outcome = self._outcome(slot)
        ready = self._ready(slot)
        if isinstance(ready, SlotEnd):
            return self._start_nothing(slot, batches, ready)
        handler, state = ready
        if state is not None:
            outcome.report.stats.restored = state.restored
        seats = handler.max_records if isinstance(handler, FrameHandler) else spec.concurrency
        remove_old_reports()
        journal = CrashJournal(journal_path(spec, slot), seats)
        time_box = TimeBox(spec, journal)
        time_box.fail_stop = FailStop(journal, process_timer())
        _current_slot = slot
        try:
            if channel is not None:
                time_box.may_start = channel.may_start
            rows = self._begin(batches, outcome, time_box, channel)
            if state is not None:
                rows = _prefetched(rows, state, spec.partitions)
            _runner_of(handler, outcome)(rows, handler, outcome, time_box)
        finally:
            _current_slot = -1
            time_box.check_lease()
            time_box.end()
            left = _end_channel(channel, outcome)
            if state is not None:
                state.close()
            journal.close()
        report = outcome.close()
        report.end.unacknowledged = left
        report.end.stopped = time_box.stopped
        report.end.timed_out = report.end.timed_out and not time_box.stopped
        if time_box.started:
            report.stats.busy = time.monotonic() - time_box.started
        if not report.end.error:
            _leave_open(spec.run)
        return report

    def _begin(
        self,
        batches: Iterable[pa.RecordBatch],
        outcome: TaskOutcome,
        time_box: TimeBox,
        channel: SlotChannel | None,
    ) -> Iterator[pa.RecordBatch]:
        """Has the channel report from now on; returns the rows to handle."""
        if channel is not None:
            channel.begin(outcome, time_box)
        return _until_halted(batches, outcome, time_box)

    def after_a_crash(self, slot: int) -> SlotReport:
        """Starts nothing; reports what is known of the earlier attempt whose worker ended."""
        spec = self._spec
        journal = journal_path(spec, slot)
        if (left := take_left_report(journal)) is not None:
            return left
        words = read_journal(journal)
        if words is None:
            return SlotReport(batch=spec.batch, slot=slot, end=SlotEnd(unknown=True))
        outcome = self._outcome(slot)
        outcome.resume_from_start()
        report = outcome.close()
        for part, found in report.partitions.items():
            offsets = sorted(offset for at, offset in words.running if at == part)
            found.read = pack_offsets(pa.array(offsets, pa.int64()))
        end, report.pid = report.end, words.pid
        end.crashed, end.overdue, end.culprits = True, words.was_overdue, words.culprits
        end.suspects = [] if end.culprits else words.running
        if words.deadline is Deadline.LEASE:
            # A call that keeps the interpreter lock keeps its slot from the driver, too.
            lease = spec.channel.lease if spec.channel is not None else math.inf
            end.deserted, end.culprits = True, []
            end.suspects = words.running if words.stood_still > lease else []
        return report

    def _outcome(self, slot: int) -> TaskOutcome:
        return TaskOutcome(
            self._spec, slot, self._policy, self._output_schema, dead_letters=self._dead_letters
        )


def _open_handlers() -> OpenHandlers | None:
    """Returns the handlers that are open in this process; None if none ever was."""
    module = sys.modules.get("coopconsume.worker.open_handlers")
    return None if module is None else module.HANDLERS


def _leave_open(run: str) -> None:
    """Leaves the handler of a run open at the end of a slot if this worker runs further tasks."""
    if handlers := _open_handlers():
        from coopconsume.worker.between_tasks import is_reused

        handlers.used(run)
        if not is_reused():
            handlers.close_all()


def _exit(error: str, status: int) -> NoReturn:
    """Closes the handlers that are open, and ends this process at once.

    Args:
        error: Why it ends.
        status: Its exit status.
    """
    try:
        if handlers := _open_handlers():
            handlers.close_all(RuntimeError(error))
    finally:
        os._exit(status)


def _typed(handler: Handler, decoding: Decoding) -> Handler:
    """Returns a handler that gets decoded keys and values."""
    from coopconsume.decoding.columns import frame_decoder
    from coopconsume.decoding.record_decoder import record_decoder

    if isinstance(handler, FrameHandler):
        return replace(handler, decoder=frame_decoder(decoding, handler.format))
    return record_decoder(decoding).wrapped(handler)


def _end_channel(channel: SlotChannel | None, outcome: TaskOutcome) -> list[SlotReport]:
    """Closes a slot's channel; returns the reports that the driver has not acknowledged."""
    left = [] if channel is None else channel.close()
    if channel is not None and channel.failure is not None:
        outcome.fail(channel.failure)
    return left


def _until_halted(
    batches: Iterable[pa.RecordBatch], outcome: TaskOutcome, time_box: TimeBox
) -> Iterator[pa.RecordBatch]:
    """Yields the Arrow batches of a slot, without the rows that the filter drops.

    Once the slot is halted, the other batches are skipped quickly.
    """
    for batch in batches:
        if time_box.stopped:
            outcome.skip(batch)
            continue
        time_box.begin()  # Others wait for the slot, also while no record passes.
        if (passed := outcome.drop_filtered(batch)).num_rows:
            yield passed


def _prefetched(
    batches: Iterable[pa.RecordBatch], state: SlotState, places: Sequence[TopicPartition]
) -> Iterator[pa.RecordBatch]:
    """Yields Arrow batches; reads the state of all their keys before."""
    for batch in batches:
        parts, keys = batch.column(0), batch.column(KEY)
        for part in parts.unique().to_pylist():
            state.prefetch(places[part], keys.filter(pc.equal(parts, part)))
        yield batch


def _runner_of(handler: Handler, outcome: TaskOutcome) -> Callable[..., None]:
    """Returns the function that runs the rows of a slot."""
    if isinstance(handler, FrameHandler):
        return run_frames
    if is_async(handler):
        return run_coroutines
    spec = outcome.spec
    plain = spec.concurrency == 1 and not spec.rates and outcome.policy.timeout is None
    plain = plain and spec.realtime is None  # A failed record waits in the slot.
    return run_serial if plain and not outcome.has_uncalled else run_threads


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
        batch = outcome.wanted(raw)
        hashes, at_work = batch.column(HASH), None
        numbers, reads = progress.begin(batch)
        time_box.begin()
        for i, part, offset, record, _ in records_of(batch, outcome, numbers, reads):
            if time_box.is_over and (handled or time_box.stopped):
                report.end.timed_out = True
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
                        time_box.is_over = time_box.is_over or bool(report.end.tripped)
                    progress.settled = i + 1
        cells[code] = 0
        progress.end()
        report.stats.handled = outcome.number = handled


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
            not fit.
        """
        if self._check is None or state.answer is not None:
            return False
        value, expires = state.left()
        try:
            value = self._check(value)
        except Exception:  # noqa: BLE001 - `TaskOutcome.checked` says why
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
            calls = self._outcome.report.stats.calls
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
    found = batch.select([0, OFFSET, STAMP])
    if skipped:
        left = set(skipped)
        keep = pa.array([i for i in range(batch.num_rows) if i not in left], pa.int64())
        found = found.take(keep)
    if len(outcome.done) > 1:  # A filter for each partition would cost more, the more there are.
        found = found.take(pc.array_sort_indices(found.column(0)))
    first, done = 0, found.select([1, 2])
    for part, count in zip(*found.column(0).value_counts().flatten(), strict=True):
        outcome.done[part.as_py()].append(done.slice(first, count.as_py()))
        first += count.as_py()
