"""Begins, watches and ends the real-time runs of a job. Only the loop calls its methods."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from coopconsume.runtime.realtime.mode import START_TIME, RealTimeMode
from coopconsume.runtime.realtime.run_job import finders_of_holes, plan_run
from coopconsume.worker.channel.wire import Frame

if TYPE_CHECKING:
    from collections.abc import Callable

    from coopconsume.options import Options
    from coopconsume.runtime.dispatch.batch import Running
    from coopconsume.runtime.dispatch.slot_leases import SlotLeases
    from coopconsume.runtime.epoch_state import EpochState
    from coopconsume.runtime.plan import BatchPlan
    from coopconsume.worker.report import SlotReport

log = logging.getLogger(__name__)

#: Seconds between two checks whether a run must end.
_LOOK_EVERY: Final = 0.05


class RealTimeRuns:
    """The real-time runs of a job, one at a time.

    Args:
        duration: Seconds of a run; None: there are batches alone.
        options: Of the consumer.
        leases: The channel to the slots.
        stop: Has the slots of a batch start no more records.
    """

    def __init__(
        self,
        duration: float | None,
        options: Options,
        leases: SlotLeases,
        stop: Callable[[Running], None],
    ) -> None:
        self._duration = duration or 0.0
        self.mode = RealTimeMode(self._duration, options.max_pending)
        self._batch_time = options.batch_time
        self._leases = leases
        self._stop = stop
        self._looked_at = 0.0
        self._why_not = ""
        self._drain_by = 0.0

    def plan(self, epoch_state: EpochState, now: float) -> BatchPlan | None:
        """Returns the plan of a run if one may begin now; its cursors are marked."""
        why = self._leases.error or self.mode.why_not(epoch_state.ours, now)
        if why:
            if why != self._why_not:
                log.debug("batches: %s", why)
            self._why_not = why
            return None
        return plan_run(epoch_state.ours)

    def begins(self, running: Running) -> None:
        """Notes that a run is about to be given to Spark."""
        running.is_real_time = True
        running.finders = finders_of_holes(running.partitions)
        running.ends = {p.index: p.end for p in running.partitions if p.stock is not None} or None
        self._why_not = ""
        log.info("real time on %d slots for %g s", len(running.plan.slots), self._duration)

    def reads_on(self, running: Running, now: float) -> bool:
        """Whether the slots of a batch read by themselves, and their time is not over."""
        is_over = bool(running.ending) or now - running.started >= self._duration
        return running.is_real_time and not is_over

    def watch(self, running: Running, now: float, *, is_open: bool) -> None:
        """Ends a run if its records need batches.

        Args:
            running: The run.
            now: The time, on the monotonic clock.
            is_open: Whether the circuit breaker lets records start.
        """
        if running.ending:
            if self._drain_by and now > self._drain_by:
                self._drain_by = 0.0
                self._stop(running)
            return
        if now - self._looked_at < _LOOK_EVERY:
            return
        self._looked_at = now
        is_over = now - running.started >= self._duration
        if running.waiting != set(running.plan.slots) or running.kept or running.stopped:
            if not is_over:
                self.end(running, "a slot has ended", now)
            return
        if not is_open:
            self.end(running, "paused by the circuit breaker", now)
            return
        is_late = now - running.started > START_TIME
        if is_late and not all(self._leases.has_met(at) for at in running.connections):
            self.end(
                running, "not all slots have started: Spark has no free core", now, failed=True
            )
            return
        # Partitions that came since the run has begun are not in it, and may be quiet.
        known, ours = running.plan.wanted, running.epoch_state.ours
        partitions = [p for p in ours if not p.is_quiet or p.index not in known]
        why = self.mode.why_end(partitions, running.read_at, now) if ours else "nothing is left"
        if why:
            self.end(running, why, now, failed="does not read" in why)

    def end(self, running: Running, why: str, now: float, *, failed: bool = False) -> None:
        """Ends a run: its slots start no more records, and batches take over.

        Args:
            running: The run.
            why: The reason, for people.
            now: The time.
            failed: Whether the next run should wait, as it may fail again.
        """
        if running.ending:
            return
        running.ending = why
        self.mode.ended(why, running.started, now, failed=failed)
        log.log(logging.WARNING if failed else logging.INFO, "real time ends: %s", why)
        self._stop(running)

    def drain(self, running: Running) -> None:
        """Has the slots of a run read no more records, and handle those that they have read."""
        if running.ending:
            return
        running.ending = "stopped"
        self._drain_by = time.monotonic() + self._batch_time
        for at in running.connections:
            if self._leases.has_met(at):
                self._leases.send(at, Frame.DRAIN)
            else:
                running.withdrawn |= {slot for _, slot in self._leases.stop({at})}

    def reported(self, running: Running, report: SlotReport, now: float) -> None:
        """Takes the final report of a slot."""
        why = report.end.read_error or report.end.channel_error or report.end.error
        if why:
            running.epoch_state.look_again()
            self.end(running, f"slot {report.slot}: {why}", now, failed=True)

    def lost(self, running: Running, slot: int, now: float) -> None:
        """Takes the end of a slot without a report."""
        self.end(running, f"slot {slot} is lost", now, failed=True)

    def over(self, running: Running, error: str, now: float) -> None:
        """Takes the end of the Spark job of a run."""
        if not running.ending:
            running.ending = error or "its time is over"
            self.mode.ended(error, running.started, now, failed=bool(error))
