"""One batch of a job: a Spark job and what comes back."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from commits import OffsetRanges
from coopconsume.classic import tagged
from coopconsume.runtime.plan.attempts import attempts_in
from coopconsume.runtime.read.offset_frames import WantedRows, batch_frame
from coopconsume.runtime.read.spans import Span
from coopconsume.runtime.read.timestamp_overflow import TIMESTAMP_OVERFLOWS, retried
from coopconsume.runtime.status.waiting import OldestCall
from coopconsume.worker.rate_limit import Rates
from coopconsume.worker.report import BatchSpec
from coopconsume.worker.slot import REPORT_SCHEMA, SlotRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from assignors import KeyRange
    from coopconsume.options import Options
    from coopconsume.runtime.epoch_state import EpochState
    from coopconsume.runtime.job_spec import JobSpec
    from coopconsume.runtime.plan import BatchPlan, Partition
    from coopconsume.state.slot_state import StateSpec
    from coopconsume.worker.channel.spec import ChannelSpec

log = logging.getLogger(__name__)


@dataclass
class Running:
    """A batch, or a real-time run, that Spark works on, and what its slots have reported so far.

    Times are on the monotonic clock, unless they say otherwise.
    """

    number: int
    plan: BatchPlan
    #: Slots without a final report.
    waiting: set[int]
    started: float
    #: When its slots get their leases and may start records, on the monotonic clock: later than
    #: `started` if an earlier owner may be at work on the records until then.
    begins_at: float
    #: The tag of its Spark job.
    tag: str
    epoch_state: EpochState
    #: Identifies the run of the job, see `BatchSpec`.
    run: str = ""
    #: Whether it is the trial of a circuit breaker.
    trial: bool = False
    #: Failures in a row, and gates of rate limits, with which slots begin; see `BatchSpec`.
    streaks: Mapping[int, int] = field(default_factory=dict)
    gates: Mapping[int, Mapping[int | None, float]] = field(default_factory=dict)
    #: When the first final report came.
    first_report: float | None = None
    #: Handler calls and filtered records in all reports.
    handled: int = 0
    filtered: int = 0
    #: Handler calls a second, of all slots that have ended.
    rate: float = 0.0
    #: Whether the time box of a slot ended before its rows did.
    timed_out: bool = False
    #: After which its slots start nothing, on the workers' clocks, in seconds since the epoch.
    latest_start: float = math.inf
    #: Name of the query or of its group, for people.
    title: str = ""
    #: When Spark is next asked to end it; None: it may go on.
    interrupt_at: float | None = None
    #: Where its slots reach the driver; None: they have no channel, and no leases.
    channel: ChannelSpec | None = None
    #: What its slots need to know of the state per key; None: the handler has none.
    state: StateSpec | None = None
    #: Of each slot, the number of the last progressive report that was taken.
    taken: dict[int, int] = field(default_factory=dict)
    #: Of each slot, the process id of its worker, by its progressive reports.
    workers: dict[int, int] = field(default_factory=dict)
    #: Of each slot, the handler calls in its progressive reports.
    handled_before: dict[int, int] = field(default_factory=dict)
    #: When a slot last reported progress, or was asked to give its records back.
    heard_at: dict[int, float] = field(default_factory=dict)
    #: When a slot was first seen to be connected.
    met_at: dict[int, float] = field(default_factory=dict)
    #: Long handler calls by slot: part, offset and start.
    calls: dict[int, tuple[int, int, float]] = field(default_factory=dict)
    #: Of slots that have given their records back, the records that they keep, by partition.
    kept: dict[int, dict[int, OffsetRanges]] = field(default_factory=dict)
    #: When slots were last asked to give back records.
    asked_at: dict[int, float] = field(default_factory=dict)
    #: Slots that were stopped, and start no more records.
    stopped: set[int] = field(default_factory=set)
    #: Those of them that cannot have started any record.
    withdrawn: set[int] = field(default_factory=set)
    #: Whether it is a real-time run.
    is_real_time: bool = False
    #: Why a real-time run ends; empty: it goes on, or its time is over.
    ending: str = ""
    #: Of its slots, the partitions whose holes they report, by index.
    finders: Mapping[int, Collection[int]] = field(default_factory=dict)
    #: Where the logs end from which slots read chunks, by partition; None: slots have key ranges.
    ends: Mapping[int, int] | None = None
    #: The error with which a slot has failed last; empty: none has.
    failure: str = ""
    #: When a slot was last seen to read a partition, by (partition, slot), where that is not now.
    read_at: dict[tuple[int, int], float] = field(default_factory=dict)

    def oldest_call(self, now: float) -> OldestCall | None:
        """Returns the handler call that has run for longest; None: none takes long."""
        calls = [one for slot, one in self.calls.items() if slot in self.waiting]
        if not calls:
            return None
        part, offset, since = min(calls, key=lambda one: one[2])
        return OldestCall(*self.names[part], offset, now - since)

    @property
    def active(self) -> set[int]:
        """Slots without a final report that have not given records back."""
        return self.waiting - self.kept.keys()

    @property
    def is_withdrawn(self) -> bool:
        """Whether no slot is left that may start anything."""
        return bool(self.waiting) and self.waiting <= self.withdrawn

    @property
    def names(self) -> list[tuple[str, int]]:
        """(topic, partition) by part."""
        return [(p.topic, p.partition) for p in self.partitions]

    @property
    def connections(self) -> set[tuple[int, int]]:
        """(batch, slot) of those that still work and have a channel."""
        return {(self.number, slot) for slot in self.waiting if self.channel is not None}

    @property
    def partitions(self) -> list[Partition]:
        """Its partitions by part, see `BatchPlan.indexes`."""
        return [self.epoch_state.partitions[index] for index in self.plan.indexes]

    def rests(self, slot: int, now: float) -> bool:
        """Whether a real-time slot waits for records, or for the next attempt of one.

        Other records that it has read wait behind that one: a call that takes long is reported, and
        others end at once.
        """
        if not self.is_real_time or slot in self.calls:
            return False
        own = [partition for partition in self.partitions if slot in partition.cursors]
        return not any(partition.cursors[slot].reading for partition in own) or any(
            attempts_in(partition, slot, now) for partition in own
        )

    def given(self, slot: int) -> dict[int, OffsetRanges]:
        """Offsets that a slot may start, by partition; in a real-time run, those it has read.

        Chunks that it has got may be read by now, as far as the log reaches.
        """
        if self.is_real_time:
            partitions = {
                index: self.epoch_state.partitions[index] for index in self.plan.work[slot]
            }
            return {
                index: (one.cursors[slot].dispatched or OffsetRanges()).clip(0, one.ledger.end - 1)
                for index, one in partitions.items()
            }
        return {index: OffsetRanges(work.ranges) for index, work in self.plan.work[slot].items()}

    def left(self, slot: int) -> dict[int, OffsetRanges]:
        """The offsets of `given` that no report has named yet, by partition."""
        nothing, partitions = OffsetRanges(), self.epoch_state.partitions
        if slot in self.kept:
            return {
                index: o - partitions[index].ledger.done for index, o in self.kept[slot].items()
            }
        return {
            index: offsets & (partitions[index].cursors[slot].dispatched or nothing)
            for index, offsets in self.given(slot).items()
        }

    @property
    def key_ranges(self) -> dict[int, dict[tuple[str, int], tuple[KeyRange, ...]]]:
        """Returns the key ranges of each slot, by topic and partition."""
        return {
            slot: {
                (p.topic, p.partition): p.cursors[slot].staying
                for p in self.partitions
                if p.index in self.plan.work[slot]
            }
            for slot in self.plan.slots
        }

    @property
    def reports_more(self) -> bool:
        """Whether some slots have reported, and others are about to.

        Those of a real-time run report just before a commit: it need not wait for them.
        """
        has_reports = bool(self.first_report or self.taken)
        return has_reports and bool(self.active) and not self.is_real_time


def spec_of(options: Options, job_spec: JobSpec, running: Running, slots: int) -> BatchSpec:
    """Returns what the slots of a batch or of a real-time run get.

    Args:
        options: Of the consumer.
        job_spec: What to do.
        running: The batch.
        slots: Of the job, which share its rate.
    """
    plan = running.plan
    return BatchSpec(
        batch=running.number,
        partitions=tuple(running.names),
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
        rates=rates_of(options, slots),
        break_after=1 if running.trial else options.circuit_breaker or 0,
        streaks=running.streaks,
        gates=running.gates,
        run=running.run,
        latest_start=running.latest_start,
        channel=running.channel,
        state=running.state,
        query=job_spec.query,
        decoding=job_spec.decoding,
    )


def run_batch(
    spark: SparkSession,
    options: Options,
    job_spec: JobSpec,
    running: Running,
    partitions: Sequence[Partition],
    slices: int,
    slots: int,
    send: Callable[[bytes], None] | None,
) -> dict[int, bytes | None]:
    """Runs one batch as one Spark job; returns when its slowest slot has finished.

    Args:
        spark: The session.
        options: Of the consumer.
        job_spec: What to do.
        running: The batch.
        partitions: Of the epoch, by index.
        slices: Spark partitions to read in, at least.
        slots: Of the job, which share its rate.
        send: Takes reports as tasks end; None: they come back as rows.

    Returns:
        For each slot that had records, its report; None if something else has sent it, or if it is
        lost.
    """
    plan, spec = running.plan, spec_of(options, job_spec, running, slots)
    spans = []
    for read in plan.reads:
        partition = partitions[read.index]
        spans.append(Span(partition.topic, partition.partition, read.first, read.last))
    wanted = [_wanted(p, plan, plan.slots) for p in running.partitions]
    runner = SlotRunner(
        spec,
        job_spec.handler,
        job_spec.policy,
        job_spec.outputs.schema if job_spec.outputs else None,
        dead_letters=job_spec.dead_letters is not None,
        send=send,
    )
    with tagged(spark, running.tag, running.title, _description(running)):
        frame = batch_frame(spark, options, spans, wanted, plan.slots, slices, headers=spec.headers)
        try:
            rows = frame.mapInArrow(runner, REPORT_SCHEMA).collect()
        except Exception as error:
            # The next batch reads around what is found.
            TIMESTAMP_OVERFLOWS.learn(options, error, spans)
            raise
    reports = {row.slot: None if row.report is None else bytes(row.report) for row in rows}
    silent = [slot for slot in plan.slots if slot not in reports]
    if silent and _have_records(spark, options, running, partitions, silent):
        log.warning("batch %d: Spark returned no row for slots %s", running.number, silent)
        reports |= dict.fromkeys(silent)
    return reports


def _have_records(
    spark: SparkSession,
    options: Options,
    running: Running,
    partitions: Sequence[Partition],
    slots: Sequence[int],
) -> bool:
    """Returns whether the log has records for some slots of a batch.

    Spark runs no task for a batch without records. A lost row looks the same: only the log shows
    whether the slots' offsets are holes.
    """
    plan = running.plan
    indexes = sorted({index for slot in slots for index in plan.work[slot]})
    wanted = [_wanted(partitions[index], plan, slots) for index in indexes]
    spans = [
        Span(partitions[read.index].topic, partitions[read.index].partition, read.first, read.last)
        for read in plan.reads
        if read.index in indexes
    ]

    def look() -> bool:
        frame = batch_frame(spark, options, spans, wanted, slots, len(slots), headers=False)
        return not frame.isEmpty()

    with tagged(spark, running.tag, running.title, f"look for records of {_description(running)}"):
        return retried(options, spans, look)


def rates_of(options: Options, slots: int) -> Rates:
    """Returns how many records a second one slot may start."""
    total = options.max_records_per_second
    return Rates(
        None if total is None else total / slots,
        options.max_records_per_second_per_share,
        options.max_records_per_second_per_key,
    )


def _description(running: Running) -> str:
    """Returns what Spark's user interface shows of a batch."""
    count, offsets = len(running.plan.wanted), running.plan.span
    return (
        f"{running.title} batch {running.number}: {count:,} partition{'s' * (count != 1)}, "
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
