"""The work of a job on one assignment: its partitions, their log ends, commits and holes.

It goes on under later epochs for as long as the member continues its work, also if some shares
move. Otherwise the next epoch has another `EpochState`, and events of the earlier one are dropped.
"""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from assignors import Share
from assignors.ranges import difference, intersection
from assignors.shares import by_partition
from commits import CommitLogUnavailable
from coopconsume.errors import BrokerUnreachable, TopicNotFound
from coopconsume.group.primary import WRITE_WITHIN
from coopconsume.runtime.commit.committer import Committer
from coopconsume.runtime.dispatch.daemon_pool import DaemonPool
from coopconsume.runtime.events import HolesFound
from coopconsume.runtime.plan import Partition, deal
from coopconsume.runtime.plan.gain import Gain
from coopconsume.runtime.plan.ledger import OffsetLedger
from coopconsume.runtime.read.audit import HoleAudit
from coopconsume.runtime.status.blocker_keys import BlockerKeys
from coopconsume.runtime.status.waiting import lost_member
from coopconsume.runtime.trace import EndsRead, StartsRead, Trace
from coopconsume.sinks.transactional import TransactionalTopic

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from assignors import KeyRange
    from commits import OffsetRanges
    from commits.model import TopicPartition
    from coopconsume.errors import CoopConsumeError
    from coopconsume.group.epoch_assignment import EpochAssignment
    from coopconsume.group.owned import Owned
    from coopconsume.runtime.events import JobEvent
    from coopconsume.runtime.job_spec import JobSpec
    from coopconsume.runtime.plan import Read
    from coopconsume.runtime.read.spans import Span
    from coopconsume.runtime.status.progress import Meter
    from coopconsume.worker.report import SlotReport

log = logging.getLogger(__name__)

T = TypeVar("T")
#: A key range, and until when an earlier owner may be at work on it, on the monotonic clock.
_InDoubt: TypeAlias = "tuple[KeyRange, float]"

_ENDS_EVERY = 0.5
_STARTS_EVERY = 10.0


