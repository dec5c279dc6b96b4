"""Begins, watches and ends the real-time runs of a job. Only the loop calls its methods."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from coopconsume.runtime.realtime.mode import START_TIME, RealTimeMode
from coopconsume.runtime.realtime.run_job import finders_of_holes, plan_run
from coopconsume.worker.channel.wire import Frame

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from coopconsume.options import Options
    from coopconsume.runtime.dispatch.batch import Running
    from coopconsume.runtime.dispatch.slot_leases import SlotLeases
    from coopconsume.runtime.dispatch.slot_requests import SlotRequests
    from coopconsume.runtime.epoch_state import EpochState
    from coopconsume.runtime.plan import BatchPlan, Partition
    from coopconsume.worker.report import SlotReport

log = logging.getLogger(__name__)

#: Seconds between two checks whether slots must end.
_LOOK_EVERY: Final = 0.05
_NO_CORE: Final = "not all slots have started: Spark has no free core"


class RealTimeRuns:
    """The real-time runs of a job. Each slot is in one of them, or in batches.

    A slot that ends leaves its run; the others go on. Batches catch up with what it has left, and
    then another run begins with it.

    Args:
        duration: Seconds of a run; None: there are batches alone.
        options: Of the consumer.
        leases: The channel to the slots.
        requests: Asks slots to start no more records.
    """

    def __init__(
        self,
        duration: float | None,
        options: Options,
        leases: SlotLeases,
        requests: SlotRequests,
    ) -> None:
        self._duration = duration
        self.mode = RealTimeMode(options.max_pending)
        self._batch_time = options.batch_time
        self._leases = leases
        self._requests = requests
        self._looked_at = 0.0
        self._why_not = ""
        self._drain_by = 0.0

    def plan(
        self,
        epoch_state: EpochState,
        batches: Sequence[Running],
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

    def begins(self, running: Running) -> None:
        """Notes that a run is about to be given to Spark."""
        assert self._duration is not None
        running.is_real_time = True
        running.finders = finders_of_holes(running.partitions, running.plan.slots)
        running.ends = {
            p.index: p.ledger.end for p in running.partitions if p.supply.shares_chunks
        } or None
        log.info("real time on %d slots for %g s", len(running.plan.slots), self._duration)

    def reads_on(self, running: Running, now: float) -> bool:
        """Whether the slots of a batch read by themselves, and their time is not over."""
        if not running.is_real_time or running.ending:
            return False
        return now - running.started < (self._duration or 0.0)

    def live(self, batches: Sequence[Running], now: float) -> dict[int, Running]:
        """Returns the slots that read by themselves, each with its run."""
        runs = [one for one in batches if self.reads_on(one, now)]
        return {slot: one for one in runs for slot in sorted(one.active - one.stopped)}

    def watch(
        self, epoch_state: EpochState, batches: Sequence[Running], now: float, *, is_open: bool
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
            for running in batches:
                if running.is_real_time:
                    self._requests.stop(running)
        if now - self._looked_at < _LOOK_EVERY:
            return
        self._looked_at = now
        live = self.live(batches, now)
        if not live:
            return
        ours = epoch_state.ours
        why = self._why_all_end(epoch_state, batches, live, now, is_open=is_open)
        for slot in _with_key_ranges(ours) if why == _NO_CORE else ():
            self.mode.failed(slot, now, now)
        # Partitions that came since a run has begun are not in it, and may be quiet.
        for running in {id(one): one for one in live.values()}.values():
            slots = [slot for slot, one in live.items() if one is running]
            if why:
                self.end(running, slots, why, now, failed=why == _NO_CORE)
                continue
            known = running.plan.wanted
            partitions = [p for p in ours if not p.ledger.is_quiet or p.index not in known]
            found = self.mode.why_end(partitions, slots, running.read_at, now)
            for slot, one in found.items():
                self.end(running, [slot], one, now, failed="does not read" in one)

    def _why_all_end(
        self,
        epoch_state: EpochState,
        batches: Sequence[Running],
        live: Collection[int],
        now: float,
        *,
        is_open: bool,
    ) -> str:
        """Returns why all slots must end; empty: each is looked at by itself."""
        if not is_open:
            return "paused by the circuit breaker"
        if not epoch_state.ours:
            return "nothing is left"
        if why := self._why_none(batches, now):
            return why
        # Key ranges are dealt to slots while none of them reads by itself.
        is_undealt = any(partition.is_undealt for partition in epoch_state.undealt)
        if is_undealt and not _with_key_ranges(epoch_state.ours) <= set(live):
            return "key ranges are to be dealt to all slots"
        return ""

    def _why_none(self, batches: Sequence[Running], now: float) -> str:
        """Returns why no slot may keep a core by reading by itself; empty: each may."""
        if any(one.kept.keys() & one.waiting for one in batches):
            return "a slot waits for a core, as a handler that takes long keeps it"
        return _NO_CORE if any(self._waits_for_cores(one, now) for one in batches) else ""

    def _waits_for_cores(self, running: Running, now: float) -> bool:
        """Whether slots of a batch have not started for a long time."""
        if running.channel is None or now - running.begins_at <= START_TIME:
            return False
        unmet = running.connections - {(running.number, slot) for slot in running.withdrawn}
        return not all(self._leases.has_met(at) for at in unmet)

    def end(
        self, running: Running, slots: Collection[int], why: str, now: float, *, failed: bool
    ) -> None:
        """Ends slots of a run: they start no more records, and batches take over.

        Args:
            running: The run.
            slots: The slots.
            why: The reason, for people.
            now: The time.
            failed: Whether they should wait until they begin again, as they may fail again.
        """
        level = logging.WARNING if failed else logging.INFO
        names = ", ".join(map(str, sorted(slots)))
        log.log(level, "real time ends on slot%s %s: %s", "s" * (len(slots) > 1), names, why)
        self.mode.why = why
        if failed:
            self._failed(running, slots, why, now)
        self._requests.stop_slots(running, slots)
        if not running.active - running.stopped:
            running.ending = running.ending or why

    def _failed(self, running: Running, slots: Collection[int], why: str, now: float) -> None:
        """Notes that slots of a run end as something has failed."""
        self.mode.why = why
        for slot in slots:
            self.mode.failed(slot, running.started, now)

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
        end = report.end
        why = end.read_error or end.channel_error or end.open_error or end.error
        if why:
            running.epoch_state.look_again()
            log.warning("real time ends on slot %d: %s", report.slot, why)
        if why or report.end.crashed:
            self._failed(running, [report.slot], why or "its worker has ended", now)

    def lost(self, running: Running, slot: int, now: float) -> None:
        """Takes the end of a slot without a report."""
        self._failed(running, [slot], f"slot {slot} is lost", now)

    def over(self, running: Running, slots: Collection[int], error: str, now: float) -> None:
        """Takes the end of the Spark job of a run.

        Args:
            running: The run.
            slots: Its slots that had not ended.
            error: The error of the job; empty: it has none.
            now: The time, on the monotonic clock.
        """
        running.ending = running.ending or error or "its time is over"
        if error:
            self._failed(running, slots, error, now)


def _with_key_ranges(partitions: Sequence[Partition]) -> set[int]:
    """Returns the slots that have key ranges."""
    cursors = (partition.cursors.items() for partition in partitions)
    return {slot for some in cursors for slot, cursor in some if cursor.staying}
