"""Relief: a slot gives back the records that wait behind a slow handler.

So a slow handler blocks its own key only, and not all keys of its slot. A slot that is asked for
relief starts no more records of its batch and reports the records that its handlers work on. These
are *kept*: they block their keys until the slot has ended. All other records are planned again for
the same slot, in another Spark task, while the slow handler still runs.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, TypeAlias

from commits import OffsetRanges
from coopconsume.worker.channel.wire import Frame
from coopconsume.worker.report import PartitionReport

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from coopconsume.runtime.dispatch.active_runs import ActiveRuns
    from coopconsume.runtime.dispatch.run import Run
    from coopconsume.runtime.dispatch.slot_leases import SlotLeases
    from coopconsume.runtime.dispatch.slot_requests import SlotRequests
    from coopconsume.runtime.dispatch.slot_task import SlotTask
    from coopconsume.runtime.epoch_state import EpochState
    from coopconsume.worker.report import SlotReport

#: The outcomes of records by part, as in `SlotReport.partitions`.
Outcomes: TypeAlias = "dict[int, PartitionReport]"

log = logging.getLogger(__name__)

#: Seconds without progress after which a slot is asked for relief: while a core is idle, and while
#: all cores are busy.
SLOW: Final = 2.0
SLOW_WHILE_BUSY: Final = 10.0


class Relief:
    """Asks slots whose handlers are slow for the records that they have not started.

    Args:
        slots: How many slots there are.
        runs: What Spark works on.
        leases: The channel to the slots.
        requests: Knows which slots may give back.
    """

    def __init__(
        self, slots: int, runs: ActiveRuns, leases: SlotLeases, requests: SlotRequests
    ) -> None:
        self._slots = slots
        self._runs = runs
        self._leases = leases
        self._requests = requests

    def ask(self, epoch_state: EpochState, now: float) -> None:
        """Asks one slot of an epoch, if one is slow."""
        runs = self._runs.of(epoch_state)
        for run in runs:
            for task in run.active:
                if task.met_at is None and self._leases.has_met(run.at(task)):
                    task.met_at = now
        has_idle, keeping = self._runs.task_count < self._slots, self._runs.keeping
        for run, task in slow_slots(runs, now, has_idle=has_idle):
            # A task that keeps a record keeps its core: one must be left to go on with.
            if keeping + 1 < self._slots and self._requests.may_relieve(run, task.slot):
                task.heard_at = now
                self._leases.send(run.at(task), Frame.RELIEVE)
                return


def slow_slots(
    runs: Iterable[Run], now: float, *, has_idle: bool
) -> Iterator[tuple[Run, SlotTask]]:
    """Yields the slots without progress for some time, with their batches.

    Args:
        runs: Of the epoch.
        now: The time, on the monotonic clock.
        has_idle: Whether a core is idle.
    """
    patience = SLOW if has_idle else SLOW_WHILE_BUSY
    for run in runs:
        if run.channel is None or run.trial or run.interrupt_at is not None:
            continue
        if run.is_real_time:
            continue  # Its slots give back records by themselves: they know whether any wait.
        for task in sorted(run.active, key=lambda task: task.slot):
            # The time in which Spark reads and sorts does not count.
            if task.met_at is None or task.is_stopped:
                continue
            since = task.met_at if task.heard_at is None else task.heard_at
            if now - since > patience:
                yield run, task


def give_back(run: Run, task: SlotTask, report: SlotReport, now: float) -> Outcomes:
    """Takes the report of a slot that gives its records back; returns what of it counts."""
    slot, plan = task.slot, run.plan
    kept: dict[int, list[tuple[int, int]]] = {}
    for part, offset, key_hash in report.kept or ():
        kept.setdefault(plan.indexes[part], []).append((offset, key_hash))
    counted = dict(report.partitions)
    for index in plan.work[slot]:
        part, partition = plan.parts[index], run.epoch_state.partitions[index]
        outcome = report.partitions.get(part, PartitionReport())
        found = partition.slots.given_back(slot, outcome, kept.get(index, ()), now)
        if part in counted:
            counted[part] = found
    task.kept = {
        index: OffsetRanges.from_offsets([offset for offset, _ in records])
        for index, records in kept.items()
    }
    task.is_stopped = True
    run.first_report = run.first_report or now
    log.info(
        "slot %d still works on %s and starts none of its other records",
        slot,
        ", ".join(_named(run, kept)),
    )
    return counted


def kept_progressed(run: Run, task: SlotTask, report: SlotReport, now: float) -> Outcomes:
    """Takes the report of a slot on the records that it kept; returns what of it counts."""
    partitions, kept = run.partitions, task.kept or {}
    counted = dict(report.partitions)
    for part, outcome in report.partitions.items():
        offsets = kept.get(partitions[part].index)
        if offsets is not None:
            counted[part] = partitions[part].slots.kept_progressed(offsets, outcome, now)
    return counted


def end_kept(run: Run, task: SlotTask, due: float) -> None:
    """Plans the kept records of a slot again that are not done, from an instant on."""
    for index, offsets in (task.kept or {}).items():
        run.epoch_state.partitions[index].slots.kept_ended(offsets, due)


def _named(run: Run, kept: dict[int, list[tuple[int, int]]]) -> Iterator[str]:
    for index, records in kept.items():
        partition = run.epoch_state.partitions[index]
        for offset, _ in records[:3]:
            yield f"{partition.topic}-{partition.partition}@{offset}"
