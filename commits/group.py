"""The pure fold of one group: events in the order of the log in, state and answers out.

No clock, no limits, no input or output: every reader of the same log comes to the same state.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from commits.errors import IndividualCommitTooOld
from commits.ids import CommitIds
from commits.model import Doubt, OwnedShare
from commits.offsets import OffsetRanges
from commits.partition import CommitResult, PartitionCommits
from commits.tenure import Tenure, cut, holder_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from commits.model import Epoch, Pending, TopicPartition
    from commits.partition import CommitStatus
    from commits.rows import Event, Part
    from commits.tenure import Holder

__all__ = [
    "KEPT_ANSWERS",
    "KEPT_RESULTS",
    "RELEASED",
    "Answer",
    "GroupState",
    "KnownPrimary",
    "PartitionState",
]

RELEASED = "it has released its shares"
"""Why a member that gave back its shares may not commit any more."""

_BY_PARTITION = frozenset({"commit", "start", "log_start", "truncation", "primary", "reset"})

REFUSED_BEFORE = "the first commit with this id was refused there"
"""Why a repeated commit is refused whose first answer is no longer kept."""

KEPT_ANSWERS = 256
"""How many of a group's newest answers are kept for events that are repeated."""

KEPT_RESULTS = 1_000
"""How many answers of partitions are kept in these: a snapshot carries all of them."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What an event came to.

    Attributes:
        counted: Whether it counted.
        reason: Why not; else empty.
        results: The answer of each partition it was about.
        holder: Who holds the share that was in the way of a claim or an epoch.
    """

    counted: bool
    reason: str = ""
    results: Mapping[TopicPartition, CommitResult] = field(default_factory=dict)
    holder: Holder | None = None


@dataclass(frozen=True, slots=True)
class KnownPrimary:
    """An offset in Kafka that others wrote, and that the log has taken into account.

    Attributes:
        offset: The offset.
        epoch: Number of the epoch or claim under which the log took it into account.
        replaced: Whether a member of the group has written Kafka's offset since.
    """

    offset: int
    epoch: int
    replaced: bool = False


@dataclass(slots=True)
class PartitionState:
    """What the log says of one partition.

    Attributes:
        topic_id: The id of its topic; empty if nobody told it yet.
        commits: What is committed.
        pending: The records that were read and are not done, by offset.
        primary: Kafka's offset, where others wrote it and the log has taken it into account.
    """

    topic_id: str = ""
    commits: PartitionCommits = field(default_factory=lambda: PartitionCommits(max_ranges=None))
    pending: dict[int, Pending] = field(default_factory=dict)
    primary: KnownPrimary | None = None

    def drop_done_pending(self) -> None:
        """Forgets pending records that are committed."""
        if self.pending:
            ranges = self.commits.ranges & OffsetRanges.from_offsets(self.pending)
            stable_offset = self.commits.stable_offset
            for offset in [o for o in self.pending if o < stable_offset or o in ranges]:
                del self.pending[offset]

    def result(
        self, status: CommitStatus = "committed", reason: str = "", *, duplicates: int = 0
    ) -> CommitResult:
        """An answer that tells how the partition stands."""
        stable_offset, ranges = self.commits.stable_offset, self.commits.ranges
        return CommitResult(stable_offset, 0, duplicates, ranges.range_count, status, reason)


