"""Commits what slots have reported: one commit at a time, and what it waits for before and after.

What a slot reports passes these states, in this order. Without dead letters, output rows and
changes of the state it begins at the third.

| State | Where it is kept | Entered by | Left by |
| --- | --- | --- | --- |
| to write | `Outbox`, `OffsetLedger.undelivered` | `Committer.take` | ``ParcelWritten`` |
| written | `Outbox.ready` | ``ParcelWritten`` | a commit begins |
| to commit | `NextCommit`, `OffsetLedger.to_commit` | `Committer.take`, a hole | a commit begins |
| in flight | `LogThread.commit` | a commit begins | one of the three answers |
| committed | `OffsetLedger.committed` | ``CommitAnswered`` | |
| published | Kafka, by `Mirror` | ``OffsetsMirrored`` | |

Offsets in flight stay in the ledgers until the answer. What the log refuses, as the next epoch is
in force already, is to commit again (``CommitFenced``); with written outputs that ends the work on
the epoch. ``CommitFailed`` ends the job.

The commit log gets one call at a time. A turn begins the first of these calls that is due:

| Call | Due | Answered by |
| --- | --- | --- |
| none | while a call is under way (`LogThread`) or the epoch is refused (`EpochWatch`) | |
| `LogCalls.decide` | after 2 s if records failed or are parked | ``DecisionsApplied`` |
| `LogCalls.return_chunks` | the job rests, and holds chunks (`ChunkRequests`) | ``LogRead`` |
| `LogCalls.look` | in a cooperative epoch after 0.5 s | ``LogRead`` |
| `LogCalls.commit` | there is something to commit or request, at its time (`Pace`) | as above |
| `LogCalls.look` | there is nothing, after 1 s or 5 s | ``LogRead`` |

`EpochWatch.is_confirmed` begins a look, too, if no call is under way.
"""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, Final

from commits import OffsetRanges
from coopconsume.errors import CoopConsumeError
from coopconsume.group.primary import WRITE_WITHIN
from coopconsume.runtime.commit.chunk_requests import ChunkRequests
from coopconsume.runtime.commit.decision_reads import DecisionReads
from coopconsume.runtime.commit.epoch_watch import EpochWatch
from coopconsume.runtime.commit.log_calls import LogCalls, LogThread
from coopconsume.runtime.commit.mirror import Mirror
from coopconsume.runtime.commit.next_commit import CommitMark, NextCommit, uncommitted
from coopconsume.runtime.commit.outbox import Outbox
from coopconsume.runtime.commit.pace import CommitTime, Pace
from coopconsume.runtime.trace import CommitStarted, Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from commits import AcquireRequest
    from commits.model import TopicPartition
    from coopconsume.group.epoch_assignment import EpochAssignment
    from coopconsume.runtime.commit.parcels import Written
    from coopconsume.runtime.events import (
        CommitAnswered,
        CommitFailed,
        CommitFenced,
        DecisionsApplied,
        JobEvent,
        LogRead,
        OffsetsMirrored,
    )
    from coopconsume.runtime.job_spec import JobSpec
    from coopconsume.runtime.plan import Partition
    from coopconsume.runtime.status.progress import Meter
    from coopconsume.worker.report import SlotReport

log = logging.getLogger(__name__)

#: Seconds between two reads of the log while there is nothing to commit.
_MIRROR_EVERY: Final = 5.0
#: The same where other members move the stable offsets, too.
_LOOK_EVERY: Final = 1.0
#: Seconds between two reads of the chunks of a cooperative epoch.
_CHUNKS_EVERY: Final = 0.5


