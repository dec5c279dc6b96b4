"""The loop of a job: plan, run batches on Spark, settle what slots report, commit.

One thread decides. All others (Spark jobs, commits, the group, users) put events in its queue:

    slot reports ───── SlotReported ───┐
    Spark job ends ─── BatchEnded ─────┼──> loop: settle ──> plan the next batch for free slots
    commit answered ── CommitAnswered ─┤              └────> commit, one commit at a time
    user ───────────── StopRequested ──┘

A slot is in one batch at a time and gets its next work as soon as it has reported, while slower
slots still run. A slot whose handlers are slow gives back the records that it has not started (see
`coopconsume.runtime.dispatch.relief`), so a stuck key blocks only itself.

An `EpochState` is the work on the shares of the job. Shares that leave are handed over: the loop
starts no more of their records, commits what slots report, and gives up the rest after a time. The
work on all other shares goes on during the rebalance.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import TYPE_CHECKING, Final

from commits import FencedMember
from coopconsume.errors import BrokerUnreachable, DataLoss, TopicNotFound, TopicReplaced
from coopconsume.kafka.call_limit import CallLimit
from coopconsume.runtime.completion import Completion
from coopconsume.runtime.current_epoch import CurrentEpoch
from coopconsume.runtime.dispatch.dispatcher import Dispatcher
from coopconsume.runtime.event_queue import EventQueue
from coopconsume.runtime.events import (
    AbortRequested,
    AssignmentLost,
    AssignmentReceived,
    BatchEnded,
    BlockersRead,
    CallReported,
    CommitAnswered,
    CommitFailed,
    CommitFenced,
    DecisionsApplied,
    EndsAwaited,
    HandOverRequested,
    HolesFound,
    JobEvent,
    LogRead,
    MembershipFailed,
    OffsetsMirrored,
    ParcelFailed,
    ParcelWritten,
    PauseRequested,
    RebalanceBegun,
    Reply,
    RetentionForeseen,
    SharesGained,
    SharesRevoked,
    SlotProgressed,
    SlotReported,
    StopRequested,
)
from coopconsume.runtime.group_requests import GroupRequests
from coopconsume.runtime.job_context import JobContext
from coopconsume.runtime.plan.range_limit import LimitWatch
from coopconsume.runtime.realtime.checks import check_workers
from coopconsume.runtime.rebalance import HandOver, Rebalance
from coopconsume.runtime.recovery import Recovery
from coopconsume.runtime.status.wait_status import WaitStatus
from coopconsume.runtime.trace import JobEnded, JobStarted, TurnBegun

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from commits.model import TopicPartition
    from coopconsume.group.epoch_assignment import EpochAssignment
    from coopconsume.group.membership import Membership
    from coopconsume.runtime.epoch_state import EpochState
    from coopconsume.runtime.job_spec import JobSpec
    from coopconsume.runtime.plan import Partition
    from coopconsume.runtime.status.progress import Meter

log = logging.getLogger(__name__)

_IDLE_WAIT: Final = 0.2
#: Seconds to wait for what is overdue: something holds it up.
_SHORTEST_WAIT: Final = 0.02
#: Seconds that a job that is asked to stop waits for an answer of Kafka.
_LAST_ANSWER: Final = 0.5


class Job:
    """A running job: the loop's thread, and the order of what it does.

    What a turn works with is in parts: `CurrentEpoch` has the work on the assignment, `Dispatcher`
    the batches, `Rebalance` what the group asks, `Completion` what users ask, `Recovery` decides
    about errors, `WaitStatus` says what the job waits for.

    Args:
        spark: The session.
        membership: What is owned, and the way to commit it.
        job_spec: What to do.
        slots: Spark tasks side by side.
        meter: Takes note of what happens, for progress.
    """

    def __init__(
        self,
        spark: SparkSession,
        membership: Membership,
        job_spec: JobSpec,
        slots: int,
        meter: Meter,
    ) -> None:
        self._membership = membership
        self._job_spec = job_spec
        self._meter = meter
        self._events = EventQueue()
        self._context = context = JobContext.of_run(
            spark=spark, options=membership.options, job_spec=job_spec, slots=slots, meter=meter,
            events=self._events,
        )  # fmt: skip
        self._dispatcher = Dispatcher(context, membership, self._counts)
        self._current = CurrentEpoch(context, membership, self._dispatcher.sizes.window)
        self._rebalance = Rebalance(context, self._dispatcher, self._current)
        self._completion = Completion(context, self._dispatcher)
        self._recovery = Recovery(membership, self._dispatcher, self._rebalance, self._current)
        self._wait_status = WaitStatus(
            context, self._dispatcher, self._rebalance, self._completion, membership
        )
        self._limits = LimitWatch(context.options.batch_time)
        #: Ends the loop's calls to Kafka as the job stops: nothing that is left to do needs them.
        self._kafka_limit = CallLimit()
        self.error: BaseException | None = None
        self.ended = threading.Event()
        self._requests = GroupRequests(context, self._dispatcher, self.ended)
        self._thread = threading.Thread(target=self._main, name="coopconsume-loop", daemon=True)

    # -- for the user's thread

    def check_workers(self) -> None:
        """Makes sure, before `start`, that workers can run real-time slots.

        Raises:
            RealTimeUnavailable: They cannot; the job is closed.
        """
        leases = self._dispatcher.leases
        try:
            check_workers(self._context.spark, self._context.slots, leases.spec, leases.error)
        except BaseException:
            self._dispatcher.close()
            self._job_spec.close()
            raise

    def start(self) -> None:
        """Begins; returns at once."""
        self._thread.start()

    def stop(self, timeout: float | None = None, *, drain: bool = False) -> None:
        """Lets running handlers end, commits what is done and leaves; returns when that is done.

        The loop's own thread does not wait for itself: a listener may stop its query.

        Args:
            timeout: Seconds that running handlers have to end; None: as long as they take.
            drain: Whether the records that batches have read are handled first.
        """
        stop_by = math.inf if timeout is None else time.monotonic() + timeout
        self._kafka_limit.set(_LAST_ANSWER)
        self._events.post(StopRequested(stop_by, drain))
        if not self.is_in_its_thread:
            self.ended.wait()
            self._thread.join()

    def abort(self) -> None:
        """Leaves at once: running tasks are interrupted, what they did is not committed."""
        self._kafka_limit.set(0.0)
        self._events.post(AbortRequested())
        if not self.is_in_its_thread:
            self.ended.wait(10.0)

    def pause(self) -> None:
        """Lets running handlers end, and starts no other until `resume`."""
        self._events.post(PauseRequested(is_paused=True))

    def resume(self) -> None:
        """Starts handlers again."""
        self._events.post(PauseRequested(is_paused=False))

    @property
    def is_in_its_thread(self) -> bool:
        """Whether the loop's own thread is calling: a listener of the query."""
        return threading.current_thread() is self._thread

    @property
    def batches_running(self) -> int:
        """Batches that Spark works on now."""
        return len(self._dispatcher.runs.by_number)

    @property
    def partitions(self) -> list[Partition]:
        """What is known of the partitions owned now; empty between a group's epochs."""
        epoch_state = self._current.state
        return epoch_state.ours if epoch_state is not None else []

    def wait_for_available(self) -> None:
        """Waits until everything that is in the topics now is done and committed."""
        waiter = EndsAwaited(self._ends_now(), Reply(None))
        self._events.post(waiter)
        waiter.answer.wait(self.ended)

    def _ends_now(self) -> Mapping[TopicPartition, int]:
        """Returns where the logs end; nothing once the job has ended or the consumer is closed."""
        while True:
            assignment = self._membership.wait_for_assignment()
            if assignment is None:
                return {}
            try:
                with assignment.cluster.limited_by(self._kafka_limit):
                    return assignment.cluster.ends(assignment.logs.present)
            except (BrokerUnreachable, TopicNotFound) as error:
                # The loop finds out itself, and continues or ends.
                log.debug("trying again: %s", error)
                if self.ended.wait(_IDLE_WAIT):
                    return {}

    # -- the loop

    def _main(self) -> None:
        context, lease = self._context, self._dispatcher.leases.lease
        context.trace.write(JobStarted(context.slots, lease, context.options, context.job_spec))
        try:
            self._membership.attach(self._requests)
            with self._membership.cluster.limited_by(self._kafka_limit):
                self._loop()
        except BaseException as error:
            self.error = error
            log.debug("the loop ended", exc_info=True)
        finally:
            self._close()

    def _loop(self) -> None:
        while not self._finished():
            try:
                self._turn()
            except FencedMember as error:
                if not self._recovery.from_fencing(error):
                    raise
                self._drop()
            except (TopicNotFound, TopicReplaced, DataLoss) as error:
                if not self._recovery.from_loss(error):
                    raise
                self._drop()

    def _turn(self) -> None:
        began = time.monotonic()
        self._context.trace.write(TurnBegun())
        unbegun = self._current.take_unbegun()
        if unbegun is not None:
            self._begin(unbegun)
        self._dispatcher.interrupt_overdue()
        epoch_state = self._epoch_state
        if epoch_state is not None:
            try:
                self._work_on(epoch_state)
            except FencedMember as error:
                if not self._recovery.may_pass(error, epoch_state.assignment):
                    raise
                log.debug("refused between two epochs: %s", error)
        self._dispatcher.renew_leases(self._epoch_state)
        self._wait_status.update(self._epoch_state)
        for event in self._events.take(self._patience(began)):
            self._handle(event)

    def _work_on(self, epoch_state: EpochState) -> None:
        """Looks, commits and gives slots their next work."""
        self._current.note_epoch()
        is_stopping, asked = self._completion.is_stopping, self._rebalance
        if not is_stopping:
            self._look_at_logs(epoch_state)
        self._watch_limits(epoch_state)
        batches = self._dispatcher.runs.of(epoch_state)
        is_at_end = self._completion.is_drained(epoch_state) and not batches
        is_last = asked.awaits_commit or is_stopping or is_at_end
        asked.answer_question(epoch_state, is_stopping=is_stopping)
        self._commit_if_due(epoch_state, is_last=is_last)
        self._meter.idle(epoch_state.ours)
        asked.let_leave(epoch_state)
        if asked.hand_over is not None:
            self._hand_back(epoch_state, asked.hand_over)
        else:
            self._dispatcher.launch(epoch_state, stopping=is_stopping or self._completion.is_paused)
        epoch_state.update_quiet()

    def _look_at_logs(self, epoch_state: EpochState) -> None:
        # A commit goes first: what it has would wait for the brokers.
        epoch_state.log_watch.refresh(may_wait=epoch_state.committer.due is not None)
        deleted = epoch_state.log_watch.take_deleted()
        if deleted:
            self._membership.rebalance(f"deleted: {', '.join(deleted)}")
        epoch_state.look_for_holes()
        epoch_state.blocker_keys.look(epoch_state.ours)
        epoch_state.retention_watch.look(epoch_state.ours)

    def _watch_limits(self, epoch_state: EpochState) -> None:
        busy = epoch_state.busy
        for partition in busy:
            partition.ledger.stable_age(time.monotonic())
        now = time.monotonic()
        for words in self._limits.look(busy, now):
            log.warning("%s", words)
        why = self._limits.ask(busy, now)
        if why is not None and self._rebalance.hand_over is None:
            self._membership.rebalance(why)

    def _commit_if_due(self, epoch_state: EpochState, *, is_last: bool) -> None:
        dispatcher, rests = self._dispatcher, self._completion.rests
        batches = dispatcher.runs.of(epoch_state)
        epoch_state.committer.commit_if_due(
            more_to_come=not self._rebalance.is_late and any(r.reports_more for r in batches),
            is_last=is_last,
            demand=0 if is_last or rests else dispatcher.sizes.demand(epoch_state),
            ahead=dispatcher.ahead(epoch_state),
            is_resting=rests and not is_last and not batches,
        )

    def _patience(self, turn_began: float) -> float:
        """Returns for how many seconds the loop may wait for an event.

        Args:
            turn_began: When this turn began, on the monotonic clock.
        """
        now, epoch_state, dispatcher = time.monotonic(), self._epoch_state, self._dispatcher
        waits = [_IDLE_WAIT]
        busy = [] if epoch_state is None else epoch_state.busy
        waits += [due - now for p in busy if (due := p.lanes.next_due()) is not None]
        waits += [at - now for at in dispatcher.slots.barred.values()]
        waits += [at - now for at, _ in dispatcher.slots.failing.values()]
        breaker = dispatcher.breaker
        if breaker.state == "open":
            waits = [max(0.0, breaker.until - now), _IDLE_WAIT]
        if self._rebalance.hand_over or dispatcher.is_partly_busy:
            waits.append(0.05)
        patience = max(_SHORTEST_WAIT, min(waits))
        if epoch_state is None or (due := epoch_state.committer.due) is None:
            return patience
        # A commit that has become due in this turn begins in the next.
        return min(patience, _SHORTEST_WAIT if due <= turn_began else max(0.0, due - now))

    def _finished(self) -> bool:
        """Whether the job ends now; a hand-over of all shares ends before."""
        if self._rebalance.hand_over is not None:
            self._rebalance.end_by(self._completion.stop_by)
            return False
        return self._completion.is_reached(self._epoch_state)

    # -- the work on an assignment

    @property
    def _epoch_state(self) -> EpochState | None:
        return self._current.state

    def _counts(self, epoch_state: EpochState) -> bool:
        """Returns whether what was done in an epoch may still be committed."""
        return epoch_state is self._epoch_state and not self._rebalance.is_late

    def _begin(self, assignment: EpochAssignment) -> None:
        self._end_epoch()
        self._current.begin(assignment)

    def _hand_back(self, epoch_state: EpochState, hand_over: HandOver) -> None:
        """Ends the epoch once all shares can be handed over."""
        if self._rebalance.ends_hand_over(epoch_state, hand_over):
            self._end_epoch()
            self._rebalance.handed_over()

    def _drop(self) -> None:
        """Ends the work at once: it does not count any more."""
        self._dispatcher.stop(self._epoch_state)
        self._dispatcher.interrupt()
        self._end_epoch()
        self._rebalance.handed_over()

    def _end_epoch(self, *, well: bool = False) -> None:
        self._rebalance.refuse()
        self._dispatcher.end_epoch()
        self._current.end(well=well, is_stopping=self._completion.is_stopping)

    # -- events

    def _handle(self, event: JobEvent) -> None:  # noqa: C901, PLR0912, PLR0915 - one match
        """Handles an event; none comes from an epoch that is over."""
        self._context.trace.write(event)
        match event:
            case SlotReported():
                self._dispatcher.reports.reported(event.report)
            case SlotProgressed():
                self._dispatcher.reports.progressed(event.report)
            case CallReported():
                self._dispatcher.reports.called(event)
            case BatchEnded():
                self._dispatcher.reports.ended(event)
            case CommitAnswered():
                self._current.begun.committer.commit_answered(event)
            case CommitFenced():
                self._current.begun.committer.fenced(event)
            case CommitFailed():
                self._current.begun.committer.failed(event)
            case LogRead():
                self._current.begun.committer.looked(event)
            case DecisionsApplied():
                self._current.begun.committer.decided(event)
            case OffsetsMirrored():
                self._current.begun.committer.mirrored(event)
            case ParcelWritten():
                self._current.begun.committer.outbox.written(event)
            case ParcelFailed():
                self._current.begun.committer.outbox.not_written(event)
            case HolesFound():
                self._current.begun.take_holes(event)
            case BlockersRead():
                self._current.begun.blocker_keys.take(event, self.partitions)
            case RetentionForeseen():
                self._current.begun.retention_watch.take(event)
            case AssignmentReceived():
                self._begin(event.assignment)
            case HandOverRequested():
                self._rebalance.hand_over_all(event)
            case SharesRevoked():
                self._rebalance.leave(event, is_stopping=self._completion.is_stopping)
            case SharesGained():
                self._rebalance.extend(event, is_stopping=self._completion.is_stopping)
            case RebalanceBegun():
                self._rebalance.ask(event)
            case AssignmentLost():
                self._drop()
            case MembershipFailed():
                raise event.error
            case EndsAwaited():
                self._completion.await_ends(event)
            case PauseRequested():
                self._completion.pause(event, self._epoch_state)
                self._wait_status.expire()
            case StopRequested():
                self._completion.stop(event, self._epoch_state)
            case AbortRequested():
                self._dispatcher.interrupt()
                raise InterruptedError("the job was asked to leave at once")
            case _:
                raise TypeError(f"no such event: {event!r}")

    # -- the end

    def _close(self) -> None:
        self._dispatcher.stop(self._epoch_state)
        self._dispatcher.interrupt()
        self._dispatcher.close()
        hand_over, epoch_state = self._rebalance.hand_over, self._epoch_state
        if epoch_state is not None:
            # Aborted, or failed: Spark is to end the batches, and may need a while.
            left = self._rebalance.left_of(epoch_state)
            epoch_state.assignment.in_doubt.mark(left, self._dispatcher.may_run_for(epoch_state))
            if hand_over is not None and not hand_over.is_late:
                hand_over.answer.value = left
            if self.error is None:
                self._meter.leaves(epoch_state.ours)
        self._end_epoch(well=self.error is None)
        if epoch_state is not None and self._context.options.uses_chunks:
            epoch_state.return_chunks(self._rebalance.left_of(epoch_state))
        self._job_spec.close()
        self._membership.detach()
        self._meter.ended(self.error)
        self._context.trace.write(JobEnded(self.error))
        self._context.trace.close()
        if self.error is None:
            self._dispatcher.leases.wait_for_workers()
        self.ended.set()
        self._completion.answer_all()
