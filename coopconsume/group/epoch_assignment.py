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
import uuid
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from assignors.shares import by_partition, inside, shares_of, without
from commits import (
    AcquireRequest,
    CommitRefused,
    FencedMember,
    OffsetAndEpoch,
    OffsetRanges,
)
from commits.affordable import affordable
from coopconsume.group.assigned_logs import AssignedLogs
from coopconsume.group.chunks import ChunkReader
from coopconsume.group.epoch_proof import EpochProof
from coopconsume.group.loading import load
from coopconsume.group.owned import Owned, left_ms, to_keep
from coopconsume.group.primary import PrimaryOffsets
from coopconsume.group.repeating import repeated
from coopconsume.group.settings import lease_of
from coopconsume.group.shares_in_doubt import SharesInDoubt
from coopconsume.kafka.identity import LOG_IDENTITIES, LogIdentity
from coopconsume.state.note import begin_with_state
from coopconsume.worker.process_timer import clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

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
        chunks: What the log has of the chunks of a cooperative epoch.
        in_doubt: Parts that somebody may still be at work on.
        proof: When the epoch was in force for certain.
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
            options, cluster, store, grant=lambda: self._grant, owned=self.owned, lock=self._lock
        )
        self.primary = PrimaryOffsets(
            options.group_id,
            store,
            grant=lambda: self._grant,
            owned=self.owned,
            lock=self._lock,
            stable=self.refresh,
            write=write_primary,
            write_alone=cluster.commit_primary,
        )
        self.in_doubt = SharesInDoubt(grant.waits)
        self.proof = EpochProof(store, options.group_id, lambda: self._grant, heard)
        self.chunks = ChunkReader(store, options.group_id)
        with store.one_look():
            self.owned.update(load(options, cluster, store, grant, self.primary))
            self.logs.check_starts()
            self.logs.check_ends()

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
        self.in_doubt.add(waits)
        self._grant = replace(self._grant, epoch=epoch, member=member)

    def continue_under(self, grant: EpochGrant) -> None:
        """Moves our shares to the next epoch, which assigns all of them to us again.

        Additional shares do not start here, see `extend`. The wait for their earlier owners begins
        now, and they stay in doubt if we release them.
        """
        self.in_doubt.add(grant.waits)
        self._grant = replace(
            self._grant, epoch=grant.epoch, member=grant.member, life_ms=grant.life_ms,
            generation=grant.generation,
        )  # fmt: skip
        self.is_between_epochs = False

    def may_be_late(self, error: FencedMember) -> bool:
        """Whether the log may have refused something as its epoch has passed, and we go on."""
        return self.is_between_epochs or error.epoch != self.epoch

    @property
    def key_ranges(self) -> dict[TopicPartition, list[KeyRange]]:
        """The key ranges that are ours, by partition."""
        # A job's loop may give some of them up meanwhile.
        return {tp: list(owned.ranges) for tp, owned in list(self.owned.items())}

    # -- how long it lasts

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

    def release(self, running: Iterable[Share] = (), shares: Sequence[Share] | None = None) -> None:
        """Gives all of it back, or part of it; harmless when repeated.

        Args:
            running: Parts on which we may still be at work.
            shares: What to give back; None: all of it.

        Raises:
            commits.CommitLogUnavailable: The log did not answer for some seconds.
        """
        asked, runs_on = clock(), self.runs_on_for
        may_run = [*((share, runs_on) for share in running), *self.in_doubt.left()]
        left = left_ms(may_run if shares is None else inside(may_run, shares))
        group = self.options.group_id
        is_last = shares is None and self.options.uses_chunks
        watched = self.chunks.last_notes() if is_last else {}
        last = AcquireRequest(next(self._ids), watched=watched) if watched else None

        def give_back() -> bool:
            if last is not None:
                with suppress(FencedMember, CommitRefused):  # also if it is repeated
                    self.store.acquire(group, self.epoch, self.member, last, maintain=False)
            return self.store.release(group, self.epoch, self.member, running=left, shares=shares)

        counts = repeated(give_back, "release of the shares", _RELEASE_LIMIT)
        if counts and shares is None and not self.options.uses_chunks:
            self.proof.released(asked + runs_on)
        if shares is not None:
            self.in_doubt.release(shares)

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
            request: Chunks to acquire in the same append; `ChunkReader.acquired` returns them.
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
        self.proof.saw(asked)
        self._answered(results, offsets, holes)
        return results

    def acquire(self, request: AcquireRequest, *, maintain: bool = True) -> None:
        """Asks for chunks of a cooperative epoch, without a commit.

        `ChunkReader.acquired` returns them.

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
        self.proof.saw(asked)

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
        found = self.chunks.read(grant.epoch, grant.member)
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
                sum(again.values()),
                ", ".join(where + more),
            )

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
