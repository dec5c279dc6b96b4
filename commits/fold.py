"""The pure fold of the log: it applies events in log order and returns their answers.

`LogState` has the settings and all groups, `GroupState` is the fold of one group, and
`PartitionState` is the state of one of its partitions. The rules of commits are here, those of who
may commit in `commits.grant_rules`, and those of chunks, log ends and resets in
`commits.partition_rules`. The fold uses no clock, no limits, no input or output: all readers of a
log compute the same state.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from commits.acquisitions import Acquisitions
from commits.errors import IndividualCommitTooOld
from commits.grant_rules import GRANT_RULES
from commits.ids import CommitIds
from commits.model import in_turn
from commits.offset_and_epoch import OffsetAndEpoch
from commits.offsets import OffsetRanges
from commits.partition_commits import Answer, CommitResult, PartitionCommits
from commits.partition_rules import PARTITION_RULES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from commits.grants import GrantState
    from commits.model import Doubt, Epoch, Pending, TopicPartition
    from commits.partition_commits import CommitStatus
    from commits.partition_rules import KnownPrimary
    from commits.rows import Event, Part


GroupKey: TypeAlias = tuple[str, str]

_NOTHING = OffsetRanges()

_ABOUT_PARTITIONS = {"commit", *PARTITION_RULES}

REFUSED_BEFORE = "the first commit with this id was refused there"
"""The reason of a refused commit that is repeated after its first answer was dropped."""

KEPT_ANSWERS = 256
"""The number of a group's newest answers that are kept for repeated events."""

KEPT_RESULTS = 1_000
"""The number of partition results in these answers: a snapshot contains all of them."""


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
        if known is not None and (known.results or event.kind not in _ABOUT_PARTITIONS):
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
        for part in event.parts if event.kind in _ABOUT_PARTITIONS else ():
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

        return self.by_partition(event, commit)

    def by_partition(
        self,
        event: Event,
        change: Callable[[PartitionState, Part], CommitResult],
        *,
        of_any_member: bool = False,
    ) -> Answer:
        """Apply an event to each of its partitions in which it counts.

        Args:
            event: The event.
            change: Changes the state of a partition by its part, and returns the result.
            of_any_member: Whether members without a share of a partition may write the event.
        """
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

    _RULES: ClassVar[Mapping[str, Callable[[GroupState, Event], Answer]]] = {
        "commit": _commit,
        **GRANT_RULES,
        **PARTITION_RULES,
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
