"""Kafka's logs of the assignment: what was deleted at their start, or cut off their end."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from commits import OffsetAndEpoch, OffsetRanges
from commits.offsets import MAX_OFFSET
from coopconsume.errors import DataLoss, TopicNotFound, TopicReplaced
from coopconsume.kafka.cluster import LogEnd
from coopconsume.kafka.identity import is_other_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from contextlib import AbstractContextManager

    from commits import CommitStore
    from commits.model import TopicPartition
    from coopconsume.errors import CoopConsumeError
    from coopconsume.group.owned import EpochGrant, Owned
    from coopconsume.kafka.cluster import Cluster
    from coopconsume.options import Options

log = logging.getLogger(__name__)

_NAMED = 20


class AssignedLogs:
    """Start and end of the logs that the member owns parts of; the commit log follows them.

    Args:
        options: Of the consumer.
        cluster: The Kafka cluster.
        store: The commit store.
        grant: Says who we are and what is ours now.
        owned: What of each partition is ours.
        lock: Is held while that changes.
    """

    def __init__(
        self,
        options: Options,
        cluster: Cluster,
        store: CommitStore,
        grant: Callable[[], EpochGrant],
        owned: Mapping[TopicPartition, Owned],
        lock: AbstractContextManager[object],
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._store = store
        self._grant = grant
        self._owned = owned
        self._lock = lock
        self._ends: dict[TopicPartition, LogEnd] = {}

    def extend(self, gained: AssignedLogs, partitions: Collection[TopicPartition]) -> None:
        """Knows of some partitions what another one has just seen of them."""
        self._ends |= {tp: gained._ends[tp] for tp in partitions if tp in gained._ends}

    def check_starts(
        self, uncommitted: Mapping[TopicPartition, OffsetRanges] | None = None
    ) -> dict[TopicPartition, int]:
        """Finds records that were deleted before they were done.

        Args:
            uncommitted: What is done besides, and on its way into the commit log.

        Returns:
            Log starts that lie above a stable offset; the commit log has followed them.

        Raises:
            DataLoss: There are some, and ``failOnDataLoss`` is true.
        """
        starts = self._cluster.log_starts(self.present)
        passed: dict[TopicPartition, int] = {}
        for tp, start in starts.items():
            with self._lock:
                stable, committed = self._owned[tp].stable, self._owned[tp].committed
            if start <= stable:
                continue
            done = committed | (uncommitted or {}).get(tp, OffsetRanges())
            lost = [*done.gaps(stable, start - 1)]
            if lost:
                loss = DataLoss(*tp, lost[0][0], lost[-1][1])
                count = sum(last - first + 1 for first, last in lost)
                named = ", ".join(f"{first}-{last}" for first, last in lost[:_NAMED])
                log.warning(
                    "%s-%d begins at %d now: %d offsets that are not done are lost: %s%s",
                    *tp, start, count, named, ", …" if len(lost) > _NAMED else "",
                )  # fmt: skip
                if self._options.fail_on_data_loss:
                    raise loss
                log.warning("%s", loss)
            passed[tp] = start
        if passed:
            self._store.log_start(
                self._options.group_id, self._grant().epoch, self._grant().member, passed
            )
            for tp, start in passed.items():
                with self._lock:
                    self._owned[tp].follow(start)
        return passed

    @property
    def present(self) -> list[TopicPartition]:
        """The partitions whose topics are not known to be deleted."""
        return [tp for tp, owned in list(self._owned.items()) if not owned.is_deleted]

    def check_topics(
        self, uncommitted: Mapping[TopicPartition, OffsetRanges] | None = None
    ) -> list[str]:
        """Makes sure that the topics are still those of the epoch.

        Args:
            uncommitted: What is done besides, and on its way into the commit log.

        Returns:
            Topics that were deleted since the last look, without which the consumer goes on.

        Raises:
            DataLoss: One was deleted before its records were done, and ``failOnDataLoss`` is true.
            TopicNotFound: One was deleted, and ``onMissingTopic`` is fail.
            TopicReplaced: One was deleted and made again.
        """
        names, found = self.check_ids()
        if missing := names - found:
            # A broker may not have heard of a topic yet that is there.
            missing -= set(self._cluster.topic_names())
        for name in sorted(missing):
            self._leave_out(name, uncommitted or {})
        return sorted(missing)

    def check_ids(self) -> tuple[set[str], set[str]]:
        """Makes sure that no topic of the epoch is another one now.

        Returns:
            The names of the topics, and of those that exist or that this user may not describe.

        Raises:
            TopicReplaced: One was deleted and made again.
        """
        names = {topic for topic, _ in self.present}
        visible, hidden = self._cluster.visible_topics(sorted(names))
        for topic in visible:
            known = self._grant().topic_ids.get(topic.name, "")
            if is_other_topic(known, topic.id):
                raise TopicReplaced(topic.name, known, topic.id)
        return names, {*hidden, *(topic.name for topic in visible)}

    def _leave_out(self, topic: str, uncommitted: Mapping[TopicPartition, OffsetRanges]) -> None:
        """Continues without a topic that was deleted, unless that is an error."""
        losses = self.losses_of(topic, uncommitted)
        for tp in self.present:
            if tp[0] == topic:
                self._owned[tp].is_deleted = True
        for loss in losses:
            if self._options.fail_on_data_loss:
                raise loss
            log.warning("%s", loss)
        if not self._options.outlives_topics:
            raise TopicNotFound(topic, self._options.kafka["bootstrap.servers"])
        log.warning("topic %s was deleted: going on without it", topic)

    def losses_of(
        self, topic: str, uncommitted: Mapping[TopicPartition, OffsetRanges]
    ) -> list[DataLoss]:
        """Returns what was not done, as far as its log had been seen, of a topic that is gone.

        Args:
            topic: The topic, deleted or created again.
            uncommitted: What is done besides, and on its way into the commit log.
        """
        state = self._store.state(self._options.group_id)
        losses = []
        for tp in self.present:
            end = self.seen_end(tp)
            if tp[0] != topic or state[tp].stable_offset >= end:
                continue
            done = state[tp].ranges | uncommitted.get(tp, OffsetRanges())
            if lost := [*done.gaps(state[tp].stable_offset, end - 1)]:
                losses.append(DataLoss(*tp, lost[0][0], lost[-1][1]))
        return losses

    def check_ends(self) -> None:
        """Finds logs that were cut by an unclean election before this member had them.

        A log that is long enough was cut if a leader epoch in which commits were made ends below
        what they committed (KIP-320).

        Raises:
            DataLoss: There are some, and ``failOnDataLoss`` is true.
        """
        ends = self._cluster.log_ends(self.present)
        short = {tp for tp, end in ends.items() if end.offset <= self._top(tp)}
        known = self._store.reached(self._options.group_id)
        # Of a short log whose leader epoch is not known, the last leader's alone can be asked for.
        epochs = {
            tp: known[tp].leader_epoch if tp in known else None
            for tp in ends
            if tp in known or tp in short
        }
        kept = self._cluster.epoch_ends(epochs) if epochs else {}
        regrown = {tp for tp, end in kept.items() if tp in known and end < known[tp].offset}
        cut = self._losses(ends, kept, short | regrown)
        for loss in cut.values():
            if self._options.fail_on_data_loss:
                raise loss
            log.warning("%s; what is written there since then is read as new", loss)
        self._truncate(cut)
        self._ends = ends

    def reached(
        self, offsets: Mapping[TopicPartition, OffsetRanges]
    ) -> dict[TopicPartition, OffsetAndEpoch]:
        """Returns how far logs reached at the last look, up to the end of what is done.

        Args:
            offsets: What is done.
        """
        return {
            tp: OffsetAndEpoch(min(end.offset, done.last + 1), end.leader_epoch)
            for tp, done in offsets.items()
            if done.last is not None
            and (end := self._ends.get(tp)) is not None
            and end.leader_epoch is not None
        }

    def has_read(self, tp: TopicPartition, reached: OffsetAndEpoch) -> None:
        """Notes how far a slot has found a log to reach; the next look must find it there."""
        if reached.offset > self.seen_end(tp):
            self._ends[tp] = LogEnd(*reached)

    def is_cut(self, ends: Mapping[TopicPartition, LogEnd]) -> bool:
        """Whether a log may have been cut since the last look; if not, notes where they end.

        Brokers report a lower end only after a cut (KIP-207). A log that was cut and has
        grown again has a new leader epoch, and the earlier epoch ends before what was seen of it
        (KIP-320). An older leader epoch comes from a former leader, or a topic was created again.
        """
        if self._cut(ends) or any(self._is_older(tp, end) for tp, end in ends.items()):
            return True
        self._ends |= ends
        return False

    def follow_cut(self) -> DataLoss | None:
        """Writes the ends of logs that were cut while we owned them to the commit log.

        It always writes them: the next owner does not know where the logs ended.

        Returns:
            The data loss; None if no log was cut.
        """
        ends = self._cluster.log_ends(self.present)
        cut = self._cut(ends)
        self._truncate(cut)
        for loss in cut.values():
            log.warning("%s; what is written there since then is read as new", loss)
        self._ends |= {
            tp: end for tp, end in ends.items() if tp in cut or not self._is_older(tp, end)
        }
        return min(cut.values(), key=lambda loss: (loss.topic, loss.partition), default=None)

    def _cut(self, ends: Mapping[TopicPartition, LogEnd]) -> dict[TopicPartition, DataLoss]:
        """Returns what logs have lost since the last look."""
        seen = {tp: self._ends[tp] for tp in ends if tp in self._ends}
        changed = {
            tp: before.leader_epoch
            for tp, before in seen.items()
            if ends[tp].offset < before.offset or self._has_new_leader(before, ends[tp])
        }
        kept = self._cluster.epoch_ends(changed) if changed else {}
        cut = [
            tp for tp in changed if min(ends[tp].offset, kept.get(tp, MAX_OFFSET)) < seen[tp].offset
        ]
        return self._losses(ends, kept, cut)

    @staticmethod
    def _has_new_leader(before: LogEnd, now: LogEnd) -> bool:
        if before.leader_epoch is None or now.leader_epoch is None:
            return False
        return now.leader_epoch > before.leader_epoch

    def _is_older(self, tp: TopicPartition, end: LogEnd) -> bool:
        before = self._ends.get(tp)
        return before is not None and self._has_new_leader(end, before)

    def seen_end(self, tp: TopicPartition) -> int:
        """Returns where a log ended at the last look; 0: there was none."""
        return self._ends[tp].offset if tp in self._ends else 0

    def leader_epoch(self, tp: TopicPartition) -> int | None:
        """Returns the leader epoch of a log at the last look; None: it is not known."""
        return self._ends[tp].leader_epoch if tp in self._ends else None

    def _top(self, tp: TopicPartition) -> int:
        """The highest offset that is done, or at which there was a record."""
        owned = self._owned[tp]
        last = owned.committed.last
        return max(owned.stable - 1 if last is None else last, self.seen_end(tp) - 1)

    def _losses(
        self,
        ends: Mapping[TopicPartition, LogEnd],
        kept: Mapping[TopicPartition, int],
        cut: Iterable[TopicPartition],
    ) -> dict[TopicPartition, DataLoss]:
        """Returns what logs lost that were cut.

        What is written next gets the offsets of what was cut. So it counts from where the leader
        epoch ends that wrote the lost records.
        """
        first = {tp: min(ends[tp].offset, kept.get(tp, MAX_OFFSET)) for tp in cut}
        return {tp: DataLoss(*tp, offset, self._top(tp)) for tp, offset in first.items()}

    def _truncate(self, cut: Mapping[TopicPartition, DataLoss]) -> None:
        if not cut:
            return
        ends = {tp: loss.first for tp, loss in cut.items()}
        self._store.truncate(
            self._options.group_id, self._grant().epoch, self._grant().member, ends
        )
        state = self._store.state(self._options.group_id)
        for tp, end in ends.items():
            owned = self._owned[tp]
            with self._lock:
                owned.stable, owned.committed = state[tp].stable_offset, state[tp].ranges
                owned.pending = [one for one in owned.pending if one.offset < end]

    def can_recover_from(
        self,
        error: CoopConsumeError,
        uncommitted: Mapping[TopicPartition, OffsetRanges] | None = None,
    ) -> bool:
        """Whether the consumer continues with its next assignment after an error of these checks.

        It does if loss is to be reported only, or if all records of a topic that was created again
        are done and the consumer outlives its topics.

        Args:
            error: `DataLoss`, `TopicNotFound` or `TopicReplaced`.
            uncommitted: What is done besides, and on its way into the commit log.
        """
        if not self._options.fail_on_data_loss:
            return True
        if not isinstance(error, TopicReplaced) or not self._options.outlives_topics:
            return False
        return not self.losses_of(error.topic, uncommitted or {})

    def has_changed(self, ends: Mapping[TopicPartition, LogEnd]) -> bool:
        """Whether a log ends elsewhere than at the last look, or has another leader epoch."""
        return any(end != self._ends.get(tp) for tp, end in ends.items())
