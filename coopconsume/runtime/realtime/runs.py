"""Begins, watches and ends the real-time runs of a job. Only the loop calls its methods."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from coopconsume.runtime.dispatch.run import RunKind
from coopconsume.runtime.realtime.mode import START_TIME, Ending, RealTimeMode
from coopconsume.runtime.realtime.run_job import finders_of_holes, plan_run, run_slots
from coopconsume.runtime.settle.batch_failures import reason

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from coopconsume.runtime.dispatch.run import Run, RunEnd
    from coopconsume.runtime.dispatch.slot_leases import SlotLeases
    from coopconsume.runtime.dispatch.slot_requests import SlotRequests
    from coopconsume.runtime.dispatch.slot_task import SlotTask
    from coopconsume.runtime.epoch_state import EpochState
    from coopconsume.runtime.job_context import JobContext
    from coopconsume.runtime.plan import BatchPlan, Partition
    from coopconsume.worker.report import SlotReport

log = logging.getLogger(__name__)

#: Seconds between two checks whether slots must end.
_LOOK_EVERY: Final = 0.05
_NO_CORE: Final = Ending("not all slots have started: Spark has no free core", is_failure=True)
_KEPT_CORE: Final = Ending("a slot waits for a core, as a handler that takes long keeps it")


class RealTimeRuns(RunKind):
    """The real-time runs of a job. Each slot is in one of them, or in batches.

    A slot that ends leaves its run; the others go on. Batches catch up with what it has left, and
    then another run begins with it.

    Args:
        context: The job; without ``real_time`` there are batches alone.
        leases: The channel to the slots.
        requests: Asks slots to start no more records.
    """

    is_real_time = True

    def __init__(self, context: JobContext, leases: SlotLeases, requests: SlotRequests) -> None:
        self._context = context
        self._duration = context.job_spec.real_time
        self.mode = RealTimeMode(context.options.max_pending)
        self._leases = leases
        self._requests = requests
        self._meter = context.meter
        self._looked_at = 0.0
        self._why_not = ""
        self._drain_by = 0.0

    def plan(
        self,
        epoch_state: EpochState,
        batches: Sequence[Run],
        slots: Collection[int],
        now: float,
    ) -> BatchPlan | None:
        """Returns the plan of a run of those slots that may begin now, or None.

        Their cursors are marked.

        Args:
            epoch_state: The work of the job.
            batches: Its batches and runs.
            slots: Slots that are free.
            now: The time, on the monotonic clock.
        """
        ours = epoch_state.ours
        if self._duration is None or not slots or self._why_none(batches, now):
            return None
        why_not = {
            slot: self._leases.error or self.mode.why_not(ours, slot, now)
            for slot in slots
            if any(slot in partition.cursors for partition in ours)
        }
        why = "; ".join(sorted({one for one in why_not.values() if one}))
        if why and why != self._why_not:
            log.debug("batches: %s", why)
        self._why_not = why
        return plan_run(ours, [slot for slot, one in why_not.items() if not one])

    def begins(self, run: Run) -> None:
        """Notes that a run is about to be given to Spark."""
        assert self._duration is not None
        run.finders = finders_of_holes(run.partitions, run.plan.slots)
        run.ends = {p.index: p.ledger.end for p in run.partitions if p.supply.shares_chunks} or None
        log.info("real time on %d slots for %g s", len(run.plan.slots), self._duration)

    def execute(self, run: Run, send: Callable[[bytes], None] | None) -> dict[int, bytes | None]:
        """Runs the slots of a run, see `RunKind`."""
        return run_slots(self._context, run, send)

    def reads_on(self, run: Run, now: float) -> bool:
        """Whether the slots of a batch read by themselves, and their time is not over."""
        if not run.is_real_time or run.ending:
            return False
        return now - run.started < (self._duration or 0.0)

    def live(self, batches: Sequence[Run], now: float) -> dict[int, Run]:
        """Returns the slots that read by themselves, each with its run."""
        runs = [one for one in batches if self.reads_on(one, now)]
        return {task.slot: one for one in runs for task in one.active if not task.is_stopped}

    def watch(
        self, epoch_state: EpochState, batches: Sequence[Run], now: float, *, is_open: bool
    ) -> None:
        """Ends slots whose records need batches.

        Args:
            epoch_state: The work of the job.
            batches: Its batches and runs.
            now: The time, on the monotonic clock.
            is_open: Whether the circuit breaker lets records start.
        """
        if self._drain_by and now > self._drain_by:
            self._drain_by = 0.0
            for run in batches:
                if run.is_real_time:
                    self._requests.stop(run)
        if now - self._looked_at < _LOOK_EVERY:
            return
        self._looked_at = now
        live = self.live(batches, now)
        if not live:
            return
        ours = epoch_state.ours
        end_of_all = self._why_all_end(epoch_state, batches, live, now, is_open=is_open)
        if end_of_all is not None and end_of_all.is_failure:
            for slot in _with_key_ranges(ours):
                self.mode.failed(slot, now, now)
        for run in {id(one): one for one in live.values()}.values():
            tasks = [run.tasks[slot] for slot, one in live.items() if one is run]
            if end_of_all is not None:
                self.end(run, tasks, end_of_all, now)
            else:
                self._end_some(run, tasks, ours, now)

    def _end_some(
        self, run: Run, tasks: Sequence[SlotTask], ours: Sequence[Partition], now: float
    ) -> None:
        """Ends those of some slots of a run whose records need batches."""
        # Partitions that came since a run has begun are not in it, and may be quiet.
        known, slots = run.plan.wanted, [task.slot for task in tasks]
        partitions = [p for p in ours if not p.ledger.is_quiet or p.index not in known]
        found = self.mode.why_end(partitions, slots, run.read_at, now)
        for slot, ending in found.items():
            self.end(run, [run.tasks[slot]], ending, now)

    def _why_all_end(
        self,
        epoch_state: EpochState,
        batches: Sequence[Run],
        live: Collection[int],
        now: float,
        *,
        is_open: bool,
    ) -> Ending | None:
        """Returns why all slots must end; None: each is looked at by itself."""
        if not is_open:
            return Ending("paused by the circuit breaker")
        if not epoch_state.ours:
            return Ending("nothing is left")
        if ending := self._why_none(batches, now):
            return ending
        # Key ranges are dealt to slots while none of them reads by itself.
        is_undealt = any(partition.is_undealt for partition in epoch_state.undealt)
        if is_undealt and not _with_key_ranges(epoch_state.ours) <= set(live):
            return Ending("key ranges are to be dealt to all slots")
        return None

    def _why_none(self, batches: Sequence[Run], now: float) -> Ending | None:
        """Returns why no slot may keep a core by reading by itself; None: each may."""
        if any(task.is_keeping for one in batches for task in one.tasks.values()):
            return _KEPT_CORE
        return _NO_CORE if any(self._waits_for_cores(one, now) for one in batches) else None

    def _waits_for_cores(self, run: Run, now: float) -> bool:
        """Whether slots of a batch have not started for a long time."""
        if run.channel is None or now - run.begins_at <= START_TIME:
            return False
        tasks = (task for task in run.unfinished if not task.is_withdrawn)
        return not all(self._leases.has_met(run.at(task)) for task in tasks)

    def end(self, run: Run, tasks: Collection[SlotTask], ending: Ending, now: float) -> None:
        """Ends slots of a run: they start no more records, and batches take over.

        Args:
            run: The run.
            tasks: The slots.
            ending: Why.
            now: The time.
        """
        slots, why = sorted(task.slot for task in tasks), ending.why
        level = logging.WARNING if ending.is_failure else logging.INFO
        names = ", ".join(map(str, slots))
        log.log(level, "real time ends on slot%s %s: %s", "s" * (len(slots) > 1), names, why)
        self.mode.why = why
        if ending.is_failure:
            self._failed(run, slots, why, now)
        self._requests.stop_slots(run, tasks)
        if all(task.is_stopped for task in run.active):
            run.ending = run.ending or why

    def _failed(self, run: Run, slots: Collection[int], why: str, now: float) -> None:
        """Notes that slots of a run end as something has failed."""
        self.mode.why = why
        for slot in slots:
            self.mode.failed(slot, run.started, now)

    def drain(self, run: Run) -> None:
        """Has the slots of a run read no more records, and handle those that they have read."""
        if run.ending:
            return
        run.ending = "stopped"
        self._drain_by = time.monotonic() + self._context.options.batch_time
        self._requests.drain(run)

    def reported(self, run: Run, report: SlotReport) -> None:
        """Takes the final report of a slot."""
        end = report.end
        why = end.read_error or end.channel_error or end.open_error or end.error
        if why:
            run.epoch_state.log_watch.look_again()
            log.warning("real time ends on slot %d: %s", report.slot, why)
        if why or report.end.crashed:
            why = why or "its worker has ended"
            self._failed(run, [report.slot], why, time.monotonic())

    def lost(self, run: Run, slot: int) -> None:
        """Takes the end of a slot without a report."""
        self._failed(run, [slot], f"slot {slot} is lost", time.monotonic())

    def ended(self, run: Run, end: RunEnd) -> None:
        """Takes the end of the Spark job of a run; if it has failed, batches take over."""
        is_failure = end.error is not None and run.interrupt_at is None
        error = reason(end.error) if end.error is not None and is_failure else ""
        if error and end.counts:
            log.warning("a real-time run failed, batches take over: %s", error)
            self._meter.failed(error)
            run.epoch_state.log_watch.look_again()
        run.ending = run.ending or error or "its time is over"
        if error:
            self._failed(run, end.unreported, error, time.monotonic())


def _with_key_ranges(partitions: Sequence[Partition]) -> set[int]:
    """Returns the slots that have key ranges."""
    cursors = (partition.cursors.items() for partition in partitions)
    return {slot for some in cursors for slot, cursor in some if cursor.staying}
