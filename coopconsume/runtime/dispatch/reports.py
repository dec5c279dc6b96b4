"""Takes what the slots of batches and real-time runs report, and how these end.

A report comes while a slot works (`Reports.progressed`) and as it ends (`Reports.reported`). A slot
that has not made its final report as its Spark job ends (`Reports.ended`) is lost, unless it cannot
have started anything. Of a report only what a partition counts goes on to the committer.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from coopconsume.errors import HandlerFailed
from coopconsume.runtime.dispatch.relief import end_kept, give_back, kept_progressed
from coopconsume.runtime.dispatch.run import RunEnd
from coopconsume.runtime.settle.crashes import AtWork
from coopconsume.runtime.settle.failure_log import FailureLog
from coopconsume.runtime.settle.lost_slots import log_ended_worker, log_lost_slot
from coopconsume.worker.report import PartitionReport, SlotReport

if TYPE_CHECKING:
    from collections.abc import Callable

    from coopconsume.runtime.dispatch.active_runs import ActiveRuns
    from coopconsume.runtime.dispatch.circuit_breaker import JobCircuitBreaker
    from coopconsume.runtime.dispatch.job_slots import JobSlots
    from coopconsume.runtime.dispatch.latest_start import LatestStart
    from coopconsume.runtime.dispatch.run import Run
    from coopconsume.runtime.dispatch.slot_leases import SlotLeases
    from coopconsume.runtime.dispatch.slot_task import SlotTask
    from coopconsume.runtime.dispatch.work_sizes import WorkSizes
    from coopconsume.runtime.epoch_state import EpochState
    from coopconsume.runtime.events import BatchEnded, CallReported
    from coopconsume.runtime.status.progress import Meter

log = logging.getLogger(__name__)


class Reports:
    """Moves slots on by their reports, and passes these to partitions and the committer.

    Only the loop calls the methods.

    Args:
        runs: The batches and real-time runs.
        slots: The slots of the job.
        leases: The channel to the slots.
        sizes: Learns the speed of slots.
        breaker: Opens by failures in a row.
        latest_start: Learns the clocks of workers.
        meter: Takes note of reports, for progress.
        counts: Whether what was done in an epoch may still be committed.
    """

    def __init__(
        self,
        runs: ActiveRuns,
        slots: JobSlots,
        leases: SlotLeases,
        sizes: WorkSizes,
        breaker: JobCircuitBreaker,
        latest_start: LatestStart,
        meter: Meter,
        counts: Callable[[EpochState], bool],
    ) -> None:
        self._runs = runs
        self._slots = slots
        self._leases = leases
        self._sizes = sizes
        self._breaker = breaker
        self._latest_start = latest_start
        self._meter = meter
        self._counts = counts
        self._failure_log = FailureLog()

    # -- while a slot works

    def progressed(self, report: SlotReport) -> None:
        """Takes a progressive report; each one once, in their order."""
        found = self._runs.task(report.batch, report.slot)
        if found is None or not self._counts(found[0].epoch_state):
            return
        run, task = found
        if report.seq != task.seq + 1:
            return
        now = time.monotonic()
        task.progressed(report, now)
        run.handled += report.stats.handled
        run.filtered += report.stats.filtered
        counted = self._take_progress(run, task, report, now)
        self._sizes.progressed(run, report, now)
        next_commit = run.epoch_state.committer.take(counted, run.partitions, now)
        self._note(run, counted)
        self._leases.taken(report, next_commit)

    def _take_progress(
        self, run: Run, task: SlotTask, report: SlotReport, now: float
    ) -> SlotReport:
        """Passes a progressive report to the partitions; returns what of it counts."""
        partitions = run.partitions
        run.epoch_state.has_read(partitions, report)
        if task.kept is not None:
            return replace(report, partitions=kept_progressed(run, task, report, now))
        if report.kept is not None:
            counted = give_back(run, task, report, now)
            self._slots.carryover.closed(task.slot, report.gates, run.names, now)
            return replace(report, partitions=counted)
        counted = {
            part: partitions[part].slots.progressed(task.slot, outcome, now)
            for part, outcome in report.partitions.items()
        }
        if report.leaving is not None and report.leaving[0] == run.epoch_state.leavings:
            for part, partition in enumerate(partitions):
                at_work = {o: key for at, o, key in report.leaving[1] if at == part}
                partition.dealer.withheld(task.slot, at_work)
        return replace(report, partitions=counted)

    def called(self, event: CallReported) -> None:
        """Notes which handler call of a slot takes long, if one does."""
        found = self._runs.task(event.batch, event.slot)
        if found is None:
            return
        run, task = found
        if event.call is None:
            task.call = None
        elif event.call[0] in range(len(run.plan.indexes)):
            part, offset, seconds = event.call
            task.call = part, offset, time.monotonic() - seconds

    # -- as a slot ends

    def reported(self, report: SlotReport) -> None:
        """Takes the final report of a slot.

        Raises:
            HandlerFailed, HandlerNotOpened: The job cannot go on.
        """
        end = report.end
        self._latest_start.heard(end.clock)
        found = self._runs.task(report.batch, report.slot)
        if found is None:
            return  # A second run of a task, or a batch that was given up.
        run, task = found
        for earlier in end.unacknowledged:
            self.progressed(earlier)
        task.has_ended = True
        if run.channel is not None and not (end.unknown or end.crashed):
            self._leases.slot_ended(end.channel_error)
            self._meter.channel_error = self._leases.error
        self._slots.opened(run, report)
        if end.state_error or end.error:
            self._slots.failed(run, task.slot, end.state_error or end.error)
            run.failure = end.error or run.failure
        now = time.monotonic()
        if task.kept is None:
            self._slots.carryover.closed(task.slot, report.gates, run.names, now)
        if not self._counts(run.epoch_state):
            return
        if end.unknown and self._cannot_have_begun(run, task):
            run.failure = "its task failed before it began, see the log of its executor"
            self._slots.failed(run, task.slot, run.failure)
            self._plan_again(run, task)
        elif end.unknown:
            self._lost(run, task, now)
        else:
            self._ended(run, task, report, now)

    def _cannot_have_begun(self, run: Run, task: SlotTask) -> bool:
        """Stops a slot whose first attempt left nothing; whether that has started no record."""
        return run.channel is not None and bool(self._leases.stop({run.at(task)}))

    def _ended(self, run: Run, task: SlotTask, report: SlotReport, now: float) -> None:
        """Takes the final report of a slot whose outcome is known."""
        end, crashes = report.end, self._slots.crashes
        run.first_report = run.first_report or now
        handled = report.stats.handled + task.handled
        run.handled += report.stats.handled
        run.filtered += report.stats.filtered
        run.rate += handled / max(report.stats.busy, 0.001)
        if task.kept is None and not end.crashed:
            self._sizes.reported(report, handled)
        if end.timed_out and not (end.tripped or end.stopped):
            run.first_timeout = run.first_timeout or now
        task.is_stopped |= bool(end.stopped or end.channel_error)
        if end.crashed:
            self._crashed(run, task, report, now)
        elif end.late:
            log.warning(
                "slot %d got its records %.1f s after the latest start of batch %d and started "
                "none of them: give Spark Connect's server more free cores, or a session fewer "
                "slots", report.slot, end.late, report.batch,
            )  # fmt: skip
        counted = self._take_end(run, task, report, now)
        if not end.crashed and crashes.concern(task.slot):
            crashes.passed(run.epoch_state.partitions, task.slot, run.given(task.slot))
        self._look_for_a_pause(run, report, handled, now)
        self._note(run, counted)
        run.kind.reported(run, report)
        if end.fatal:
            raise HandlerFailed(end.fatal)

    def _crashed(self, run: Run, task: SlotTask, report: SlotReport, now: float) -> None:
        """Notes which records may have ended the worker of a slot."""
        log_ended_worker(report, run.names)
        for part, outcome in report.partitions.items():
            run.partitions[part].slots.has_read(task.slot, outcome, now)
        at_work = AtWork.of(report.end, run.plan.indexes)
        partitions = run.epoch_state.partitions
        self._slots.crashes.crashed(partitions, task.slot, run.left(task), at_work)
        self._meter.lost(task.slot)

    def _take_end(self, run: Run, task: SlotTask, report: SlotReport, now: float) -> SlotReport:
        """Passes a final report to partitions and committer; returns what of it counts."""
        partitions = run.partitions
        run.epoch_state.has_read(partitions, report)
        if task.kept is not None:
            counted = kept_progressed(run, task, report, now)
            end_kept(run, task, now)
        else:
            counted = {
                part: partitions[part].slots.reported(task.slot, outcome, now)
                for part, outcome in report.partitions.items()
            }
        report = replace(report, partitions=counted)
        run.epoch_state.committer.take(report, partitions, now)
        return report

    def _look_for_a_pause(self, run: Run, report: SlotReport, handled: int, now: float) -> None:
        breaker = self._breaker
        if breaker.reported(report.end.tripped, handled, now, trial=run.trial):
            log.warning(
                "paused for %.0f s by the circuit breaker: %s", breaker.until - now, breaker.reason
            )
        restarts = run.trial or breaker.state != "closed"
        self._slots.carryover.failed(report.slot, report.end.streak, restarts=restarts)

    def _note(self, run: Run, report: SlotReport) -> None:
        """Counts and logs a report."""
        self._meter.reported(report, run.names)
        self._failure_log.take(report, run.names)

    def _lost(self, run: Run, task: SlotTask, now: float) -> None:
        """Takes the loss of a slot: its work waits until the life of the batch is over."""
        life = self._runs.life_of([run])
        log_lost_slot(task.slot, task.pid, life)
        over = now + life
        left = run.left(task)
        if task.kept is not None:
            end_kept(run, task, over)
        else:
            self._slots.bar(task.slot, over)
            self._plan_again(run, task)
        self._meter.lost(task.slot)
        self._slots.crashes.crashed(run.epoch_state.partitions, task.slot, left, None)
        run.kind.lost(run, task.slot)

    def _plan_again(self, run: Run, task: SlotTask) -> None:
        """Plans again the records of a slot that has started nothing, or that is lost."""
        for index in run.plan.work[task.slot]:
            run.epoch_state.partitions[index].slots.unknown(task.slot)

    # -- as a Spark job ends

    def ended(self, event: BatchEnded) -> None:
        """Takes the end of the Spark job of a batch, or of a real-time run.

        Raises:
            BaseException: The job cannot go on.
        """
        run = self._runs.by_number[event.batch]
        for report in event.reports.values():
            if report is not None:
                self.reported(report)
        if self._slots.failures.is_first(run.started):
            # After another failure they wait like lost ones: its cause may take time to go away.
            for slot in event.unconnected:
                run.tasks[slot].is_withdrawn = True
        deserted = any(self._leases.was_deserted(at) for at in run.connections)
        counts = self._counts(run.epoch_state)
        unreported = sorted(run.unfinished, key=lambda task: task.slot)
        for task in unreported:
            task.has_ended = True
            if counts:
                self._ended_without_report(run, task, event)
        del self._runs.by_number[run.number]
        self._leases.ended(run.number)
        slots = [task.slot for task in unreported]
        run.kind.ended(run, RunEnd(slots, event.error, counts, deserted))
        self._meter.batch_ended(run.number, time.monotonic() - run.started)

    def _ended_without_report(self, run: Run, task: SlotTask, event: BatchEnded) -> None:
        if event.error is None and task.slot not in event.reports:
            # The log has no record for the slot: Spark ran no task for it.
            plan = run.plan
            seen = {plan.parts[index]: PartitionReport() for index in plan.work[task.slot]}
            report = SlotReport(run.number, task.slot, partitions=seen)
            self._take_end(run, task, report, time.monotonic())
        elif task.is_withdrawn:
            self._plan_again(run, task)
        else:
            self._lost(run, task, time.monotonic())
