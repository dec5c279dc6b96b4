"""What a member owns under one epoch, and the way to commit it.

A batch is planned under one epoch and committed under no other: with the next epoch comes another
`Holding`. Everything that poll and the loop of a job have in common is here.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from assignors import KeyRange, Share, coverage
from commits import MaxIndividualCommitsReached, OffsetRanges
from commits.offsets import MAX_OFFSET
from coopconsume.cluster.client import primary_mark
from coopconsume.errors import ExternalReset, OutputsNotPublished
from coopconsume.group.held_logs import HeldLogs
from coopconsume.plan.crowding import affordable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from commits import CommitResult, CommitStore, Epoch, Pending
    from coopconsume.cluster.client import Cluster
    from coopconsume.options import Options

log = logging.getLogger(__name__)

TopicPartition = tuple[str, int]
#: Seconds between writes of an unchanged primary offset, so that the broker does not expire it.
PRIMARY_REFRESH = 60.0
#: Seconds for which a look at the log is good enough to start another batch. A member that is not
#: in the group any more may start one for so long, so it counts to the life of a batch.
LEASE = 2.0
_NAMED = 20


class WritePrimary(Protocol):
    """Writes offsets with their metadata to ``__consumer_offsets``."""

    def __call__(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Write them; any error means that they may not be there."""


class Publishes(Protocol):
    """Moves primary offsets in transactions, together with the outputs of what lies below them."""

    topic: str

    def publish(self, tp: TopicPartition, stable: int) -> bool:
        """Publish up to a stable offset; whether it is done, or else another will do it."""

    def stop(self) -> None:
        """Publish nothing more."""


@dataclass
class Owned:
    """One partition of which this member has key ranges.

    Attributes:
        ranges: The key ranges, disjoint and ascending.
        stable: The stable offset in the commit log.
        committed: What the log has above it.
        pending: (offset, key hash, attempts, due in seconds since the epoch, error);
            one that is due at infinity is parked.
        range_count: Ranges above the stable offset in the commit log when it was last looked at.
        max_ranges: How many it takes.
    """

    topic: str
    partition: int
    ranges: tuple[KeyRange, ...]
    stable: int
    committed: OffsetRanges
    pending: list[tuple[int, int, int, float, str]] = field(default_factory=list)
    range_count: int = 0
    max_ranges: int = 1_000_000

    @property
    def is_whole(self) -> bool:
        """Whether the ranges are the whole partition."""
        return not coverage(self.ranges).holes

    @property
    def owns_first(self) -> bool:
        """Whether hash 0 is ours: its owner commits holes and the primary offset."""
        return any(key_range.contains(0) for key_range in self.ranges)

    def follow(self, stable: int, committed: OffsetRanges | None = None) -> None:
        """The commit log's stable offset is here now, or was; and this is committed, too."""
        self.stable = max(stable, self.stable)
        known = self.committed | committed if committed else self.committed
        self.committed = known.clip(self.stable, MAX_OFFSET)


@dataclass(frozen=True)
class Tenure:
    """Who we are and what is ours under one epoch of the commit log, or one claim.

    Attributes:
        epoch: The epoch.
        member: Our id in it.
        shares: What is ours.
        topic_ids: Kafka's ids of the topics.
        waits: Parts on which an earlier owner may still be at work, and for how many seconds.
    """

    epoch: Epoch
    member: str
    shares: tuple[Share, ...]
    topic_ids: Mapping[str, str]
    waits: tuple[tuple[Share, float], ...] = ()


