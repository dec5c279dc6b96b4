"""The work of a job on one assignment: its partitions, their logs, commits and holes.

It goes on under later epochs for as long as the member continues its work, also if some shares
move. Otherwise the next epoch has another `EpochState`, and events of the earlier one are dropped.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from assignors import Share
from assignors.shares import by_partition
from coopconsume.group.primary import WRITE_WITHIN
from coopconsume.runtime.commit.committer import Committer
from coopconsume.runtime.hole_search import HoleSearch
from coopconsume.runtime.log_watch import LogWatch
from coopconsume.runtime.plan.partition_maker import PartitionMaker
from coopconsume.runtime.status.blocker_keys import BlockerKeys
from coopconsume.runtime.status.retention_watch import RetentionWatch
from coopconsume.runtime.status.waiting import lost_member
from coopconsume.sinks.transactional import TransactionalTopic

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from commits import OffsetRanges
    from commits.model import TopicPartition
    from coopconsume.group.epoch_assignment import EpochAssignment
    from coopconsume.runtime.events import HolesFound, JobEvent
    from coopconsume.runtime.job_context import JobContext
    from coopconsume.runtime.plan import Partition
    from coopconsume.worker.report import SlotReport

log = logging.getLogger(__name__)


class EpochState:
    """The work of a job on one assignment; only the loop calls its methods.

    Args:
        context: Of the job.
        assignment: What is owned.
        fixed_ends: Where to stop with ``availableNow``, see `LogWatch`.

    Attributes:
        assignment: What is owned.
        partitions: All partitions since the epoch began, by index; also those that were given up.
        ours: The partitions that we own key ranges of.
        undealt: Partitions with key ranges that wait to be dealt to slots.
        leavings: How often the job was asked to give key ranges up.
        committer: Commits what is done.
        log_watch: Where the logs begin and end.
        blocker_keys: Finds the keys of blockers.
        retention_watch: Foresees what retention deletes.
        is_over: Whether the work has ended, and its events do not count any more.

    Raises:
        BrokerUnreachable: No broker answers.
        commits.CommitLogUnavailable: The commit table does not answer.
    """

    def __init__(
        self,
        context: JobContext,
        assignment: EpochAssignment,
        fixed_ends: dict[TopicPartition, int],
    ) -> None:
        self.assignment = assignment
        self.is_over = False
        self.leavings = 0
        self._context = context
        self._holes = HoleSearch(context.spark, assignment.options, self._post)
        self.blocker_keys = BlockerKeys(assignment.options, self._post)
        self.retention_watch = RetentionWatch(
            assignment.cluster, context.meter.foresees, self._post
        )
        self._begin_sinks()
        self._maker = self._partition_maker()
        self.partitions: list[Partition] = []
        self.undealt: list[Partition] = []
        for _, owned in sorted(assignment.owned.items()):
            self._add(self._maker.make(len(self.partitions), owned))
        self.ours = [*self.partitions]
        self.committer = Committer(
            assignment,
            context.job_spec,
            partitions=self.partitions,
            meter=context.meter,
            commit_ids=context.commit_ids,
            post=self._post,
            trace=context.trace,
        )
        self.log_watch = LogWatch(context, assignment, self.partitions, fixed_ends)
        self.log_watch.refresh(force=True)

    def _begin_sinks(self) -> None:
        """Has outputs and state begin with the assignment."""
        sink, state = self._context.job_spec.outputs, self._context.job_spec.state
        self.assignment.primary.publish_by(
            sink.begin(self.assignment) if isinstance(sink, TransactionalTopic) else None
        )
        if state is not None:
            state.begin(self.assignment)
        else:
            self.assignment.begin_with_state(None)

    def _partition_maker(self) -> PartitionMaker:
        job_spec, most = self._context.job_spec, None
        if isinstance(job_spec.outputs, TransactionalTopic):
            most = self.assignment.options.max_outputs_waiting
        return PartitionMaker(self.assignment, job_spec.ordering, self._context.slots, most)

    def _add(self, partition: Partition) -> None:
        self.partitions.append(partition)
        if partition.is_undealt:
            self.undealt.append(partition)

    def _post(self, event: JobEvent) -> None:
        self._context.events.post(event, self)

    def end(self, *, well: bool = False, within: float = WRITE_WITHIN) -> None:
        """Ends the work: waits for a running commit, and drops everything else.

        The arguments are those of `Mirror.close`.
        """
        self.is_over = True
        self._holes.close()
        self.committer.close(well=well, within=within)

    def return_chunks(self, running: Sequence[Share]) -> None:
        """Returns the chunks of a cooperative epoch on which this job does not work any more.

        The member may stay in its group without a job.

        Args:
            running: The parts of shares on which handlers may still run.
        """
        try:
            self.assignment.return_chunks(running)
        except Exception as error:  # noqa: BLE001 - they are returned as the member leaves
            log.debug("chunks are not returned: %s", error)

    # -- shares that come and go

    def extend(self, gained: EpochAssignment) -> None:
        """Adds the gained shares."""
        ours = {(p.topic, p.partition): p for p in self.ours}
        self.assignment.extend(gained)
        if isinstance(self._context.job_spec.outputs, TransactionalTopic):
            self._context.job_spec.outputs.extend()
        for tp, owned in sorted(gained.owned.items()):
            partition = ours.get(tp)
            if partition is None:
                partition = self._maker.make(len(self.partitions), owned)
                self._add(partition)
                self.committer.extend(partition)
            else:
                self._maker.extend(partition, owned)
                self.undealt.append(partition)
        self.ours = [p for p in self.partitions if p.is_ours]
        self.log_watch.look_again()

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

    @property
    def may_continue(self) -> bool:
        """Whether the work may continue while the group rebalances.

        Deleted topics are not part of the next epoch.

        Raises:
            DataLoss, TopicNotFound, TopicReplaced: A topic was deleted.
        """
        return self.committer.may_rebalance and self.log_watch.finds_all_topics()

    def warn_of_waits(self) -> None:
        """Logs for which earlier owners the job waits, and until when."""
        found = lost_member(self.partitions, time.monotonic())
        if found is not None:
            log.warning("%s", found.message)
            self._context.meter.waits(found, self.partitions)

    # -- what is left to do

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

    def has_processed(self, ends: Mapping[TopicPartition, int], since: float) -> bool:
        """Whether all below some offsets is done and committed, or held back by parked records.

        Args:
            ends: Where the logs ended.
            since: An instant of the monotonic clock after that. A log that ends at a lower offset
                in a later look was cut, or its topic was created again: what is gone is not waited
                for.
        """
        has_looked = self.log_watch.has_looked_since(since)
        wanted = ((p, ends.get((p.topic, p.partition), 0)) for p in self.ours)
        return all(
            p.has_processed(min(end, p.ledger.end) if has_looked else end) for p, end in wanted
        )

    # -- what slots and looks at the logs find

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

    def look_for_holes(self) -> None:
        """Looks for a hole at the stable offset of partitions that other members share."""
        self._holes.look(self.busy, self.assignment.owned)

    def take_holes(self, event: HolesFound) -> None:
        """Takes the holes that a look at the log has found."""
        partition, holes = self.partitions[event.index], event.holes
        self._holes.ended()
        if holes is None:
            self.log_watch.look_at_starts_again()
        elif holes and partition.is_ours:
            self.committer.amend(partition, holes)
