"""The loop of a job: plan, run batches on Spark, settle what slots report, commit.

One thread decides. Everything else (Spark jobs, commits, users) puts events in its queue:

    Spark task ends ── report ─┐
    Spark job ends ─── ended ──┼──> loop: settle ──> plan the next batch for slots that are free
    commit answered ── saved ──┤              └────> commit what came in, one commit at a time
    user ───────────── stop ───┘

A slot is in one batch at a time and gets its next work as soon as it has reported, while slower
ones still run; so one stuck key costs its slot and nothing else.

In a group the shares come and go: a *shift* is the work under one epoch. Before shares move the
loop drains: it starts nothing more, commits what comes back, and gives up what does not in time.
"""

from __future__ import annotations

import itertools
import logging
import math
import pickle
import queue
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from commits import CommitLogUnavailable, FencedMember, OffsetRanges
from coopconsume.batch import Running, Work, run_batch
from coopconsume.breaker import Breaker
from coopconsume.carried import Carried
from coopconsume.classic import interrupt, open_mailbox
from coopconsume.crowding import LimitWatch
from coopconsume.errors import (
    BrokerUnreachable,
    DataLoss,
    HandlerFailed,
    TopicNotFound,
    TopicReplaced,
)
from coopconsume.failures import FailuresInARow, reason
from coopconsume.holding import LEASE
from coopconsume.plan import Limits, plan_batch
from coopconsume.report import PartitionReport, SlotReport
from coopconsume.security.access import refused_by_spark
from coopconsume.shift import Held, Shift
from coopconsume.suspects import Suspects
from coopconsume.window import Window

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from assignors import Share
    from coopconsume.holding import Holding, TopicPartition
    from coopconsume.membership import Membership
    from coopconsume.plan import BatchPlan, Partition
    from coopconsume.progress import Meter

log = logging.getLogger(__name__)

#: Batches at once of which no slot is back yet; those that wait for stragglers are not counted.
BATCHES_AT_ONCE = 2
_IDLE_WAIT = 0.2
_FAILED_BATCHES = 3
#: Seconds for the last commit before shares are handed over.
_LAST_COMMIT = 10.0
#: Offsets of the one batch that finds out whether a pause may end.
_TRIAL_OFFSETS = 200
#: Seconds in which Spark ends the Python worker of a task that it was told to interrupt: it looks
#: for that every 2 s (spark.python.task.killTimeout), and then gives 2 s more.
_KILL_TIME = 5.0
_INTERRUPT_EVERY = 1.0
_WARN_EVERY = 10.0


@dataclass
class _HandOver:
    """The group wants our shares back."""

    until: float
    done: threading.Event = field(default_factory=threading.Event)
    running: Sequence[Share] = ()
    is_late: bool = False


