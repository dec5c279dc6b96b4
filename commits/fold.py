"""The pure fold of the log: it applies events in log order and returns their answers.

`LogState` has the settings and all groups, `GroupState` is the fold of one group, and
`PartitionState` is the state of one of its partitions. The fold uses no clock, no limits, no input
or output: all readers of a log compute the same state.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from itertools import starmap
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from assignors.shares import Share, inside, outside
from commits.acquisitions import Acquisition, Acquisitions
from commits.errors import IndividualCommitTooOld
from commits.grants import GrantState, holder_of
from commits.ids import CommitIds
from commits.model import AcquisitionId, Doubt, Wanted, in_turn, share_from_plain
from commits.offset_and_epoch import OffsetAndEpoch
from commits.offsets import MAX_OFFSET, OffsetRanges
from commits.partition_commits import CommitResult, PartitionCommits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from commits.grants import ShareOwner
    from commits.model import Epoch, Pending, TopicPartition
    from commits.partition_commits import CommitStatus
    from commits.rows import Event, Part


GroupKey: TypeAlias = tuple[str, str]

RELEASED = "it has released its shares"
"""The fence reason of a member that released its shares."""

_BY_PARTITION = frozenset(
    {
        "commit", "start", "log_start", "truncation", "primary", "reset",
        "acquire", "renew", "expire",
    }
)  # fmt: skip

_NOTHING = OffsetRanges()

_UNKNOWN_START = "the log does not know where it starts"

REFUSED_BEFORE = "the first commit with this id was refused there"
"""The reason of a refused commit that is repeated after its first answer was dropped."""

KEPT_ANSWERS = 256
"""The number of a group's newest answers that are kept for repeated events."""

KEPT_RESULTS = 1_000
"""The number of partition results in these answers: a snapshot contains all of them."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to an event.

    Attributes:
        counted: Whether the event counts.
        reason: Why it does not count; otherwise empty.
        results: The result of each partition of the event.
        holder: The holder of the share that conflicts with a claim or an epoch.
    """

    counted: bool
    reason: str = ""
    results: Mapping[TopicPartition, CommitResult] = field(default_factory=dict)
    holder: ShareOwner | None = None


@dataclass(frozen=True, slots=True)
class KnownPrimary:
    """An offset in Kafka that another tool wrote and that the log has recorded.

    Attributes:
        offset: The offset.
        epoch: Number of the epoch or claim that recorded it.
        replaced: Whether a member of the group has written Kafka's offset since.
    """

    offset: int
    epoch: int
    replaced: bool = False


@dataclass(slots=True)
class PartitionState:
    """The state of one partition.

    Attributes:
        topic_id: The id of its topic; empty if it is not known yet.
        commits: The committed offsets.
        pending: The records that were read and are not done, by offset.
        primary: Kafka's offset, if another tool wrote it and the log has recorded it.
        reached: The end of the partition's log that a commit reported, with its leader epoch: the
            highest one since the commits were reset or cut; None without one.
        acquisitions: The chunks that members of a cooperative epoch have acquired.
    """

    topic_id: str = ""
    commits: PartitionCommits = field(default_factory=lambda: PartitionCommits(max_ranges=None))
    pending: dict[int, Pending] = field(default_factory=dict)
    primary: KnownPrimary | None = None
    reached: OffsetAndEpoch | None = None
    acquisitions: Acquisitions = field(default_factory=Acquisitions)

    def drop_done_pending(self) -> None:
        """Remove pending records that are committed."""
        if self.pending:
            ranges = self.commits.ranges & OffsetRanges.from_offsets(self.pending)
            stable_offset = self.commits.stable_offset
            for offset in [o for o in self.pending if o < stable_offset or o in ranges]:
                del self.pending[offset]

    def result(
        self, status: CommitStatus = "committed", reason: str = "", *, duplicates: int = 0
    ) -> CommitResult:
        """Return a result with the current state of the partition."""
        stable_offset, ranges = self.commits.stable_offset, self.commits.ranges
        return CommitResult(stable_offset, 0, duplicates, ranges.range_count, status, reason)