@dataclass(slots=True)
class GroupState:
    """The state of one group.

    Attributes:
        highest: The highest number of an epoch or claim that was seen, counted or not.
        in_force: The epoch in force.
        claims: Live claims by nonce.
        partitions: What is committed.
        counted: Ids of commits that counted and changed something. They are kept for good: they
            tell which outputs and dead letters count.
        refused: Of those that counted in some partitions and not in others, the others.
        answers: The newest answers by id, the older ones without those of partitions.
        loose: Shares that nobody has now and that their last owners did not hand over.
        initial_partitions: How many partitions each topic had when the group first dealt it. Later
            ones were added since.
    """

    highest: int = 0
    in_force: Tenure | None = None
    claims: dict[str, Tenure] = field(default_factory=dict)
    partitions: dict[TopicPartition, PartitionState] = field(default_factory=dict)
    counted: CommitIds = field(default_factory=CommitIds)
    refused: dict[str, tuple[TopicPartition, ...]] = field(default_factory=dict)
    answers: OrderedDict[str, Answer] = field(default_factory=OrderedDict)
    loose: list[Doubt] = field(default_factory=list)
    initial_partitions: dict[str, int] = field(default_factory=dict)
    _kept_results: int = field(default=0, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Counts the answers of partitions that are kept."""
        self._kept_results = sum(len(answer.results) for answer in self.answers.values())

    def fold(self, event: Event) -> Answer:
        """Applies the next event of the log.

        An id that is known changes nothing. It gets its first answer again; if that is no longer
        kept, an answer with what was refused, and all else as a duplicate.
        """
        known = self.answers.get(event.id)
        if known is not None and (known.results or event.kind not in _BY_PARTITION):
            return known
        if known is not None or self.knows(event):
            return self._answer_again(event, known or Answer(counted=True))
        answer = self._RULES[event.kind](self, event)
        if answer.counted and event.epoch is not None and event.epoch.nonce in self.claims:
            self.claims[event.epoch.nonce].beats += 1
        if answer.counted and event.kind == "commit":
            self._note_id(event, answer)
        self._keep(event.id, answer)
        return answer

    def knows(self, event: Event) -> bool:
        """Whether an event with this id was folded, as far as that is still known."""
        if event.id in self.answers or event.id in self.counted:
            return True
        tenure = self.tenure(event.epoch)
        return tenure is not None and event.id in tenure.unchanged.get(event.member, ())

    def _note_id(self, event: Event, answer: Answer) -> None:
        statuses = {result.status for result in answer.results.values()}
        if "committed" in statuses:
            self.counted.add(event.id)
            refused = [at for at, one in answer.results.items() if one.status == "refused"]
            if refused:
                self.refused[event.id] = tuple(refused)
        else:
            tenure = self.tenure(event.epoch)
            assert tenure is not None
            tenure.note_unchanged(event.member, event.id)

    def _keep(self, event_id: str, answer: Answer) -> None:
        self.answers[event_id] = answer
        self._kept_results += len(answer.results)
        if len(self.answers) > KEPT_ANSWERS:
            _, oldest = self.answers.popitem(last=False)
            self._kept_results -= len(oldest.results)
        if self._kept_results > KEPT_RESULTS:
            for one, old in self.answers.items():
                if self._kept_results <= KEPT_RESULTS:
                    break
                self._kept_results -= len(old.results)
                if old.results:
                    self.answers[one] = replace(old, results={})

    def answer_later(self, event: Event) -> Answer:
        """The answer to an event that was folded so long ago that nothing is known of its id.

        As far as the state tells: whether an epoch or claim is in force, and whether a member may
        still commit.
        """
        if event.kind in {"epoch", "claim"}:
            counted = self.tenure(event.epoch) is not None
            return Answer(counted, "" if counted else "others came in between")
        fence = self.fenced(event.epoch, event.member) if event.epoch else ""
        return self._answer_again(event, Answer(not fence, fence))

    def _answer_again(self, event: Event, answer: Answer) -> Answer:
        """An answer whose results are not kept: what was refused, and all else as a duplicate."""
        refused = self.refused.get(event.id, ())
        results = {}
        for part in event.parts if event.kind in _BY_PARTITION else ():
            at = part.topic_partition
            state = self.partitions.get(at)
            if not answer.counted or at in refused:
                reason = answer.reason or REFUSED_BEFORE
                results[at] = (state or PartitionState()).result("refused", reason)
            elif state is not None:
                results[at] = state.result("duplicate")
        return replace(answer, results=results)

    def tenure(self, epoch: Epoch | None) -> Tenure | None:
        """The epoch in force or the live claim with this number and nonce."""
        if epoch is None:
            return None
        if self.in_force is not None and self.in_force.epoch == epoch:
            return self.in_force
        claim = self.claims.get(epoch.nonce)
        return claim if claim is not None and claim.epoch == epoch else None

    def fenced(self, epoch: Epoch | None, member: str) -> str:
        """Why a member's rows under an epoch do not count; empty if they do."""
        tenure = self.tenure(epoch)
        return "its epoch is not in force" if tenure is None else tenure.fence_of(member)

    def _open_epoch(self, event: Event) -> Answer:
        assert event.epoch is not None
        in_force = self.in_force.epoch if self.in_force else None
        is_next = self._is_next(event)
        if event.previous != in_force:
            return Answer(counted=False, reason="another epoch is in force")
        if not is_next:
            return Answer(counted=False, reason="its number has been used")
        new = Tenure.of(event)
        in_the_way = holder_of(new.live_shares(), self.claims.values())
        if in_the_way and not event.detail.get("takeover"):
            return Answer(counted=False, reason="a share is claimed", holder=in_the_way)
        while in_the_way:
            self._end(self.claims.pop(in_the_way.epoch.nonce))
            in_the_way = holder_of(new.live_shares(), self.claims.values())
        self._end(self.in_force)
        self.in_force = new
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
        new = Tenure.of(event)
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
        self.claims[new.epoch.nonce] = new
        self._take_loose(new, new.all_shares())
        self._adopt_topics(new.topic_ids)
        return Answer(counted=True)

    def end_all(self) -> None:
        """Ends the epoch in force and all claims."""
        for tenure in (self.in_force, *self.claims.values()):
            self._end(tenure)
        self.in_force = None
        self.claims = {}

    def _end(self, tenure: Tenure | None) -> None:
        if tenure is not None:
            self.loose = sorted({*self.loose, *tenure.left_behind()})

    def _fence(self, tenure: Tenure, member: str, why: str) -> None:
        """A member loses its shares to somebody to whom it did not hand them over."""
        tenure.fenced[member] = why
        self._loosen(tenure, member, tenure.members[member])

    def _loosen(self, tenure: Tenure, member: str, shares: Iterable[OwnedShare]) -> None:
        if member not in tenure.settled:
            tenure.settled.add(member)
            new = {Doubt(share, tenure.longest_life_ms) for share in shares}
            self.loose = sorted({*self.loose, *new})

    def _take_loose(self, tenure: Tenure, shares: Iterable[OwnedShare]) -> None:
        """What was not handed over is from now on the new owner's to wait for."""
        found, self.loose = cut(self.loose, shares)
        tenure.doubts = tuple(sorted({*tenure.doubts, *found}))

    def _is_next(self, event: Event) -> bool:
        """Whether a number is above all others; from now on it is not."""
        assert event.epoch is not None
        is_next = event.epoch.number > self.highest
        self.highest = max(self.highest, event.epoch.number)
        return is_next

    def _take_over(self, event: Event) -> Answer:
        replaced = event.detail["replaces"]
        tenure = self.tenure(event.epoch)
        fence = tenure.fence_of(replaced) if tenure else "its epoch is not in force"
        if tenure is None or (fence and fence != RELEASED):
            return Answer(counted=False, reason=f"{replaced!r} cannot be replaced: {fence}")
        if event.member in tenure.members and event.member != replaced:
            return Answer(counted=False, reason=f"{event.member!r} is a member already")
        shares = tenure.members[replaced]
        holder = holder_of(((event.member, s) for s in shares), self.claims.values())
        if fence and holder:
            return Answer(counted=False, reason="a share was claimed since", holder=holder)
        self._loosen(tenure, replaced, shares)
        if event.member != replaced:
            tenure.fenced[replaced] = f"taken over by {event.member!r}"
            tenure.heirs[replaced] = event.member
            tenure.members[event.member] = shares
        tenure.fenced.pop(event.member, None)
        tenure.settled.discard(event.member)
        self._take_loose(tenure, shares)
        return Answer(counted=True)

    def _release(self, event: Event) -> Answer:
        fence = self.fenced(event.epoch, event.member)
        if fence:
            return Answer(counted=False, reason=fence)
        tenure = self.tenure(event.epoch)
        assert tenure is not None
        running = [OwnedShare(*share) for share in event.detail.get("running", ())]
        self._loosen(tenure, event.member, running)
        tenure.fenced[event.member] = RELEASED
        self.claims.pop(tenure.epoch.nonce, None)
        return Answer(counted=True)

    def _commit(self, event: Event) -> Answer:
        return self._by_partition(event, _commit_part)

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
            state.drop_done_pending()
            return state.result()

        return self._by_partition(event, follow)

    def _truncation(self, event: Event) -> Answer:
        def cut(state: PartitionState, part: Part) -> CommitResult:
            end = part.first or 0
            state.commits.truncate(end)
            state.pending = {o: pending for o, pending in state.pending.items() if o < end}
            return state.result()

        return self._by_partition(event, cut)

    def _primary(self, event: Event) -> Answer:
        """Takes Kafka's offsets into account, once in each epoch, or notes that they are ours."""
        assert event.epoch is not None
        number = event.epoch.number
        tenures = (self.in_force, *self.claims.values())
        others = [tenure for tenure in tenures if tenure and tenure.epoch != event.epoch]
        known = set(self.partitions)

        def note(state: PartitionState, part: Part) -> CommitResult:
            if part.topic_partition not in known:
                return state.result("refused", "the log does not know where it starts")
            if part.first is None:
                if state.primary is not None:
                    state.primary = replace(state.primary, replaced=True)
                return state.result()
            if state.primary is not None and state.primary.epoch == number:
                return state.result("duplicate")
            if event.detail.get("follow"):
                whole = (event.member, OwnedShare(*part.topic_partition))
                holder = holder_of([whole], others)
                if holder is not None:
                    return state.result("refused", f"{holder.member!r} is at work on it")
                state.commits.reset(part.first)
                state.pending = {}
            state.primary = KnownPrimary(part.first, number)
            return state.result()

        return self._by_partition(event, note)

    def _reset(self, event: Event) -> Answer:
        def set_back(state: PartitionState, part: Part) -> CommitResult:
            state.commits.reset(part.first or 0)
            state.commits.amend(part.offsets)
            state.pending = {pending.offset: pending for pending in part.pending}
            state.drop_done_pending()
            if event.epoch is None:
                state.topic_id = part.topic_id or state.topic_id
            return state.result()

        if event.epoch is None:  # an operator: whoever was at work must not commit on top of it
            self.end_all()
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
        tenure = self.tenure(event.epoch)
        results = {}
        for part in event.parts:
            state = self.partitions.get(part.topic_partition) or PartitionState(part.topic_id)
            holder = "" if of_any_member else event.member
            refusal = fence or (tenure.refusal_of(holder, part) if tenure else "")
            is_other = part.topic_id and state.topic_id not in {"", part.topic_id}
            if is_other and not is_operator:
                refusal = refusal or f"its topic now has the id {state.topic_id!r}"
            if refusal:
                results[part.topic_partition] = state.result("refused", refusal)
            else:
                result = results[part.topic_partition] = change(state, part)
                if result.status != "refused":
                    self.partitions[part.topic_partition] = state
        return Answer(counted=not fence, reason=fence, results=results)

    def _adopt_topics(self, topic_ids: Mapping[str, str]) -> None:
        for at, state in list(self.partitions.items()):
            topic_id = topic_ids.get(at[0])
            if topic_id and state.topic_id not in {"", topic_id}:
                # The topic was deleted and created again: old commits say nothing.
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
        "start": _start,
        "log_start": _log_start,
        "truncation": _truncation,
        "primary": _primary,
        "reset": _reset,
    }


def _partition_counts(event: Event, tenure: Tenure) -> dict[str, int]:
    """How many partitions the topics of an epoch have: as its leader says, else as it deals."""
    counts: dict[str, int] = {}
    for share in tenure.all_shares():
        counts[share.topic] = max(counts.get(share.topic, 0), share.partition + 1)
    counts.update(event.detail.get("partitions", {}))
    return counts


def _commit_part(state: PartitionState, part: Part) -> CommitResult:
    commits = state.commits
    try:
        result = commits.commit(part.offsets)
    except IndividualCommitTooOld:
        result = state.result("too_old", duplicates=len(part.offsets))
    if part.holes:
        commits.amend(part.holes)
    state.pending |= {pending.offset: pending for pending in part.pending}
    state.drop_done_pending()
    if not part.holes:
        return result
    stable_offset, range_count = commits.stable_offset, commits.ranges.range_count
    return replace(result, stable_offset=stable_offset, range_count=range_count)
