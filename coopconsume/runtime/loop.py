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

import itertools
import logging
import math
import queue
import threading
import time
import uuid
from typing import TYPE_CHECKING

from commits import CommitLogUnavailable, FencedMember
from coopconsume.errors import (
    BrokerUnreachable,
    DataLoss,
    StateNotReadable,
    TopicNotFound,
    TopicReplaced,
)
from coopconsume.group.primary import WRITE_WITHIN
from coopconsume.kafka.call_limit import CallLimit
from coopconsume.runtime import rebalance
from coopconsume.runtime.dispatch.dispatcher import Dispatcher
from coopconsume.runtime.epoch_state import EpochState
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
    SharesGained,
    SharesRevoked,
    SlotProgressed,
    SlotReported,
    StopRequested,
)
from coopconsume.runtime.plan.range_limit import LimitWatch
from coopconsume.runtime.realtime.checks import check_workers
from coopconsume.runtime.rebalance import HandOver, Leaving, Rebalance
from coopconsume.runtime.status.batches import batch_facts, longest_silence, oldest_call
from coopconsume.runtime.status.waiting import JobFacts, waiting_for
from coopconsume.runtime.trace import JobEnded, JobStarted, Trace, TurnBegun

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from assignors import Share
    from commits import Epoch
    from commits.model import TopicPartition
    from coopconsume.errors import CoopConsumeError
    from coopconsume.group.epoch_assignment import EpochAssignment
    from coopconsume.group.membership import Membership
    from coopconsume.runtime.commit.committer import Committer
    from coopconsume.runtime.job_spec import JobSpec
    from coopconsume.runtime.plan import Partition
    from coopconsume.runtime.status.progress import Meter

log = logging.getLogger(__name__)

_IDLE_WAIT = 0.2
#: Seconds to wait for what is overdue: something holds it up.
_SHORTEST_WAIT = 0.02
#: Seconds between two updates of what the job waits for.
_WAITS_EVERY = 0.5
#: Seconds that a job that is asked to stop waits for an answer of Kafka, and for its last write of
#: the group's offsets: the commit log has them.
_LAST_ANSWER = 0.5
_LAST_WRITE = 1.0