def commit_held(state: PartitionState, part: Part, member: str) -> CommitResult:
    """Commit what a member of a cooperative epoch holds, and what nobody has acquired."""
    others = state.acquisitions.held_by_others(member)
    taken, commits = part.offsets & others, state.commits
    before = part.offsets.clip(0, commits.stable_offset - 1) | (part.offsets & commits.ranges)
    pending = tuple(one for one in part.pending if one.offset not in others)
    is_lost = bool(taken) and len(taken) == len(part.offsets)
    part = replace(part, offsets=part.offsets - taken, pending=pending)
    result = replace(commit_part(state, part), not_held=taken | before)
    state.acquisitions.remove(OffsetRanges.from_offsets([one.offset for one in pending]))
    # What another member has acquired is open, so a commit with it is not too old.
    is_lost = is_lost or (bool(taken) and result.status == "too_old")
    return replace(result, status="not_held") if is_lost else result


def commit_part(state: PartitionState, part: Part) -> CommitResult:
    """Commit a partition's part of a commit that counts."""
    commits = state.commits
    try:
        result = commits.commit(part.offsets)
    except IndividualCommitTooOld:
        result = state.result("too_old", duplicates=len(part.offsets))
    if part.holes:
        commits.amend(part.holes)
    state.pending |= in_turn(part.pending, state.pending)
    state.drop_done_pending()
    state.acquisitions.remove(part.offsets | part.holes if part.holes else part.offsets)
    if not part.holes:
        return result
    stable_offset, range_count = commits.stable_offset, commits.ranges.range_count
    return replace(result, stable_offset=stable_offset, range_count=range_count)


