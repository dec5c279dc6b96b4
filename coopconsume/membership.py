"""A consumer's place in its group: what it owns, under which epoch, and how it commits.

One member for now: to subscribe opens an epoch of the commit log, which fences whoever held the
group before. Everything that poll and the loop of a job have in common is here.
"""

from __future__ import annotations

import logging
import os
import socket
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from assignors import KeyRange, Share, coverage
from commits import CommitStore, EpochConflict, OffsetRanges
from coopconsume.cluster import Cluster
from coopconsume.errors import DataLoss, ExternalReset

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from commits import CommitResult, Epoch, Pending
    from coopconsume.options import Options

log = logging.getLogger(__name__)

TopicPartition = tuple[str, int]
#: Seconds between writes of an unchanged primary offset, so that the broker does not expire it.
PRIMARY_REFRESH = 60.0
_OPEN_TRIES = 5


def new_member_id() -> str:
    """A name for this process in the group, told apart from every earlier one."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


@dataclass
class Owned:
    """One partition of which this member has key ranges.

    Attributes:
        ranges: The key ranges, disjoint and ascending.
        stable: The stable offset in the commit log.
        committed: What the log has above it.
        pending: (offset, key hash, attempts, due in seconds since the epoch, error).
    """

    topic: str
    partition: int
    ranges: tuple[KeyRange, ...]
    stable: int
    committed: OffsetRanges
    pending: list[tuple[int, int, int, float, str]] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether the ranges are the whole partition."""
        return not coverage(self.ranges).holes

    @property
    def owns_first(self) -> bool:
        """Whether hash 0 is ours: its owner commits holes and the primary offset."""
        return any(key_range.contains(0) for key_range in self.ranges)