class Job:
    """A running job: the loop's thread and what it knows.

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
        self._spark = spark
        self._membership = membership
        self._options = membership.options
        self._job_spec = job_spec
        self._slots = slots
        self._meter = meter
        self._events: queue.Queue[tuple[JobEvent, EpochState | None]] = queue.Queue()
        run_id = uuid.uuid4().hex[:12]
        self._trace = Trace.from_environment(run_id)
        self._commit_ids = (f"{run_id}-{number}" for number in itertools.count())
        self._dispatcher = Dispatcher(
            spark,
            self._options,
            job_spec,
            slots,
            meter,
            run_id,
            self._post,
            self._counts,
            membership,
            self._trace,
        )
        self._epoch_state: EpochState | None = None
        self._unbegun: EpochAssignment | None = None
        self._ends: dict[TopicPartition, int] = {}
        self._rebalance = Rebalance(self._dispatcher, meter, is_exact=job_spec.state is not None)
        self._epoch: Epoch | None = None
        self._limits = LimitWatch(self._options.batch_time)
        self._waits_at = -math.inf
        self._stopping = False
        self._stop_by = math.inf
        #: Ends the loop's calls to Kafka as the job stops: nothing that is left to do needs them.
        self._kafka_limit = CallLimit()
        self._is_paused = False
        #: With the instants at which they came, on the monotonic clock.
        self._waiters: list[tuple[EndsAwaited, float]] = []
        self.error: BaseException | None = None
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._main, name="coopconsume-loop", daemon=True)

    # -- for the user's thread

    def check_workers(self) -> None:
        """Makes sure, before `start`, that workers can run real-time slots.

        Raises:
            RealTimeUnavailable: They cannot; the job is closed.
        """
        leases = self._dispatcher.leases
        try:
            check_workers(self._spark, self._slots, leases.spec, leases.error)
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
        self._post(StopRequested(stop_by, drain))
        if not self.is_in_its_thread:
            self.ended.wait()
            self._thread.join()

    def abort(self) -> None:
        """Leaves at once: running tasks are interrupted, what they did is not committed."""
        self._kafka_limit.set(0.0)
        self._post(AbortRequested())
        if not self.is_in_its_thread:
            self.ended.wait(10.0)

    def pause(self) -> None:
        """Lets running handlers end, and starts no other until `resume`."""
        self._post(PauseRequested(is_paused=True))

    def resume(self) -> None:
        """Starts handlers again."""
        self._post(PauseRequested(is_paused=False))

    @property
    def is_in_its_thread(self) -> bool:
        """Whether the loop's own thread is calling: a listener of the query."""
        return threading.current_thread() is self._thread

    @property
    def batches_running(self) -> int:
        """Batches that Spark works on now."""
        return len(self._dispatcher.running)

    @property
    def partitions(self) -> list[Partition]:
        """What is known of the partitions owned now; empty between a group's epochs."""
        epoch_state = self._epoch_state
        return epoch_state.ours if epoch_state is not None else []

    def wait_for_available(self) -> None:
        """Waits until everything that is in the topics now is done and committed."""
        waiter = EndsAwaited(self._ends_now(), Reply(None))
        self._post(waiter)
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

    # -- the membership's worker, from its threads

    def begin(self, assignment: EpochAssignment) -> None:
        """Begins the work on an assignment."""
        self._post(AssignmentReceived(assignment))

    def hand_over(self, timeout: float) -> Sequence[Share]:
        """Starts no more records, lets running handlers end in time, and commits what is done.

        Returns:
            The parts of shares on which handlers may still run.
        """
        answer: Reply[Sequence[Share]] = Reply(())
        self._post(HandOverRequested(time.monotonic() + timeout, answer))
        return answer.wait(self.ended)

    def give_up(self, shares: Sequence[Share], timeout: float) -> Sequence[Share] | None:
        """Ends the work on some shares and commits what is done of them; the rest continues.

        Returns:
            The parts of them on which handlers may still run; None: hand over all shares instead.
        """
        answer: Reply[Sequence[Share] | None] = Reply(None)
        self._post(SharesRevoked(shares, time.monotonic() + timeout, answer))
        return answer.wait(self.ended)

    def extend(self, load: Callable[[], EpochAssignment]) -> EpochAssignment | None:
        """Adds shares, and continues with the others.

        Args:
            load: Returns the gained shares.

        Returns:
            The gained shares; None if all shares are to be handed over.
        """
        if not self._dispatcher.may_leave:
            return None
        gained = load()
        if self._job_spec.state is not None:
            self._job_spec.state.extend(gained)
        event = SharesGained(gained, Reply(value=False))
        self._post(event)
        return event.gained if event.answer.wait(self.ended) else None

    def continue_work(self, timeout: float) -> bool:
        """Returns whether the work can continue while the group rebalances.

        Args:
            timeout: Seconds to wait for the answer to a commit that could not be repeated.

        Returns:
            Whether it continues; if not, all shares are to be handed over.
        """
        answer = Reply(value=False)
        self._post(RebalanceBegun(time.monotonic() + min(timeout, rebalance.LAST_COMMIT), answer))
        return answer.wait(self.ended) and not self.ended.is_set()

    def drop(self) -> None:
        """Ends the work on all shares: other members own them."""
        self._post(AssignmentLost())

    def fail(self, error: BaseException) -> None:
        """Ends the job with an error of the membership."""
        self._post(MembershipFailed(error))

    # -- the loop

    def _post(self, event: JobEvent, epoch_state: EpochState | None = None) -> None:
        self._events.put((event, epoch_state))

    def _main(self) -> None:
        lease = self._dispatcher.leases.lease
        self._trace.write(JobStarted(self._slots, lease, self._options, self._job_spec))
        try:
            self._membership.attach(self)
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
                # Others have our shares. A member of a group joins again as a new one.
                handing_over = self._rebalance.hand_over is not None
                if not self._membership.fenced(str(error), handing_over=handing_over):
                    raise
                self._drop()
            except (TopicNotFound, TopicReplaced, DataLoss) as error:
                # The next assignment is without the topic, with the new one, or from where the
                # log was cut.
                if not self._can_recover_from(error):
                    raise
                self._dispatcher.stop(self._epoch_state)
                if not self._membership.rejoin(
                    str(error), self._rebalance.left_of(self._epoch_state)
                ):
                    raise
                self._drop()

    def _can_recover_from(self, error: CoopConsumeError) -> bool:
        """Whether the job continues after an error of the checks of topics and logs."""
        if self._epoch_state is not None:
            return self._epoch_state.can_recover_from(error)
        # It comes from the first look at the assignment: nothing of it has begun.
        assignment = self._membership.assignment
        lossy = not self._options.fail_on_data_loss
        return lossy if assignment is None else assignment.logs.can_recover_from(error)

    def _turn(self) -> None:
        self._trace.write(TurnBegun())
        if self._unbegun is not None:
            assignment, self._unbegun = self._unbegun, None
            self._begin(assignment)
        self._dispatcher.interrupt_overdue()
        epoch_state = self._epoch_state
        if epoch_state is not None:
            try:
                self._work_on(epoch_state)
            except FencedMember as error:
                # A hand-over must not wait for an epoch that may never come.
                is_awaited = self._rebalance.is_awaited
                is_current = error.epoch == epoch_state.assignment.epoch
                if not epoch_state.assignment.may_be_late(error) or (is_awaited and is_current):
                    raise
                # The next epoch is in force, and its assignment is about to come.
                log.debug("refused between two epochs: %s", error)
        self._dispatcher.renew_leases(self._epoch_state)
        self._look_for_waits()
        self._take_events(self._patience())

    def _work_on(self, epoch_state: EpochState) -> None:
        self._note_epoch(epoch_state.assignment)
        if not self._stopping:
            self._look_at_logs(epoch_state)
        self._watch_limits(epoch_state)
        asked = self._rebalance
        more_to_come = not asked.is_late and any(
            r.reports_more for r in self._dispatcher.of(epoch_state)
        )
        is_awaited = asked.leaving is not None and asked.leaving.mark is not None
        is_at_end = self._is_drained(epoch_state) and not self._dispatcher.of(epoch_state)
        is_last = asked.hand_over is not None or is_awaited or self._stopping or is_at_end
        asked.answer_question(epoch_state, is_stopping=self._stopping)
        rests = self._is_paused or self._dispatcher.breaker.state == "open"
        epoch_state.committer.commit_if_due(
            more_to_come=more_to_come,
            is_last=is_last,
            demand=0 if is_last or rests else self._dispatcher.demand(epoch_state),
            ahead=self._dispatcher.ahead(epoch_state),
            is_resting=rests and not is_last and not self._dispatcher.of(epoch_state),
        )
        self._meter.idle(epoch_state.ours)
        asked.let_leave(epoch_state)
        if asked.hand_over is not None:
            self._hand_back(epoch_state, asked.hand_over)
        else:
            self._dispatcher.launch(epoch_state, stopping=self._stopping or self._is_paused)
        epoch_state.update_quiet()

    def _look_at_logs(self, epoch_state: EpochState) -> None:
        epoch_state.refresh_ends()
        if epoch_state.deleted:
            self._membership.rebalance(f"deleted: {', '.join(epoch_state.deleted)}")
            epoch_state.deleted = []
        epoch_state.look_for_holes()
        epoch_state.blocker_keys.look(epoch_state.ours)

    def _note_epoch(self, assignment: EpochAssignment) -> None:
        if assignment.epoch != self._epoch:
            self._epoch = assignment.epoch
            self._meter.joined(assignment.epoch.number)

    def _look_for_waits(self) -> None:
        """Updates what progress and status say that the job waits for, if it commits nothing."""
        now = time.monotonic()
        # An assignment that is about to begin is nothing to wait for.
        is_about_to_begin = self._epoch_state is None and not self._events.empty()
        if now - self._waits_at < _WAITS_EVERY or is_about_to_begin:
            return
        self._waits_at = now
        batches = self._dispatcher.of(self._epoch_state)
        self._meter.silent = longest_silence(batches, now)
        self._meter.oldest_call = oldest_call(batches, now)
        is_paused = self._is_paused or self._dispatcher.breaker.state == "open"
        found = None
        if is_paused or self._meter.is_quiet:
            found = waiting_for(self._facts(now), now)
        self._meter.waits(found, self.partitions)

    def _facts(self, now: float) -> JobFacts:
        epoch_state, dispatcher = self._epoch_state, self._dispatcher
        if epoch_state is None:
            return JobFacts(joining=self._membership.joining)
        breaker, hand_over = dispatcher.breaker, self._rebalance.hand_over
        return JobFacts(
            partitions=epoch_state.ours,
            batches=batch_facts(
                dispatcher.of(epoch_state), dispatcher.leases, self._spark, self._meter.title, now
            ),
            hand_over=None if hand_over is None else hand_over.until - now,
            is_stopping=self._stopping,
            is_paused=self._is_paused,
            breaker=breaker.until - now if breaker.state == "open" else None,
            breaker_reason=breaker.reason,
            kafka=epoch_state.kafka_error,
            unanswered=epoch_state.assignment.store.unanswered,
            barred={slot: until - now for slot, until in dispatcher.barred.items()},
            failing={slot: (at - now, why) for slot, (at, why) in dispatcher.failing.items()},
            next_trigger=dispatcher.next_trigger,
        )

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

    def _counts(self, epoch_state: EpochState) -> bool:
        """Returns whether what was done in an epoch may still be committed."""
        return epoch_state is self._epoch_state and not self._rebalance.is_late

    def _begin(self, assignment: EpochAssignment) -> None:
        self._end_epoch()
        if self._membership.assignment is not assignment:
            return  # Given back before it was begun.
        if self._job_spec.ordering == "partition" and assignment.is_shared:
            self._membership.rebalance("ordering='partition' needs whole partitions")
            return
        if self._job_spec.state is not None and self._job_spec.state.is_in_doubt(assignment.epoch):
            self._membership.rebalance("only the next epoch decides which changes of state count")
            return
        try:
            self._epoch_state = EpochState(
                self._spark, assignment, self._job_spec, self._slots, self._meter, self._commit_ids,
                self._ends, self._post, self._trace,
            )  # fmt: skip
        except (BrokerUnreachable, CommitLogUnavailable, StateNotReadable) as error:
            log.warning("%s; trying again", error)
            self._unbegun = assignment
            return
        self._meter.latency.retain(self._epoch_state.uncommitted)
        self._epoch = None
        self._note_epoch(assignment)
        self._epoch_state.warn_of_waits(self._meter)
        self._begin_window(assignment)

    def _begin_window(self, assignment: EpochAssignment) -> None:
        window = self._dispatcher.window
        if assignment.owned and not window.has_begun:
            window.begin(assignment.cluster.record_bytes(assignment.logs.present))

    def _hand_over_all(self, event: HandOverRequested) -> None:
        if self._epoch_state is None:
            event.answer.give(())
        else:
            self._rebalance.hand_over = HandOver(event.until, event.answer)
            self._dispatcher.stop(self._epoch_state)

    def _movable(self, shares: Sequence[Share]) -> EpochState | None:
        """Returns the work that continues while some shares come or go.

        Returns:
            None if all shares are to be handed over.
        """
        is_ending = self._rebalance.hand_over is not None or self._stopping
        is_part = self._job_spec.ordering == "partition" and not all(
            share.key_range.is_full for share in shares
        )
        if is_ending or is_part or self._unbegun is not None or not self._dispatcher.may_leave:
            return None
        return self._epoch_state

    def _extend(self, event: SharesGained) -> None:
        epoch_state = self._movable(event.gained.shares)
        if epoch_state is not None:
            epoch_state.extend(event.gained)
            epoch_state.warn_of_waits(self._meter)
            self._begin_window(epoch_state.assignment)
        event.answer.give(epoch_state is not None)

    def _leave(self, event: SharesRevoked) -> None:
        epoch_state = self._movable(event.shares)
        if epoch_state is None:
            event.answer.give(None)
            return
        partitions = epoch_state.leave(event.shares)
        self._rebalance.leaving = Leaving(event.shares, event.until, event.answer, partitions)
        self._dispatcher.leave(epoch_state, partitions)

    def _ask(self, question: RebalanceBegun) -> None:
        is_ending = self._unbegun is not None or self._rebalance.hand_over is not None
        if self._epoch_state is None or is_ending:
            question.answer.give(value=False)
        else:
            self._rebalance.question = question

    def _hand_back(self, epoch_state: EpochState, hand_over: HandOver) -> None:
        """Ends the epoch once all shares can be handed over."""
        if self._rebalance.ends_hand_over(epoch_state, hand_over):
            self._end_epoch()
            self._rebalance.handed_over()

    def _return_chunks(self, epoch_state: EpochState) -> None:
        """Returns the chunks of a cooperative epoch on which this job does not work any more.

        The member may stay in its group without a job.
        """
        if self._options.uses_chunks:
            try:
                epoch_state.assignment.return_chunks(self._rebalance.left_of(epoch_state))
            except Exception as error:  # noqa: BLE001 - they are returned as the member leaves
                log.debug("chunks are not returned: %s", error)

    def _drop(self) -> None:
        self._dispatcher.stop(self._epoch_state)
        self._dispatcher.interrupt()
        self._end_epoch()
        self._rebalance.handed_over()

    def _end_epoch(self, *, well: bool = False) -> None:
        epoch_state, self._epoch_state = self._epoch_state, None
        self._rebalance.refuse()
        self._dispatcher.forget_crashes()
        if epoch_state is not None:
            within = WRITE_WITHIN
            if self._stopping:
                is_away = epoch_state.assignment.primary.is_unanswered
                within = 0.0 if is_away else _LAST_WRITE
            epoch_state.end(well=well, within=within)

    def _take_events(self, timeout: float) -> None:
        try:
            event, epoch_state = self._events.get(timeout=timeout)
            while True:
                self._handle(event, epoch_state)
                event, epoch_state = self._events.get_nowait()
        except queue.Empty:
            pass

    def _handle(self, event: JobEvent, epoch_state: EpochState | None = None) -> None:  # noqa: C901, PLR0912, PLR0915 - one match
        """Handles an event; drops it if it comes from an epoch that is over."""
        if epoch_state is not None and epoch_state.is_over:
            return
        self._trace.write(event)
        match event:
            case SlotReported():
                self._dispatcher.reported(event.report)
            case SlotProgressed():
                self._dispatcher.progressed(event.report)
            case CallReported():
                self._dispatcher.called(event)
            case BatchEnded():
                self._dispatcher.batch_ended(event)
            case CommitAnswered():
                self._committer.commit_answered(event)
            case CommitFenced():
                self._committer.fenced(event)
            case CommitFailed():
                self._committer.failed(event)
            case LogRead():
                self._committer.looked(event)
            case DecisionsApplied():
                self._committer.decided(event)
            case OffsetsMirrored():
                self._committer.mirrored(event)
            case ParcelWritten():
                self._committer.outbox.written(event)
            case ParcelFailed():
                self._committer.outbox.not_written(event)
            case HolesFound():
                self._current_state.looked(event)
            case BlockersRead():
                self._current_state.blocker_keys.take(event, self.partitions)
            case AssignmentReceived():
                self._begin(event.assignment)
            case HandOverRequested():
                self._hand_over_all(event)
            case SharesRevoked():
                self._leave(event)
            case SharesGained():
                self._extend(event)
            case RebalanceBegun():
                self._ask(event)
            case AssignmentLost():
                self._drop()
            case MembershipFailed():
                raise event.error
            case EndsAwaited():
                self._waiters.append((event, time.monotonic()))
            case PauseRequested():
                self._pause(event)
            case StopRequested():
                self._stop(event)
            case AbortRequested():
                self._abort()
            case _:
                raise TypeError(f"no such event: {event!r}")

    @property
    def _current_state(self) -> EpochState:
        assert self._epoch_state is not None, "its events are dropped once it is over"
        return self._epoch_state

    @property
    def _committer(self) -> Committer:
        return self._current_state.committer

    def _patience(self) -> float:
        now = time.monotonic()
        waits = [_IDLE_WAIT]
        busy = self._epoch_state.busy if self._epoch_state is not None else []
        waits += [due - now for p in busy if (due := p.lanes.next_due()) is not None]
        dispatcher = self._dispatcher
        waits += [at - now for at in dispatcher.barred.values()]
        waits += [at - now for at, _ in dispatcher.failing.values()]
        breaker = self._dispatcher.breaker
        if breaker.state == "open":
            waits = [max(0.0, breaker.until - now), _IDLE_WAIT]
        if self._rebalance.hand_over or self._dispatcher.is_partly_busy:
            waits.append(0.05)
        patience = max(_SHORTEST_WAIT, min(waits))
        due = None if self._epoch_state is None else self._epoch_state.committer.due
        return patience if due is None else min(patience, max(due - now, 0) or _SHORTEST_WAIT)

    def _finished(self) -> bool:
        epoch_state = self._epoch_state
        hand_over = self._rebalance.hand_over
        if hand_over is not None:
            hand_over.until = min(hand_over.until, self._stop_by)
            return False
        if epoch_state is None:
            return self._stopping
        if self._waiters and not epoch_state.assignment.primary.has_unpublished:
            for waiter, since in list(self._waiters):
                if epoch_state.has_processed(waiter.ends, since):
                    waiter.answer.give(None)
                    self._waiters.remove((waiter, since))
        late = time.monotonic() - self._stop_by
        is_at_work = self._dispatcher.is_at_work(epoch_state) and late < 0
        is_too_late = max(late, epoch_state.committer.refused_for) >= rebalance.LAST_COMMIT
        if is_at_work or not (epoch_state.committer.has_all_it_can or is_too_late):
            return False
        if self._stopping or self._is_paused:
            return self._stopping
        if not self._is_drained(epoch_state):
            return False
        epoch_state.committer.raise_given_up()
        return epoch_state.committer.has_all

    def _is_drained(self, epoch_state: EpochState) -> bool:
        """Whether a job with ``availableNow`` has nothing left to do, except to commit."""
        return (
            self._job_spec.available_now
            and epoch_state.knows_ends
            and not self._dispatcher.barred
            and all(
                p.is_drained or (p.ledger.unpublished and p.ledger.has_outputs_enough)
                for p in epoch_state.busy
            )
        )

    def _stop(self, event: StopRequested) -> None:
        self._stopping = True
        self._stop_by = min(self._stop_by, event.stop_by)
        if event.drain:
            self._dispatcher.drain(self._epoch_state)
        else:
            self._dispatcher.stop(self._epoch_state)

    def _pause(self, event: PauseRequested) -> None:
        self._is_paused = event.is_paused
        self._waits_at = -math.inf
        self._meter.paused(is_paused=event.is_paused)
        if event.is_paused:
            self._dispatcher.stop(self._epoch_state)

    def _abort(self) -> None:
        self._dispatcher.interrupt()
        raise InterruptedError("the job was asked to leave at once")

    def _close(self) -> None:
        self._dispatcher.stop(self._epoch_state)
        self._dispatcher.interrupt()
        self._dispatcher.close()
        hand_over, epoch_state = self._rebalance.hand_over, self._epoch_state
        if epoch_state is not None:
            # Aborted, or failed: Spark is to end the batches, and may need a while.
            left = self._rebalance.left_of(epoch_state)
            epoch_state.assignment.left_running(left, self._dispatcher.may_run_for(epoch_state))
            if hand_over is not None and not hand_over.is_late:
                hand_over.answer.value = left
        self._end_epoch(well=self.error is None)
        if epoch_state is not None:
            self._return_chunks(epoch_state)
        self._job_spec.close()
        self._membership.detach()
        self._meter.ended(self.error)
        self._trace.write(JobEnded(self.error))
        self._trace.close()
        if self.error is None:
            self._dispatcher.leases.wait_for_workers()
        self.ended.set()
        for waiter, _ in self._waiters:
            waiter.answer.give(None)