class Holding:
    """What is owned under one epoch; loaded from the commit log when it is made.

    Args:
        options: Of the consumer.
        cluster: The Kafka cluster.
        store: The commit store.
        tenure: Who we are and what is ours.
        write_primary: Writes the primary offsets.
        place: Our place in the group, as kafka-python's producer takes it; by default its name.

    Attributes:
        owned: What of each partition is ours.
        logs: The partitions' logs in Kafka: where they begin and end.

    Raises:
        DataLoss: Records were deleted before they were done, and ``failOnDataLoss`` is true.
        ExternalReset: Somebody moved the group's offsets in Kafka, and ``onExternalReset`` is fail.
        commits.FencedMember: The epoch has passed.
    """

    def __init__(
        self,
        options: Options,
        cluster: Cluster,
        store: CommitStore,
        tenure: Tenure,
        write_primary: WritePrimary,
        place: Callable[[], Any] | None = None,
    ) -> None:
        self.options = options
        self.cluster = cluster
        self.store = store
        self.epoch = tenure.epoch
        self.member = tenure.member
        self.topic_ids = dict(tenure.topic_ids)
        self.shares = tenure.shares
        self.owned: dict[TopicPartition, Owned] = {}
        self.place: Callable[[], Any] = place or (lambda: options.group_id)
        self._write_primary = write_primary
        self._publishing: Publishes | None = None
        # Partitions whose primary offset moves in transactions alone, and the topic of those.
        self._bound: dict[TopicPartition, str] = {}
        self._primary: dict[TopicPartition, tuple[int, float]] = {}
        # A job's loop and its committing thread both read and move what is owned.
        self._lock = threading.RLock()
        self.logs = HeldLogs(options, cluster, store, tenure, self.owned, self._lock)
        begun = time.monotonic()
        self._waits = [(share, begun + seconds) for share, seconds in tenure.waits]
        self._seen = begun
        self._load(tenure.shares)
        self.logs.check_starts()
        self.logs.check_ends()

    def _load(self, shares: Iterable[Share]) -> None:
        group, epoch = self.options.group_id, self.epoch
        ranges: dict[TopicPartition, list[KeyRange]] = {}
        for share in shares:
            ranges.setdefault((share.topic, share.partition), []).append(share.key_range)
        state = self.store.state(group)
        primary = self.cluster.primary()
        self._bound = {tp: p.outputs for tp, p in primary.items() if p.outputs and tp in ranges}
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
                [(p.offset, p.key_hash or 0, p.attempts,
                  math.inf if p.is_parked else p.due_ms / 1000, p.error)
                 for p in pending.get(tp, {}).values()],
                commits.ranges.range_count, commits.max_ranges or 0,
            )  # fmt: skip

    @property
    def key_ranges(self) -> dict[TopicPartition, list[KeyRange]]:
        """The key ranges that are ours, by partition."""
        return {tp: list(owned.ranges) for tp, owned in self.owned.items()}

    # -- how long it lasts

    def check(self) -> None:
        """Make sure that the epoch is still in force, if nobody has looked for a while.

        Raises:
            commits.FencedMember: It is not.
            commits.CommitLogUnavailable: The log cannot be read.
        """
        now = time.monotonic()
        if now - self._seen > LEASE:
            self.store.check(self.options.group_id, self.epoch, self.member)
            self._seen = now

    def waits(self, tp: TopicPartition, ranges: Sequence[KeyRange]) -> float:
        """Seconds until no earlier owner of some key ranges of a partition can be at work."""
        now = time.monotonic()
        return max(
            (
                until - now
                for share, until in self._waits
                if (share.topic, share.partition) == tp
                and any(
                    share.key_range.first <= one.last and one.first <= share.key_range.last
                    for one in ranges
                )
            ),
            default=0.0,
        )

    def left_running(self, shares: Iterable[Share]) -> None:
        """Parts on which tasks may go on although nobody waits for them: they bar their shares."""
        until = time.monotonic() + self.options.batch_life
        self._waits += [(share, until) for share in shares]

    def release(self, running: Iterable[Share] = ()) -> None:
        """Give all of it back; harmless when repeated.

        Args:
            running: Parts on which we may still be at work.
        """
        now = time.monotonic()
        waiting = [share for share, until in self._waits if until > now]
        still = sorted({*running, *waiting})
        self.store.release(self.options.group_id, self.epoch, self.member, running=still)

    # -- committing

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetRanges],
        *,
        pending: Mapping[TopicPartition, list[Pending]] | None = None,
        holes: Mapping[TopicPartition, OffsetRanges] | None = None,
        commit_id: str | None = None,
        limited: bool = True,
    ) -> dict[TopicPartition, CommitResult]:
        """Write offsets to the commit log; all or nothing, and safe to repeat by its id.

        Args:
            offsets: What is done.
            pending: What failed.
            holes: What is proven never to be delivered.
            commit_id: Tells it from every other commit of the group.
            limited: Whether the limit on ranges is looked at once more (see `affordable`).

        Raises:
            commits.FencedMember: Another member holds the group: nothing of this counts.
            commits.MaxIndividualCommitsReached: Too many ranges; nothing was written.
        """
        holes = holes or {}
        try:
            results = self.store.commit(
                self.options.group_id,
                self.epoch,
                self.member,
                dict(offsets),
                pending=dict(pending) if pending else None,
                holes=dict(holes),
                commit_id=commit_id,
                too_old="report",
                limited=limited,
            )
        except MaxIndividualCommitsReached as error:
            # What other partitions committed stands.
            self._answered(error.results or {}, offsets, holes)
            raise
        self._answered(results, offsets, holes)
        return results

    def _answered(
        self,
        results: Mapping[TopicPartition, CommitResult],
        offsets: Mapping[TopicPartition, OffsetRanges],
        holes: Mapping[TopicPartition, OffsetRanges],
    ) -> None:
        self._seen = time.monotonic()
        nothing = OffsetRanges()
        for tp, result in results.items():
            self.owned[tp].range_count = result.range_count
            if result.status != "refused":
                done = offsets.get(tp, nothing) | holes.get(tp, nothing)
                with self._lock:
                    self.owned[tp].follow(result.stable_offset, done)
        repeated = {tp: r.duplicates for tp, r in results.items() if r.duplicates}
        if repeated:
            where = [f"{t}-{p}: {n}" for (t, p), n in islice(sorted(repeated.items()), _NAMED)]
            more = ["…"] if len(repeated) > _NAMED else []
            log.warning(
                "%d offsets were committed before, and count once (%s)",
                sum(repeated.values()), ", ".join(where + more),
            )  # fmt: skip

    def affordable(
        self,
        offsets: Mapping[TopicPartition, OffsetRanges],
        holes: Mapping[TopicPartition, OffsetRanges],
    ) -> dict[TopicPartition, OffsetRanges]:
        """What of some offsets the limit on ranges lets in now: as a rule all of it.

        Args:
            offsets: What is done.
            holes: What is proven never to be delivered, and committed along with it.
        """
        tight = [
            tp
            for tp, done in offsets.items()
            if self.owned[tp].range_count + done.range_count > self.owned[tp].max_ranges
        ]
        if not tight:
            return dict(offsets)
        state, fit = self.store.state(self.options.group_id), dict(offsets)
        for tp in tight:
            commits = state[tp]
            limit = self.owned[tp].max_ranges = commits.max_ranges or 0
            commits.amend(holes.get(tp, OffsetRanges()))
            fit[tp] = affordable(commits, offsets[tp], limit)
        return fit

    @property
    def is_shared(self) -> bool:
        """Whether others have parts of our partitions, and so move their stable offsets, too."""
        return any(not owned.is_whole for owned in self.owned.values())

    def refresh(self) -> dict[TopicPartition, int]:
        """The stable offsets, as the commit log says now where others move them, too."""
        if self.is_shared:
            state = self.store.state(self.options.group_id)
            for tp, owned in self.owned.items():
                if not owned.is_whole and tp in state:
                    with self._lock:
                        owned.follow(state[tp].stable_offset)
                    owned.range_count = state[tp].ranges.range_count
        with self._lock:
            return {tp: owned.stable for tp, owned in self.owned.items()}

    def publish_by(self, publishing: Publishes | None) -> None:
        """Have primary offsets moved in transactions from now on, together with outputs.

        Args:
            publishing: What does so; None: nothing does, and those that outputs move stay.

        Raises:
            OutputsNotPublished: Outputs for another topic wait.
        """
        self._publishing = None
        if publishing is None:
            return
        for tp, topic in self._bound.items():
            if topic != publishing.topic:
                raise OutputsNotPublished(
                    f"topic {publishing.topic!r}",
                    f"outputs of {tp[0]}-{tp[1]} go to {topic!r}: let that job come to its end, "
                    "then set Kafka's offset by 'coopconsume offsets reset --to-log'",
                )
        self._publishing = publishing
        self._bound = dict.fromkeys(self.owned, publishing.topic)

    @property
    def publishes(self) -> bool:
        """Whether primary offsets move in transactions, together with outputs."""
        return self._publishing is not None

    @property
    def has_unpublished(self) -> bool:
        """Whether outputs below a stable offset of ours are still to be published."""
        if self._publishing is None:
            return False
        with self._lock:
            return any(
                owned.owns_first and self._primary.get(tp, (-1, 0.0))[0] != owned.stable
                for tp, owned in self.owned.items()
            )

    def stop_publishing(self) -> None:
        """Leave what is not published to whoever comes next."""
        if self._publishing is not None:
            self._publishing.stop()

    def mirror(self, *, force: bool = False) -> None:
        """Write stable offsets that changed, or that were not written for long, to Kafka.

        Where outputs are published in transactions, they move in these.

        Raises:
            OutputsNotPublished: Kafka did not take them.
        """
        now = time.monotonic()
        due = {}
        for tp, offset in self.refresh().items():
            if not self.owned[tp].owns_first:
                continue
            written, at = self._primary.get(tp, (-1, 0.0))
            if (force and not self.publishes) or written != offset or now - at > PRIMARY_REFRESH:
                due[tp] = offset
        if self._publishing is not None:
            for tp, offset in due.items():
                if self._publishing.publish(tp, offset):
                    self._primary[tp] = (offset, now)
            return
        for tp in sorted(due.keys() & self._bound.keys()):
            del due[tp]
            if tp not in self._primary:
                self._primary[tp] = (-1, now)
                log.warning(
                    "Kafka's offset of %s-%d stays: it moves with outputs to topic %s. Run the job "
                    "that writes them, or give that up by 'coopconsume offsets reset --to-log'",
                    *tp, self._bound[tp],
                )  # fmt: skip
        if due:
            self._write_primary({tp: (offset, self._mark(tp)) for tp, offset in due.items()})
            self._primary |= {tp: (offset, now) for tp, offset in due.items()}

    def mirror_quietly(self, *, force: bool = False) -> None:
        """Write the primary offsets, or warn: the log has them, Kafka's copy may lag."""
        try:
            self.mirror(force=force)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next time may do
            log.warning("the primary offsets could not be written for now: %s", error)

    def mirror_last(self) -> None:
        """Write what could not be written as a member, once the group may be without members."""
        behind = [
            tp
            for tp, owned in self.owned.items()
            if owned.owns_first
            and tp not in self._bound
            and self._primary.get(tp, (-1, 0.0))[0] != owned.stable
        ]
        if not behind:
            return
        try:
            state = self.store.state(self.options.group_id)
            self.cluster.commit_primary(
                {tp: (state[tp].stable_offset, self._mark(tp)) for tp in behind if tp in state}
            )
        except Exception:
            log.debug("the primary offsets are left to the next owner", exc_info=True)

    def _mark(self, tp: TopicPartition) -> str:
        return primary_mark(self.topic_ids.get(tp[0], ""), self.epoch)