class Membership:
    """What a consumer owns under one epoch, and the way to commit it.

    Args:
        options: Of the consumer.

    Raises:
        BrokerUnreachable: No broker answers.
        commits.CommitStoreError: The commit table cannot be used.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.cluster = Cluster(options)
        self.member = new_member_id()
        self.owned: dict[TopicPartition, Owned] = {}
        self.topic_ids: dict[str, str] = {}
        self._primary: dict[TopicPartition, tuple[int, float]] = {}
        self._epoch: Epoch | None = None
        try:
            self.store = CommitStore.open(
                options.commit_table,
                cluster=self.cluster.cluster_id,
                max_ranges=options.max_num_ranges,
            )
        except BaseException:
            self.cluster.close()
            raise

    @property
    def epoch(self) -> Epoch:
        """The epoch under which this member commits."""
        assert self._epoch is not None, "not joined yet"
        return self._epoch

    # -- joining and leaving

    def subscribe(self, topics: Iterable[str] | None, pattern: str | None) -> None:
        """Take over the whole of some topics: opens an epoch, which fences an earlier member.

        Raises:
            TopicNotFound: A topic does not exist.
            ExternalReset, DataLoss: As their options say.
        """
        found = self.cluster.topics(topics, pattern)
        self.topic_ids = {topic.name: topic.id for topic in found}
        shares = [Share(t.name, p, KeyRange()) for t in found for p in range(t.partitions)]
        group = self.options.group_id
        for attempt in range(_OPEN_TRIES):
            previous = self.store.current_epoch(group)
            try:
                self._epoch = self.store.open_epoch(
                    group, {self.member: shares}, previous=previous,
                    topic_ids=self.topic_ids, member=self.member,
                )  # fmt: skip
                break
            except EpochConflict:
                # Somebody else came first: the later one holds the group.
                if attempt == _OPEN_TRIES - 1:
                    raise
        self._load(shares)

    def assign(
        self, partitions: Mapping[TopicPartition, Iterable[KeyRange]], *, takeover: bool
    ) -> None:
        """Claim key ranges by hand; an empty list of ranges means the whole partition.

        Raises:
            TopicNotFound: A topic or partition does not exist.
            commits.ClaimConflict: Somebody holds part of it, and ``takeover`` is false.
        """
        found = {t.name: t for t in self.cluster.topics(dict.fromkeys(t for t, _ in partitions))}
        self.topic_ids = {name: topic.id for name, topic in found.items()}
        shares = []
        for (topic, partition), ranges in partitions.items():
            if not 0 <= partition < found[topic].partitions:
                last = found[topic].partitions - 1
                raise ValueError(f"topic {topic} has partitions 0 to {last}, not {partition}")
            chosen = tuple(sorted(ranges))
            if not chosen:
                log.info(
                    "%s-%d: an empty list of key ranges means the whole partition", topic, partition
                )
                chosen = (KeyRange(),)
            overlaps = coverage(chosen).overlaps
            if overlaps:
                raise ValueError(f"key ranges of {topic}-{partition} overlap in {overlaps[0]}")
            shares += [Share(topic, partition, key_range) for key_range in chosen]
        self._epoch = self.store.claim(
            self.options.group_id, self.member, shares, takeover=takeover, topic_ids=self.topic_ids
        )
        self._load(shares)

    def leave(self) -> None:
        """Give back what is owned; harmless when repeated."""
        if self._epoch is not None:
            epoch, self._epoch = self._epoch, None
            try:
                self.store.release(self.options.group_id, epoch, self.member)
            finally:
                self.cluster.close()
        else:
            self.cluster.close()

    def _load(self, shares: Iterable[Share]) -> None:
        group, epoch = self.options.group_id, self.epoch
        ranges: dict[TopicPartition, list[KeyRange]] = {}
        for share in shares:
            ranges.setdefault((share.topic, share.partition), []).append(share.key_range)
        state = self.store.state(group)
        primary = self.cluster.primary()
        fresh: dict[TopicPartition, int] = {}
        for tp in ranges:
            held = primary.get(tp)
            if held is not None and held.ours and held.topic_id != self.topic_ids[tp[0]]:
                held = None  # It speaks of a topic that was deleted and made again.
            if tp not in state:
                if held is not None:
                    fresh[tp] = held.offset
            elif held is not None and not held.ours and held.offset != state[tp].stable_offset:
                if self.options.on_external_reset == "fail":
                    raise ExternalReset(*tp, held.offset, state[tp].stable_offset)
                log.warning("%s-%d: following Kafka's offset %d", *tp, held.offset)
                self.store.reset(group, {tp: held.offset}, epoch=epoch, member=self.member)
        fresh |= self.cluster.starting([tp for tp in ranges if tp not in state and tp not in fresh])
        if fresh:
            self.store.start(group, epoch, self.member, fresh)
        state = self.store.state(group)
        pending = self.store.pending(group)
        for tp, key_ranges in ranges.items():
            commits = state[tp]
            self.owned[tp] = Owned(
                *tp, tuple(sorted(key_ranges)), commits.stable_offset, commits.ranges,
                [(p.offset, p.key_hash or 0, p.attempts, p.due_ms / 1000, p.error)
                 for p in pending.get(tp, {}).values()],
            )  # fmt: skip
        self.check_log_starts()
        self.check_log_ends()

    # -- the two ends of the logs

    def check_log_starts(
        self, unsaved: Mapping[TopicPartition, OffsetRanges] | None = None
    ) -> dict[TopicPartition, int]:
        """Notice records that were deleted before they were done.

        Args:
            unsaved: What is done besides, and on its way into the commit log.

        Returns:
            Log starts that lie above a stable offset; the commit log has followed them.

        Raises:
            DataLoss: There are some, and ``failOnDataLoss`` is true.
        """
        starts = self.cluster.log_starts(self.owned)
        passed: dict[TopicPartition, int] = {}
        for tp, start in starts.items():
            owned = self.owned[tp]
            if start <= owned.stable:
                continue
            done = owned.committed | (unsaved or {}).get(tp, OffsetRanges())
            lost = done.complement(owned.stable, start - 1).pairs()
            if lost:
                loss = DataLoss(*tp, lost[0][0], lost[-1][1])
                if self.options.fail_on_data_loss:
                    raise loss
                log.warning("%s", loss)
            passed[tp] = start
        if passed:
            self.store.log_start(self.options.group_id, self.epoch, self.member, passed)
            for tp, start in passed.items():
                self._follow(tp, start)
        return passed

    def check_log_ends(self) -> None:
        """Notice logs that end before what was done: truncated after an unclean election.

        Raises:
            DataLoss: There are some, and ``failOnDataLoss`` is true.
        """
        ends = self.cluster.ends(self.owned)
        for tp, end in ends.items():
            owned = self.owned[tp]
            last = owned.committed.last
            top = owned.stable - 1 if last is None else last
            if end > top:
                continue
            if self.options.fail_on_data_loss:
                raise DataLoss(*tp, end, top)
            log.warning("%s-%d was cut to %d, below what was done", *tp, end)
            self.store.truncate(self.options.group_id, self.epoch, self.member, {tp: end})
            after = self.store.state(self.options.group_id)[tp]
            owned.stable, owned.committed = after.stable_offset, after.ranges

    def _follow(self, tp: TopicPartition, stable: int) -> None:
        owned = self.owned[tp]
        if stable > owned.stable:
            owned.stable = stable
            owned.committed = owned.committed.clip(stable, 2**63 - 1)

    # -- committing

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetRanges],
        *,
        pending: Mapping[TopicPartition, list[Pending]] | None = None,
        holes: Mapping[TopicPartition, OffsetRanges] | None = None,
        commit_id: str | None = None,
    ) -> dict[TopicPartition, CommitResult]:
        """Write offsets to the commit log; all or nothing, and safe to repeat by its id.

        Raises:
            commits.FencedMember: Another member holds the group: nothing of this counts.
            commits.MaxIndividualCommitsReached: Too many ranges; nothing was written.
        """
        results = self.store.commit(
            self.options.group_id,
            self.epoch,
            self.member,
            dict(offsets),
            pending=dict(pending) if pending else None,
            holes=dict(holes) if holes else None,
            commit_id=commit_id,
            too_old="report",
        )
        for tp, result in results.items():
            self._follow(tp, result.stable_offset)
            owned = self.owned[tp]
            owned.committed = (owned.committed | offsets.get(tp, OffsetRanges())).clip(
                owned.stable, 2**63 - 1
            )
        return results

    def mirror(self, *, force: bool = False) -> None:
        """Write stable offsets that changed, or that were not written for long, to Kafka."""
        now = time.monotonic()
        due = {}
        for tp, owned in self.owned.items():
            offset, at = self._primary.get(tp, (-1, 0.0))
            if owned.owns_first and (force or offset != owned.stable or now - at > PRIMARY_REFRESH):
                due[tp] = owned.stable
        self.cluster.commit_primary(due, self.topic_ids, self.epoch.number, self.epoch.nonce)
        self._primary |= {tp: (offset, now) for tp, offset in due.items()}