@dataclass(slots=True)
class GroupState:
    """The state of one group.

    Attributes:
        highest: The highest number of all epochs and claims, including those that do not count.
        in_force: The epoch in force.
        claims: Live claims by nonce.
        partitions: The state of each partition.
        counted: Ids of commits that counted and changed something. They are kept forever, because
            they decide which outputs and dead letters count.
        refused: The refused partitions of commits that counted in other partitions, and of all
            other events as long as their answers are kept.
        answers: The newest answers by id; older ones do not have the results of partitions.
        loose: Shares without an owner whose last owners did not hand them over.
        initial_partitions: The number of partitions of each topic when the group first assigned
            it. Partitions with higher numbers were added later.
        not_held: Offsets that do not count in commits that counted, because another member of a
            cooperative epoch had acquired or committed them.
    """

    highest: int = 0
    in_force: GrantState | None = None
    claims: dict[str, GrantState] = field(default_factory=dict)
    partitions: dict[TopicPartition, PartitionState] = field(default_factory=dict)
    counted: CommitIds = field(default_factory=CommitIds)
    refused: dict[str, tuple[TopicPartition, ...]] = field(default_factory=dict)
    answers: OrderedDict[str, Answer] = field(default_factory=OrderedDict)
    loose: list[Doubt] = field(default_factory=list)
    initial_partitions: dict[str, int] = field(default_factory=dict)
    not_held: dict[str, dict[TopicPartition, OffsetRanges]] = field(default_factory=dict)
    _kept_results: int = field(default=0, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Count the kept results of partitions."""
        self._kept_results = sum(len(answer.results) for answer in self.answers.values())

    def fold(self, event: Event) -> Answer:
        """Apply the next event of the log.

        An event with a known id changes nothing and gets its first answer again. If that answer is
        no longer kept, refused partitions are refused and all others are duplicates.
        """
        known = self.answers.get(event.id)
        if known is not None and (known.results or event.kind not in _BY_PARTITION):
            return known
        if known is not None or self.knows(event):
            return self._answer_again(event, known or Answer(counted=True))
        answer = self._RULES[event.kind](self, event)
        if answer.counted and event.epoch is not None and event.epoch.nonce in self.claims:
            self.claims[event.epoch.nonce].beats += 1
        refused = [at for at, one in answer.results.items() if one.status == "refused"]
        if answer.counted and refused:
            self.refused[event.id] = tuple(refused)
        if answer.counted and event.kind == "commit":
            self._note_id(event, answer)
        self._keep(event.id, answer)
        return answer

    def knows(self, event: Event) -> bool:
        """Return whether an event with this id was folded, as far as ids are kept."""
        if event.id in self.answers or event.id in self.counted:
            return True
        grant = self.grant(event.epoch)
        if grant is None:
            return False
        if event.kind == "acquire":
            return bool(self.acquired(event.id))
        return event.id in grant.unchanged.get(event.member, ())

    def acquired(self, request_id: str) -> dict[TopicPartition, OffsetRanges]:
        """Return the offsets of each partition that are still held by a request."""
        return {
            at: chunk.offsets
            for at, state in self.partitions.items()
            if (chunk := state.acquisitions.chunks.get(request_id)) is not None
        }

    def _note_id(self, event: Event, answer: Answer) -> None:
        statuses = {result.status for result in answer.results.values()}
        if "committed" in statuses:
            self.counted.add(event.id)
            not_held = {at: one.not_held for at, one in answer.results.items() if one.not_held}
            if not_held:
                self.not_held[event.id] = not_held
        else:
            grant = self.grant(event.epoch)
            assert grant is not None
            grant.note_unchanged(event.member, event.id)

    def _keep(self, event_id: str, answer: Answer) -> None:
        self.answers[event_id] = answer
        self._kept_results += len(answer.results)
        if len(self.answers) > KEPT_ANSWERS:
            oldest_id, oldest = self.answers.popitem(last=False)
            self._kept_results -= len(oldest.results)
            if oldest_id not in self.counted:
                self.refused.pop(oldest_id, None)
        if self._kept_results > KEPT_RESULTS:
            for one, old in self.answers.items():
                if self._kept_results <= KEPT_RESULTS:
                    break
                self._kept_results -= len(old.results)
                if old.results:
                    self.answers[one] = replace(old, results={})

    def answer_later(self, event: Event) -> Answer:
        """Return the answer to a folded event whose id is no longer kept.

        It is derived from the state: whether an epoch or claim is in force, and whether a member
        may still commit.
        """
        if event.kind in {"epoch", "claim"}:
            counted = self.grant(event.epoch) is not None
            return Answer(counted, "" if counted else "others came in between")
        fence = self.fenced(event.epoch, event.member) if event.epoch else ""
        return self._answer_again(event, Answer(not fence, fence))

    def _answer_again(self, event: Event, answer: Answer) -> Answer:
        """Return an answer again whose results are not kept."""
        refused = self.refused.get(event.id, ())
        # What changed nothing is known as long as its epoch is in force, which refuses the same.
        is_unchanged = (
            answer.counted
            and event.kind in {"commit", "acquire"}
            and event.id not in self.counted
            and event.id not in self.answers
        )
        results = {}
        for part in event.parts if event.kind in _BY_PARTITION else ():
            at = part.topic_partition
            state = self.partitions.get(at) or PartitionState()
            refusal = self._refusal(event, part) if is_unchanged else ""
            if not answer.counted or at in refused or refusal:
                reason = answer.reason or refusal or REFUSED_BEFORE
                results[at] = state.result("refused", reason)
            elif at in self.partitions:
                not_held = self.not_held.get(event.id, {}).get(at, _NOTHING)
                results[at] = replace(state.result("duplicate"), not_held=not_held)
        return replace(answer, results=results)

    def grant(self, epoch: Epoch | None) -> GrantState | None:
        """Return the epoch in force or the live claim with this number and nonce."""
        if epoch is None:
            return None
        if self.in_force is not None and self.in_force.epoch == epoch:
            return self.in_force
        claim = self.claims.get(epoch.nonce)
        return claim if claim is not None and claim.epoch == epoch else None

    def fenced(self, epoch: Epoch | None, member: str) -> str:
        """Return why a member's rows under an epoch do not count; empty if they count."""
        grant = self.grant(epoch)
        return "its epoch is not in force" if grant is None else grant.fence_of(member)

    def _open_epoch(self, event: Event) -> Answer:
        assert event.epoch is not None
        in_force = self.in_force.epoch if self.in_force else None
        is_next = self._is_next(event)
        if event.previous != in_force:
            return Answer(counted=False, reason="another epoch is in force")
        if not is_next:
            return Answer(counted=False, reason="its number has been used")
        new = GrantState.of(event)
        in_the_way = holder_of(new.live_shares(), self.claims.values())
        if in_the_way and not event.detail.get("takeover"):
            return Answer(counted=False, reason="a share is claimed", holder=in_the_way)
        while in_the_way:
            self._end(self.claims.pop(in_the_way.epoch.nonce))
            in_the_way = holder_of(new.live_shares(), self.claims.values())
        self._end(self.in_force)
        if not new.uses_chunks:
            self._end_acquisitions(self.partitions)
        self.in_force = new
        for state in self.partitions.values():
            state.acquisitions.are_back(new.members)
        self._take_loose(new, new.all_shares())
        self._adopt_topics(new.topic_ids)
        for topic, count in _partition_counts(event, new).items():
            self.initial_partitions.setdefault(topic, count)
        for state in self.partitions.values():
            if state.primary is not None and state.primary.replaced:
                state.primary = None
        return Answer(counted=True)

    def _claim(self, event: Event) -> Answer:
        assert event.epoch is not None
        if not self._is_next(event):
            return Answer(counted=False, reason="its number has been used")
        new = GrantState.of(event)
        others = [*self.claims.values(), *([self.in_force] if self.in_force else [])]
        in_the_way = holder_of(new.live_shares(), others)
        if in_the_way and not event.detail.get("takeover"):
            return Answer(counted=False, reason="a share is held", holder=in_the_way)
        while in_the_way:
            if in_the_way.epoch.nonce in self.claims:
                self._end(self.claims.pop(in_the_way.epoch.nonce))
            elif self.in_force is not None:
                self._fence(self.in_force, in_the_way.member, f"taken over by {event.member!r}")
            others = [*self.claims.values(), *([self.in_force] if self.in_force else [])]
            in_the_way = holder_of(new.live_shares(), others)
        self._end_acquisitions({share[:2] for share in new.all_shares()})
        self.claims[new.epoch.nonce] = new
        self._take_loose(new, new.all_shares())
        self._adopt_topics(new.topic_ids)
        return Answer(counted=True)

    def end_all(self) -> None:
        """End the epoch in force and all claims."""
        for grant in (self.in_force, *self.claims.values()):
            self._end(grant)
        self.in_force = None
        self.claims = {}

    def _end(self, grant: GrantState | None) -> None:
        if grant is None:
            return
        # What members of a cooperative epoch may still work on are their chunks.
        left = grant.doubts if grant.uses_chunks else grant.left_behind()
        self.loose = sorted({*self.loose, *left})

    def _end_acquisitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Return all chunks of partitions; their next owners wait for the members that had them."""
        for at in partitions:
            state = self.partitions.get(at)
            if state is None:
                continue
            chunks = state.acquisitions.chunks.values()
            if chunks:
                longest = max(chunk.life_ms for chunk in chunks)
                self.loose = sorted({*self.loose, Doubt(Share(*at), longest)})
            state.acquisitions = Acquisitions()

    def _fence(self, grant: GrantState, member: str, why: str) -> None:
        """Fence a member whose shares another member takes without a hand-over."""
        grant.fenced[member] = why
        left = [doubt.share for doubt in grant.left_by(member)]
        self._loosen(grant, member, grant.doubts_of(member, left))

    def _loosen(self, grant: GrantState, member: str, doubts: Iterable[Doubt]) -> None:
        if member not in grant.settled:
            grant.settled.add(member)
            self._doubt(grant, doubts)

    def _doubt(self, grant: GrantState, doubts: Iterable[Doubt]) -> None:
        if not grant.uses_chunks:
            self.loose = sorted({*self.loose, *doubts})

    def _take_loose(self, grant: GrantState, shares: Iterable[Share]) -> None:
        """Move doubts about shares to their new owner, which waits for them."""
        found = starmap(Doubt, inside(self.loose, shares))
        grant.doubts = tuple(sorted({*grant.doubts, *found}))
        self.loose = list(starmap(Doubt, outside(self.loose, shares)))

    def _is_next(self, event: Event) -> bool:
        """Return whether a number is above all others, and record it."""
        assert event.epoch is not None
        is_next = event.epoch.number > self.highest
        self.highest = max(self.highest, event.epoch.number)
        return is_next

    def _take_over(self, event: Event) -> Answer:
        replaced = event.detail["replaces"]
        grant = self.grant(event.epoch)
        fence = grant.fence_of(replaced) if grant else "its epoch is not in force"
        if grant is None or (fence and fence != RELEASED):
            return Answer(counted=False, reason=f"{replaced!r} cannot be replaced: {fence}")
        if event.member in grant.members and event.member != replaced:
            return Answer(counted=False, reason=f"{event.member!r} is a member already")
        shares = grant.members[replaced]
        holder = holder_of(((event.member, s) for s in shares), self.claims.values())
        if fence and holder:
            return Answer(counted=False, reason="a share was claimed since", holder=holder)
        self._loosen(grant, replaced, grant.doubts_of(replaced, shares))
        if event.member != replaced:
            grant.fenced[replaced] = f"taken over by {event.member!r}"
            grant.heirs[replaced] = event.member
            grant.members[event.member] = shares
            if replaced in grant.lives:
                grant.lives[event.member] = grant.lives[replaced]
        grant.fenced.pop(event.member, None)
        grant.settled.discard(event.member)
        grant.handed.pop(event.member, None)
        self._take_loose(grant, shares)
        return Answer(counted=True)

    def _release(self, event: Event) -> Answer:
        fence = self.fenced(event.epoch, event.member)
        if fence:
            return Answer(counted=False, reason=fence)
        grant = self.grant(event.epoch)
        assert grant is not None
        running = list(map(share_from_plain, event.detail.get("running", ())))
        doubts = grant.doubts_of(event.member, running)
        if "left_ms" in event.detail:
            # The member has waited for earlier owners, and knows how long it would still wait.
            left = zip(running, event.detail["left_ms"], strict=True)
            doubts = [Doubt(share, left_ms) for share, left_ms in left]
        if grant.uses_chunks:
            self._release_chunks(grant, event, running)
        if "shares" in event.detail:
            # The member keeps its other shares, and goes on with them.
            shares = set(map(share_from_plain, event.detail["shares"]))
            grant.handed[event.member] = tuple(
                sorted(shares.union(grant.handed.get(event.member, ())))
            )
            self._doubt(grant, doubts)
            return Answer(counted=True)
        self._loosen(grant, event.member, doubts)
        grant.fenced[event.member] = RELEASED
        self.claims.pop(grant.epoch.nonce, None)
        return Answer(counted=True)

    def _release_chunks(self, grant: GrantState, event: Event, running: list[Share]) -> None:
        """Return the chunks of a member that it does not work on any more."""
        at_work = {share[:2] for share in running}
        given = {(topic, partition) for topic, partition, *_ in event.detail.get("shares", ())}
        for at, state in self.partitions.items():
            if at not in at_work and ("shares" not in event.detail or at in given):
                state.acquisitions.release(event.member)
        if "shares" not in event.detail:
            # The member has waited for all other shares in doubt.
            grant.doubts = tuple(sorted(starmap(Doubt, inside(grant.doubts, running))))

    def _acquire(self, event: Event) -> Answer:
        grant = self.grant(event.epoch)
        counts = dict(
            zip((p.topic_partition for p in event.parts), event.detail["counts"], strict=True)
        )

        def acquire(state: PartitionState, part: Part) -> CommitResult:
            assert grant is not None
            at = part.topic_partition
            if at not in self.partitions:
                return state.result("refused", _UNKNOWN_START)
            if not grant.uses_chunks:
                return state.result("refused", "members of its epoch share partitions by key range")
            request = Acquisition(
                event.id, event.member, _NOTHING,
                life_ms=grant.longest_life_of(event.member), since=event.written_at,
            )  # fmt: skip
            last = -1 if part.last is None else part.last
            # A member that has not seen yet that a record is parked must not get it: it would hold
            # the record, and nobody could acquire it once it is to be tried again.
            due = part.offsets
            if due:
                due -= OffsetRanges.from_offsets(o for o, p in state.pending.items() if p.is_parked)
            wanted = Wanted(counts[at], last, due)
            state.acquisitions.acquire(request, wanted, state.commits, state.pending)
            return state.result()

        return self._by_partition(event, acquire)

    def _renew(self, event: Event) -> Answer:
        def renew(state: PartitionState, chunk: AcquisitionId) -> bool:
            return state.acquisitions.renew(chunk.id, event.member)

        return self._by_chunk(event, renew)

    def _expire(self, event: Event) -> Answer:
        def expire(state: PartitionState, chunk: AcquisitionId) -> bool:
            return state.acquisitions.expire(chunk.id, chunk.renewals)

        answer = self._by_chunk(event, expire)
        for topic, partition, chunk_id, renewals, ms in event.detail.get("watched", ()):
            at = topic, partition
            if at in answer.results and answer.results[at].status != "refused":
                self.partitions[at].acquisitions.note(chunk_id, renewals, ms)
        return answer

    def _by_chunk(
        self, event: Event, change: Callable[[PartitionState, AcquisitionId], bool]
    ) -> Answer:
        chunks = [AcquisitionId(*chunk) for chunk in event.detail["chunks"]]

        def of_partition(state: PartitionState, part: Part) -> CommitResult:
            here = [chunk for chunk in chunks if chunk[:2] == part.topic_partition]
            changed = [change(state, chunk) for chunk in here]
            return state.result("committed" if any(changed) else "duplicate")

        return self._by_partition(event, of_partition)

    def _commit(self, event: Event) -> Answer:
        grant = self.grant(event.epoch)
        reached = {(t, p): OffsetAndEpoch(*end) for t, p, *end in event.detail.get("reached", ())}

        def commit(state: PartitionState, part: Part) -> CommitResult:
            state.reached = max(
                filter(None, (state.reached, reached.get(part.topic_partition))), default=None
            )
            if grant is not None and grant.uses_chunks:
                return commit_held(state, part, event.member)
            return commit_part(state, part)

        return self._by_partition(event, commit)

    def _start(self, event: Event) -> Answer:
        known = set(self.partitions)

        def start(state: PartitionState, part: Part) -> CommitResult:
            if part.topic_partition in known:
                return state.result("duplicate")
            state.commits.log_start(part.first or 0)
            return state.result()

        return self._by_partition(event, start, of_any_member=True)

    def _log_start(self, event: Event) -> Answer:
        def follow(state: PartitionState, part: Part) -> CommitResult:
            state.commits.log_start(part.first or 0)
            state.acquisitions.clip(state.commits.stable_offset, MAX_OFFSET)
            state.drop_done_pending()
            return state.result()

        return self._by_partition(event, follow)

    def _truncation(self, event: Event) -> Answer:
        def cut(state: PartitionState, part: Part) -> CommitResult:
            end = part.first or 0
            state.commits.truncate(end)
            state.acquisitions.clip(0, end - 1)
            state.pending = {o: pending for o, pending in state.pending.items() if o < end}
            state.reached = None
            return state.result()

        return self._by_partition(event, cut)

    def _primary(self, event: Event) -> Answer:
        """Record Kafka's offsets once in each epoch, or record that the group wrote them."""
        assert event.epoch is not None
        number = event.epoch.number
        grants = (self.in_force, *self.claims.values())
        others = [grant for grant in grants if grant and grant.epoch != event.epoch]
        known = set(self.partitions)

        def note(state: PartitionState, part: Part) -> CommitResult:
            if part.topic_partition not in known:
                return state.result("refused", _UNKNOWN_START)
            if part.first is None:
                if state.primary is not None:
                    state.primary = replace(state.primary, replaced=True)
                return state.result()
            if state.primary is not None and state.primary.epoch == number:
                return state.result("duplicate")
            if event.detail.get("follow"):
                whole = (event.member, Share(*part.topic_partition))
                holder = holder_of([whole], others)
                if holder is not None:
                    return state.result("refused", f"{holder.member!r} is at work on it")
                state.commits.reset(part.first)
                state.pending, state.reached = {}, None
                state.acquisitions = Acquisitions()
            state.primary = KnownPrimary(part.first, number)
            return state.result()

        return self._by_partition(event, note)

    def _reset(self, event: Event) -> Answer:
        def set_back(state: PartitionState, part: Part) -> CommitResult:
            state.commits.reset(part.first or 0)
            state.commits.amend(part.offsets)
            state.reached, state.acquisitions = None, Acquisitions()
            state.pending = in_turn(part.pending, state.pending)
            state.drop_done_pending()
            if event.epoch is None:
                state.topic_id = part.topic_id or state.topic_id
            return state.result()

        if event.epoch is None:  # an operator: active members must not commit on top of it
            self.end_all()
            self._end_acquisitions(part.topic_partition for part in event.parts)
        return self._by_partition(event, set_back)

    def _by_partition(
        self,
        event: Event,
        change: Callable[[PartitionState, Part], CommitResult],
        *,
        of_any_member: bool = False,
    ) -> Answer:
        is_operator = event.kind == "reset" and event.epoch is None
        fence = "" if is_operator else self.fenced(event.epoch, event.member)
        results = {}
        for part in event.parts:
            state = self.partitions.get(part.topic_partition) or PartitionState(part.topic_id)
            refusal = fence
            if not is_operator:
                refusal = refusal or self._refusal(event, part, of_any_member=of_any_member)
            if refusal:
                results[part.topic_partition] = state.result("refused", refusal)
            else:
                result = results[part.topic_partition] = change(state, part)
                if result.status != "refused":
                    self.partitions[part.topic_partition] = state
        return Answer(counted=not fence, reason=fence, results=results)

    def _refusal(self, event: Event, part: Part, *, of_any_member: bool = False) -> str:
        """Return why an event does not count in a partition; empty if it does."""
        grant, state = self.grant(event.epoch), self.partitions.get(part.topic_partition)
        refusal = grant.refusal_of("" if of_any_member else event.member, part) if grant else ""
        if refusal or state is None or not part.topic_id or state.topic_id in {"", part.topic_id}:
            return refusal
        return f"its topic now has the id {state.topic_id!r}"

    def _adopt_topics(self, topic_ids: Mapping[str, str]) -> None:
        for at, state in list(self.partitions.items()):
            topic_id = topic_ids.get(at[0])
            if topic_id and state.topic_id not in {"", topic_id}:
                # The topic was deleted and created again: old commits are about other records.
                del self.partitions[at]
                self.initial_partitions[at[0]] = 0
            elif topic_id:
                state.topic_id = topic_id

    _RULES: ClassVar[Mapping[str, Callable[[GroupState, Event], Answer]]] = {
        "epoch": _open_epoch,
        "takeover": _take_over,
        "claim": _claim,
        "release": _release,
        "commit": _commit,
        "acquire": _acquire,
        "renew": _renew,
        "expire": _expire,
        "start": _start,
        "log_start": _log_start,
        "truncation": _truncation,
        "primary": _primary,
        "reset": _reset,
    }


@dataclass(slots=True)
class LogState:
    """The state of the log at one version of the table.

    Attributes:
        version: The last folded version; -1 for none.
        groups: The state of each group, by Kafka cluster id and group id.
        settings: Settings by name, for each cluster id and topic; the topic is empty for settings
            of the whole store.
        store: The nonce of the store since its last repair; empty without a repair.
    """

    version: int = -1
    groups: dict[GroupKey, GroupState] = field(default_factory=dict)
    settings: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    store: str = ""

    def group(self, cluster: str, group: str) -> GroupState:
        """Return the state of a group, or a new empty one if the log does not have the group."""
        return self.groups.get((cluster, group)) or GroupState()

    def knows(self, event: Event) -> bool:
        """Return whether an event with this id was folded, as far as ids are kept."""
        return self.group(event.cluster, event.group).knows(event)

    def answer_later(self, event: Event) -> Answer:
        """Return the answer to a folded event whose id is no longer kept."""
        if event.kind == "setting":
            return Answer(counted=True)
        return self.group(event.cluster, event.group).answer_later(event)

    def fold(self, events: Iterable[Event]) -> Iterator[tuple[Event, Answer]]:
        """Apply the next events of the log; yields each one that changes state with its answer."""
        for event in events:
            if event.kind == "setting":
                yield event, self._set(event)
            elif event.kind != "snapshot":  # its content is folded already
                key = event.cluster, event.group
                yield event, self.groups.setdefault(key, GroupState()).fold(event)

    def doubts_after(self, event: Event) -> tuple[Doubt, ...]:
        """Return the shares in doubt after an event that gave shares to members; else nothing."""
        group = self.groups.get((event.cluster, event.group))
        if group is None or event.kind not in ("epoch", "takeover", "claim"):
            return ()
        grant = group.grant(event.epoch)
        return () if grant is None else grant.doubts

    def _set(self, event: Event) -> Answer:
        detail = event.detail
        single = [(detail["name"], detail["topic"], detail["value"])] if "name" in detail else []
        for name, topic, value in (*single, *detail.get("settings", ())):
            key = event.cluster, topic
            if value is not None:
                self.settings.setdefault(key, {})[name] = value
            elif key in self.settings:
                self.settings[key].pop(name, None)
                if not self.settings[key]:
                    del self.settings[key]
        return Answer(counted=True)


def _partition_counts(event: Event, grant: GrantState) -> dict[str, int]:
    """Return the partition counts of an epoch: as given by its leader, else from its shares."""
    counts: dict[str, int] = {}
    for share in grant.all_shares():
        counts[share.topic] = max(counts.get(share.topic, 0), share.partition + 1)
    counts.update(event.detail.get("partitions", {}))
    return counts
