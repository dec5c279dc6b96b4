"""The plan of a real-time run, and its Spark job."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from commits import OffsetRanges
from coopconsume.classic import tagged
from coopconsume.runtime.dispatch.batch import spec_of
from coopconsume.runtime.plan import BatchPlan
from coopconsume.worker.realtime.slot import RealTimeRunner
from coopconsume.worker.realtime.spec import RealTimeSpec
from coopconsume.worker.slot import REPORT_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from coopconsume.runtime.dispatch.run import Run
    from coopconsume.runtime.job_context import JobContext
    from coopconsume.runtime.plan import Partition
    from coopconsume.worker.report import PartitionWork


def plan_run(partitions: Sequence[Partition], slots: Collection[int]) -> BatchPlan | None:
    """Returns a plan in which some slots read their key ranges themselves; None if they have none.

    Args:
        partitions: Of the job.
        slots: The slots.
    """
    work: dict[int, dict[int, PartitionWork]] = {}
    for partition in partitions:
        for slot in slots:
            one = partition.slots.read_by(slot)
            if one is not None:
                work.setdefault(slot, {})[partition.index] = one
    if not work:
        return None
    return BatchPlan((), work, {partition.index: OffsetRanges() for partition in partitions})


def finders_of_holes(
    partitions: Sequence[Partition], slots: Collection[int]
) -> dict[int, set[int]]:
    """Returns for each slot the partitions whose holes it reports, by index: it has hash 0.

    While this member has a whole partition, its holes follow from the positions of all slots, too.
    It may give up part of the partition while the slots read.

    Args:
        partitions: Of the run.
        slots: Of the run.
    """
    found: dict[int, set[int]] = {}
    for partition in partitions:
        for slot, cursor in partition.cursors.items():
            if slot in slots and any(key_range.contains(0) for key_range in cursor.staying):
                found.setdefault(slot, set()).add(partition.index)
                cursor.holes_from = cursor.position
    return found


def run_slots(
    context: JobContext, run: Run, send: Callable[[bytes], None] | None
) -> dict[int, bytes | None]:
    """Runs the slots of a real-time run as one Spark job; returns when the last one has ended.

    Args:
        context: The job.
        run: The run.
        send: Takes reports as tasks end; None: they come back as rows.

    Returns:
        As for a batch.
    """
    options, job_spec = context.options, context.job_spec
    plan, duration = run.plan, job_spec.real_time or 0.0
    key_ranges = run.key_ranges
    part_of = {name: part for part, name in enumerate(run.names)}
    spec = replace(
        spec_of(context, run),
        batch_time=duration + options.batch_time,
        realtime=RealTimeSpec(
            duration=duration,
            kafka=options.kafka,
            logs=tuple(run.epoch_state.assignment.identity_of(tp) for tp in run.names),
            key_ranges={
                slot: {part_of[tp]: ranges for tp, ranges in of.items()}
                for slot, of in key_ranges.items()
            },
            finds_holes={
                slot: frozenset(plan.parts[index] for index in indexes)
                for slot, indexes in run.finders.items()
            },
            record_filter=options.record_filter,
            # One slot may be in a run of its own, beside the others.
            cache_bytes=options.max_bytes_key_range_hashing if context.slots > 1 else 0,
            cache_content=options.key_range_hashing_content,
            reached={
                part: reached
                for part, tp in enumerate(run.names)
                if (reached := run.epoch_state.assignment.reached_of(tp)) is not None
            },
            ends=run.ends and {plan.parts[index]: end for index, end in run.ends.items()},
        ),
    )
    runner = RealTimeRunner(
        spec,
        job_spec.handler,
        job_spec.policy,
        job_spec.outputs.schema if job_spec.outputs else None,
        dead_letters=job_spec.dead_letters is not None,
        send=send,
    )
    count = len(plan.slots)
    with tagged(context.spark, run.tag, run.title, f"{run.title} real time: {count} slots"):
        tasks = context.spark.range(0, count, 1, count)
        rows = tasks.mapInArrow(runner, REPORT_SCHEMA).collect()
    return {row.slot: None if row.report is None else bytes(row.report) for row in rows}
