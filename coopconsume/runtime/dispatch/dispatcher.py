"""Starts the Spark jobs of batches on a job's slots, and takes in the reports of the slots.

A slot is in one batch at a time, unless it has given back all records of a batch except those that
handlers work on. Batches overlap: slots that have reported get the next batch while others run.
Only the loop calls these methods; results of Spark come in through its queue.
"""

from __future__ import annotations

import itertools
import logging
import math
import pickle
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from coopconsume.classic import interrupt, open_mailbox, why_ended
from coopconsume.errors import HandlerFailed, HandlerNotOpened, SessionUnusable, SlotFailed
from coopconsume.group.owned import LEASE
from coopconsume.group.settings import life_of
from coopconsume.kafka.security.access import refused_by_spark
from coopconsume.runtime.dispatch.batch import Running, run_batch
from coopconsume.runtime.dispatch.circuit_breaker import CircuitBreaker
from coopconsume.runtime.dispatch.daemon_pool import DaemonPool
from coopconsume.runtime.dispatch.latest_start import LatestStart
from coopconsume.runtime.dispatch.relief import end_kept, give_back, kept_progressed, slow_slots
from coopconsume.runtime.dispatch.slot_leases import SlotLeases
from coopconsume.runtime.dispatch.slot_requests import SlotRequests
from coopconsume.runtime.events import BatchEnded, CallReported, SlotProgressed, SlotReported
from coopconsume.runtime.plan import Limits, plan_batch
from coopconsume.runtime.plan.chunk_sizes import ChunkSizes
from coopconsume.runtime.plan.reads import MAX_READS, MERGE_GAP
from coopconsume.runtime.plan.slices import deal_stock, undealt_of
from coopconsume.runtime.plan.window import Window
from coopconsume.runtime.realtime.live_chunks import LiveChunks
from coopconsume.runtime.realtime.run_job import run_slots
from coopconsume.runtime.realtime.runs import RealTimeRuns
from coopconsume.runtime.settle.batch_failures import BatchFailures, reason
from coopconsume.runtime.settle.carryover import SlotCarryover
from coopconsume.runtime.settle.crashes import AtWork, Crashes
from coopconsume.runtime.settle.failure_log import FailureLog
from coopconsume.runtime.settle.lost_slots import log_ended_worker, log_lost_slot
from coopconsume.runtime.trace import BatchStarted, BatchWithheld, Trace
from coopconsume.worker.channel.wire import Frame
from coopconsume.worker.handler_life import shown_handler
from coopconsume.worker.report import PartitionReport, SlotReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyspark.sql import SparkSession

    from commits.model import TopicPartition
    from coopconsume.group.membership import Membership
    from coopconsume.options import Options
    from coopconsume.runtime.epoch_state import EpochState
    from coopconsume.runtime.events import JobEvent
    from coopconsume.runtime.job_spec import JobSpec
    from coopconsume.runtime.plan import BatchPlan, Partition
    from coopconsume.runtime.status.progress import Meter

log = logging.getLogger(__name__)

#: Batches at once in which no slot has reported yet; those that wait for slow slots do not count.
BATCHES_AT_ONCE = 2
#: Batches that fail in a row until the job ends; the second one may begin at once.
_FAILED_BATCHES = 4
#: Seconds in which Spark ends the Python worker of a task that is to be interrupted: it looks
#: for that every 2 s (spark.python.task.killTimeout), and then gives 2 s more.
_KILL_TIME = 5.0
_INTERRUPT_EVERY = 1.0
_WARN_EVERY = 10.0
#: Seconds before the end of a wait for an earlier owner from which on Spark may get the next batch:
#: more than it takes to start one, also the first of a session and on a loaded host.
_EARLY = 3.0
#: Sizes of all slices: one is at work, one is ahead of it, and slots may have become slower.
_MOST_HELD = 3
#: Seconds until a slot that has failed gets the next batch; for each failed batch in a row so many
#: times longer: what makes it fail may take time to go away.
_PAUSE, _LONGER = 2.0, 4.0