class Job:
    """A running job: the loop's thread and what it knows.

    Args:
        spark: The session.
        membership: What is owned, and the way to commit it.
        work: What to do.
        slots: Spark tasks side by side.
        meter: Takes note of what happens, for progress.
    """

    def __init__(
        self, spark: SparkSession, membership: Membership, work: Work, slots: int, meter: Meter
    ) -> None:
        self._spark = spark
        self._membership = membership
        self._options = membership.options
        self._work = work
        self._slots = slots
        self._meter = meter
        self._events: queue.Queue[Callable[[], None]] = queue.Queue()
        self._send = open_mailbox(spark, lambda data: self._post(self._reported, data))
        self._run_id = uuid.uuid4().hex[:12]
        self._numbers = itertools.count()
        self._commit_ids = (f"{self._run_id}-{number}" for number in itertools.count())
        self._shift: Shift | None = None
        self._unbegun: Holding | None = None
        self._held: list[Held] = []
        self._ends: dict[TopicPartition, int] = {}
        self._hand_over: _HandOver | None = None
        self._busy: dict[int, int] = {}
        self._barred: dict[int, float] = {}
        self._running: dict[int, Running] = {}
        self._window = Window(self._options, slots)
        self._limits = LimitWatch(self._options.batch_time)
        self._batch_at = 0.0
        self._warned_at = -math.inf
        self._failures = FailuresInARow()
        self._suspects: dict[int, Suspects] = {}
        self._breaker = Breaker(self._options.circuit_breaker, self._options.circuit_breaker_pause)
        self._carried = Carried()
        self._stopping = False
        self._waiters: list[tuple[dict[TopicPartition, int], threading.Event]] = []
        # Every slot may be a straggler in a batch of its own.
        self._batches = ThreadPoolExecutor(
            slots + BATCHES_AT_ONCE, thread_name_prefix="coopconsume-batch"
        )
        self.error: BaseException | None = None
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._main, name="coopconsume-loop", daemon=True)

    # -- for the user's thread

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Let what is in flight end, commit it, and leave; returns when that is done."""
        self._post(self._stop)
        self.ended.wait()
        self._thread.join()

    def abort(self) -> None:
        """Leave at once: running tasks are interrupted, what they did is not committed."""
        self._post(self._abort)
        self.ended.wait(10.0)

    @property
    def batches_running(self) -> int:
        """Batches that Spark works on now."""
        return len(self._running)

    @property
    def partitions(self) -> list[Partition]:
        """What is known of the partitions owned now; empty between a group's epochs."""
        shift = self._shift
        return shift.partitions if shift is not None else []

    def wait_for_available(self) -> None:
        """Wait until everything that is in the topics now is done and committed."""
        done = threading.Event()
        holding = self._membership.wait_for_holding()
        ends = holding.cluster.ends(holding.owned) if holding else {}
        self._post(self._waiters.append, (ends, done))
        while not done.wait(0.1) and not self.ended.is_set():
            pass

    # -- the membership's worker, from its threads

    def begin(self, holding: Holding) -> None:
        """Work on this from now on."""
        self._post(self._begin, holding)

    def drain(self, timeout: float) -> Sequence[Share]:
        """Start nothing more, let what runs end within some seconds, and commit it.

        Returns:
            The parts that are still being worked on.
        """
        hand_over = _HandOver(time.monotonic() + timeout)
        self._post(self._drain, hand_over)
        while not hand_over.done.wait(0.1) and not self.ended.is_set():
            pass
        return hand_over.running

    def drop(self) -> None:
        """Stop working: it belongs to others."""
        self._post(self._drop)

    def fail(self, error: BaseException) -> None:
        """Stop for good."""
        self._post(self._fail, error)

    # -- the loop

    def _post(self, call: Callable[..., None], *args: Any) -> None:
        self._events.put(lambda: call(*args))

    def _main(self) -> None:
        try:
            self._membership.attach(self)
            while not self._finished():
                try:
                    self._turn()
                except FencedMember as error:
                    # Others have our shares. A member of a group joins again as a new one.
                    handing_over = self._hand_over is not None
                    if not self._membership.fenced(str(error), handing_over=handing_over):
                        raise
                    self._drop()
                except (TopicNotFound, TopicReplaced, DataLoss) as error:
                    # The next assignment is without the topic, with the new one, or from where the
                    # log was cut.
                    if self._options.fail_on_data_loss or not self._membership.fenced(str(error)):
                        raise
                    self._drop()
        except BaseException as error:
            self.error = error
            log.debug("the loop ended", exc_info=True)
        finally:
            self._close()

    def _turn(self) -> None:
        if self._unbegun is not None:
            holding, self._unbegun = self._unbegun, None
            self._begin(holding)
        self._interrupt_overdue()
        shift = self._shift
        if shift is not None:
            shift.refresh_ends()
            shift.look_for_holes()
            self._watch_limits(shift)
            late = self._hand_over is not None and self._hand_over.is_late
            more_to_come = not late and any(r.is_partly_back for r in self._current())
            shift.saver.save(more_to_come=more_to_come)
            self._meter.idle(shift.partitions)
            if self._hand_over is not None:
                self._hand_back(shift, self._hand_over)
            elif not self._current() or self._is_ours(shift):
                # Looked at also while slots are long at work: what is lost must not go on.
                self._launch(shift)
        self._take_events(self._patience())

    def _watch_limits(self, shift: Shift) -> None:
        for partition in shift.partitions:
            partition.stand(time.time())
        now = time.monotonic()
        for words in self._limits.look(shift.partitions, now):
            log.warning("%s", words)
        why = self._limits.ask(shift.partitions, shift.saver.held, now)
        if why is not None and self._hand_over is None:
            self._membership.rebalance(why)

    def _current(self) -> list[Running]:
        """Batches of this shift; those of an earlier one only keep their slots busy."""
        return [r for r in self._running.values() if r.shift is self._shift]

    def _begin(self, holding: Holding) -> None:
        self._end_shift(take_along=True)
        if self._membership.holding is not holding:
            return  # Given back before it was begun.
        try:
            self._shift = Shift(
                self._spark, holding, self._work, self._slots, self._meter, self._commit_ids,
                self._ends, self._post,
            )  # fmt: skip
        except BrokerUnreachable as error:
            log.warning("%s; trying again", error)
            self._unbegun = holding
            return
        self._take_along(self._shift)
        self._meter.joined(holding.epoch.number)
        if holding.owned and not self._window.has_begun:
            self._window.begin(holding.cluster.record_bytes(holding.owned))

    def _drain(self, hand_over: _HandOver) -> None:
        if self._shift is None:
            hand_over.done.set()
        else:
            self._hand_over = hand_over

    def _hand_back(self, shift: Shift, hand_over: _HandOver) -> None:
        """Nothing new starts; what comes in is committed until all is back, or it is too late."""
        out = {slot for running in self._current() for slot in running.waiting}
        if out and not hand_over.is_late and time.monotonic() < hand_over.until:
            return
        if not hand_over.is_late:
            hand_over.is_late = True  # From here on reports are not taken any more.
            hand_over.running = shift.parts_of(out | set(self._barred))
            # A task may not even have begun. Those who come wait for the life of a batch: then it
            # must be over, whatever it waited for.
            rest = max(0.0, self._options.batch_life + LEASE - _KILL_TIME)
            for running in self._current():
                running.interrupt_at = time.monotonic() + rest
            if out:
                log.warning(
                    "slots %s were not through within drainTimeout: their new owners wait for a "
                    "batch life, and do again what these do not commit any more", sorted(out)
                )  # fmt: skip
        if shift.saver.has_all_it_can or time.monotonic() > hand_over.until + _LAST_COMMIT:
            self._end_shift(take_along=True)
            hand_over.done.set()
            self._hand_over = None

    def _drop(self) -> None:
        self._interrupt()
        self._end_shift()
        if self._hand_over is not None:
            self._hand_over.done.set()
            self._hand_over = None

    def _end_shift(self, *, well: bool = False, take_along: bool = False) -> None:
        shift, self._shift = self._shift, None
        self._suspects.clear()
        if shift is not None:
            shift.end(well=well)
            self._held += shift.held()
        if not take_along:
            self._forget_held()

    def _take_along(self, shift: Shift) -> None:
        """What is done and did not fit into the log stays done where its keys stay ours."""
        self._held = [held for held in self._held if not shift.take_along(held)]
        self._forget_held()

    def _forget_held(self) -> None:
        left = sum(len(held.offsets) for held in self._held)
        self._held = []
        if left:
            log.warning(
                "%d offsets that are done could not be committed, as their partitions have "
                "maxNumRanges ranges: they will be done again", left
            )  # fmt: skip

    def _fail(self, error: BaseException) -> None:
        raise error

    def _take_events(self, timeout: float) -> None:
        try:
            event = self._events.get(timeout=timeout)
            while True:
                event()
                event = self._events.get_nowait()
        except queue.Empty:
            pass

    def _patience(self) -> float:
        now = time.time()
        waits = [_IDLE_WAIT]
        waits += [due - now for p in self.partitions if (due := p.next_due()) is not None]
        waits += [at - now for at in self._barred.values()]
        if self._breaker.state == "open":
            waits = [max(0.0, self._breaker.until - now), _IDLE_WAIT]
        if self._hand_over or (self._busy and len(self._busy) < self._slots):
            waits.append(0.05)
        if self._shift is not None and self._shift.saver.due is not None:
            waits.append(self._shift.saver.due - now)
        return max(0.02, min(waits))

    def _finished(self) -> bool:
        shift = self._shift
        if shift is None or self._hand_over is not None:
            return self._stopping and self._hand_over is None
        for ends, event in list(self._waiters):
            if all(p.is_settled(ends.get((p.topic, p.partition), 0)) for p in shift.partitions):
                event.set()
                self._waiters.remove((ends, event))
        saved = shift.saver.has_all_it_can if self._stopping else shift.saver.has_all
        if self._current() or not saved:
            return False
        drained = not self._barred and all(p.is_drained for p in shift.partitions)
        return self._stopping or (self._work.available_now and drained)

    def _stop(self) -> None:
        self._stopping = True

    def _abort(self) -> None:
        self._interrupt()
        raise InterruptedError("the job was told to leave at once")

    def _interrupt(self) -> None:
        for running in self._running.values():
            running.interrupt_at = -math.inf
        self._interrupt_overdue()

    def _interrupt_overdue(self) -> None:
        """Have Spark end what must not go on.

        Again and again: a batch that Spark still plans has no job yet that could be interrupted.
        """
        now = time.monotonic()
        for running in self._running.values():
            if running.interrupt_at is not None and now >= running.interrupt_at:
                running.interrupt_at = now + _INTERRUPT_EVERY
                try:
                    interrupt(self._spark, running.tag)
                except Exception:
                    log.debug("could not interrupt batch %d", running.number, exc_info=True)

    def _close(self) -> None:
        self._interrupt()
        self._batches.shutdown(wait=False, cancel_futures=True)
        hand_over, shift = self._hand_over, self._shift
        if shift is not None:
            # Aborted, or failed: Spark was told to end them, and may need a while for it.
            out = {slot for running in self._current() for slot in running.waiting}
            left = shift.parts_of(out | set(self._barred))
            shift.holding.left_running(left)
            if hand_over is not None and not hand_over.is_late:
                hand_over.running = left
        self._end_shift(well=self.error is None)
        self._work.close()
        self._membership.detach()
        self._meter.ended(self.error)
        self.ended.set()
        for _, event in self._waiters:
            event.set()

    # -- batches

    def _launch(self, shift: Shift) -> None:
        now = time.time()
        self._barred = {slot: at for slot, at in self._barred.items() if at > now}
        if self._stopping or now - self._batch_at < self._work.interval:
            return
        if not self._breaker.may_start(now) or any(r.trial for r in self._running.values()):
            return
        young = 0
        for running in self._current():
            since, taken = running.first_report, now - running.started
            if since is None:
                young += 1
            elif running.waiting and now - since < min(2.0, 0.1 + taken / 2):
                # Slots come back one by one: wait a moment, so that most go into one batch.
                return
        if young >= BATCHES_AT_ONCE:
            return
        free = [s for s in range(self._slots) if s not in self._busy and s not in self._barred]
        limits = Limits(self._window.offsets, self._options.max_pending)
        if not free or not self._is_ours(shift):
            return
        plan = self._plan(shift, free, now, limits)
        if plan is None:
            return
        trial = self._breaker.state == "trial"
        number = next(self._numbers)
        tag = f"coopconsume-{self._run_id}-{number}"
        running = Running(
            number, plan, set(plan.slots), now, tag, shift, self._run_id, trial,
            dict(self._carried.streaks),
        )  # fmt: skip
        running.gates = self._carried.gates(plan.slots, running.names, time.monotonic())
        self._running[number] = running
        self._busy |= dict.fromkeys(plan.slots, number)
        self._batch_at = now
        self._meter.launched(number, plan)
        self._batches.submit(self._run_batch, running)

    def _plan(
        self, shift: Shift, free: Sequence[int], now: float, limits: Limits
    ) -> BatchPlan | None:
        """The next batch; a slot whose workers keep ending gets but a part of what it could."""
        allowed = {slot: s.allowed for slot, s in self._suspects.items() if slot in free}
        for slot in free:
            for part, partition in enumerate(shift.partitions):
                if slot in partition.shares:
                    some = allowed.get(slot)
                    only = None if some is None else some.get(part, OffsetRanges())
                    partition.shares[slot].only = only
        if self._breaker.state == "trial":
            few = Limits(_TRIAL_OFFSETS, limits.max_pending, limits.max_ranges)
            plans = (plan_batch(shift.partitions, [slot], now, few) for slot in free)
            plan = next((found for found in plans if found is not None), None)
        else:
            plan = plan_batch(shift.partitions, free, now, limits)
        for slot, some in allowed.items():
            if some is not None and (plan is None or slot not in plan.work):
                # Done, deleted or waiting by now: not among the suspects any more.
                self._passed(shift, slot, some)
        return plan

    def _is_ours(self, shift: Shift) -> bool:
        """Whether the log says that the shares are still ours; it must not be long ago."""
        try:
            shift.holding.check()
        except CommitLogUnavailable as error:
            if time.monotonic() - self._warned_at > _WARN_EVERY:
                log.warning("no new batch for now: %s", error)
                self._warned_at = time.monotonic()
            return False
        return True

    def _run_batch(self, running: Running) -> None:
        """In a thread of its own: one Spark job."""
        slices = self._options.min_partitions or self._slots
        try:
            rows = run_batch(
                self._spark, self._options, self._work, running, running.shift.partitions, slices,
                self._slots, self._send,
            )  # fmt: skip
        except BaseException as error:  # noqa: BLE001 - told to the loop
            self._post(self._batch_ended, running, {}, error)
        else:
            self._post(self._batch_ended, running, rows, None)

    def _reported(self, data: bytes) -> None:
        report: SlotReport = pickle.loads(data)  # noqa: S301 - from our own workers
        running = self._running.get(report.batch)
        if running is None or report.slot not in running.waiting:
            return  # A second run of a task, or a batch that was given up.
        running.waiting.discard(report.slot)
        self._carried.closed(report.slot, report.gates, running.names, time.monotonic())
        if not self._counts(running):
            self._busy.pop(report.slot, None)
            return
        now = time.time()
        if report.unknown:
            self._lost(running, report.slot, now)
            return
        running.first_report = running.first_report or now
        running.handled += report.handled
        running.rate += report.handled / max(report.busy, 0.001)
        running.timed_out |= report.timed_out and not report.tripped
        self._busy.pop(report.slot, None)
        if report.crashed:
            at_work = _by_part(report.suspects, sorted(running.plan.wanted))
            charged = report.failures > 0
            self._crashed(running, report.slot, at_work if not charged else None, charged=charged)
            self._meter.lost(report.slot)
        else:
            self._window.reported(report)
        self._take_in(running, report, now)
        if not report.crashed and report.slot in self._suspects:
            self._passed(running.shift, report.slot, _given(running, report.slot))
        self._look_for_a_pause(running, report, now)
        self._meter.reported(report)
        if not running.waiting:
            self._window.completed(running)
        if report.fatal:
            raise HandlerFailed(report.fatal)

    def _passed(self, shift: Shift, slot: int, given: Mapping[int, OffsetRanges]) -> None:
        """What a slot is through with is not suspected any more; what is left to do stays so."""
        shares = {part: shift.partitions[part].shares[slot] for part in given}
        self._suspects[slot].passed({part: o - shares[part].todo for part, o in given.items()})

    def _look_for_a_pause(self, running: Running, report: SlotReport, now: float) -> None:
        breaker = self._breaker
        if breaker.reported(report.tripped, report.handled, now, trial=running.trial):
            words = (
                f"paused for {breaker.until - now:.0f} s by the circuit breaker: {breaker.reason}"
            )
            log.warning("%s", words)
            self._meter.message = words
        anew = running.trial or breaker.state != "closed"
        self._carried.failed(report.slot, report.streak, starts_anew=anew)
        self._meter.breaker = breaker

    def _counts(self, running: Running) -> bool:
        """Whether what a batch's slots did may still be committed."""
        late = self._hand_over is not None and self._hand_over.is_late
        return running.shift is self._shift and not late

    def _take_in(self, running: Running, report: SlotReport, now: float) -> None:
        parts = [running.shift.partitions[part] for part in sorted(running.plan.wanted)]
        for i, outcome in report.partitions.items():
            parts[i].reported(report.slot, outcome, now)
        running.shift.saver.take(report, parts, now)

    def _lost(self, running: Running, slot: int, now: float) -> None:
        """A slot's outcome is not known: its work waits until the batch's life is surely over."""
        self._busy.pop(slot, None)
        self._barred[slot] = now + self._options.batch_life
        for part in running.plan.work[slot]:
            running.shift.partitions[part].unknown(slot)
        self._meter.lost(slot)
        self._crashed(running, slot, None, charged=False)

    def _crashed(
        self,
        running: Running,
        slot: int,
        at_work: Mapping[int, OffsetRanges] | None,
        *,
        charged: bool,
    ) -> None:
        """A worker of a slot has ended, and with it what it knew."""
        suspects = self._suspects.setdefault(slot, Suspects())
        suspects.crashed(_given(running, slot), at_work, charged=charged)
        culprit = suspects.culprit
        if culprit is not None:
            part, offset = culprit
            partition = running.shift.partitions[part]
            partition.charge(offset)
            log.warning(
                "%s-%d@%d ended its worker again and again: attempt %d",
                partition.topic, partition.partition, offset, partition.attempts[offset],
            )  # fmt: skip
            if self._work.policy.max_attempts is None:
                suspects.passed({part: OffsetRanges([(offset, offset)])})

    def _batch_ended(
        self, running: Running, rows: Mapping[int, bytes | None], error: BaseException | None
    ) -> None:
        for data in rows.values():
            if data is not None:
                self._reported(data)
        for slot in sorted(running.waiting):
            running.waiting.discard(slot)
            if not self._counts(running):
                self._busy.pop(slot, None)
            elif error is None and slot not in rows:
                # Spark found the slot's rows to be none and ran no task for it.
                self._reported_nothing(running, slot)
            else:
                self._lost(running, slot, time.time())
        del self._running[running.number]
        if error is None:
            self._failures.succeeded()
        elif self._counts(running):
            self._batch_failed(running, error)
        self._meter.batch_ended(running.number, time.time() - running.started)

    def _reported_nothing(self, running: Running, slot: int) -> None:
        parts = sorted(running.plan.wanted)
        seen = {parts.index(part): PartitionReport() for part in running.plan.work[slot]}
        self._busy.pop(slot, None)
        report = SlotReport(running.number, slot, partitions=seen)
        self._take_in(running, report, time.time())

    def _batch_failed(self, running: Running, error: BaseException) -> None:
        refused = refused_by_spark(error, self._options.kafka)
        if refused is not None:
            raise refused from error
        text = reason(error)
        log.warning("batch %d failed, its slots are planned again: %s", running.number, text)
        handled = running.handled > 0
        failures = self._failures.failed(running.started, time.time(), handled=handled)
        self._meter.failed(text)
        running.shift.look_at_starts_soon()  # Perhaps records were deleted under it.
        if failures >= _FAILED_BATCHES:
            raise error


def _given(running: Running, slot: int) -> dict[int, OffsetRanges]:
    """What a slot might start in a batch, by partition."""
    return {part: OffsetRanges(work.ranges) for part, work in running.plan.work[slot].items()}


def _by_part(at_work: Sequence[tuple[int, int]], parts: Sequence[int]) -> dict[int, OffsetRanges]:
    """Records at work, named by the partitions' index in their batch, by partition."""
    found: dict[int, list[int]] = {}
    for i, offset in at_work:
        found.setdefault(parts[i], []).append(offset)
    return {part: OffsetRanges.from_offsets(offsets) for part, offsets in found.items()}
