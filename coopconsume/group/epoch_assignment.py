"""What a member owns under one epoch, and the way to commit it.

With the next epoch comes another `EpochAssignment`, unless the member joins without a hand-over and
nothing of what it has is to move: then its ownership never pauses, and it goes on with this one.
Everything that poll and the loop of a job have in common is here.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from assignors.shares import by_partition, inside, outside, shares_of, without
from commits import (
    AcquireRequest,
    CommitRefused,
    FencedMember,
    OffsetAndEpoch,
    OffsetRanges,
)
from commits.affordable import affordable
from coopconsume.errors import ExternalReset
from coopconsume.group.agreement import check, terms_of
from coopconsume.group.assigned_logs import AssignedLogs
from coopconsume.group.beginning import LogFacts, beginning
from coopconsume.group.chunks import AcquiredChunks, ChunkReader, failures_in
from coopconsume.group.owned import LEASE, Failed, Owned, left_ms, to_keep
from coopconsume.group.primary import PrimaryOffsets
from coopconsume.group.repeating import repeated
from coopconsume.group.settings import lease_of
from coopconsume.kafka.identity import LOG_IDENTITIES, LogIdentity
from coopconsume.state.note import begin_with_state, note_start_elsewhere
from coopconsume.worker.process_timer import clock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from assignors import KeyRange, Share
    from commits import CommitResult, CommitStore, Epoch, Pending
    from commits.model import TopicPartition
    from coopconsume.group.chunks import GroupChunks
    from coopconsume.group.owned import EpochGrant
    from coopconsume.group.primary import WritePrimary
    from coopconsume.kafka.cluster import Cluster
    from coopconsume.options import Options
    from coopconsume.state.changelog import Changelog

log = logging.getLogger(__name__)

_NAMED = 20
#: Seconds for which the return of shares is tried: who gets them waits a batch life without it.
_RELEASE_LIMIT = 5.0


class EpochAssignment:
    """What is owned under one epoch and those that it continues under; loaded when it is made.

    Args:
        options: Of the consumer.
        cluster: The Kafka cluster.
        store: The commit store.
        grant: Who we are and what is ours.
        write_primary: Writes the primary offsets.
        place: Our place in the group, as kafka-python's producer takes it; by default its name.
        heard: Returns when a heartbeat that its coordinator accepted in the generation of an epoch
            was sent, on `coopconsume.worker.process_timer.clock`; by default never.

    Attributes:
        owned: What of each partition is ours.
        is_between_epochs: Whether the group rebalances while the work goes on. The epoch may be
            over then, and the next one not known yet: what the log refuses waits for that.
        logs: The partitions' logs in Kafka: where they begin and end.
        primary: The group's offsets in Kafka.

    Raises:
        DataLoss: Records were deleted before they were done, and ``failOnDataLoss`` is true.
        ExternalReset: Somebody moved the group's offsets in Kafka, and ``onExternalReset`` is fail.
        GroupRefused: The group has other terms.
        commits.FencedMember: The epoch has passed.
    """

    def __init__(
        self,
        options: Options,
        cluster: Cluster,
        store: CommitStore,
        grant: EpochGrant,
        write_primary: WritePrimary,
        place: Callable[[], Any] | None = None,
        heard: Callable[[Epoch], float] = lambda _: -math.inf,
    ) -> None:
        self.options = options
        self.cluster = cluster
        self.store = store
        self._grant = grant
        self._heard = heard
        #: Until when what was released may run on, if the log has named it to its next owners.
        self._runs_on_until = -math.inf
        self.is_between_epochs = False
        self.topic_ids = dict(grant.topic_ids)
        LOG_IDENTITIES.saw_topics(cluster.cluster_id, self.topic_ids)
        self.owned: dict[TopicPartition, Owned] = {}
        self.place: Callable[[], Any] = place or (lambda: options.group_id)
        # A job's loop and its committing thread both read and move what is owned.
        self._lock = threading.RLock()
        self._over = threading.Event()
        prefix = uuid.uuid4().hex
        # Ids of one prefix take little space in the log (see `CommitIds`).
        self._ids = (f"{prefix}-{number}" for number in itertools.count(1))
        self.logs = AssignedLogs(
            options, cluster, store, lambda: self._grant, self.owned, self._lock
        )
        self.primary = PrimaryOffsets(
            options.group_id, store, lambda: self._grant, self.owned, self._lock, self.refresh,
            write_primary, cluster.commit_primary,
        )  # fmt: skip
        begun = time.monotonic()
        self._waits = [(share, begun + seconds) for share, seconds in grant.waits]
        self._seen = clock()
        self._chunks = ChunkReader(store, options.group_id)
        with store.one_look():
            self.owned.update(self._load(grant.shares))
            self.logs.check_starts()
            self.logs.check_ends()

    def _load(self, shares: Iterable[Share]) -> dict[TopicPartition, Owned]:
        """Returns the state in the log of each partition that we own a part of."""
        group, loaded = self.options.group_id, {}
        ranges = by_partition(shares)
        self._begin(ranges.keys())
        state = self.store.state(group)
        pending = self.store.pending(group)
        now, now_ms = time.monotonic(), int(time.time() * 1000)
        for tp, key_ranges in ranges.items():
            commits = state[tp]
            owned = loaded[tp] = Owned(
                *tp, key_ranges, commits.stable_offset, commits.ranges,
                [Failed.of(one, now, now_ms) for one in pending.get(tp, {}).values()],
                max_ranges=commits.max_ranges or 0, uses_chunks=self.options.uses_chunks,
            )  # fmt: skip
            owned.look(commits.ranges)
        return loaded

    def _begin(self, owned: Collection[TopicPartition]) -> None:
        """Writes into the log where our partitions begin, and which offsets were found in Kafka."""
        store, group, epoch, member = self.store, self.options.group_id, self.epoch, self.member
        check(store, group, terms_of(self.options, store, self.cluster))
        row = store.assignment(group, epoch)
        topics = {topic for topic, _ in owned}
        dealt = {
            (share.topic, share.partition)
            for shares in (row.members.values() if row else ())
            for share in shares
            if share.topic in topics
        }
        stable = {tp: commits.stable_offset for tp, commits in store.state(group).items()}
        facts = LogFacts(stable, store.known_primary(group), store.initial_partitions(group))
        # After the log: a mirror is written after its commits.
        primary = self.cluster.primary({*owned, *dealt} - stable.keys())
        self.primary.found(
            {tp: p.outputs for tp, p in primary.items() if p.outputs and tp in owned}
        )
        found = beginning(owned, dealt, facts, primary, self.topic_ids)
        starts = found.from_primary | self.cluster.starting(found.from_options)
        starts |= self.cluster.log_starts(found.from_earliest)
        if found.from_primary:
            note_start_elsewhere(store, group)
        if starts:
            store.start(group, epoch, member, starts)
        if found.noted:
            store.note_primary(group, epoch, member, found.noted)
        for tp, offset in found.moved.items():
            if self.options.on_external_reset == "fail":
                raise ExternalReset(*tp, offset, stable[tp])
            log.warning("%s-%d: following Kafka's offset %d", *tp, offset)
            try:
                store.note_primary(group, epoch, member, {tp: offset}, follow=True)
            except CommitRefused as error:
                raise ExternalReset(*tp, offset, stable[tp]) from error
        self.primary.to_replace(tp for tp in store.known_primary(group) if tp in owned)

    @property
    def epoch(self) -> Epoch:
        """The epoch under which we commit."""
        return self._grant.epoch

    @property
    def member(self) -> str:
        """Our id in it."""
        return self._grant.member

    @property
    def shares(self) -> tuple[Share, ...]:
        """What is ours."""
        return self._grant.shares

    def identity_of(self, tp: TopicPartition) -> LogIdentity:
        """Returns which log a partition has, as far as this member has seen it."""
        return LogIdentity(self.topic_ids.get(tp[0], ""), self.logs.leader_epoch(tp))

    def reached_of(self, tp: TopicPartition) -> OffsetAndEpoch | None:
        """Returns how far the log of a partition was seen to reach; None: not known."""
        epoch = self.logs.leader_epoch(tp)
        return None if epoch is None else OffsetAndEpoch(self.logs.seen_end(tp), epoch)

    @property
    def life_ms(self) -> int:
        """How long the next owners of our shares wait for what we do not hand over."""
        return self._grant.life_ms

    def begin_with_state(self, changelog: Changelog | None) -> None:
        """Makes sure that work begins with the state of the group; None: it has none.

        Raises:
            GroupRefused, ResetNotFinished, OutputNotWritten, StateNotReadable, TableUnusable: As
                for `coopconsume.state.note.begin_with_state`.
        """
        cluster = self.cluster.cluster_id
        with self.store.one_look():
            begin_with_state(self.store, self.options.group_id, cluster, self.member, changelog)

    def follow(self, epoch: Epoch, member: str, waits: Iterable[tuple[Share, float]] = ()) -> None:
        """Moves our shares to a later epoch whose assignment is not known.

        Args:
            epoch: The epoch.
            member: Our id in it.
            waits: Parts of what it gives us besides, on which an earlier owner may still be at
                work, and for how many seconds. Whatever we release from now on leaves them in
                doubt.
        """
        self._wait_for(waits)
        self._grant = replace(self._grant, epoch=epoch, member=member)

    def continue_under(self, grant: EpochGrant) -> None:
        """Moves our shares to the next epoch, which assigns all of them to us again.

        Additional shares do not start here, see `extend`. The wait for their earlier owners begins
        now, and they stay in doubt if we release them.
        """
        self._wait_for(grant.waits)
        self._grant = replace(
            self._grant, epoch=grant.epoch, member=grant.member, life_ms=grant.life_ms,
            generation=grant.generation,
        )  # fmt: skip
        self.is_between_epochs = False

    def _wait_for(self, waits: Iterable[tuple[Share, float]]) -> None:
        now = time.monotonic()
        # One assignment: others read it.
        self._waits = [*self._waits, *((share, now + seconds) for share, seconds in waits)]

    def may_be_late(self, error: FencedMember) -> bool:
        """Whether the log may have refused something as its epoch has passed, and we go on."""
        return self.is_between_epochs or error.epoch != self.epoch

    @property
    def key_ranges(self) -> dict[TopicPartition, list[KeyRange]]:
        """The key ranges that are ours, by partition."""
        # A job's loop may give some of them up meanwhile.
        return {tp: list(owned.ranges) for tp, owned in list(self.owned.items())}

    # -- how long it lasts

    def check(self, within: float = LEASE) -> float:
        """Makes sure that the epoch is still in force, if the last look is some time ago.

        Args:
            within: Seconds for which a look at the log is good enough.

        Returns:
            When the epoch was in force for certain, on `coopconsume.worker.process_timer.clock`.

        Raises:
            commits.FencedMember: It is not.
            commits.CommitLogUnavailable: The log cannot be read.
        """
        now = clock()
        if now - self._seen > within:
            grant = self._grant
            self.store.check(self.options.group_id, grant.epoch, grant.member)
            self._saw(now)
        return self._seen

    @property
    def is_confirmed(self) -> bool:
        """Whether the log said a moment ago that the epoch is in force; asks nobody."""
        return clock() - self._seen <= LEASE

    def _saw(self, asked: float) -> None:
        """Notes that the epoch was in force after an instant, as the log has answered."""
        self._seen = max(self._seen, asked)

    @property
    def in_force_at(self) -> float:
        """When no later epoch had been granted for certain, on the clock of `check`.

        As the log has said, or Kafka: a leader opens an epoch in a generation of its own, and then
        no heartbeat of the one before is accepted. What was released while it ran has its time from
        its next owners, and no epoch ends that.
        """
        released = min(clock(), self._runs_on_until - self.life_ms / 1000)
        return max(self._seen, self._heard(self.epoch), released)

    @property
    def fails_stop(self) -> bool:
        """Whether slots of it end their processes when nothing is heard of their driver.

        Not with a claim: its process alone looks at the log, which may be away for a while.
        """
        return self._grant.generation >= 0

    @property
    def runs_on_for(self) -> float:
        """For how many seconds handlers may run on that are given up while this process lives.

        Their slots were asked to end, and get their time as long as their driver is there.
        """
        life = self.life_ms / 1000
        stopped = lease_of(self.options) + self.options.handler_timeout
        return max(life, stopped) if self.fails_stop else life

    def waits(self, tp: TopicPartition, ranges: Sequence[KeyRange]) -> float:
        """Seconds until no earlier owner of some key ranges of a partition can be at work."""
        now = time.monotonic()
        return max(
            (
                until - now
                for share, until in self._waits
                if (share.topic, share.partition) == tp
                and any(share.key_range.overlaps(one) for one in ranges)
            ),
            default=0.0,
        )

    def in_doubt(self, tp: TopicPartition) -> list[tuple[KeyRange, float]]:
        """Returns key ranges of a partition that an earlier owner may be at work on.

        Each with the instant of the monotonic clock at which that has ended, in the order of these.
        """
        now = time.monotonic()
        found = [
            (share.key_range, until)
            for share, until in self._waits
            if (share.topic, share.partition) == tp and until > now
        ]
        return sorted(found, key=lambda one: one[1])

    def left_running(self, shares: Iterable[Share], seconds: float) -> None:
        """Parts on which tasks may go on although nobody waits for them: they bar their shares."""
        self._wait_for((share, seconds) for share in shares)

    def release(self, running: Iterable[Share] = (), shares: Sequence[Share] | None = None) -> None:
        """Gives all of it back, or part of it; harmless when repeated.

        Args:
            running: Parts on which we may still be at work.
            shares: What to give back; None: all of it.

        Raises:
            commits.CommitLogUnavailable: The log did not answer for some seconds.
        """
        asked, runs_on = clock(), self.runs_on_for
        may_run = [*((share, runs_on) for share in running), *self.waits_left()]
        left = left_ms(may_run if shares is None else inside(may_run, shares))
        group = self.options.group_id
        is_last = shares is None and self.options.uses_chunks
        watched = self._chunks.last_notes() if is_last else {}
        last = AcquireRequest(next(self._ids), watched=watched) if watched else None

        def give_back() -> bool:
            if last is not None:
                with suppress(FencedMember, CommitRefused):  # also if it is repeated
                    self.store.acquire(group, self.epoch, self.member, last, maintain=False)
            return self.store.release(group, self.epoch, self.member, running=left, shares=shares)

        counts = repeated(give_back, "release of the shares", _RELEASE_LIMIT)
        if counts and shares is None and not self.options.uses_chunks:
            self._runs_on_until = asked + runs_on
        if shares is not None:
            self._waits = outside(self._waits, shares)

    def give_up(self, shares: Sequence[Share]) -> None:
        """Removes part of it, which is not ours any more as soon as it is released.

        Args:
            shares: What is about to be released, with nothing of it left to commit.
        """
        left = without(self.shares, shares)
        with self._lock:
            self._grant = replace(self._grant, shares=left)
            ranges = by_partition(left)
            for tp, owned in list(self.owned.items()):
                if tp in ranges:
                    owned.keep(ranges[tp])
                else:
                    del self.owned[tp]

    def extend(self, gained: EpochAssignment) -> None:
        """Adds the key ranges of another assignment of the epoch; only this one stays in use."""
        with self._lock:
            self.topic_ids = {**self.topic_ids, **gained.topic_ids}
            shares = shares_of(by_partition([*self.shares, *gained.shares]))
            self._grant = replace(self._grant, shares=shares, topic_ids=self.topic_ids)
            new = gained.owned.keys() - self.owned.keys()
            self.logs.extend(gained.logs, new)
            self.primary.extend(gained.primary, new)
            for tp, owned in gained.owned.items():
                if tp in new:
                    self.owned[tp] = owned
                else:
                    self.owned[tp].extend(owned)

    def waits_left(self) -> list[tuple[Share, float]]:
        """Returns parts on which somebody may still be at work, and for how many seconds."""
        now = time.monotonic()
        return [(share, until - now) for share, until in self._waits if until > now]

    # -- committing

    def stop_repeating(self) -> None:
        """Makes no further attempt at a commit whose answer is lost: the next owner commits."""
        self._over.set()

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetRanges],
        *,
        pending: Mapping[TopicPartition, list[Pending]] | None = None,
        holes: Mapping[TopicPartition, OffsetRanges] | None = None,
        filtered: Mapping[TopicPartition, int] | None = None,
        commit_id: str | None = None,
        request: AcquireRequest | None = None,
        maintain: bool = True,
    ) -> dict[TopicPartition, CommitResult]:
        """Writes offsets to the commit log, all or nothing, however many ranges that makes.

        While the log does not answer, the commit is repeated with its id for as long as a batch may
        take.

        Args:
            offsets: What is done.
            pending: What failed.
            holes: What is proven never to be delivered.
            filtered: How many of the offsets are of records that the filter dropped.
            commit_id: Unique among the commits of the group; None: a new one.
            request: Chunks to acquire in the same append; `acquired` returns them.
            maintain: Whether to maintain the table before the answer; with False, call
                `CommitStore.maintain` later.

        Raises:
            commits.FencedMember: The epoch or the membership is not in force: nothing counts.
            commits.CommitLogUnavailable: The log did not answer; whether this counts is not known.
        """
        holes = holes or {}
        commit_id = commit_id or next(self._ids)
        # Of all attempts: under another epoch the log would repeat what it answered to the first.
        grant, reached = self._grant, self.logs.reached(offsets)

        def commit() -> dict[TopicPartition, CommitResult]:
            return self.store.commit(
                self.options.group_id,
                grant.epoch,
                grant.member,
                dict(offsets),
                pending=to_keep(self.options, pending) if pending else None,
                holes=dict(holes),
                filtered=filtered,
                reached=reached,
                commit_id=commit_id,
                too_old="report",
                limited=False,
                request=request,
                maintain=maintain,
            )

        count = sum(len(done) for done in offsets.values())
        what = f"commit {commit_id} of {count} offsets of {len(offsets)} partitions"
        # The log repeats its first answer, also after the epoch has passed.
        asked = clock()
        results = repeated(commit, what, self.options.batch_life, self._over)
        self._saw(asked)
        self._answered(results, offsets, holes)
        return results

    def acquire(self, request: AcquireRequest, *, maintain: bool = True) -> None:
        """Asks for chunks of a cooperative epoch, without a commit; `acquired` returns them.

        Args:
            request: The request.
            maintain: As for `commit`.

        Raises:
            commits.FencedMember: The epoch is over: the request changed nothing.
            commits.CommitLogUnavailable: The log did not answer.
        """
        grant, asked = self._grant, clock()

        def acquire() -> None:
            self.store.acquire(
                self.options.group_id, grant.epoch, grant.member, request, maintain=maintain
            )

        try:
            repeated(acquire, f"request {request.id}", self.options.batch_life, self._over)
        except CommitRefused as error:
            # The topic was created again, which the next look at the logs finds, too.
            log.warning("%s", error)
        self._saw(asked)

    def acquired(self, request: AcquireRequest) -> AcquiredChunks:
        """Returns what a request got and this member still holds.

        Raises:
            commits.CommitLogUnavailable: The log cannot be read.
        """
        group = self.options.group_id
        offsets = self.store.acquired(group, request.id)
        if not any(wanted.due for wanted in request.wanted.values()):
            return AcquiredChunks(offsets)
        # Nobody else writes the failures of what is held, so these are the last ones.
        pending = self.store.pending(group)
        now, now_ms = time.monotonic(), int(time.time() * 1000)
        return AcquiredChunks(offsets, failures_in(offsets, pending, now, now_ms))

    def return_chunks(self, running: Iterable[Share] = ()) -> None:
        """Returns what this member has acquired, so that any member may acquire it.

        Args:
            running: Parts of partitions on which a handler may still be at work. Chunks of these
                partitions stay with this member.

        Raises:
            commits.FencedMember: The epoch is over.
            commits.CommitLogUnavailable: The log did not answer.
        """
        found, at_work = self.look_at_chunks(), {(one.topic, one.partition) for one in running}
        chunks = tuple(
            chunk
            for tp, one in (found.partitions if found else {}).items()
            for chunk in one.chunks
            if tp not in at_work
        )
        if chunks:
            self.acquire(AcquireRequest(next(self._ids), expire=chunks))

    def look_at_chunks(self) -> GroupChunks | None:
        """Returns what the log says of the chunks of a cooperative epoch; None if that is over.

        Raises:
            commits.CommitLogUnavailable: The log cannot be read.
        """
        grant = self._grant
        found = self._chunks.read(grant.epoch, grant.member)
        if found is None:
            return None
        for tp, owned in list(self.owned.items()):
            if tp in found.partitions:
                chunks = found.partitions[tp]
                with self._lock:
                    owned.follow(chunks.stable)
                owned.look(chunks.committed)
                owned.leads = chunks.leads
        return found

    def _answered(
        self,
        results: Mapping[TopicPartition, CommitResult],
        offsets: Mapping[TopicPartition, OffsetRanges],
        holes: Mapping[TopicPartition, OffsetRanges],
    ) -> None:
        nothing = OffsetRanges()
        for tp, result in results.items():
            owned = self.owned.get(tp)
            if owned is None:
                continue  # It was given up meanwhile.
            owned.range_count = result.range_count
            done = offsets.get(tp, nothing) | holes.get(tp, nothing)
            with self._lock:
                owned.follow(result.stable_offset, done)
        again = {tp: r.duplicates for tp, r in results.items() if r.duplicates}
        if again:
            named = sorted(again.items())[:_NAMED]
            where = [f"{t}-{p}: {n}" for (t, p), n in named]
            more = ["…"] if len(again) > _NAMED else []
            log.warning(
                "%d offsets were committed before, and count once (%s)",
                sum(again.values()), ", ".join(where + more),
            )  # fmt: skip

    def affordable(
        self,
        named: Mapping[TopicPartition, OffsetRanges],
        besides: Mapping[TopicPartition, OffsetRanges],
    ) -> dict[TopicPartition, OffsetRanges]:
        """Returns what of a user's commit the limit on ranges lets in now, usually all.

        Args:
            named: What the user names.
            besides: What is committed along with it in any case.
        """
        nothing = OffsetRanges()
        # A job's loop may give some of them up meanwhile.
        places = {tp: owned for tp in named if (owned := self.owned.get(tp)) is not None}
        tight = {
            tp: owned
            for tp, owned in places.items()
            if owned.range_count + (named[tp] | besides.get(tp, nothing)).range_count
            > owned.max_ranges
        }
        if not tight:
            return dict(named)
        state, fit = self.store.state(self.options.group_id), dict(named)
        for tp, owned in tight.items():
            commits = state[tp]
            limit = owned.max_ranges = commits.max_ranges or 0
            owned.look(commits.ranges)
            commits.amend(besides.get(tp, nothing))
            fit[tp] = affordable(commits, named[tp], limit)
        return fit

    @property
    def is_shared(self) -> bool:
        """Whether others have parts of our partitions, and so move their stable offsets, too."""
        return any(not owned.is_whole for owned in list(self.owned.values()))

    def refresh(self) -> dict[TopicPartition, int]:
        """Returns the stable offsets that the commit log has now, where others move them, too."""
        if self.is_shared:
            state = self.store.state(self.options.group_id)
            for tp, owned in list(self.owned.items()):
                if not owned.is_whole and tp in state:
                    with self._lock:
                        owned.follow(state[tp].stable_offset)
                    owned.look(state[tp].ranges)
        with self._lock:
            return {tp: owned.stable for tp, owned in self.owned.items()}