class Dispatcher:
    """Gives slots their batches, and takes in what they report.

    Args:
        spark: The session.
        options: Of the consumer.
        job_spec: What to do.
        slots: Spark tasks side by side.
        meter: Takes note of what happens, for progress.
        run_id: Of this run of the job.
        post: Puts an event into the loop's queue.
        counts: Whether what was done in an epoch may still be committed.
        membership: Knows for how long our work may go on after our death.
        trace: Takes each batch that starts.

    Attributes:
        running: Batches that Spark works on, by number.
        barred: Until when, on the monotonic clock, slots may be at work on what is lost.
        failing: Slots that have failed, and leave nothing in doubt: until when they get no batch,
            and why they have failed.
        window: How many offsets a batch has.
        breaker: Whether batches are paused.
    """

    def __init__(
        self,
        spark: SparkSession,
        options: Options,
        job_spec: JobSpec,
        slots: int,
        meter: Meter,
        run_id: str,
        post: Callable[[JobEvent], None],
        counts: Callable[[EpochState], bool],
        membership: Membership,
        trace: Trace | None = None,
    ) -> None:
        self.running: dict[int, Running] = {}
        self.barred: dict[int, float] = {}
        self.failing: dict[int, tuple[float, str]] = {}
        self.window = Window(options, slots)
        self.breaker = CircuitBreaker(options.circuit_breaker, options.circuit_breaker_pause)
        meter.breaker = self.breaker
        self._spark = spark
        self._options = options
        self._job_spec = job_spec
        self._trace = trace or Trace()
        self._slots = slots
        self._meter = meter
        self._run_id = run_id
        self._post = post
        self._counts = counts
        self._send = open_mailbox(spark, lambda data: post(SlotReported(_report(data))))
        # Without a mailbox it is Spark Connect, which goes on without its client.
        self._sizes = (
            ChunkSizes(
                slots, job_spec.concurrency, options.batch_time, options.max_offsets_per_trigger
            )
            if options.uses_chunks
            else None
        )
        self._latest_start = LatestStart(slots, is_limited=self._send is None)
        self._membership = membership
        self.leases = SlotLeases(
            spark, options, run_id, lambda report: post(SlotProgressed(report)),
            lambda *call: post(CallReported(*call)), driver_lock=membership.driver_lock,
            real_time=job_spec.real_time is not None,
        )  # fmt: skip
        meter.channel_error = self.leases.error
        self._crashes = Crashes(job_spec.policy.max_attempts)
        self._requests = SlotRequests(self.leases, self._crashes)
        self._real_time = RealTimeRuns(job_spec.real_time, options, self.leases, self._requests)
        self._chunks = (
            None
            if self._sizes is None or job_spec.real_time is None
            else LiveChunks(self._sizes, slots, job_spec.concurrency, self.leases)
        )
        self._numbers = itertools.count()
        self._busy: dict[int, int] = {}
        self._batch_at = -math.inf
        self._turn = 0
        #: When it was last logged why slots fail, by the reason.
        self._warned: dict[str, float] = {}
        self._failures = BatchFailures()
        #: How often in a row a slot could not open its handler.
        self._unopened: dict[int, int] = {}
        self._failure_log = FailureLog()
        self._carryover = SlotCarryover()
        # Every slot may be a straggler in a batch of its own, and keep a record of another one.
        self._batches = DaemonPool(2 * slots + BATCHES_AT_ONCE, "coopconsume-batch")

    @property
    def is_partly_busy(self) -> bool:
        """Whether some slots are at work and some are not."""
        return bool(self._busy) and len(self._busy) < self._slots

    def life_of(self, running: Iterable[Running], *, renewed: bool = False) -> float:
        """Returns after how many seconds no handler of some batches runs any more.

        Args:
            running: The batches.
            renewed: Whether their slots were asked to end, and their handlers have their time.
                Otherwise nothing is heard of them, nor do they hear of this process.
        """
        return max([self._life_of(one, renewed=renewed) for one in running], default=0.0)

    def _life_of(self, running: Running, *, renewed: bool) -> float:
        if running.channel is None:
            return self._options.batch_life + self._latest_start.starts_within
        if running.epoch_state.assignment.fails_stop and not renewed:
            return life_of(self._options, running.channel.lease)
        return running.channel.lease + self._options.handler_timeout

    def of(self, epoch_state: EpochState | None) -> list[Running]:
        """Returns the batches of an epoch; those of an earlier one only keep their slots busy."""
        return [r for r in self.running.values() if r.epoch_state is epoch_state]

    def at_work(self, epoch_state: EpochState) -> set[int]:
        """Returns the slots of an epoch that are waited for.

        Those that were stopped before they could start a record are not: Spark may plan their
        batch for minutes, while no broker answers.
        """
        batches = self.of(epoch_state)
        return {slot for one in batches for slot in one.waiting - one.withdrawn}

    def is_at_work(self, epoch_state: EpochState) -> bool:
        """Whether a batch of an epoch is waited for, see `at_work`."""
        return any(not running.is_withdrawn for running in self.of(epoch_state))

    @property
    def next_trigger(self) -> float:
        """Seconds until the trigger lets a batch start."""
        return max(0.0, self._batch_at + self._job_spec.interval - time.monotonic())

    def demand(self, epoch_state: EpochState) -> int:
        """Returns how many offsets a job with chunks is to have for its slots; 0 if it pauses."""
        if self._sizes is None or self.breaker.state != "closed":
            return 0
        window = self._window_of(epoch_state)
        return self._sizes.total(window) if self._chunks is None else self._chunks.demand(window)

    def _window_of(self, epoch_state: EpochState) -> int:
        """Returns how many offsets a batch may span while no other member needs any, else 0."""
        return self.window.offsets if epoch_state.committer.is_only_member else 0

    def holds_too_much(self, epoch_state: EpochState) -> bool:
        """Whether a job with chunks holds more than its slots are about to handle.

        While it was the only member, that kept nothing from others.
        """
        most = 0 if self._sizes is None else _MOST_HELD * self._sizes.total()
        return 0 < most < epoch_state.committer.acquired

    def ahead(self, epoch_state: EpochState) -> dict[TopicPartition, int]:
        """Offsets of partitions that a job with chunks is to have ahead; empty in batches."""
        if self._chunks is None or not self._live(epoch_state, time.monotonic()):
            return {}
        return self._chunks.ahead(epoch_state.ours)

    def _live(self, epoch_state: EpochState, now: float) -> dict[int, Running]:
        """Returns the slots that read by themselves, each with its run."""
        return self._real_time.live(self.of(epoch_state), now)

    def unsure(self, epoch_state: EpochState) -> set[int]:
        """Returns slots with unknown records at work; slots that keep records have named them."""
        at_work = (running.active - running.withdrawn for running in self.of(epoch_state))
        return set(self.barred).union(*at_work)

    def forget_crashes(self) -> None:
        """Forgets what is known of crashes: the epoch has ended, and its partitions with it."""
        self._crashes.forget()
        if self._chunks is not None:
            self._chunks.forget()

    def interrupt(self) -> None:
        """Has Spark end what runs."""
        for running in self.running.values():
            running.interrupt_at = -math.inf
        self.interrupt_overdue()

    def may_run_for(self, epoch_state: EpochState) -> float:
        """Returns for how many seconds slots of an epoch may still be at work."""
        now = time.monotonic()
        left = [at - now for at in self.barred.values()]
        left += [partition.lanes.may_run_until() - now for partition in epoch_state.partitions]
        return max([self.life_of(self.of(epoch_state)), *left])

    def give_up(self, epoch_state: EpochState) -> None:
        """Gives up what runs: it does not count any more, and is over when the life of a batch is.

        A task may not even have begun: it waits for a free slot, a cold JVM, or a broker. Those
        who get the shares wait for the life of a batch, and begin.
        """
        for running in self.of(epoch_state):
            if running.waiting:
                spare = LEASE if running.channel is None else 0.0
                rest = self.life_of([running], renewed=True) + spare - _KILL_TIME
                running.interrupt_at = time.monotonic() + max(0.0, rest)

    def renew_leases(self, epoch_state: EpochState | None) -> None:
        """Renews the leases of the slots that work in this epoch, and of no other."""
        slots = {at: one.begins_at for one in self.of(epoch_state) for at in one.connections}
        given_up = {
            at: one.epoch_state.assignment
            for one in self.running.values()
            if one.epoch_state is not epoch_state
            for at in one.connections
        }
        assignment = epoch_state.assignment if epoch_state else None
        self.leases.renew(assignment, slots, given_up)

    def stop(self, epoch_state: EpochState | None) -> None:
        """Stops slots that have a channel: they start no more records; running handlers end.

        They name the records that run: if a handler outlasts the wait for it, only its record is
        in doubt. Slots that have not begun never begin, and nobody waits for them.
        """
        for running in self.of(epoch_state):
            self._requests.stop(running)
        self.interrupt_overdue()

    @property
    def may_leave(self) -> bool:
        """Whether slots can give up part of what they have or get more, and go on with the rest."""
        return self.leases.spec is not None

    def unsure_of(self, partitions: Iterable[Partition]) -> set[int]:
        """Slots that may be at work on any record of shares that are given up."""
        return set(self.barred) | {
            slot
            for partition in partitions
            for slot, cursor in partition.cursors.items()
            if cursor.may_start_leaving
        }

    def leave(
        self, epoch_state: EpochState, partitions: Sequence[Partition], *, is_late: bool = False
    ) -> None:
        """Asks slots to start no more records of the key ranges that are given up."""
        for running in self.of(epoch_state):
            self._requests.leave(running, partitions, is_late=is_late)
        self.interrupt_overdue()

    def _deal_again(self, epoch_state: EpochState, now: float) -> None:
        """Deals partitions with gained or given-up shares to slots that are free.

        A slot that is lost, or whose worker has ended, keeps the records that it may work on or
        that may have crashed it. A slot without a channel keeps what it has until it has ended, and
        so do the slots of a real-time run.
        """
        if not epoch_state.undealt or self._live(epoch_state, now):
            return
        closed = {s for s in range(self._slots) if s in self.barred or self._crashes.concern(s)}
        if self.leases.spec is None:
            closed |= self._busy.keys()  # They give nothing back.
        if self._job_spec.state is not None:
            # The next slot of a key must see its last change.
            written = epoch_state.committer.outbox.is_written
            closed |= {s for s in range(self._slots) if not written(s)}
            closed |= {s for one in self.of(epoch_state) for s in one.kept if s in one.waiting}
        for partition in epoch_state.undealt:
            partition.deal_again(self._slots, now, closed)
        epoch_state.undealt = [p for p in epoch_state.undealt if p.is_undealt]
        found = {partition.dealer.slot_to_ask(now, closed) for partition in epoch_state.undealt}
        asked = {slot for slot in found if slot is not None}
        for running in self.of(epoch_state):
            for slot in sorted(asked & (running.active - running.stopped)):
                self._requests.ask_back(running, slot)

    def drain(self, epoch_state: EpochState | None) -> None:
        """Has real-time slots read nothing more; what they have read is handled."""
        for running in self.of(epoch_state):
            if running.is_real_time:
                self._real_time.drain(running)

    def interrupt_overdue(self) -> None:
        """Has Spark end what was given up, once it is due, and what never starts anything.

        Again and again: a batch that Spark still plans has no job yet that could be interrupted.
        """
        now = time.monotonic()
        for running in self.running.values():
            if running.is_withdrawn and running.interrupt_at is None:
                running.interrupt_at = now
            if running.interrupt_at is not None and now >= running.interrupt_at:
                running.interrupt_at = now + _INTERRUPT_EVERY
                try:
                    interrupt(self._spark, running.tag)
                except Exception:
                    log.debug("could not interrupt batch %d", running.number, exc_info=True)

    def close(self) -> None:
        """Starts nothing more."""
        self.leases.close()
        self._batches.close()

    def launch(self, epoch_state: EpochState, *, stopping: bool) -> None:
        """Gives free slots a batch, if there is work and a batch is due."""
        # Looked at also while slots are long at work: what is lost must not go on.
        if self.of(epoch_state) and not self._is_ours(epoch_state):
            return
        now = time.monotonic()
        self.barred = {slot: at for slot, at in self.barred.items() if at > now}
        self.failing = {slot: one for slot, one in self.failing.items() if one[0] > now}
        self._watch_real_time(epoch_state, now, stopping=stopping)
        too_soon = stopping or now - self._batch_at < self._job_spec.interval
        on_trial = any(r.trial for r in self.running.values())
        if too_soon or on_trial or not self.breaker.may_start(now):
            return
        self._crashes.drop_settled(epoch_state.partitions)
        self._relieve(epoch_state, now)
        self._deal_again(epoch_state, now)
        young = 0
        for running in [one for one in self.of(epoch_state) if not one.is_real_time]:
            since, taken = running.first_report, now - running.begins_at
            if since is None:
                young += 1
            elif running.active and now - since < min(2.0, 0.1 + taken / 2):
                # Slots come back one by one: wait a moment, so that most go into one batch.
                return
        free = self._free_slots(epoch_state)
        handlers = self._slots * self._job_spec.concurrency
        limits = Limits(self.window.offsets, self._options.max_pending, handlers)
        if not free or not self._is_ours(epoch_state) or not self._may_work(epoch_state):
            return
        if self._begins_real_time(epoch_state, free, now) or young >= BATCHES_AT_ONCE:
            return
        plan = self._plan(epoch_state, free, now, limits)
        if plan is not None:
            self._start(epoch_state, plan, now, trial=self.breaker.state == "trial")
        else:
            self._start_early(epoch_state, free, now, limits)

    def _start_early(
        self, epoch_state: EpochState, free: Sequence[int], now: float, limits: Limits
    ) -> None:
        """Has Spark start a batch whose slots get their leases once no earlier owner is at work.

        Only if all key ranges of the job wait for that, so that no others wait for this batch.
        """
        if self.running or self.breaker.state != "closed" or self.leases.spec is None:
            return
        starts_at = min((partition.starts_at(now) for partition in epoch_state.ours), default=now)
        if not now < starts_at <= now + _EARLY:
            return
        self._deal_again(epoch_state, starts_at)
        plan = self._plan(epoch_state, free, starts_at, limits)
        if plan is not None:
            self._start(epoch_state, plan, now, begins_at=starts_at)

    def _watch_real_time(self, epoch_state: EpochState, now: float, *, stopping: bool) -> None:
        """Ends real-time slots that need batches; hands out chunks to the others."""
        batches, is_open = self.of(epoch_state), self.breaker.state == "closed"
        self._real_time.watch(epoch_state, batches, now, is_open=is_open)
        live = self._live(epoch_state, now)
        self._meter.mode = "realTime" if live else "batch"
        if self._chunks is not None and not stopping:
            self._chunks.hand_out(live, now)

    def _begins_real_time(self, epoch_state: EpochState, free: Sequence[int], now: float) -> bool:
        """Begins a real-time run of the free slots that may read by themselves, if there are any.

        A slot whose worker has crashed shows in batches which record is at fault.
        """
        if self.breaker.state != "closed":
            return False
        slots = [slot for slot in free if not self._crashes.concern(slot)]
        plan = self._real_time.plan(epoch_state, self.of(epoch_state), slots, now)
        if plan is not None:
            self._start(epoch_state, plan, now, is_real_time=True)
        return plan is not None

    def _start(
        self, epoch_state: EpochState, plan: BatchPlan, now: float, *, trial: bool = False,
        is_real_time: bool = False, begins_at: float = 0.0,
    ) -> None:  # fmt: skip
        """Gives a batch to Spark."""
        number = next(self._numbers)
        tag = f"coopconsume-{self._run_id}-{number}"
        running = Running(
            number, plan, set(plan.slots), now, max(now, begins_at), tag, epoch_state,
            self._run_id, trial, dict(self._carryover.streaks),
        )  # fmt: skip
        running.latest_start = self._latest_start.of_batch()
        running.title = self._meter.title
        running.channel = self.leases.spec
        state = self._job_spec.state
        running.state = None if state is None else state.spec(running.key_ranges)
        running.gates = self._carryover.gates(plan.slots, running.names, now)
        if is_real_time:
            self._real_time.begins(running)
        self.running[number] = running
        self._busy |= dict.fromkeys(plan.slots, number)
        self._batch_at = now
        self._meter.launched(number, plan)
        self._trace.write(BatchStarted(number, now, plan))
        self.renew_leases(epoch_state)
        self._batches.submit(self._run_batch, running)

    def _tasks(self) -> int:
        """Tasks that have not ended, those included that keep records of a slot."""
        return sum(len(running.waiting) for running in self.running.values())

    def _free_slots(self, epoch_state: EpochState) -> list[int]:
        """Slots that may get a batch, so that no more tasks run than there are slots.

        With state a slot waits until its changes are written: its next records must see them.

        While tasks keep records, there are more free slots than tasks to start. They take turns, as
        any of them may have nothing to do.
        """
        if epoch_state.committer.awaits_chunks:
            return []
        free = [
            s
            for s in range(self._slots)
            if s not in {*self._busy, *self.barred, *self.failing}
            and epoch_state.committer.outbox.is_written(s)
        ]
        tasks = self._slots - self._tasks()
        if tasks >= len(free):
            return free
        self._turn += 1
        turn = self._turn % len(free)
        return sorted((free[turn:] + free[:turn])[: max(0, tasks)])

    def _plan(
        self, epoch_state: EpochState, free: Sequence[int], now: float, limits: Limits
    ) -> BatchPlan | None:
        """Returns the next batch; a slot whose workers keep crashing gets part of its work."""
        allowed = self._crashes.confine(epoch_state.partitions, free)
        if self._sizes is not None:
            most = self._window_of(epoch_state)
            sizes = self._sizes.of_batch(free, undealt_of(epoch_state.busy), most)
            deal_stock(epoch_state.busy, free, sizes, now)
            # Slices are as large as is good; reads may have to pass over what lies between.
            window = 2 * self._sizes.total(most) + MAX_READS * MERGE_GAP
            limits = replace(limits, window=window)
        if self.breaker.state == "trial":
            window = min(self.breaker.trial_offsets, limits.window)
            few = replace(limits, window=window)
            plans = (plan_batch(epoch_state.busy, [slot], now, few) for slot in free)
            plan = next((found for found in plans if found is not None), None)
        else:
            plan = plan_batch(epoch_state.busy, free, now, limits)
        for slot, some in allowed.items():
            if plan is None or slot not in plan.work:
                # Done, deleted or waiting by now: not among the suspects any more.
                self._crashes.passed(epoch_state.partitions, slot, some)
        return plan

    def _relieve(self, epoch_state: EpochState, now: float) -> None:
        """Asks slots whose handlers are slow for the records that they have not started."""
        busy = self._tasks()
        for running in self.of(epoch_state):
            for slot in running.active - running.met_at.keys():
                if self.leases.has_met((running.number, slot)):
                    running.met_at[slot] = now
        kept = sum(len(running.waiting & running.kept.keys()) for running in self.running.values())
        for running, slot in slow_slots(self.of(epoch_state), now, has_idle=busy < self._slots):
            # A task that keeps a record keeps its core: one must be left to go on with.
            if kept + 1 < self._slots and self._requests.may_relieve(running, slot):
                running.heard_at[slot] = now
                self.leases.send((running.number, slot), Frame.RELIEVE)
                return

    def _may_work(self, epoch_state: EpochState) -> bool:
        """Whether the next owners would wait long enough for what a new batch may leave behind."""
        may_work = self._membership.may_work_for(epoch_state.assignment, self.leases.lease)
        if not may_work:
            self._trace.write(BatchWithheld(is_confirmed=True))
        return may_work

    def _is_ours(self, epoch_state: EpochState) -> bool:
        """Whether the log says that the shares are still ours; it must not be long ago."""
        is_ours = epoch_state.committer.is_confirmed()
        if not is_ours:
            self._trace.write(BatchWithheld(is_confirmed=False))
        return is_ours

    def _run_batch(self, running: Running) -> None:
        """In a thread of its own: one Spark job."""
        slices = self._options.min_partitions or self._slots
        try:
            rows = run_slots(
                self._spark, self._options, self._job_spec, running, self._slots, self._send
            ) if running.is_real_time else run_batch(
                self._spark, self._options, self._job_spec, running, running.epoch_state.partitions,
                slices, self._slots, self._send,
            )  # fmt: skip
        except BaseException as error:  # noqa: BLE001 - reported to the loop
            self._post(
                BatchEnded(running.number, error=error, unconnected=self._unconnected(running))
            )
        else:
            reports = {slot: _report(data) if data else None for slot, data in rows.items()}
            self._post(BatchEnded(running.number, reports))

    def _unconnected(self, running: Running) -> frozenset[int]:
        """Stops the slots of a failed batch; returns those that never connected.

        A slot with a channel starts nothing before it has connected, and nothing without a lease.
        So it does not matter where the job failed, nor whether tasks of it still run or start: an
        exception does not say whether all tasks have ended, and Spark's status lags behind.
        """
        if running.channel is None:
            return frozenset()
        at = {(running.number, slot) for slot in running.plan.slots}
        return frozenset(slot for _, slot in self.leases.stop(at))

    def _cannot_have_begun(self, running: Running, slot: int) -> bool:
        """Stops a slot whose first attempt left nothing; whether that has started no record."""
        at = running.number, slot
        return running.channel is not None and at in self.leases.stop({at})

    def reported(self, report: SlotReport) -> None:
        """Takes the final report of a slot."""
        self._latest_start.heard(report.end.clock)
        running = self.running.get(report.batch)
        if running is None or report.slot not in running.waiting:
            return  # A second run of a task, or a batch that was given up.
        for earlier in report.end.unacknowledged:
            self.progressed(earlier)
        running.waiting.discard(report.slot)
        if running.channel is not None and not (report.end.unknown or report.end.crashed):
            self.leases.slot_ended(report.end.channel_error)
            self._meter.channel_error = self.leases.error
        self._look_at_opening(running, report)
        if report.end.state_error or report.end.error:
            self._slot_failed(running, report.slot, report.end.state_error or report.end.error)
            running.failure = report.end.error or running.failure
        if report.slot not in running.kept:
            self._carryover.closed(report.slot, report.gates, running.names, time.monotonic())
        if not self._counts(running.epoch_state):
            self._free(running, report.slot)
        elif report.end.unknown and self._cannot_have_begun(running, report.slot):
            why = "its task failed before it began, see the log of its executor"
            self._slot_failed(running, report.slot, why)
            running.failure = why
            self._withdrawn(running, report.slot)
        elif report.end.unknown:
            self._lost(running, report.slot, time.monotonic())
        else:
            self._ended(running, report, time.monotonic())

    def _slot_failed(self, running: Running, slot: int, why: str) -> None:
        """Notes that a slot has failed, and that nothing of it runs any more."""
        now, place = time.monotonic(), f"slot {slot}"
        if self._warned.get(why, -math.inf) + _WARN_EVERY < now:
            self._warned = {one: at for one, at in self._warned.items() if at + _WARN_EVERY > now}
            self._warned[why] = now
            log.warning("%s of batch %d has failed: %s", place, running.number, why)
        self._meter.message = f"{place} has failed: {why}"
        self.failing[slot] = now + _PAUSE * _LONGER**self._failures.count, why

    def _look_at_opening(self, running: Running, report: SlotReport) -> None:
        """Counts how often in a row a slot could not open its handler.

        Raises:
            HandlerNotOpened: It is as often as batches may fail.
        """
        slot, end = report.slot, report.end
        if not end.open_error:
            if not (end.unknown or end.crashed or end.channel_error):
                self._unopened.pop(slot, None)
            return
        failures = self._unopened[slot] = self._unopened.get(slot, 0) + 1
        if failures >= _FAILED_BATCHES:
            raise HandlerNotOpened(shown_handler(self._job_spec.handler), end.open_error)
        why = f"its handler cannot be opened: {end.open_error}"
        self._slot_failed(running, slot, why)
        self.failing[slot] = time.monotonic() + _PAUSE * _LONGER ** (failures - 1), why

    def _free(self, running: Running, slot: int) -> None:
        """Frees a slot for another batch, unless it has one already."""
        if self._busy.get(slot) == running.number:
            del self._busy[slot]

    def _ended(self, running: Running, report: SlotReport, now: float) -> None:
        """Takes the final report of a slot."""
        running.first_report = running.first_report or now
        handled = report.stats.handled + running.handled_before.get(report.slot, 0)
        running.handled += report.stats.handled
        running.filtered += report.stats.filtered
        running.rate += handled / max(report.stats.busy, 0.001)
        if self._sizes is not None and report.slot not in running.kept and not report.end.crashed:
            self._sizes.reported(report, handled)
        running.timed_out |= report.end.timed_out and not (report.end.tripped or report.end.stopped)
        if report.end.stopped or report.end.channel_error:
            running.stopped.add(report.slot)
        self._free(running, report.slot)
        self._judge(running, report, now)
        self._take_in(running, report, now)
        if not report.end.crashed and self._crashes.concern(report.slot):
            given = running.given(report.slot)
            self._crashes.passed(running.epoch_state.partitions, report.slot, given)
        self._look_for_a_pause(running, report, handled, now)
        self._note(running, report)
        if running.is_real_time:
            self._real_time.reported(running, report, now)
        elif not running.waiting and running.stopped:
            self.window.stopped(running)
        elif not running.waiting:
            self.window.completed(running)
        if report.end.fatal:
            raise HandlerFailed(report.end.fatal)

    def _judge(self, running: Running, report: SlotReport, now: float) -> None:
        """Notes what a final report says of its worker and of the size of records."""
        if report.end.crashed:
            log_ended_worker(report, running.names)
            for part, outcome in report.partitions.items():
                running.partitions[part].slots.has_read(report.slot, outcome, now)
            at_work = AtWork.of(report.end, running.plan.indexes)
            left = running.left(report.slot)
            self._crashes.crashed(running.epoch_state.partitions, report.slot, left, at_work)
            self._meter.lost(report.slot)
        elif report.end.late:
            log.warning(
                "slot %d got its records %.1f s after the latest start of batch %d and started "
                "none of them: give Spark Connect's server more free cores, or a session fewer "
                "slots", report.slot, report.end.late, report.batch,
            )  # fmt: skip
        elif not running.is_real_time:
            self.window.reported(report)

    def progressed(self, report: SlotReport) -> None:
        """Takes a progressive report; each one once, in their order."""
        running, slot = self.running.get(report.batch), report.slot
        if running is None or slot not in running.waiting or not self._counts(running.epoch_state):
            return
        if report.seq != running.taken.get(slot, 0) + 1:
            return
        running.taken[slot], running.workers[slot] = report.seq, report.pid
        running.handled_before[slot] = running.handled_before.get(slot, 0) + report.stats.handled
        running.handled += report.stats.handled
        running.filtered += report.stats.filtered
        now, partitions = time.monotonic(), running.partitions
        running.heard_at[slot] = now
        running.epoch_state.has_read(partitions, report)
        if report.kept is not None and slot not in running.kept:
            give_back(running, report, now)
            self._carryover.closed(slot, report.gates, running.names, now)
            self._free(running, slot)
        elif slot in running.kept:
            kept_progressed(running, report, now)
        else:
            for part, outcome in report.partitions.items():
                partitions[part].slots.progressed(slot, outcome, now)
            if report.leaving is not None and report.leaving[0] == running.epoch_state.leavings:
                for part, partition in enumerate(partitions):
                    at_work = {o: key for at, o, key in report.leaving[1] if at == part}
                    partition.dealer.withheld(slot, at_work)
        if self._chunks is not None and running.is_real_time:
            self._chunks.progressed(running, report, now)
        running.epoch_state.committer.take(report, partitions, now)
        self._note(running, report)
        self.leases.taken(report, running.epoch_state.committer.next_in(now))

    def called(self, event: CallReported) -> None:
        """Notes which handler call of a slot takes long, if one does."""
        running, slot, call = self.running.get(event.batch), event.slot, event.call
        if running is None:
            return
        if call is None:
            running.calls.pop(slot, None)
        elif call[0] in range(len(running.plan.indexes)):
            part, offset, seconds = call
            running.calls[slot] = part, offset, time.monotonic() - seconds

    def _note(self, running: Running, report: SlotReport) -> None:
        """Counts and logs a report."""
        self._meter.reported(report, running.names)
        self._failure_log.take(report, running.names)

    def _look_for_a_pause(
        self, running: Running, report: SlotReport, handled: int, now: float
    ) -> None:
        breaker = self.breaker
        if breaker.reported(report.end.tripped, handled, now, trial=running.trial):
            log.warning(
                "paused for %.0f s by the circuit breaker: %s", breaker.until - now, breaker.reason
            )
        restarts = running.trial or breaker.state != "closed"
        self._carryover.failed(report.slot, report.end.streak, restarts=restarts)

    def _take_in(self, running: Running, report: SlotReport, now: float) -> None:
        partitions = running.partitions
        running.epoch_state.has_read(partitions, report)
        if report.slot in running.kept:
            kept_progressed(running, report, now)
            end_kept(running, report.slot, now)
        else:
            for part, outcome in report.partitions.items():
                partitions[part].slots.reported(report.slot, outcome, now)
        running.epoch_state.committer.take(report, partitions, now)

    def _lost(self, running: Running, slot: int, now: float) -> None:
        """Takes the loss of a slot: its work waits until the life of the batch is over."""
        self._free(running, slot)
        life = self.life_of([running])
        log_lost_slot(slot, running.workers.get(slot, 0), life)
        over = now + life
        given = running.left(slot)
        if slot in running.kept:
            end_kept(running, slot, over)
        else:
            self.barred[slot] = over
            for index in running.plan.work[slot]:
                running.epoch_state.partitions[index].slots.unknown(slot)
        self._meter.lost(slot)
        self._crashes.crashed(running.epoch_state.partitions, slot, given, None)
        if running.is_real_time:
            self._real_time.lost(running, slot, now)

    def batch_ended(self, event: BatchEnded) -> None:
        """Takes the end of a batch's Spark job."""
        running, error = self.running[event.batch], event.error
        for report in event.reports.values():
            if report is not None:
                self.reported(report)
        if self._failures.is_first(running.started):
            # After another failure they wait like lost ones: its cause may take time to go away.
            running.withdrawn |= event.unconnected
        deserted = any(self.leases.was_deserted(at) for at in running.connections)
        without_report = sorted(running.waiting)
        for slot in without_report:
            running.waiting.discard(slot)
            self._ended_without_report(running, slot, event)
        del self.running[running.number]
        self.leases.ended(running.number)
        if running.is_real_time:
            self._real_time_ended(running, without_report, error)
        elif error is None and not running.failure:
            self._failures.succeeded()
        elif self._counts(running.epoch_state) and running.interrupt_at is None:
            error = error or SlotFailed(running.failure)
            self._batch_failed(running, error, deserted=deserted)
        self._meter.batch_ended(running.number, time.monotonic() - running.started)

    def _ended_without_report(self, running: Running, slot: int, event: BatchEnded) -> None:
        if not self._counts(running.epoch_state):
            self._free(running, slot)
        elif event.error is None and slot not in event.reports:
            # The log has no record for the slot: Spark ran no task for it.
            self._reported_nothing(running, slot)
        elif slot in running.withdrawn:
            self._withdrawn(running, slot)
        else:
            self._lost(running, slot, time.monotonic())

    def _real_time_ended(
        self, running: Running, slots: Sequence[int], error: BaseException | None
    ) -> None:
        """Takes the end of a real-time run; if it has failed, batches take over its last slots."""
        text = "" if error is None or running.interrupt_at is not None else reason(error)
        if text and self._counts(running.epoch_state):
            log.warning("a real-time run failed, batches take over: %s", text)
            self._meter.failed(text)
            running.epoch_state.look_again()
        self._real_time.over(running, slots, text, time.monotonic())

    def _withdrawn(self, running: Running, slot: int) -> None:
        """Plans the records of a slot that has started nothing again, at once."""
        self._free(running, slot)
        for index in running.plan.work[slot]:
            running.epoch_state.partitions[index].slots.unknown(slot)

    def _reported_nothing(self, running: Running, slot: int) -> None:
        plan = running.plan
        seen = {plan.parts[index]: PartitionReport() for index in plan.work[slot]}
        self._free(running, slot)
        report = SlotReport(running.number, slot, partitions=seen)
        self._take_in(running, report, time.monotonic())

    def _batch_failed(self, running: Running, error: BaseException, *, deserted: bool) -> None:
        """Takes the failure of a batch: the fourth in a row ends the job.

        Args:
            running: The batch.
            error: Why it has failed.
            deserted: Whether a worker was ended as it had not heard of this process: then neither
                the batch nor what it stands on is at fault.
        """
        refused = refused_by_spark(error, self._options.kafka)
        if refused is not None:
            raise refused from error
        if ended := why_ended(self._spark):
            raise SessionUnusable(
                f"the Spark session runs no jobs any more, {ended}: start the job again with a new "
                "session, and nothing is lost"
            ) from error
        text = running.failure or reason(error)
        log.warning("batch %d failed, its slots are planned again: %s", running.number, text)
        self._meter.failed(text)
        # Retention that is faster than batches makes one after another fail, each at a new offset.
        has_lost = running.epoch_state.has_lost(running.plan.reads)
        handled = running.handled > 0 or has_lost or deserted
        failures = self._failures.failed(running.started, time.monotonic(), handled=handled)
        if failures >= _FAILED_BATCHES:
            raise error


def _report(data: bytes) -> SlotReport:
    report: SlotReport = pickle.loads(data)  # noqa: S301 - from our own workers
    return report
