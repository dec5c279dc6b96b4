"""Batches as a kind of run: the Spark job of each, and what its end says of the next ones."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from commits import OffsetRanges
from coopconsume.classic import tagged, why_ended
from coopconsume.errors import SessionUnusable, SlotFailed
from coopconsume.kafka.security.access import refused_by_spark
from coopconsume.runtime.dispatch.run import RunKind
from coopconsume.runtime.read.offset_frames import WantedRows, batch_frame
from coopconsume.runtime.read.spans import Span
from coopconsume.runtime.read.timestamp_overflow import TIMESTAMP_OVERFLOWS, retried
from coopconsume.runtime.settle.batch_failures import MOST_FAILURES, reason
from coopconsume.worker.rate_limit import Rates
from coopconsume.worker.report import BatchSpec
from coopconsume.worker.slot import REPORT_SCHEMA, SlotRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from coopconsume.options import Options
    from coopconsume.runtime.dispatch.run import Run, RunEnd
    from coopconsume.runtime.job_context import JobContext
    from coopconsume.runtime.plan import BatchPlan, Partition
    from coopconsume.runtime.plan.window import Window
    from coopconsume.runtime.settle.batch_failures import BatchFailures
    from coopconsume.worker.report import SlotReport

log = logging.getLogger(__name__)


class Batches(RunKind):
    """The batches of a job.

    Args:
        context: The job.
        window: Learns how many offsets a batch is to have.
        failures: Counts how often batches failed in a row.
    """

    is_real_time = False

    def __init__(self, context: JobContext, window: Window, failures: BatchFailures) -> None:
        self._context = context
        self._window = window
        self._failures = failures
        self._meter = context.meter

    def execute(self, run: Run, send: Callable[[bytes], None] | None) -> dict[int, bytes | None]:
        """Runs a batch, see `RunKind`."""
        return run_batch(self._context, run, send)

    def reported(self, run: Run, report: SlotReport) -> None:
        """Learns the size of records and the speed of slots from the final report of one."""
        if not (report.end.crashed or report.end.late):
            self._window.reported(report)
        if not run.unfinished:
            is_stopped = any(task.is_stopped for task in run.tasks.values())
            (self._window.stopped if is_stopped else self._window.completed)(run)

    def ended(self, run: Run, end: RunEnd) -> None:
        """Counts a failure of a batch: the fourth in a row ends the job.

        Raises:
            BaseException: The error of the batch, or what is behind it.
        """
        if end.error is None and not run.failure:
            self._failures.succeeded()
        elif end.counts and run.interrupt_at is None:
            self._failed(run, end.error or SlotFailed(run.failure), deserted=end.deserted)

    def _failed(self, run: Run, error: BaseException, *, deserted: bool) -> None:
        """Takes the failure of a batch.

        Args:
            run: The batch.
            error: Why it has failed.
            deserted: Whether a worker was ended as it had not heard of this process: then neither
                the batch nor what it stands on is at fault.
        """
        refused = refused_by_spark(error, self._context.options.kafka)
        if refused is not None:
            raise refused from error
        if ended := why_ended(self._context.spark):
            raise SessionUnusable(
                f"the Spark session runs no jobs any more, {ended}: start the job again with a new "
                "session, and nothing is lost"
            ) from error
        text = run.failure or reason(error)
        log.warning("batch %d failed, its slots are planned again: %s", run.number, text)
        self._meter.failed(text)
        # Retention that is faster than batches makes one after another fail, each at a new offset.
        has_lost = run.epoch_state.log_watch.has_lost(run.plan.reads)
        handled = run.handled > 0 or has_lost or deserted
        failures = self._failures.failed(run.started, time.monotonic(), handled=handled)
        if failures >= MOST_FAILURES:
            raise error


def spec_of(context: JobContext, run: Run) -> BatchSpec:
    """Returns what the slots of a batch or of a real-time run get."""
    plan, options, job_spec = run.plan, context.options, context.job_spec
    return BatchSpec(
        batch=run.number,
        partitions=tuple(run.names),
        slots=plan.slots,
        work={
            slot: {plan.parts[index]: w for index, w in of.items()}
            for slot, of in plan.work.items()
        },
        ordering=job_spec.ordering,
        concurrency=job_spec.concurrency,
        batch_time=options.batch_time,
        handler_timeout=options.handler_timeout,
        headers=job_spec.needs_headers(options),
        has_ordering_keys=options.ordering_key is not None,
        filters=bool(options.record_filter),
        park=job_spec.park,
        rates=rates_of(options, context.slots),
        break_after=1 if run.trial else options.circuit_breaker or 0,
        streaks=run.streaks,
        gates=run.gates,
        run=run.run_id,
        latest_start=run.latest_start,
        channel=run.channel,
        state=run.state,
        query=job_spec.query,
        decoding=job_spec.decoding,
        log_lines=options.handler_log_lines,
        shown_lines=options.show_handler_lines,
        has_spans=options.trace_handlers,
    )


def run_batch(
    context: JobContext, run: Run, send: Callable[[bytes], None] | None
) -> dict[int, bytes | None]:
    """Runs one batch as one Spark job; returns when its slowest slot has finished.

    Args:
        context: The job.
        run: The batch.
        send: Takes reports as tasks end; None: they come back as rows.

    Returns:
        For each slot that had records, its report; None if something else has sent it, or if it is
        lost.
    """
    spark, options, job_spec = context.spark, context.options, context.job_spec
    plan, spec, partitions = run.plan, spec_of(context, run), run.epoch_state.partitions
    slices = options.min_partitions or context.slots
    spans = []
    for read in plan.reads:
        partition = partitions[read.index]
        spans.append(Span(partition.topic, partition.partition, read.first, read.last))
    wanted = [_wanted(p, plan, plan.slots) for p in run.partitions]
    runner = SlotRunner(
        spec,
        job_spec.handler,
        job_spec.policy,
        job_spec.outputs.schema if job_spec.outputs else None,
        dead_letters=job_spec.dead_letters is not None,
        send=send,
    )
    with tagged(spark, run.tag, run.title, _description(run)):
        frame = batch_frame(
            spark,
            options,
            spans=spans,
            wanted=wanted,
            tasks=plan.slots,
            slices=slices,
            headers=spec.headers,
        )
        try:
            rows = frame.mapInArrow(runner, REPORT_SCHEMA).collect()
        except Exception as error:
            # The next batch reads around what is found.
            TIMESTAMP_OVERFLOWS.learn(options, error, spans)
            raise
    reports = {row.slot: None if row.report is None else bytes(row.report) for row in rows}
    silent = [slot for slot in plan.slots if slot not in reports]
    if silent and _have_records(context, run, silent):
        log.warning("batch %d: Spark returned no row for slots %s", run.number, silent)
        reports |= dict.fromkeys(silent)
    return reports


def _have_records(context: JobContext, run: Run, slots: Sequence[int]) -> bool:
    """Returns whether the log has records for some slots of a batch.

    Spark runs no task for a batch without records. A lost row looks the same: only the log shows
    whether the slots' offsets are holes.
    """
    spark, options = context.spark, context.options
    plan, partitions = run.plan, run.epoch_state.partitions
    indexes = sorted({index for slot in slots for index in plan.work[slot]})
    wanted = [_wanted(partitions[index], plan, slots) for index in indexes]
    spans = [
        Span(partitions[read.index].topic, partitions[read.index].partition, read.first, read.last)
        for read in plan.reads
        if read.index in indexes
    ]

    def look() -> bool:
        frame = batch_frame(
            spark,
            options,
            spans=spans,
            wanted=wanted,
            tasks=slots,
            slices=len(slots),
            headers=False,
        )
        return not frame.isEmpty()

    with tagged(spark, run.tag, run.title, f"look for records of {_description(run)}"):
        return retried(options, spans, look)


def rates_of(options: Options, slots: int) -> Rates:
    """Returns how many records a second one slot may start."""
    total = options.max_records_per_second
    return Rates(
        None if total is None else total / slots,
        options.max_records_per_second_per_share,
        options.max_records_per_second_per_key,
    )


def _description(run: Run) -> str:
    """Returns what Spark's user interface shows of a batch."""
    count, offsets = len(run.plan.wanted), run.plan.span
    return (
        f"{run.title} batch {run.number}: {count:,} partition{'s' * (count != 1)}, "
        f"{offsets:,} offset{'s' * (offsets != 1)}"
    )


def _wanted(partition: Partition, plan: BatchPlan, slots: Iterable[int]) -> WantedRows:
    """Returns which rows of a partition some slots get."""
    own = [slot for slot in slots if partition.index in plan.work[slot]]
    place = partition.topic, partition.partition, plan.wanted[partition.index]
    if partition.supply.shares_chunks:
        work = [(plan.work[slot][partition.index].ranges, slot) for slot in own]
        return WantedRows(*place, slices=tuple((OffsetRanges(some), slot) for some, slot in work))
    return WantedRows(
        *place,
        tuple((one, slot) for slot in own for one in partition.cursors[slot].staying),
    )
