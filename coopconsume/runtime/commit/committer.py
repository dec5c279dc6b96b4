"""Decides when a job commits, and commits in a thread of its own."""

from __future__ import annotations

import itertools
import logging
import math
import time
import uuid
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from commits import (
    FencedMember,
    OffsetRanges,
    Pending,
)
from coopconsume.errors import CoopConsumeError
from coopconsume.group.primary import WRITE_WITHIN
from coopconsume.runtime.commit.log_calls import LogCalls
from coopconsume.runtime.commit.mirror import Mirror
from coopconsume.runtime.commit.outbox import Outbox, pending_of
from coopconsume.runtime.commit.pace import Pace
from coopconsume.runtime.plan.acquiring import Acquirer
from coopconsume.runtime.trace import CommitStarted, Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from commits import AcquireRequest, Epoch
    from commits.model import TopicPartition
    from coopconsume.group.epoch_assignment import EpochAssignment
    from coopconsume.group.owned import Failed
    from coopconsume.runtime.commit.parcels import Written
    from coopconsume.runtime.decisions import Decision
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

_MIRROR_EVERY = 5.0
#: Seconds between two reads of stable offsets that other members move, too.
_LOOK_EVERY = 1.0
#: Seconds between two reads of the chunks of a cooperative epoch.
_CHUNKS_EVERY = 0.5
#: Seconds between two questions whether the epoch is in force.
_CONFIRM_EVERY = 0.2
#: Seconds for which the loop waits for the answer; a turn takes as long while no batch is due.
_CONFIRM_WITHIN = 0.2
_LINGER = 0.1
#: Seconds between two reads of decisions on parked and failed records.
_DECIDE_EVERY = 2.0


@dataclass
class NextCommit:
    """What the next commit contains besides the offsets that are done.

    Attributes:
        since: When the first of all it contains came in, on the monotonic clock; 0: nothing has.
        pending: Records that failed, for the commit log.
    """

    since: float = 0.0
    pending: dict[TopicPartition, list[Pending]] = field(default_factory=dict)

    def put_back(self, kept: Mapping[TopicPartition, list[Pending]]) -> None:
        """Takes back failed records that could not be written; later failures of them count."""
        for tp, pending in kept.items():
            self.pending.setdefault(tp, [])[:0] = pending

    def add(self, pending: Mapping[TopicPartition, list[Pending]], now: float) -> None:
        """Takes failed records, which are pending from now on."""
        for tp, records in pending.items():
            self.pending.setdefault(tp, []).extend(records)
        if pending:
            self.since = self.since or now