class EpochState:
    """The work of a job on one assignment; only the loop calls its methods.

    Args:
        spark: The session.
        assignment: What is owned.
        job_spec: What to do.
        slots: Spark tasks side by side.
        meter: Takes note of commits.
        commit_ids: Ids for commits, unique in the group.
        ends: Where to stop, by partition; with ``availableNow`` it is filled once and stays.
        post: Puts an event into the loop's queue; it is dropped if this state is over by then.
        trace: Takes what is seen of the logs, and the commits.

    Raises:
        BrokerUnreachable: No broker answers.
        commits.CommitLogUnavailable: The commit table does not answer.
    """

    def __init__(
        self,
        spark: SparkSession,
        assignment: EpochAssignment,
        job_spec: JobSpec,
        slots: int,
        meter: Meter,
        commit_ids: Iterator[str],
        ends: dict[TopicPartition, int],
        post: Callable[[JobEvent, EpochState], None],
        trace: Trace | None = None,
    ) -> None:
        self.assignment = assignment
        self.is_over = False
        self.deleted: list[str] = []
        #: Why the last look at Kafka failed; empty: it did not.
        self.kafka_error = ""
        self._job_spec = job_spec
        self._slots = slots
        self._post_of = post
        self._trace = trace or Trace()
        self._fixed_ends = ends
        self._ends_at = self._starts_at = -math.inf
        self._audit = HoleAudit(spark, assignment.options)
        self._auditing = False
        self._audits = DaemonPool(1, "coopconsume-audit")
        #: Finds the keys of blockers.
        self.blocker_keys = BlockerKeys(assignment.options, self._post)
        sink = job_spec.outputs
        assignment.primary.publish_by(
            sink.begin(assignment) if isinstance(sink, TransactionalTopic) else None
        )
        if job_spec.state is not None:
            job_spec.state.begin(assignment)
        else:
            assignment.begin_with_state(None)
        waits = isinstance(sink, TransactionalTopic)
        self._most_waiting = assignment.options.max_outputs_waiting if waits else None
        #: All partitions since the epoch began, by index; also those that were given up.
        self.partitions: list[Partition] = []
        #: Partitions with key ranges that wait to be dealt to slots.
        self.undealt: list[Partition] = []
        for _, owned in sorted(assignment.owned.items()):
            self._make_partition(owned)
        #: The partitions that we own key ranges of.
        self.ours = [*self.partitions]
        #: How often the job was asked to give key ranges up.
        self.leavings = 0
        self.committer = Committer(
            assignment, job_spec, self.partitions, meter, commit_ids, self._post, self._trace
        )
        self.refresh_ends(force=True)

    def _make_partition(self, owned: Owned) -> Partition:
        index = len(self.partitions)
        ranges, later = owned.ranges, []
        in_doubt = self.assignment.in_doubt((owned.topic, owned.partition))
        if not (owned.uses_chunks or self._job_spec.ordering == "partition"):
            later = [gain for gain in self._gains(owned) if gain.until]
            ranges = difference(ranges, [one for gain in later for one in gain.ranges])
            in_doubt = self._in_doubt(owned)[0]
        ledger = OffsetLedger(
            owned.stable,
            owned.committed,
            is_whole=owned.is_whole and not later,
            max_ranges=owned.max_ranges,
            max_outputs_waiting=self._most_waiting,
        )
        ordering = self._job_spec.ordering
        slots = deal(ranges, self._slots, index, ordering)
        if owned.uses_chunks:
            slots = [(slot, ranges) for slot in range(self._slots)]
        leads = owned.leads if owned.uses_chunks else None
        partition = Partition(
            index, owned.topic, owned.partition, ledger, slots=slots, ordering=ordering, leads=leads
        )
        for key_range, until in in_doubt:
            partition.mark_in_doubt(key_range, until)
        if not owned.uses_chunks:
            partition.restore(owned.pending)
        for gain in later:
            partition.extend(gain)
        if later:
            self.undealt.append(partition)
        partition.ledger.log_has(owned.range_count, owned.last_committed)
        self.partitions.append(partition)
        return partition

    def extend(self, gained: EpochAssignment) -> None:
        """Adds the gained shares."""
        ours = {(p.topic, p.partition): p for p in self.ours}
        self.assignment.extend(gained)
        if isinstance(self._job_spec.outputs, TransactionalTopic):
            self._job_spec.outputs.extend()
        for tp, owned in sorted(gained.owned.items()):
            partition = ours.get(tp)
            if partition is None:
                self.committer.extend(self._make_partition(owned))
            else:
                for gain in self._gains(owned):
                    partition.extend(gain)
                partition.ledger.log_has(owned.range_count, owned.last_committed)
                self.undealt.append(partition)
        self.ours = [p for p in self.partitions if p.is_ours]
        self.look_again()

    def _gains(self, owned: Owned) -> list[Gain]:
        """Returns the gained key ranges of a partition, by when they may start.

        Key ranges on which an earlier owner may be at work are gains of their own, so that the
        others do not wait for them.
        """
        keys, wide = self._in_doubt(owned)
        parts, left = [], owned.ranges
        for key_range, until in sorted(wide, key=lambda one: one[1], reverse=True):
            parts.append((intersection(left, [key_range]), until))
            left = difference(left, [key_range])
        return [
            Gain(ranges, owned.stable, owned.committed, owned.pending, keys, until)
            for ranges, until in [(left, 0.0), *parts]
            if ranges
        ]

    def _in_doubt(self, owned: Owned) -> tuple[list[_InDoubt], list[_InDoubt]]:
        """Returns the keys, and the wider key ranges, on which an earlier owner may be at work."""
        in_doubt = [
            (part, until)
            for key_range, until in self.assignment.in_doubt((owned.topic, owned.partition))
            for part in intersection(owned.ranges, [key_range])
        ]
        is_key = self._job_spec.ordering == "key"
        keys = [one for one in in_doubt if is_key and one[0].size == 1]
        return keys, [one for one in in_doubt if one not in keys]

    def warn_of_waits(self, meter: Meter) -> None:
        """Logs for which earlier owners the job waits, and until when."""
        found = lost_member(self.partitions, time.monotonic())
        if found is not None:
            log.warning("%s", found.message)
            meter.waits(found, self.partitions)

    def leave(self, shares: Sequence[Share]) -> list[Partition]:
        """Plans no more records of some shares; returns their partitions."""
        self.leavings += 1
        ranges = by_partition(shares)
        found = [p for p in self.ours if (p.topic, p.partition) in ranges]
        for partition in found:
            partition.leave(ranges[partition.topic, partition.partition])
        return found

    def has_left(self, partitions: Iterable[Partition], shares: Sequence[Share]) -> None:
        """Removes shares that are not ours any more."""
        now = time.monotonic()
        for partition in partitions:
            partition.has_left(now)
            if partition.is_undealt and partition not in self.undealt:
                self.undealt.append(partition)
        self.ours = [p for p in self.partitions if p.is_ours]
        self.assignment.give_up(shares)

    @property
    def uncommitted(self) -> dict[TopicPartition, OffsetRanges]:
        """Returns the records that are done or written to outputs, and not committed."""
        return {
            (p.topic, p.partition): p.ledger.to_commit | p.ledger.undelivered
            for p in self.partitions
        }

    @property
    def busy(self) -> list[Partition]:
        """The partitions with something left to do."""
        return [p for p in self.partitions if not p.ledger.is_quiet]

    def update_quiet(self) -> None:
        """Notes which partitions have nothing left to do."""
        now = time.monotonic()
        for partition in self.busy:
            partition.update_quiet(now)

    def _post(self, event: JobEvent) -> None:
        self._post_of(event, self)

    def end(self, *, well: bool = False, within: float = WRITE_WITHIN) -> None:
        """Ends the work: waits for a running commit, and drops everything else.

        The arguments are those of `Mirror.close`.
        """
        self.is_over = True
        self._audits.close()
        self.committer.close(well=well, within=within)

    def may_run(self, slots: Collection[int]) -> list[Share]:
        """Returns the shares that a handler may be at work on.

        Args:
            slots: Slots that may work on all of their records. Other slots may work on the records
                that they kept when they gave back the rest.
        """
        now = time.monotonic()
        return [
            Share(partition.topic, partition.partition, key_range)
            for partition in self.partitions
            for key_range in partition.lanes.may_run(slots, now)
        ]

    # -- the two ends of the logs

    def has_lost(self, reads: Iterable[Read]) -> bool:
        """Reads where the logs begin; returns whether some of these offsets were deleted.

        Raises:
            DataLoss: Records were deleted before they were done, and ``failOnDataLoss`` is true.
            TopicNotFound, TopicReplaced: A topic was deleted, and perhaps created again.
        """
        try:
            self._check_starts()
            self._starts_at = time.monotonic()
        except (BrokerUnreachable, CommitLogUnavailable) as error:
            log.warning("%s; trying again", error)
            self._starts_at = -math.inf
        return any(read.first < self.partitions[read.index].ledger.stable for read in reads)

    def has_read(self, partitions: Sequence[Partition], report: SlotReport) -> None:
        """Notes how far a slot has found the logs to reach, before what it reports is done.

        A log that does not reach so far at the next look was cut: what is done above its end does
        not count.

        Args:
            partitions: Of the slot's batch, by part.
            report: The report.
        """
        for part, outcome in report.partitions.items():
            if outcome.reached is not None:
                partition = partitions[part]
                tp = partition.topic, partition.partition
                self.assignment.logs.has_read(tp, outcome.reached)

    def look_again(self) -> None:
        """Has the next `refresh_ends` read both ends of the logs, as a slot could not read."""
        self._starts_at = self._ends_at = -math.inf

    @property
    def knows_ends(self) -> bool:
        """Whether the ends of the logs are known."""
        return self._ends_at > -math.inf

    def has_processed(self, ends: Mapping[TopicPartition, int], since: float) -> bool:
        """Whether all below some offsets is done and committed, or held back by parked records.

        Args:
            ends: Where the logs ended.
            since: An instant of the monotonic clock after that. A log that ends at a lower offset
                in a later look was cut, or its topic was created again: what is gone is not waited
                for.
        """
        has_looked = self._ends_at > since
        wanted = ((p, ends.get((p.topic, p.partition), 0)) for p in self.ours)
        return all(
            p.has_processed(min(end, p.ledger.end) if has_looked else end) for p, end in wanted
        )

    def refresh_ends(self, *, force: bool = False) -> None:
        """Reads where the logs begin and end, if the last read is some time ago.

        Raises:
            BrokerUnreachable, commits.CommitLogUnavailable: If forced: no broker, or not the
                commit table, answers; otherwise it is tried again later.
            DataLoss: Records were deleted before they were done, or a log was cut.
            TopicNotFound, TopicReplaced: A topic was deleted, and the job does not go on without
                it, or it was made again.
        """
        logs = self.assignment.logs
        try:
            if time.monotonic() - self._starts_at > _STARTS_EVERY:
                self._check_starts()
                self._starts_at = time.monotonic()
            # Where to stop is fixed with availableNow, but a log may be cut in the meantime.
            if not force and time.monotonic() - self._ends_at < _ENDS_EVERY:
                return
            found = self._without_deleted(lambda: self.assignment.cluster.log_ends(logs.present))
            # After the ends: they are those of our topics if these still have their ids.
            self._check_topics()
            found = {tp: found[tp] for tp in logs.present}
            if logs.is_cut(found):
                loss = logs.follow_cut()
                if loss is not None:
                    raise loss
                return
        except (BrokerUnreachable, CommitLogUnavailable) as error:
            if isinstance(error, BrokerUnreachable):
                self.kafka_error = str(error)
                self.assignment.primary.note_unanswered()
            if force:
                raise
            log.warning("%s; trying again", error)
            return
        self._ends_at, self.kafka_error = time.monotonic(), ""
        ends = {tp: end.offset for tp, end in found.items()}
        self._trace.write(EndsRead(ends))
        if self._job_spec.available_now:
            # A log that was cut ends before where it was to be read to.
            fixed = {tp: min(end, ends[tp]) for tp, end in self._fixed_ends.items() if tp in ends}
            ends |= fixed
            self._fixed_ends |= ends
        for partition in self.partitions:
            end = ends.get((partition.topic, partition.partition), 0)
            partition.ledger.end = max(end, partition.ledger.end)

    @property
    def may_continue(self) -> bool:
        """Whether the work may continue while the group rebalances.

        Deleted topics are not part of the next epoch.

        Raises:
            DataLoss, TopicNotFound, TopicReplaced: A topic was deleted.
        """
        if not self.committer.may_rebalance:
            return False
        try:
            self._check_topics()
        except (BrokerUnreachable, CommitLogUnavailable):
            return False
        return len(self.assignment.logs.present) == len(self.assignment.owned)

    def can_recover_from(self, error: CoopConsumeError) -> bool:
        """Whether the job continues after such an error, see `AssignedLogs.can_recover_from`."""
        return self.assignment.logs.can_recover_from(error, self._done())

    def _done(self) -> dict[TopicPartition, OffsetRanges]:
        return {(p.topic, p.partition): p.ledger.done for p in self.partitions}

    def _without_deleted(self, look: Callable[[], T]) -> T:
        """Returns what a look at the logs finds, without topics that turn out to be deleted."""
        while True:
            try:
                return look()
            except TopicNotFound:
                if not self._check_topics():
                    raise

    def _check_topics(self) -> list[str]:
        """Notices deleted topics: nothing of them is left to do."""
        deleted = self.assignment.logs.check_topics(self._done())
        for partition in self.ours:
            if partition.topic in deleted:
                pending = self.assignment.owned[partition.topic, partition.partition].pending
                ends = [one.offset + 1 for one in pending]
                partition.log_start(
                    max(partition.ledger.end, (partition.ledger.done.last or 0) + 1, *ends)
                )
        self.deleted += deleted
        return deleted

    def _check_starts(self) -> None:
        self._check_topics()
        passed = self._without_deleted(lambda: self.assignment.logs.check_starts(self._done()))
        if passed:
            self._trace.write(StartsRead(passed))
        for partition in self.partitions:
            start = passed.get((partition.topic, partition.partition))
            if start is not None:
                partition.log_start(start)

    # -- holes

    def look_for_holes(self) -> None:
        """Looks for a hole at the stable offset of partitions that other members share.

        An offset that all our shares have passed belongs to another member, or is a hole.
        """
        for partition in self.busy:
            if self._auditing or partition.ledger.is_whole or not partition.is_ours:
                continue
            owned = self.assignment.owned[partition.topic, partition.partition]
            first = partition.ledger.first_open()
            # What a real-time slot has read needs no look: it reports the holes.
            real_time_from = partition.real_time_from
            position = partition.supply.position if real_time_from is None else real_time_from
            span = self._audit.due(owned, first, position)
            if span is not None and partition.supply.may_be_hole(first):
                self._auditing = True
                self._audits.submit(self._look, partition, span)

    def _look(self, partition: Partition, span: Span) -> None:
        """Reads which offsets are in the log, in a thread of its own."""
        holes = None
        try:
            holes = self._audit.look(span)
        except Exception as error:  # noqa: BLE001 - looked at again later
            log.warning("could not look for holes in %s-%d: %s", span.topic, span.partition, error)
        self._post(HolesFound(partition.index, holes))

    def looked(self, event: HolesFound) -> None:
        """Takes the holes that a look at the log has found."""
        partition, holes = self.partitions[event.index], event.holes
        self._auditing = False
        if holes is None:
            self._starts_at = -math.inf  # Perhaps records were deleted.
        if holes and partition.is_ours:
            self.committer.amend(partition, holes)
