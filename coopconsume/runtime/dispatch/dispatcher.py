"""Starts the batches and real-time runs of a job on its slots, and asks these for what must move.

A slot is in one batch at a time, unless it has given back all records of a batch except those that
handlers work on; `slot_task` has its states. Batches overlap: slots that have reported get the next
batch while others run. Only the loop calls these methods; results of Spark come in through its
queue, as events, and go to `Reports`.
"""

from __future__ import annotations

import itertools
import math
import time
from typing import TYPE_CHECKING, Final

from coopconsume.group.owned import LEASE
from coopconsume.runtime.dispatch.active_runs import ActiveRuns
from coopconsume.runtime.dispatch.batch import Batches
from coopconsume.runtime.dispatch.batch_planner import BatchPlanner
from coopconsume.runtime.dispatch.circuit_breaker import JobCircuitBreaker
from coopconsume.runtime.dispatch.job_slots import JobSlots
from coopconsume.runtime.dispatch.relief import Relief
from coopconsume.runtime.dispatch.reports import Reports
from coopconsume.runtime.dispatch.run import Run
from coopconsume.runtime.dispatch.slot_leases import SlotLeases
from coopconsume.runtime.dispatch.slot_requests import SlotRequests
from coopconsume.runtime.dispatch.spark_jobs import BATCHES_AT_ONCE, SparkJobs
from coopconsume.runtime.dispatch.work_sizes import WorkSizes
from coopconsume.runtime.events import CallReported, SlotProgressed
from coopconsume.runtime.realtime.runs import RealTimeRuns
from coopconsume.runtime.settle.batch_failures import BatchFailures
from coopconsume.runtime.trace import BatchStarted, BatchWithheld

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from commits.model import TopicPartition
    from coopconsume.group.membership import Membership
    from coopconsume.runtime.dispatch.run import RunKind
    from coopconsume.runtime.epoch_state import EpochState
    from coopconsume.runtime.job_context import JobContext
    from coopconsume.runtime.plan import BatchPlan, Partition

#: Seconds in which Spark ends the Python worker of a task that is to be interrupted: it looks
#: for that every 2 s (spark.python.task.killTimeout), and then gives 2 s more.
_KILL_TIME: Final = 5.0
#: Seconds before the end of a wait for an earlier owner from which on Spark may get the next batch:
#: more than it takes to start one, also the first of a session and on a loaded host.
_EARLY = 3.0


