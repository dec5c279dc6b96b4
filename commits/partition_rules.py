"""The rules of the fold for partitions, except those of commits: chunks, log ends and resets.

Each rule applies an event to the state of its group and returns its answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from assignors.shares import Share
from commits.acquisitions import Acquisition, Acquisitions
from commits.grant_rules import end_acquisitions, end_all
from commits.grants import holder_of
from commits.model import AcquisitionId, Wanted, in_turn
from commits.offsets import MAX_OFFSET, OffsetRanges

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from commits.fold import GroupState, PartitionState
    from commits.partition_commits import Answer, CommitResult
    from commits.rows import Event, Part


_UNKNOWN_START = "the log does not know where it starts"


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


def _acquire(group: GroupState, event: Event) -> Answer:
    grant = group.grant(event.epoch)
    counts = dict(
        zip((p.topic_partition for p in event.parts), event.detail["counts"], strict=True)
    )

    def acquire(state: PartitionState, part: Part) -> CommitResult:
        assert grant is not None
        at = part.topic_partition
        if at not in group.partitions:
            return state.result("refused", _UNKNOWN_START)
        if not grant.uses_chunks:
            return state.result("refused", "members of its epoch share partitions by key range")
        request = Acquisition(
            event.id,
            event.member,
            OffsetRanges(),
            life_ms=grant.longest_life_of(event.member),
            since=event.written_at,
        )
        last = -1 if part.last is None else part.last
        # A member that has not seen yet that a record is parked must not get it: it would hold
        # the record, and nobody could acquire it once it is to be tried again.
        due = part.offsets
        if due:
            due -= OffsetRanges.from_offsets(o for o, p in state.pending.items() if p.is_parked)
        wanted = Wanted(counts[at], last, due)
        state.acquisitions.acquire(request, wanted, state.commits, state.pending)
        return state.result()

    return group.by_partition(event, acquire)


def _renew(group: GroupState, event: Event) -> Answer:
    def renew(state: PartitionState, chunk: AcquisitionId) -> bool:
        return state.acquisitions.renew(chunk.id, event.member)

    return _by_chunk(group, event, renew)


def _expire(group: GroupState, event: Event) -> Answer:
    def expire(state: PartitionState, chunk: AcquisitionId) -> bool:
        return state.acquisitions.expire(chunk.id, chunk.renewals)

    answer = _by_chunk(group, event, expire)
    for topic, partition, chunk_id, renewals, ms in event.detail.get("watched", ()):
        at = topic, partition
        if at in answer.results and answer.results[at].status != "refused":
            group.partitions[at].acquisitions.note(chunk_id, renewals, ms)
    return answer


def _by_chunk(
    group: GroupState, event: Event, change: Callable[[PartitionState, AcquisitionId], bool]
) -> Answer:
    chunks = [AcquisitionId(*chunk) for chunk in event.detail["chunks"]]

    def of_partition(state: PartitionState, part: Part) -> CommitResult:
        here = [chunk for chunk in chunks if chunk[:2] == part.topic_partition]
        changed = [change(state, chunk) for chunk in here]
        return state.result("committed" if any(changed) else "duplicate")

    return group.by_partition(event, of_partition)


def _start(group: GroupState, event: Event) -> Answer:
    known = set(group.partitions)

    def start(state: PartitionState, part: Part) -> CommitResult:
        if part.topic_partition in known:
            return state.result("duplicate")
        state.commits.log_start(part.first or 0)
        return state.result()

    return group.by_partition(event, start, of_any_member=True)


def _log_start(group: GroupState, event: Event) -> Answer:
    def follow(state: PartitionState, part: Part) -> CommitResult:
        state.commits.log_start(part.first or 0)
        state.acquisitions.clip(state.commits.stable_offset, MAX_OFFSET)
        state.drop_done_pending()
        return state.result()

    return group.by_partition(event, follow)


def _truncation(group: GroupState, event: Event) -> Answer:
    def cut(state: PartitionState, part: Part) -> CommitResult:
        end = part.first or 0
        state.commits.truncate(end)
        state.acquisitions.clip(0, end - 1)
        state.pending = {o: pending for o, pending in state.pending.items() if o < end}
        state.reached = None
        return state.result()

    return group.by_partition(event, cut)


def _primary(group: GroupState, event: Event) -> Answer:
    """Record Kafka's offsets once in each epoch, or record that the group wrote them."""
    assert event.epoch is not None
    number = event.epoch.number
    grants = (group.in_force, *group.claims.values())
    others = [grant for grant in grants if grant and grant.epoch != event.epoch]
    known = set(group.partitions)

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

    return group.by_partition(event, note)


def _reset(group: GroupState, event: Event) -> Answer:
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
        end_all(group)
        end_acquisitions(group, [part.topic_partition for part in event.parts])
    return group.by_partition(event, set_back)


#: The rule of each kind of event.
PARTITION_RULES: Final[Mapping[str, Callable[[GroupState, Event], Answer]]] = {
    "acquire": _acquire,
    "renew": _renew,
    "expire": _expire,
    "start": _start,
    "log_start": _log_start,
    "truncation": _truncation,
    "primary": _primary,
    "reset": _reset,
}