@dataclass(frozen=True)
class CommitMark:
    """What was not committed at some time.

    Attributes:
        count: `Committer.count` once a commit that began after this time is answered.
        offsets: The offsets that were not committed, by partition.
    """

    count: int
    offsets: Mapping[TopicPartition, OffsetRanges]


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
        self._job_spec = job_spec
        self._partitions = {(p.topic, p.partition): p for p in partitions}
        self._meter = meter
        self._ids = commit_ids
        self._trace = trace or Trace()
        self._post = post
        interval = assignment.options.commit_interval
        self._pace = Pace(interval, real_time=job_spec.real_time is not None)
        self._linger = min(_LINGER, interval)
        #: Seconds for which reports that are about to come are waited for.
        self._lingers = 0.0
        self._next = NextCommit()
        self._looked_at = time.monotonic()
        self._asked_at = -math.inf
        #: The last call of the thread, if `is_confirmed` has not waited for it.
        self._call: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="coopconsume-commit")
        self._calls = LogCalls(assignment, job_spec, commit_ids, post)
        #: An epoch that has passed while the work continues: nothing is committed under it.
        self._passed: Epoch | None = None
        self._passed_at = 0.0
        self.is_busy = False
        #: The parcel that the running commit is to make count.
        self._written: Written | None = None
        #: How many commits were answered.
        self.count = 0
        self._decisions_at = -math.inf
        self._troubled: frozenset[TopicPartition] = frozenset()
        #: Builds requests for chunks; None: the epoch is not cooperative.
        self._acquirer: Acquirer | None = None
        #: The last demand of a job with chunks, see `commit_if_due`.
        self._demand = 0
        self._ahead: Mapping[TopicPartition, int] = {}
        #: The request that runs; None: none does.
        self._acquiring: AcquireRequest | None = None
        prefix = uuid.uuid4().hex
        self._request_ids = (f"{prefix}-{number}" for number in itertools.count(1))
        if assignment.options.uses_chunks:
            self._acquirer = Acquirer(self._partitions, assignment.options.max_pending)
            self._looked_at = -math.inf
        self._mirror = Mirror(assignment.primary, post)
        self.outbox = Outbox(assignment, job_spec, self._partitions, commit_ids, post, self._failed)

    @property
    def has_all(self) -> bool:
        """Whether all that came in is committed, and decisions were read once."""
        is_open = bool(self._open())
        unlooked = self._decisions_at == -math.inf and (
            self._job_spec.may_park or bool(self._parked())
        )
        waits = self._next.since or is_open or unlooked or self._assignment.primary.has_unpublished
        return not (self.is_busy or waits or self.outbox.has_any)

    def extend(self, partition: Partition) -> None:
        """Adds a partition."""
        self._partitions[partition.topic, partition.partition] = partition

    def mark(self, partitions: Sequence[Partition]) -> CommitMark:
        """Returns what of some partitions is not committed now; `has_since` takes it."""
        return CommitMark(self.count + 1 + self.is_busy, self._uncommitted(partitions))

    def has_since(self, mark: CommitMark) -> bool:
        """Whether all is committed that was not when a mark was made, failed records included."""
        return self.has_all_it_can or (self.count >= mark.count and self.is_committed(mark))

    def is_committed(self, mark: CommitMark) -> bool:
        """Whether all offsets are committed or parked that were not when a mark was made."""
        found = self._uncommitted(self._partitions[tp] for tp in mark.offsets)
        return not any(found[tp] & offsets for tp, offsets in mark.offsets.items())

    def _uncommitted(self, partitions: Iterable[Partition]) -> dict[TopicPartition, OffsetRanges]:
        """Returns what of some partitions is not committed, or is to be parked."""
        found = {
            (p.topic, p.partition): p.ledger.to_commit
            | p.ledger.holes_to_commit
            | p.ledger.undelivered
            for p in partitions
        }
        written = [] if self._written is None else [self._written.parcel]
        # A deleted record is done for the partition, and not for what it gave.
        for parcel in (*self.outbox.parcels, *written):
            for tp, offsets in parcel.places().items():
                if tp in found:
                    found[tp] |= offsets
        return found

    @property
    def has_all_it_can(self) -> bool:
        """Whether all is committed, except what a destination holds back."""
        if self.has_all:
            return True
        primary = self._assignment.primary
        moves = self.outbox.is_moving or primary.is_publishing
        if self.is_busy or self._next.since or moves or self._open():
            return False
        return self.outbox.has_any or primary.has_unpublished

    @property
    def may_rebalance(self) -> bool:
        """Whether no commit runs that could not be repeated under the next epoch.

        Outputs carry the id of their commit, and a refused id stays refused.
        """
        return self._written is None

    @property
    def refused_for(self) -> float:
        """Seconds since the log refused a commit of a passed epoch; 0: the epoch is in force."""
        is_refused = self._passed is not None and self._assignment.epoch == self._passed
        return time.monotonic() - self._passed_at if is_refused else 0.0

    def is_confirmed(self) -> bool:
        """Whether the log said a moment ago that the epoch is in force; if not, it is asked.

        An answer is waited for, once and not for long: the next turn may look at Kafka for longer
        than an answer counts, and the loop has more to do than to wait for a table.
        """
        if self._assignment.is_confirmed:
            return True
        is_soon = time.monotonic() - self._asked_at < _CONFIRM_EVERY
        if not (self.is_busy or is_soon or self.refused_for > 0):
            self._asked_at = time.monotonic()
            self._run(self._calls.look)
        call, self._call = self._call, None
        if call is not None:
            wait([call], _CONFIRM_WITHIN)
        return self._assignment.is_confirmed

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
        waits = self.is_busy or self.outbox.is_young
        return max(since + self._lingers, self._pace.next_at) if since and not waits else None

    def next_in(self, now: float) -> float:
        """Returns the seconds until the next commit begins if there is something to commit."""
        return (self.due or self._pace.next_at) - now

    def take(self, report: SlotReport, partitions: Sequence[Partition], now: float) -> None:
        """Takes the report of a slot: failed records, dead letters and outputs.

        The partitions take the offsets that are done.

        Args:
            report: The report.
            partitions: Of its batch, by part.
            now: The time, on the monotonic clock.
        """
        coming = self._next
        coming.since = coming.since or now
        cooperative = self._acquirer is not None
        parked = self.outbox.take(report, partitions)
        for part, outcome in report.partitions.items():
            if outcome.failed:
                p = partitions[part]
                coming.pending.setdefault((p.topic, p.partition), []).extend(
                    pending_of(f)
                    for f in outcome.failed
                    if (part, f.offset) not in parked and p.has(f.key_hash)
                )
        shown = self.outbox.show()
        if not cooperative:  # There they stay with this member.
            coming.add(shown, now)  # Before the next batch starts.

    def amend(self, partition: Partition, holes: OffsetRanges) -> None:
        """Takes proven holes of a partition."""
        partition.slots.amend(holes)
        self._next.since = self._next.since or time.monotonic()

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
        now, self._demand, self._ahead = time.monotonic(), demand, ahead or {}
        self._lingers = self._linger if more_to_come else 0.0
        linger = now - self._next.since < self._lingers
        # Slots of a job with state wait until their changes are written.
        is_early = not is_last and now < self._pace.next_at and self._job_spec.state is None
        if not (linger or is_early):
            self.outbox.start()
        shown = self.outbox.show()
        if self._acquirer is None:
            self._next.add(shown, now)
        self._mirror.write_if_due()
        if self.refused_for > 0:
            return
        if self.is_busy or self._looks_at_decisions():
            return
        self._find_holes()
        ready = () if self._assignment.is_between_epochs else self.outbox.ready
        if self._looks_at_chunks(now, is_resting=is_resting):
            return
        request = self._request()
        is_early &= not self._is_starving(request)
        if not (self._next.since or self._open() or ready or request):
            every = _LOOK_EVERY if self._assignment.is_shared else _MIRROR_EVERY
            if time.monotonic() - self._looked_at > every:
                self._run(self._calls.look)
            return
        if is_early:
            return
        # With what is to come there will be fewer ranges, and fewer commits.
        is_kept = linger or self.outbox.is_young
        if ready or request is not None or not is_kept:
            self._begin_commit(self.outbox.ready.popleft() if ready else None, request)

    def _find_holes(self) -> None:
        for partition in self._busy():
            found = partition.supply.holes()
            if found:
                self.amend(partition, found)

    def _looks_at_chunks(self, now: float, *, is_resting: bool) -> bool:
        """Begins to read the chunks of a cooperative epoch, or to return them, if it is time."""
        if self._acquirer is None or self._assignment.is_between_epochs:
            return False
        has_outcomes = self._next.since or self._open() or self.outbox.has_any
        if is_resting and self._acquirer.has_any and not has_outcomes:
            self._run(self._calls.return_chunks)
            return True
        if now - self._looked_at > _CHUNKS_EVERY:
            self._run(self._calls.look)
            return True
        return False

    def _request(self) -> AcquireRequest | None:
        if self._acquirer is None or self._assignment.is_between_epochs:
            return None
        return self._acquirer.request(self._demand, self._ahead)

    @property
    def is_only_member(self) -> bool:
        """Whether the job is cooperative, and no other member acquires chunks."""
        return self._acquirer is not None and self._acquirer.is_only_member

    @property
    def acquired(self) -> int:
        """Offsets up to the ends of the logs that a job with chunks holds without an outcome."""
        return 0 if self._acquirer is None else self._acquirer.acquired

    @property
    def awaits_chunks(self) -> bool:
        """Whether a job with chunks is about to acquire most of its demand.

        A batch that starts now would be far smaller than its slots can handle.
        """
        if self._acquirer is None or not self._acquirer.lacks(self._demand):
            return False
        if self.refused_for > 0:
            return False
        request = self._request()
        return self._acquiring is not None or (request is not None and bool(request.wanted))

    def _is_starving(self, request: AcquireRequest | None) -> bool:
        """Whether the next batch, or slots, wait for the answer to a request."""
        if request is None or self._acquirer is None:
            return False
        return self._acquirer.is_urgent if self._ahead else self.awaits_chunks

    def _looks_at_decisions(self) -> bool:
        """Begins to read decisions, if it is time and records have failed or are parked."""
        is_due = time.monotonic() - self._decisions_at > _DECIDE_EVERY
        if self._assignment.is_between_epochs or not is_due:
            return False
        parked = self._parked()
        # At the start, too: decisions that an earlier process has applied are removed.
        is_first = self._decisions_at == -math.inf
        if parked or self._has_failed() or (self._job_spec.may_park and is_first):
            self._run(self._calls.decide, parked)
            return True
        self._decisions_at = time.monotonic()
        return False

    def _begin_commit(self, written: Written | None, request: AcquireRequest | None) -> None:
        offsets = {
            (p.topic, p.partition): p.ledger.to_commit for p in self._open() if p.ledger.to_commit
        }
        holes = {
            (p.topic, p.partition): p.ledger.holes_to_commit
            for p in self._open()
            if p.ledger.holes_to_commit
        }
        coming, self._next = self._next, NextCommit()
        coming.pending = self._ours(coming.pending)
        if written is not None:
            written.parcel.pending = self._ours(written.parcel.pending)
        if offsets or holes or coming.pending or written or request:
            self._pace.began(time.monotonic())
            self._written = written
            # Ids of commits are kept for ever, and take least space where none is left out.
            is_commit = offsets or holes or coming.pending
            ids = self._ids if is_commit else self._request_ids
            commit_id = written.commit_id if written else next(ids)
            if request is not None and self._acquirer is not None:
                request = replace(request, id=commit_id)
                self._acquirer.began(request)
                self._acquiring = request
            filtered = {
                (p.topic, p.partition): p.ledger.filtered_to_commit
                for p in self._busy()
                if p.ledger.filtered_to_commit
            }
            attempts = {
                tp: [(one.offset, one.attempts) for one in records]
                for tp, records in coming.pending.items()
            }
            self._trace.write(CommitStarted(offsets, holes, attempts, request))
            self._run(
                self._calls.commit, offsets, holes, coming.pending, commit_id, written, filtered,
                request,
            )  # fmt: skip

    def _ours(
        self, pending: Mapping[TopicPartition, list[Pending]]
    ) -> dict[TopicPartition, list[Pending]]:
        """Returns failed records without those whose keys have moved: their owner decides."""
        found: dict[TopicPartition, list[Pending]] = {}
        for tp, records in pending.items():
            for one in records:
                if one.key_hash is None or self._partitions[tp].has(one.key_hash):
                    found.setdefault(tp, []).append(one)
        return found

    def close(self, *, well: bool, within: float = WRITE_WITHIN) -> None:
        """Waits for the running commit; if the job ended well, mirrors the offsets to Kafka.

        The arguments are those of `Mirror.close`.
        """
        self._assignment.stop_repeating()
        if not well:
            self._assignment.primary.stop_publishing()
        self._thread.shutdown(wait=True)
        self._calls.close()
        self._mirror.close(well=well, within=within)

    def _busy(self) -> list[Partition]:
        return [p for p in self._partitions.values() if not p.ledger.is_quiet]

    def _open(self) -> list[Partition]:
        return [p for p in self._busy() if p.ledger.to_commit or p.ledger.holes_to_commit]

    def _parked(self) -> list[tuple[TopicPartition, Failed]]:
        owned = self._assignment.owned
        return [
            ((p.topic, p.partition), waiting)
            for p in self._busy()
            # All members of a cooperative epoch see them: one of them decides.
            if not p.supply.shares_chunks or owned[p.topic, p.partition].leads
            for waiting in p.supply.parked
        ]

    def _has_failed(self) -> bool:
        """Whether records have failed that an operator may decide on, or decisions are open."""
        if any(p.lanes.decided.has_any for p in self._partitions.values()):
            return True
        return any(
            p.lanes.failed.all or (p.supply.shares_chunks and p.supply.pending)
            for p in self._busy()
        )

    def _count_parked(self) -> int:
        """Returns how many records are parked in a cooperative epoch; 0 in another."""
        if self._acquirer is None:
            return 0
        return sum(len(p.supply.parked) for p in self._partitions.values())

    def _run(self, call: Callable[..., None], *args: Any) -> None:
        self.is_busy = True
        self._call = self._thread.submit(call, *args)

    # -- its answers, in the loop

    def decided(self, event: DecisionsApplied) -> None:
        """Takes the decisions on parked records that were applied, and those on failed records."""
        self.is_busy = False
        self._decisions_at = time.monotonic()
        if event.on_failed is not None:
            self._take_decisions(event.on_failed)
        for decision in event.decisions:
            partition = self._partitions[decision.topic, decision.partition]
            act = partition.replay if decision.action == "replay" else partition.discard
            act(decision.offset, time.monotonic())
            partition.lanes.decided.forget(decision.offset)
            owned = self._assignment.owned.get((decision.topic, decision.partition))
            stable = partition.ledger.stable if owned is None else owned.stable
            partition.commit_answered(OffsetRanges(), stable, OffsetRanges())

    def _take_decisions(self, decisions: Sequence[Decision]) -> None:
        """Takes the open decisions on failed records."""
        now = time.monotonic()
        of: dict[TopicPartition, list[Decision]] = defaultdict(list)
        for decision in decisions:
            of[decision.topic, decision.partition].append(decision)
        for tp, partition in self._partitions.items():
            if tp in of or partition.lanes.decided.has_any:
                partition.decide(of[tp], now)

    def mirrored(self, event: OffsetsMirrored) -> None:
        """Takes the end of a write of the group's offsets.

        Raises:
            BaseException: The error of the write, if it ends the job.
        """
        self._mirror.ended()
        error = event.error
        if isinstance(error, FencedMember) and self._assignment.may_be_late(error):
            self._passed, self._passed_at = error.epoch, time.monotonic()
        elif error is not None:
            raise error
        troubled = self._assignment.primary.troubled
        for tp in self._troubled | troubled.keys():
            self._partitions[tp].ledger.unpublished = troubled.get(tp)
        self._troubled = frozenset(troubled)
        self._mirror.start()

    def looked(self, event: LogRead) -> None:
        """Takes stable offsets that other members have moved."""
        stable = event.stable
        before = self._count_parked()
        if event.chunks is not None and self._acquirer is not None:
            self._acquirer.looked(event.chunks)
        for tp, offset in stable.items():
            if offset != self._partitions[tp].ledger.stable:
                self._partitions[tp].commit_answered(OffsetRanges(), offset, OffsetRanges())
        if self._assignment.is_shared:
            self._count_ranges(stable)
        if self._count_parked() != before:
            # By any member. The commit that parks a record does not know which are parked after it.
            self._meter.parked([p for p in self._partitions.values() if p.is_ours])
        self._looked_at = time.monotonic()
        self.is_busy = False
        self._wake_mirror()

    def _wake_mirror(self) -> None:
        # While the group rebalances Kafka takes no offsets; a later commit or look writes them.
        if not self._assignment.is_between_epochs:
            self._mirror.wake()

    def fenced(self, event: CommitFenced) -> None:
        """Takes the refusal of a commit; its records are committed under the next epoch, if any."""
        error = event.error
        if self._written is not None or not self._assignment.may_be_late(error):
            self._failed(error)
        self.is_busy, self._acquiring = False, None
        self._passed, self._passed_at = error.epoch, time.monotonic()
        self._next.put_back(event.pending)
        self._next.since = self._next.since or time.monotonic()
        if self._acquirer is not None:
            # It is unknown whether a request counts: the next epoch shows it.
            self._looked_at = -math.inf

    def commit_answered(self, answer: CommitAnswered) -> None:
        """Takes the answer to a commit."""
        self.is_busy = False
        self._written = None
        self.count += 1
        self._pace.took(answer.cost)
        self._wake_mirror()
        for tp, (offsets, stable) in answer.offsets.items():
            holes = answer.holes.get(tp, OffsetRanges())
            self._partitions[tp].commit_answered(offsets, stable, holes)
        self._take_chunks(answer)
        self._count_ranges(answer.offsets)
        count = sum(len(offsets) for offsets, _ in answer.offsets.values())
        self._meter.committed(answer)
        if self._acquirer is not None and not (answer.offsets or answer.holes):
            return  # A request alone is no commit.
        ours = [p for p in self._partitions.values() if p.is_ours]
        self._meter.progressed(count, answer.took, ours)

    def _take_chunks(self, answer: CommitAnswered) -> None:
        """Takes the chunks of the answer to a commit, in a cooperative epoch."""
        for tp, offsets in answer.failed.items():
            self._partitions[tp].supply.failures_noted(offsets)
        for tp, offsets in answer.not_held.items():
            self._partitions[tp].ledger.not_held(offsets)
        request, self._acquiring = self._acquiring, None
        if answer.acquired is not None:
            if self._acquirer is not None and request is not None:
                self._acquirer.answered(request, answer.acquired.offsets)
            failed = answer.acquired.failed
            for tp, offsets in answer.acquired.offsets.items():
                if tp in self._partitions:
                    self._partitions[tp].chunks.acquire(offsets, failed.get(tp, ()))

    def _count_ranges(self, places: Iterable[TopicPartition]) -> None:
        for tp in places:
            partition, owned = self._partitions[tp], self._assignment.owned.get(tp)
            if owned is not None:
                partition.ledger.log_has(owned.range_count, owned.last_committed)

    def failed(self, event: CommitFailed) -> None:
        """Ends the job: a commit has failed."""
        self._failed(event.error)

    def _failed(self, error: BaseException) -> None:
        self.is_busy, self._written = False, None
        if not isinstance(error, CoopConsumeError):
            log.error("a commit failed: %s", error)
        raise error
