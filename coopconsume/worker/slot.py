"""Runs the part of a batch that belongs to one slot, in a Spark task.

The rows of a slot arrive in ascending offsets within each partition. Task-side code: it needs only
the standard library, pyarrow and PySpark's worker.
"""

from __future__ import annotations

import importlib
import pickle
import time
from dataclasses import replace
from inspect import iscoroutinefunction
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from coopconsume.errors.state import StateNotReadable
from coopconsume.worker.async_runner import run_coroutines
from coopconsume.worker.crash_journal import CrashJournal, journal_path, read_journal
from coopconsume.worker.frames import FrameHandler, run_frames
from coopconsume.worker.handling import TimeBox, run_serial
from coopconsume.worker.input_rows import KEY
from coopconsume.worker.outcome import TaskOutcome
from coopconsume.worker.report import SlotReport
from coopconsume.worker.thread_runner import run_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from commits.model import TopicPartition
    from coopconsume.record import RetryPolicy
    from coopconsume.state.slot import SlotState
    from coopconsume.worker.channel.client import SlotChannel
    from coopconsume.worker.crash_journal import AtCrash
    from coopconsume.worker.handling import Handler
    from coopconsume.worker.report import BatchSpec

    Send = Callable[[bytes], None]

REPORT_SCHEMA = "slot int, report binary"

_current_slot = -1


def current_slot() -> int:
    """Returns the number of the slot that runs the calling handler, from 0; -1 elsewhere."""
    return _current_slot


class HandlerNotFound(ValueError):
    """A handler is not named as ``module:function``, or the module has no such function."""