class Committer:
    """Commits what slots have reported, one commit at a time, in a thread of its own.

    Only the loop calls its methods; the thread answers by events, through ``post``.

    Args:
        assignment: What is owned, and the way to commit it.
        job_spec: Where dead letters and outputs go.
        partitions: The partitions of the epoch.
        meter: Takes note of commits.
        commit_ids: Ids for commits, unique in the group.
        post: Puts an event into the loop's queue.
        trace: Takes each commit that starts.

    Attributes:
        outbox: Dead letters, output rows and changes of the state that are not committed.
        chunks: What is requested of a cooperative epoch.
        watch: When the log was read, and whether it has refused the epoch.
    """

    def __init__(
        self,
        assignment: EpochAssignment,
        job_spec: JobSpec,
        partitions: Sequence[Partition],
        meter: Meter,
        commit_ids: Iterator[str],
        post: Callable[[JobEvent], None],
        trace: Trace | None = None,
    ) -> None:
        self._assignment = assignment
        self._partitions = {(p.topic, p.partition): p for p in partitions}
        self._meter = meter
        self._trace = trace or Trace()
        #: Slots of a job with state wait until their changes are written.
        self._is_stateful = job_spec.state is not None
        self._pace = Pace(
            assignment.options.commit_interval, real_time=job_spec.real_time is not None
        )
        self._next = NextCommit(self._partitions, commit_ids)
        self._decisions = DecisionReads(assignment, self._partitions, may_park=job_spec.may_park)
        self.chunks = ChunkRequests(assignment, self._partitions)
        self._thread = LogThread()
        self._calls = LogCalls(assignment, job_spec, commit_ids, post)
        read_at = -math.inf if self.chunks.is_cooperative else time.monotonic()
        self.watch = EpochWatch(assignment, self._thread, self._calls.look, read_at=read_at)
        self._mirror = Mirror(assignment, self._partitions, post)
        self.outbox = Outbox(
            assignment,
            job_spec,
            partitions=self._partitions,
            commit_ids=commit_ids,
            post=post,
            failed=_fail,
        )

    def extend(self, partition: Partition) -> None:
        """Adds a partition."""
        self._partitions[partition.topic, partition.partition] = partition

    # -- what is known

    @property
    def has_all(self) -> bool:
        """Whether all that came in is committed, and decisions were read once."""
        waits = self._next.has_any or self._assignment.primary.has_unpublished
        is_busy = self._thread.is_busy or self.outbox.has_any
        return not (waits or is_busy or self._decisions.is_missing)

    @property
    def has_all_it_can(self) -> bool:
        """Whether all is committed, except what a destination holds back."""
        if self.has_all:
            return True
        primary = self._assignment.primary
        moves = self.outbox.is_moving or primary.is_publishing
        if self._thread.is_busy or moves or self._next.has_any:
            return False
        return self.outbox.has_any or primary.has_unpublished

    def mark(self, partitions: Sequence[Partition]) -> CommitMark:
        """Returns what of some partitions is not committed now; `has_since` takes it."""
        count = self._thread.count + 1 + self._thread.is_busy
        return CommitMark(count, self._uncommitted(partitions))

    def has_since(self, mark: CommitMark) -> bool:
        """Whether all is committed that was not when a mark was made, failed records included."""
        return self.has_all_it_can or (self._thread.count >= mark.count and self.is_committed(mark))

    def is_committed(self, mark: CommitMark) -> bool:
        """Whether all offsets are committed or parked that were not when a mark was made."""
        found = self._uncommitted(self._partitions[tp] for tp in mark.offsets)
        return not any(found[tp] & offsets for tp, offsets in mark.offsets.items())

    def _uncommitted(self, partitions: Iterable[Partition]) -> dict[TopicPartition, OffsetRanges]:
        written = self._thread.written
        in_flight = [] if written is None else [written.parcel]
        return uncommitted(partitions, [*self.outbox.parcels, *in_flight])

    @property
    def may_rebalance(self) -> bool:
        """Whether no commit runs that could not be repeated under the next epoch.

        Outputs carry the id of their commit, and a refused id stays refused.
        """
        return self._thread.written is None

    @property
    def refused_for(self) -> float:
        """Seconds since the log refused a commit of a passed epoch; 0: the epoch is in force."""
        return self.watch.refused_for(time.monotonic())

    @property
    def awaits_chunks(self) -> bool:
        """Whether a job with chunks is about to acquire most of its demand."""
        commit = self._thread.commit
        is_asked = commit is not None and commit.chunks is not None
        return self.refused_for == 0 and self.chunks.awaits(is_asked=is_asked)

    def raise_given_up(self) -> None:
        """Raises the error of outputs that the job does not wait for any longer.

        Raises:
            OutputNotWritten: A destination has refused them, or was given up.
            OutputsNotPublished: A topic does not take the outputs of transactions.
        """
        self.outbox.raise_refused()
        primary = self._assignment.primary
        error = primary.given_up(self._assignment.options.batch_time)
        if error is not None and primary.has_unpublished:
            raise error

    @property
    def due(self) -> float | None:
        """When the next commit is due, on the monotonic clock; None: unknown."""
        since = self._next.since
        waits = self._thread.is_busy or self.outbox.is_young
        return self._pace.due(since) if since and not waits else None

    # -- what comes in

    def take(self, report: SlotReport, partitions: Sequence[Partition], now: float) -> CommitTime:
        """Takes the report of a slot: failed records, dead letters and outputs.

        The partitions have taken the offsets that are done.

        Args:
            report: The report.
            partitions: Of its batch, by part.
            now: The time, on the monotonic clock.

        Returns:
            When the next commit begins.
        """
        if report.has_progress or not report.seq:
            self._next.note(now)
        parked = self.outbox.take(report, partitions)
        self._next.take(report, partitions, parked)
        self._hold_back(now)  # Before the next batch starts.
        return self.next_commit(now)

    def next_commit(self, now: float) -> CommitTime:
        """Returns when the next commit begins if there is something to commit."""
        return CommitTime((self.due or self._pace.next_at) - now, self._pace.interval)

    def amend(self, partition: Partition, holes: OffsetRanges) -> None:
        """Takes proven holes of a partition."""
        self._next.amend(partition, holes, time.monotonic())

    def _hold_back(self, now: float) -> None:
        """Holds back records that cannot be written now; another member may have to do them."""
        pending = self.outbox.show()
        if not self.chunks.is_cooperative:  # There they stay with this member.
            self._next.add(pending, now)

    # -- a turn

    def commit_if_due(
        self,
        *,
        more_to_come: bool,
        is_last: bool = False,
        demand: int = 0,
        ahead: Mapping[TopicPartition, int] | None = None,
        is_resting: bool = False,
    ) -> None:
        """Begins to write outputs and to commit what came in, if it is time for that.

        Args:
            more_to_come: Whether slots are about to report more.
            is_last: Whether the commit is waited for: it does not wait for ``commitInterval``.
            demand: Offsets that a job with chunks needs for its next batches.
            ahead: Offsets of partitions that its slots need in real time, see `Acquirer.request`.
            is_resting: Whether no slot works or is about to: the chunks of a job with chunks are
                returned.
        """
        now = time.monotonic()
        self.chunks.need(demand, ahead)
        self._pace.expect(more_to_come=more_to_come)
        linger = self._pace.waits_for_reports(self._next.since, now)
        is_early = not is_last and now < self._pace.next_at and not self._is_stateful
        if not (linger or is_early):
            self.outbox.start()
        self._hold_back(now)
        self._mirror.write_if_due()
        if self._thread.is_busy or self.watch.refused_for(now) > 0:
            return
        if self._decides(now):
            return
        self._next.find_holes(now)
        if not self._looks_at_chunks(now, is_resting=is_resting):
            self._commit_or_look(now, linger=linger, is_early=is_early)

    def _decides(self, now: float) -> bool:
        """Begins to read decisions, if it is time and records have failed or are parked."""
        parked = self._decisions.due(now)
        if parked is not None:
            self._thread.begin(self._calls.decide, parked)
        return parked is not None

    def _looks_at_chunks(self, now: float, *, is_resting: bool) -> bool:
        """Begins to read the chunks of a cooperative epoch, or to return them, if it is time."""
        if not self.chunks.is_cooperative or self._assignment.is_between_epochs:
            return False
        has_outcomes = self._next.has_any or self.outbox.has_any
        if is_resting and self.chunks.has_any and not has_outcomes:
            self._thread.begin(self._calls.return_chunks)
            return True
        if self.watch.is_older(_CHUNKS_EVERY, now):
            self.watch.look()
            return True
        return False

    def _commit_or_look(self, now: float, *, linger: bool, is_early: bool) -> None:
        """Begins a commit if it is time; without anything to commit, perhaps a look at the log."""
        ready = () if self._assignment.is_between_epochs else self.outbox.ready
        request = self.chunks.request()
        if not (self._next.has_any or ready or request):
            every = _LOOK_EVERY if self._assignment.is_shared else _MIRROR_EVERY
            if self.watch.is_older(every, now):
                self.watch.look()
            return
        if is_early and not self.chunks.is_urgent(request):
            return
        # With what is to come there will be fewer ranges, and fewer commits.
        is_kept = linger or self.outbox.is_young
        if ready or request is not None or not is_kept:
            self._begin_commit(self.outbox.ready.popleft() if ready else None, request)

    def _begin_commit(self, written: Written | None, request: AcquireRequest | None) -> None:
        commit = self._next.begin(written, request)
        if commit is None:
            return
        self._pace.began(time.monotonic())
        self.chunks.began(commit.chunks)
        attempts = {
            tp: [(one.offset, one.attempts) for one in records]
            for tp, records in commit.pending.items()
        }
        self._trace.write(CommitStarted(commit.offsets, commit.holes, attempts, commit.chunks))
        self._thread.begin_commit(self._calls.commit, commit)

    def close(self, *, well: bool, within: float = WRITE_WITHIN) -> None:
        """Waits for the running commit; if the job ended well, mirrors the offsets to Kafka.

        The arguments are those of `Mirror.close`.
        """
        self._assignment.stop_repeating()
        if not well:
            self._assignment.primary.stop_publishing()
        self._thread.close()
        self._calls.close()
        self._mirror.close(well=well, within=within)

    # -- the answers of its threads, in the loop

    def decided(self, event: DecisionsApplied) -> None:
        """Takes the decisions on parked records that were applied, and those on failed records."""
        self._thread.ended()
        self._decisions.applied(event, time.monotonic())

    def looked(self, event: LogRead) -> None:
        """Takes stable offsets that other members have moved."""
        stable = event.stable
        parked = self.chunks.parked
        self.chunks.looked(event.chunks)
        for tp, offset in stable.items():
            if offset != self._partitions[tp].ledger.stable:
                self._partitions[tp].commit_answered(OffsetRanges(), offset, OffsetRanges())
        if self._assignment.is_shared:
            _count_ranges(self._partitions, self._assignment, stable)
        if self.chunks.parked != parked:
            # By any member. The commit that parks a record does not know which are parked after it.
            self._meter.parked([p for p in self._partitions.values() if p.is_ours])
        self.watch.has_read(time.monotonic())
        self._thread.ended()
        self._mirror.wake()

    def commit_answered(self, answer: CommitAnswered) -> None:
        """Takes the answer to a commit."""
        commit = self._thread.answered()
        self._pace.took(answer.cost)
        self._mirror.wake()
        for tp, (offsets, stable) in answer.offsets.items():
            holes = answer.holes.get(tp, OffsetRanges())
            self._partitions[tp].commit_answered(offsets, stable, holes)
        self.chunks.answered(commit.chunks, answer)
        _count_ranges(self._partitions, self._assignment, answer.offsets)
        count = sum(len(offsets) for offsets, _ in answer.offsets.values())
        self._meter.committed(answer)
        if self.chunks.is_cooperative and not (answer.offsets or answer.holes):
            return  # A request alone is no commit.
        ours = [p for p in self._partitions.values() if p.is_ours]
        self._meter.progressed(count, answer.took, ours)

    def fenced(self, event: CommitFenced) -> None:
        """Takes the refusal of a commit; its records are committed under the next epoch, if any.

        Raises:
            FencedMember: No other epoch is to come, or outputs have the id of the commit.
        """
        now, commit = time.monotonic(), self._thread.ended()
        if commit is not None and commit.written is not None:
            raise event.error
        self.watch.refused(event.error, now)
        self._next.put_back(event.pending, now)
        if self.chunks.is_cooperative:
            # It is unknown whether a request counts: the next epoch shows it.
            self.watch.look_soon()

    def failed(self, event: CommitFailed) -> None:
        """Ends the job: a commit has failed."""
        self._thread.ended()
        _fail(event.error)

    def mirrored(self, event: OffsetsMirrored) -> None:
        """Takes the end of a write of the group's offsets.

        Raises:
            BaseException: The error of the write, if it ends the job.
        """
        self._mirror.ended()
        if event.error is not None:
            self.watch.refused(event.error, time.monotonic())
        self._mirror.go_on()


def _count_ranges(
    partitions: Mapping[TopicPartition, Partition],
    assignment: EpochAssignment,
    places: Iterable[TopicPartition],
) -> None:
    """Notes how many ranges the commit log has of some partitions."""
    for tp in places:
        owned = assignment.owned.get(tp)
        if owned is not None:
            partitions[tp].ledger.log_has(owned.range_count, owned.last_committed)


def _fail(error: BaseException) -> None:
    """Ends the job."""
    if not isinstance(error, CoopConsumeError):
        log.error("a commit failed: %s", error)
    raise error
