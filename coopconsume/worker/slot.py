"""Runs the part of a batch that belongs to one slot, in a Spark task.

The rows of a slot arrive in ascending offsets within each partition. A record that fails blocks its
lane (see `coopconsume.worker.key_queues`) for the rest of the batch, and no other. Task-side code:
it needs only the standard library, pyarrow and PySpark's worker.
"""

from __future__ import annotations

import math
import os
import pickle
import sys
import time
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from coopconsume.errors.state import StateNotReadable
from coopconsume.values.callables import NameNotFound, is_async, object_named
from coopconsume.worker.crash_journal import CrashJournal, Deadline, journal_path, read_journal
from coopconsume.worker.fail_stop import FailStop
from coopconsume.worker.frame_runner import FrameHandler, FrameRunner, waiting
from coopconsume.worker.handler_calls import watched
from coopconsume.worker.handler_life import OpenFailed, enters, has_life
from coopconsume.worker.handler_logs import log_watcher
from coopconsume.worker.handler_spans import export_spans, span_watcher
from coopconsume.worker.host_locks import WorkerLock
from coopconsume.worker.input_rows import KEY
from coopconsume.worker.left_report import (
    end_worker_with,
    remove_old_reports,
    take_left_report,
)
from coopconsume.worker.outcome import TaskOutcome
from coopconsume.worker.process_timer import process_timer
from coopconsume.worker.report import SlotEnd, SlotReport, pack_offsets
from coopconsume.worker.reporter import SlotReporter
from coopconsume.worker.serial_runner import SerialRunner
from coopconsume.worker.thread_runner import ThreadRunner
from coopconsume.worker.time_box import TimeBox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from commits.model import TopicPartition
    from coopconsume.decoding import Decoding
    from coopconsume.record import Record, RetryPolicy
    from coopconsume.state.slot_state import SlotState
    from coopconsume.worker.channel.client import SlotChannel
    from coopconsume.worker.crash_journal import AtCrash
    from coopconsume.worker.handler_lines import LineBuffer
    from coopconsume.worker.open_handlers import OpenHandlers
    from coopconsume.worker.report import BatchSpec
    from coopconsume.worker.runner import Runner

    Handler = Callable[[Record], Any]
    Send = Callable[[bytes], None]