def resolve_handler(handler: Handler | str) -> Handler:
    """Returns a handler that is given as an object or as ``module:function``.

    Raises:
        HandlerNotFound: The text is not of that form, or names nothing callable.
        ImportError: The module cannot be imported.
    """
    if isinstance(handler, FrameHandler):
        return replace(handler, function=resolve_handler(handler.function))
    if not isinstance(handler, str):
        return handler
    module, _, name = handler.partition(":")
    if not module or not name:
        raise HandlerNotFound("it is not of the form module:function")
    if "/" in module or module.endswith(".py"):
        raise HandlerNotFound("it names a file, not a module")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise HandlerNotFound(f"{module} has no function {name}")
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
        batches = (self._with_part(batch) for batch in batches if batch.num_rows)
        if context.attemptNumber() > 0:
            report = self.after_a_crash(slot, batches)
        else:
            report = self.run(slot, batches)
        yield self._answer(slot, report)

    def _answer(self, slot: int, report: SlotReport) -> pa.RecordBatch:
        """Sends a report; returns the task's row."""
        report.clock = time.time()
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
        channel = None
        if spec.channel is not None:
            from coopconsume.worker.channel.client import SlotChannel

            # It connects while Spark still reads and sorts.
            channel = SlotChannel(spec.channel, spec.run, spec.batch, slot)
        try:
            return self._run(slot, iter(batches), channel)
        finally:
            if channel is not None:
                channel.close()

    def _run(
        self, slot: int, rows: Iterator[pa.RecordBatch], channel: SlotChannel | None
    ) -> SlotReport:
        first = next(rows, None)  # Returns once Spark has read and sorted.
        late = time.time() - self._spec.latest_start
        if late > 0:
            # The driver may have died, and other members may own the shares.
            report = self._start_nothing(slot, rows)
            report.late = late
            return report
        error = "" if channel is None or first is None else channel.wait()
        if error:
            report = self._start_nothing(slot, rows)
            report.channel_error = error
            return report
        return self._handle(slot, chain(() if first is None else (first,), rows), channel)

    def _start_nothing(self, slot: int, rows: Iterator[pa.RecordBatch]) -> SlotReport:
        """Reads the rows without starting any; returns the report of that."""
        outcome = self._outcome(slot)
        for _ in rows:
            pass
        for part, work in outcome.work.items():
            outcome.resume_from(part, work.ranges[0][0])
        return outcome.close()

    def _handle(
        self, slot: int, batches: Iterable[pa.RecordBatch], channel: SlotChannel | None
    ) -> SlotReport:
        global _current_slot  # noqa: PLW0603 - a worker process runs one task at a time
        spec = self._spec
        outcome = self._outcome(slot)
        handler = resolve_handler(self._handler)
        state = None
        if spec.state is not None:
            from coopconsume.state.slot import SlotState

            try:
                state = SlotState(spec.state, slot)
            except StateNotReadable as error:
                report = self._start_nothing(slot, iter(batches))
                report.state_error = str(error)
                return report
            late = time.time() - spec.latest_start
            if late > 0:  # The restore may have taken long.
                state.close()
                report = self._start_nothing(slot, iter(batches))
                report.late = late
                return report
            handler = state.wrapped(handler)
            outcome.report.restored = state.restored
        seats = handler.max_records if isinstance(handler, FrameHandler) else spec.concurrency
        journal = CrashJournal(journal_path(spec, slot), seats)
        time_box = TimeBox(spec, journal)
        _current_slot = slot
        left: list[SlotReport] = []
        if channel is not None:
            time_box.may_start = channel.may_start
            self._begin(channel, outcome, time_box)
        rows = self._rows(batches, outcome, time_box)
        if state is not None:
            rows = _prefetched(rows, state, spec.partitions)
        try:
            _runner_of(handler, outcome)(rows, handler, outcome, time_box)
        finally:
            _current_slot = -1
            time_box.check_lease()
            time_box.end()
            if channel is not None:
                left = channel.close()
            if state is not None:
                state.close()
            journal.close()
        report = outcome.close()
        report.unacknowledged = left
        report.stopped = time_box.stopped
        report.timed_out = report.timed_out and not time_box.stopped
        if time_box.started:
            report.busy = time.monotonic() - time_box.started
        return report

    def _begin(self, channel: SlotChannel, outcome: TaskOutcome, time_box: TimeBox) -> None:
        channel.begin(
            outcome.take_report, time_box.halt, outcome.want_relief, outcome.oldest_call,
            withhold=outcome.withhold,
        )  # fmt: skip

    def _rows(
        self, batches: Iterable[pa.RecordBatch], outcome: TaskOutcome, time_box: TimeBox
    ) -> Iterator[pa.RecordBatch]:
        return _until_halted(batches, outcome, time_box)

    def after_a_crash(self, slot: int, batches: Iterable[pa.RecordBatch]) -> SlotReport:
        """Starts nothing; reports what is known of the earlier attempt whose worker ended."""
        spec = self._spec
        outcome = self._outcome(slot)
        words = read_journal(journal_path(spec, slot))
        culprits = set(culprits_of(words)) if words else set()
        for batch in batches:
            # Progressive reports may contain filtered rows; if not, they are planned again.
            passed = outcome.drop_filtered(batch, settles=False)
            if culprits and passed.num_rows:
                outcome.charge_attempt(passed, culprits, overdue=bool(words and words.overdue))
        if words is None:
            return SlotReport(batch=spec.batch, slot=slot, unknown=True)
        for part, work in outcome.work.items():
            outcome.resume_from(part, work.ranges[0][0])
        report = outcome.close()
        report.crashed, report.overdue, report.pid = True, bool(words.overdue), words.pid
        report.suspects = [] if culprits else words.running
        return report

    def _outcome(self, slot: int) -> TaskOutcome:
        return TaskOutcome(
            self._spec, slot, self._policy, self._output_schema, dead_letters=self._dead_letters
        )


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


def culprits_of(words: AtCrash) -> list[tuple[int, int]]:
    """Returns the records that certainly ended a worker: overdue ones, or the only running one."""
    return words.overdue or (words.running if len(words.running) == 1 else [])


def _runner_of(handler: Handler, outcome: TaskOutcome) -> Callable[..., None]:
    """Returns the function that runs the rows of a slot."""
    if isinstance(handler, FrameHandler):
        return run_frames
    if is_async(handler):
        return run_coroutines
    spec = outcome.spec
    plain = spec.concurrency == 1 and not spec.rates and outcome.policy.timeout is None
    plain = plain and spec.realtime is None  # A failed record waits in the slot.
    return run_serial if plain and not outcome.has_spent else run_threads


def is_async(handler: Handler) -> bool:
    """Whether calling the handler returns a coroutine."""
    call = getattr(handler, "__call__", None)  # noqa: B004 - a method's kind, not its being there
    return iscoroutinefunction(handler) or iscoroutinefunction(call)
