"""Plans the next batch of free slots, and deals key ranges to them that have come or go."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from coopconsume.runtime.plan import plan_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coopconsume.runtime.dispatch.active_runs import ActiveRuns
    from coopconsume.runtime.dispatch.circuit_breaker import JobCircuitBreaker
    from coopconsume.runtime.dispatch.job_slots import JobSlots
    from coopconsume.runtime.dispatch.slot_leases import SlotLeases
    from coopconsume.runtime.dispatch.slot_requests import SlotRequests
    from coopconsume.runtime.dispatch.work_sizes import WorkSizes
    from coopconsume.runtime.epoch_state import EpochState
    from coopconsume.runtime.job_context import JobContext
    from coopconsume.runtime.plan import BatchPlan, Limits


class BatchPlanner:
    """Decides which free slots get what; only the loop calls the methods.

    Args:
        context: The job.
        runs: What Spark works on.
        slots: The slots of the job.
        sizes: How much slots get.
        breaker: On trial, one slot gets a few records.
        leases: Whether slots have a channel.
        requests: Asks slots to give back.
    """

    def __init__(
        self,
        context: JobContext,
        runs: ActiveRuns,
        slots: JobSlots,
        sizes: WorkSizes,
        breaker: JobCircuitBreaker,
        leases: SlotLeases,
        requests: SlotRequests,
    ) -> None:
        self._slot_count = context.slots
        self._has_state = context.job_spec.state is not None
        self._runs = runs
        self._slots = slots
        self._sizes = sizes
        self._breaker = breaker
        self._leases = leases
        self._requests = requests
        self._turn = 0

    def free_slots(self, epoch_state: EpochState) -> list[int]:
        """Slots that may get a batch, so that no more tasks run than there are slots.

        With state a slot waits until its changes are written: its next records must see them.

        While tasks keep records, there are more free slots than tasks to start. They take turns, as
        any of them may have nothing to do.
        """
        if epoch_state.committer.awaits_chunks:
            return []
        is_written = epoch_state.committer.outbox.is_written
        free = [slot for slot in self._slots.free(self._runs.busy) if is_written(slot)]
        tasks = self._slot_count - self._runs.task_count
        if tasks >= len(free):
            return free
        self._turn += 1
        turn = self._turn % len(free)
        return sorted((free[turn:] + free[:turn])[: max(0, tasks)])

    def plan(
        self, epoch_state: EpochState, free: Sequence[int], now: float, limits: Limits
    ) -> BatchPlan | None:
        """Returns the next batch; a slot whose workers keep crashing gets part of its work."""
        crashes = self._slots.crashes
        allowed = crashes.confine(epoch_state.partitions, free)
        limits = self._sizes.deal(epoch_state, free, now, limits)
        if self._breaker.state == "trial":
            few = replace(limits, window=min(self._breaker.trial_offsets, limits.window))
            plans = (plan_batch(epoch_state.busy, [slot], now, few) for slot in free)
            plan = next((found for found in plans if found is not None), None)
        else:
            plan = plan_batch(epoch_state.busy, free, now, limits)
        for slot, some in allowed.items():
            if plan is None or slot not in plan.work:
                # Done, deleted or waiting by now: not among the suspects any more.
                crashes.passed(epoch_state.partitions, slot, some)
        return plan

    def deal_again(self, epoch_state: EpochState, now: float) -> None:
        """Deals partitions with gained or given-up shares to slots that are free.

        Slots at work are asked to give back what others need. The caller sees to it that no slot
        reads by itself: those keep their key ranges until their run ends.
        """
        if not epoch_state.undealt:
            return
        closed = self._closed(epoch_state)
        for partition in epoch_state.undealt:
            partition.deal_again(self._slot_count, now, closed)
        epoch_state.undealt = [p for p in epoch_state.undealt if p.is_undealt]
        asked = {partition.dealer.slot_to_ask(now, closed) for partition in epoch_state.undealt}
        for run in self._runs.of(epoch_state):
            for task in run.active:
                if task.slot in asked and not task.is_stopped:
                    self._requests.ask_back(run, task)

    def _closed(self, epoch_state: EpochState) -> set[int]:
        """Returns the slots that keep what they have until their tasks have ended.

        A slot that is lost, or whose worker has ended, keeps the records that it may work on or
        that may have crashed it. A slot without a channel gives nothing back.
        """
        crashes = self._slots.crashes
        closed = {s for s in range(self._slot_count) if crashes.concern(s)} | set(
            self._slots.barred
        )
        if self._leases.spec is None:
            closed |= self._runs.busy
        if self._has_state:
            # The next slot of a key must see its last change.
            written = epoch_state.committer.outbox.is_written
            closed |= {s for s in range(self._slot_count) if not written(s)}
            tasks = (task for run in self._runs.of(epoch_state) for task in run.unfinished)
            closed |= {task.slot for task in tasks if task.is_keeping}
        return closed