class Dispatcher:
    """Gives slots their batches and real-time runs, and takes work back from them.

    Args:
        context: The job.
        membership: Knows for how long our work may go on after our death.
        counts: Whether what was done in an epoch may still be committed.

    Attributes:
        runs: What Spark works on.
        slots: The slots of the job.
        leases: The channel to slots, and their leases.
        sizes: How many offsets the job hands out and acquires.
        breaker: Whether batches are paused.
        reports: Takes what slots report.
    """

    def __init__(
        self,
        context: JobContext,
        membership: Membership,
        counts: Callable[[EpochState], bool],
    ) -> None:
        options, job_spec, meter = context.options, context.job_spec, context.meter
        post = context.events.post
        self._context = context
        self._membership = membership
        self.breaker = JobCircuitBreaker(options.circuit_breaker, options.circuit_breaker_pause)
        meter.breaker = self.breaker
        self.leases = SlotLeases(
            context.spark, options, context.run_id, lambda report: post(SlotProgressed(report)),
            lambda *call: post(CallReported(*call)), driver_lock=membership.driver_lock,
            real_time=job_spec.real_time is not None,
        )  # fmt: skip
        meter.channel_error = self.leases.error
        failures = BatchFailures()
        self.slots = JobSlots(context, failures)
        self.sizes = WorkSizes(context, self.breaker, self.leases)
        self._jobs = SparkJobs(context, self.leases)
        latest_start = self._jobs.latest_start
        self.runs = ActiveRuns(options, latest_start.starts_within)
        self._requests = SlotRequests(self.leases, self.slots.crashes)
        self._relief = Relief(context.slots, self.runs, self.leases, self._requests)
        self._batches = Batches(context, self.sizes.window, failures)
        self._real_time = RealTimeRuns(context, self.leases, self._requests)
        self._planner = BatchPlanner(
            context, self.runs, self.slots, self.sizes, breaker=self.breaker,
            leases=self.leases, requests=self._requests,
        )  # fmt: skip
        self.reports = Reports(
            self.runs, self.slots, self.leases, self.sizes, breaker=self.breaker,
            latest_start=latest_start, meter=meter, counts=counts,
        )  # fmt: skip
        self._numbers = itertools.count()
        self._batch_at = -math.inf

    # -- what is known of the work

    @property
    def is_partly_busy(self) -> bool:
        """Whether some slots are at work and some are not."""
        return 0 < len(self.runs.busy) < self._context.slots

    @property
    def next_trigger(self) -> float:
        """Seconds until the trigger lets a batch start."""
        return max(0.0, self._batch_at + self._context.job_spec.interval - time.monotonic())

    @property
    def may_leave(self) -> bool:
        """Whether slots can give up part of what they have or get more, and go on with the rest."""
        return self.leases.spec is not None

    def ahead(self, epoch_state: EpochState) -> dict[TopicPartition, int]:
        """Offsets of partitions that a job with chunks is to have ahead; empty in batches."""
        return self.sizes.ahead(epoch_state) if self._live(epoch_state, time.monotonic()) else {}

    def _live(self, epoch_state: EpochState, now: float) -> dict[int, Run]:
        """Returns the slots that read by themselves, each with its run."""
        return self._real_time.live(self.runs.of(epoch_state), now)

    def unsure(self, epoch_state: EpochState) -> set[int]:
        """Returns slots with unknown records at work; slots that keep records have named them."""
        return set(self.slots.barred) | self.runs.unsure(epoch_state)

    def unsure_of(self, partitions: Iterable[Partition]) -> set[int]:
        """Slots that may be at work on any record of shares that are given up."""
        return set(self.slots.barred) | {
            slot
            for partition in partitions
            for slot, cursor in partition.cursors.items()
            if cursor.leaving.may_start
        }

    def may_run_for(self, epoch_state: EpochState) -> float:
        """Returns for how many seconds slots of an epoch may still be at work."""
        now = time.monotonic()
        left = [at - now for at in self.slots.barred.values()]
        left += [partition.lanes.may_run_until() - now for partition in epoch_state.partitions]
        return max([self.runs.life_of(self.runs.of(epoch_state)), *left])

    # -- what slots are asked for

    def renew_leases(self, epoch_state: EpochState | None) -> None:
        """Renews the leases of the slots that work in this epoch, and of no other."""
        slots = {at: run.begins_at for run in self.runs.of(epoch_state) for at in run.connections}
        given_up = {
            at: run.epoch_state.assignment
            for run in self.runs.by_number.values()
            if run.epoch_state is not epoch_state
            for at in run.connections
        }
        assignment = epoch_state.assignment if epoch_state else None
        self.leases.renew(assignment, slots, given_up)

    def stop(self, epoch_state: EpochState | None) -> None:
        """Stops slots that have a channel: they start no more records; running handlers end.

        They name the records that run: if a handler outlasts the wait for it, only its record is
        in doubt. Slots that have not begun never begin, and nobody waits for them.
        """
        for run in self.runs.of(epoch_state):
            self._requests.stop(run)
        self.interrupt_overdue()

    def leave(
        self, epoch_state: EpochState, partitions: Sequence[Partition], *, is_late: bool = False
    ) -> None:
        """Asks slots to start no more records of the key ranges that are given up."""
        for run in self.runs.of(epoch_state):
            self._requests.leave(run, partitions, is_late=is_late)
        self.interrupt_overdue()

    def drain(self, epoch_state: EpochState | None) -> None:
        """Has real-time slots read nothing more; what they have read is handled."""
        for run in self.runs.of(epoch_state):
            if run.is_real_time:
                self._real_time.drain(run)

    def give_up(self, epoch_state: EpochState) -> None:
        """Gives up what runs: it does not count any more, and is over when the life of a batch is.

        A task may not even have begun: it waits for a free slot, a cold JVM, or a broker. Those
        who get the shares wait for the life of a batch, and begin.
        """
        for run in self.runs.of(epoch_state):
            if run.unfinished:
                spare = LEASE if run.channel is None else 0.0
                rest = self.runs.life_of([run], renewed=True) + spare - _KILL_TIME
                run.interrupt_at = time.monotonic() + max(0.0, rest)

    def interrupt(self) -> None:
        """Has Spark end what runs."""
        self._jobs.interrupt_all(self.runs.by_number.values())

    def interrupt_overdue(self) -> None:
        """Has Spark end what was given up, once it is due, and what never starts anything."""
        self._jobs.interrupt_overdue(self.runs.by_number.values())

    def end_epoch(self) -> None:
        """Forgets what is known of partitions: the epoch has ended, and its partitions with it."""
        self.slots.crashes.forget()
        self.sizes.forget()

    def close(self) -> None:
        """Starts nothing more."""
        self.leases.close()
        self._jobs.close()

    # -- what slots are given

    def launch(self, epoch_state: EpochState, *, stopping: bool) -> None:
        """Gives free slots a batch, if there is work and a batch is due."""
        # Looked at also while slots are long at work: what is lost must not go on.
        if self.runs.of(epoch_state) and not self._is_ours(epoch_state):
            return
        now = time.monotonic()
        self.slots.end_pauses(now)
        self._watch_real_time(epoch_state, now, stopping=stopping)
        too_soon = stopping or now - self._batch_at < self._context.job_spec.interval
        on_trial = any(run.trial for run in self.runs.by_number.values())
        if too_soon or on_trial or not self.breaker.may_start(now):
            return
        self.slots.crashes.drop_settled(epoch_state.partitions)
        self._relief.ask(epoch_state, now)
        self._deal_again(epoch_state, now)
        batches = [run for run in self.runs.of(epoch_state) if not run.is_real_time]
        if any(_comes_back(run, now) for run in batches):
            return
        free = self._planner.free_slots(epoch_state)
        if not free or not self._is_ours(epoch_state) or not self._may_work(epoch_state):
            return
        young = sum(run.is_young(now) for run in batches)
        if self._begins_real_time(epoch_state, free, now) or young >= BATCHES_AT_ONCE:
            return
        plan = self._planner.plan(epoch_state, free, now, self.sizes.limits)
        if plan is not None:
            self._start(self._batches, epoch_state, plan, now)
        else:
            self._start_early(epoch_state, free, now)

    def _deal_again(self, epoch_state: EpochState, now: float) -> None:
        if epoch_state.undealt and not self._live(epoch_state, now):
            self._planner.deal_again(epoch_state, now)

    def _start_early(self, epoch_state: EpochState, free: Sequence[int], now: float) -> None:
        """Has Spark start a batch whose slots get their leases once no earlier owner is at work.

        Only if all key ranges of the job wait for that, so that no others wait for this batch.
        """
        if self.runs.by_number or self.breaker.state != "closed" or self.leases.spec is None:
            return
        starts_at = min((partition.starts_at(now) for partition in epoch_state.ours), default=now)
        if not now < starts_at <= now + _EARLY:
            return
        self._deal_again(epoch_state, starts_at)
        plan = self._planner.plan(epoch_state, free, starts_at, self.sizes.limits)
        if plan is not None:
            self._start(self._batches, epoch_state, plan, now, begins_at=starts_at)

    def _watch_real_time(self, epoch_state: EpochState, now: float, *, stopping: bool) -> None:
        """Ends real-time slots that need batches; hands out chunks to the others."""
        runs, is_open = self.runs.of(epoch_state), self.breaker.state == "closed"
        self._real_time.watch(epoch_state, runs, now, is_open=is_open)
        live = self._live(epoch_state, now)
        self._context.meter.mode = "realTime" if live else "batch"
        if not stopping:
            self.sizes.hand_out(live, now)

    def _begins_real_time(self, epoch_state: EpochState, free: Sequence[int], now: float) -> bool:
        """Begins a real-time run of the free slots that may read by themselves, if there are any.

        A slot whose worker has crashed shows in batches which record is at fault.
        """
        if self.breaker.state != "closed":
            return False
        slots = [slot for slot in free if not self.slots.crashes.concern(slot)]
        plan = self._real_time.plan(epoch_state, self.runs.of(epoch_state), slots, now)
        if plan is not None:
            self._start(self._real_time, epoch_state, plan, now)
        return plan is not None

    def _start(
        self, kind: RunKind, epoch_state: EpochState, plan: BatchPlan, now: float, *,
        begins_at: float = 0.0,
    ) -> None:  # fmt: skip
        """Gives a batch or a real-time run to Spark."""
        number, run_id = next(self._numbers), self._context.run_id
        run = Run(
            number, kind, plan, epoch_state,
            started=now, begins_at=max(now, begins_at), tag=f"coopconsume-{run_id}-{number}",
            run_id=run_id, trial=self.breaker.state == "trial",
            streaks=dict(self.slots.carryover.streaks),
            latest_start=self._jobs.latest_start.of_batch(), title=self._context.meter.title,
            channel=self.leases.spec,
        )  # fmt: skip
        state = self._context.job_spec.state
        run.state = None if state is None else state.spec(run.key_ranges)
        run.gates = self.slots.carryover.gates(plan.slots, run.names, now)
        kind.begins(run)
        self.runs.by_number[number] = run
        self._batch_at = now
        self._context.meter.launched(number, plan)
        self._context.trace.write(BatchStarted(number, now, plan))
        self.renew_leases(epoch_state)
        self._jobs.start(run)

    def _may_work(self, epoch_state: EpochState) -> bool:
        """Whether the next owners would wait long enough for what a new batch may leave behind."""
        may_work = self._membership.may_work_for(epoch_state.assignment, self.leases.lease)
        if not may_work:
            self._context.trace.write(BatchWithheld(is_confirmed=True))
        return may_work

    def _is_ours(self, epoch_state: EpochState) -> bool:
        """Whether the log says that the shares are still ours; it must not be long ago."""
        is_ours = epoch_state.committer.watch.is_confirmed(time.monotonic())
        if not is_ours:
            self._context.trace.write(BatchWithheld(is_confirmed=False))
        return is_ours


def _comes_back(run: Run, now: float) -> bool:
    """Whether slots of a batch come back one by one: most are to go into one next batch.

    They do so where the rows of all of them end, and where the time of all of them is over.
    """
    since, taken = run.first_timeout or run.first_report, now - run.begins_at
    if since is None or not run.active:
        return False
    return now - since < min(2.0, 0.1 + taken / 2)