REPORT_SCHEMA = "slot int, report binary"

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
    if not (callable(found) or enters(found)):
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
            outcome = self._outcome(slot)
            outcome.fail(error)
            # What it has done since its last report is not known.
            report = outcome.close(SlotEnd(crashed=True))
        end = partial(_exit, report.end.error)
        return end_worker_with(report, journal_path(self._spec, slot), end)

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Returns the rows that Spark passes to a task."""
        return (self._with_part(batch) for batch in batches if batch.num_rows)

    def _answer(self, slot: int, report: SlotReport) -> pa.RecordBatch:
        """Sends a report; returns the task's row."""
        payload = pickle.dumps(report.with_end(clock=time.time()))
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
        return outcome.close(end)

    def _ready(
        self, slot: int, lines: LineBuffer | None
    ) -> tuple[Handler, SlotState | None] | SlotEnd:
        """Returns the handler, open, and the state; or why the slot starts nothing.

        Args:
            slot: The slot.
            lines: Gets what its handlers log and print; None: nobody wants it.
        """
        spec, handler, state = self._spec, resolve_handler(self._handler), None
        try:
            if has_life(handler):
                handler = self._opened(handler, slot)
            if spec.decoding is not None:
                handler = _typed(handler, spec.decoding, with_state=spec.state is not None)
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
        handler = handler if state is None else state.wrapped(handler)
        if isinstance(handler, FrameHandler):
            handler = waiting(handler, self._policy.timeout)
        spans = span_watcher(spec.query) if spec.has_spans else None
        logs = log_watcher(spec.log_lines, lines)
        watchers = [one for one in (spans, logs) if one is not None]
        return watched(handler, watchers), state

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
        ready = self._ready(slot, outcome.draft.lines)
        if isinstance(ready, SlotEnd):
            return self._start_nothing(slot, batches, ready)
        handler, state = ready
        seats = handler.max_records if isinstance(handler, FrameHandler) else spec.concurrency
        remove_old_reports()
        journal = CrashJournal(journal_path(spec, slot), seats)
        time_box = TimeBox(spec, journal)
        time_box.fail_stop = FailStop(journal, process_timer())
        _current_slot = slot
        try:
            if channel is not None:
                time_box.may_start = channel.may_start
            runner = _runner_of(handler, outcome)(handler, outcome, time_box)
            reporter = SlotReporter(outcome, runner)
            rows = self._begin(batches, outcome, time_box, channel, reporter)
            if state is not None:
                rows = _prefetched(rows, state, spec.partitions)
            runner.run(rows)
        finally:
            _current_slot = -1
            time_box.check_lease()
            time_box.end()
            left = _end_channel(channel, outcome)
            if state is not None:
                state.close()
            journal.close()
            export_spans()
        report = outcome.close(
            SlotEnd(unacknowledged=left, stopped=time_box.stopped),
            busy=time.monotonic() - time_box.started if time_box.started else 0.0,
            restored=(0, 0.0) if state is None else state.restored,
        )
        if not report.end.error:
            _leave_open(spec.run)
        return report

    def _begin(
        self,
        batches: Iterable[pa.RecordBatch],
        outcome: TaskOutcome,
        time_box: TimeBox,
        channel: SlotChannel | None,
        reporter: SlotReporter,
    ) -> Iterator[pa.RecordBatch]:
        """Has the channel report from now on; returns the rows to handle."""
        if channel is not None:
            channel.begin(reporter, time_box)
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
        report = self._start_nothing(slot, (), self._end_of(words))
        partitions = {}
        for part, found in report.partitions.items():
            offsets = sorted(offset for at, offset in words.running if at == part)
            read = pack_offsets(pa.array(offsets, pa.int64()))
            partitions[part] = replace(found, read=read)
        return replace(report, pid=words.pid, partitions=partitions)

    def _end_of(self, words: AtCrash) -> SlotEnd:
        """Returns how a slot ended whose worker has left its last words."""
        culprits = words.culprits
        suspects = [] if culprits else words.running
        deserted = words.deadline is Deadline.LEASE
        if deserted:
            # A call that keeps the interpreter lock keeps its slot from the driver, too.
            channel = self._spec.channel
            lease = channel.lease if channel is not None else math.inf
            culprits = []
            suspects = words.running if words.stood_still > lease else []
        return SlotEnd(
            crashed=True, overdue=words.was_overdue, deserted=deserted, culprits=culprits,
            suspects=suspects,
        )  # fmt: skip

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
        export_spans()
    finally:
        os._exit(status)


def _typed(handler: Handler, decoding: Decoding, *, with_state: bool) -> Handler:
    """Returns a handler that gets decoded keys and values."""
    from coopconsume.decoding.columns import frame_decoder
    from coopconsume.decoding.record_decoder import record_decoder

    if isinstance(handler, FrameHandler):
        return replace(handler, decoder=frame_decoder(decoding, handler.format))
    return record_decoder(decoding).wrapped(handler, with_state=with_state)


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


def _runner_of(handler: Handler, outcome: TaskOutcome) -> Callable[..., Runner]:
    """Returns the class of the runner for a slot."""
    if isinstance(handler, FrameHandler):
        return FrameRunner
    if is_async(handler):
        # Workers without coroutines load no asyncio.
        from coopconsume.worker.async_runner import AsyncRunner

        return AsyncRunner
    spec = outcome.spec
    plain = spec.concurrency == 1 and not spec.rates and outcome.policy.timeout is None
    plain = plain and spec.realtime is None  # A failed record waits in the slot.
    return SerialRunner if plain and not outcome.history.has_uncalled else ThreadRunner
