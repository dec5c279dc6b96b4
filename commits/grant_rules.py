"""The rules of the fold for who may commit: epochs, claims, and shares that change hands.

Each rule applies an event to the state of its group and returns its answer.
"""

from __future__ import annotations

from itertools import starmap
from typing import TYPE_CHECKING, Final

from assignors.shares import Share, inside, outside
from commits.acquisitions import Acquisitions
from commits.grants import GrantState, holder_of
from commits.model import Doubt, share_from_plain
from commits.partition_commits import Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from commits.fold import GroupState
    from commits.model import TopicPartition
    from commits.rows import Event


RELEASED = "it has released its shares"
"""The fence reason of a member that released its shares."""


def _open_epoch(group: GroupState, event: Event) -> Answer:
    assert event.epoch is not None
    in_force = group.in_force.epoch if group.in_force else None
    is_next = _is_next(group, event)
    if event.previous != in_force:
        return Answer(counted=False, reason="another epoch is in force")
    if not is_next:
        return Answer(counted=False, reason="its number has been used")
    new = GrantState.of(event)
    in_the_way = holder_of(new.live_shares(), group.claims.values())
    if in_the_way and not event.detail.get("takeover"):
        return Answer(counted=False, reason="a share is claimed", holder=in_the_way)
    while in_the_way:
        _end(group, group.claims.pop(in_the_way.epoch.nonce))
        in_the_way = holder_of(new.live_shares(), group.claims.values())
    _end(group, group.in_force)
    if not new.uses_chunks:
        end_acquisitions(group, group.partitions)
    group.in_force = new
    for state in group.partitions.values():
        state.acquisitions.are_back(new.members)
    _take_loose(group, new, new.all_shares())
    _adopt_topics(group, new.topic_ids)
    for topic, count in _partition_counts(event, new).items():
        group.initial_partitions.setdefault(topic, count)
    for state in group.partitions.values():
        if state.primary is not None and state.primary.replaced:
            state.primary = None
    return Answer(counted=True)


def _take_over(group: GroupState, event: Event) -> Answer:
    replaced = event.detail["replaces"]
    grant = group.grant(event.epoch)
    fence = grant.fence_of(replaced) if grant else "its epoch is not in force"
    if grant is None or (fence and fence != RELEASED):
        return Answer(counted=False, reason=f"{replaced!r} cannot be replaced: {fence}")
    if event.member in grant.members and event.member != replaced:
        return Answer(counted=False, reason=f"{event.member!r} is a member already")
    shares = grant.members[replaced]
    holder = holder_of(((event.member, s) for s in shares), group.claims.values())
    if fence and holder:
        return Answer(counted=False, reason="a share was claimed since", holder=holder)
    _loosen(group, grant, replaced, grant.doubts_of(replaced, shares))
    if event.member != replaced:
        grant.fenced[replaced] = f"taken over by {event.member!r}"
        grant.heirs[replaced] = event.member
        grant.members[event.member] = shares
        if replaced in grant.lives:
            grant.lives[event.member] = grant.lives[replaced]
    grant.fenced.pop(event.member, None)
    grant.settled.discard(event.member)
    grant.handed.pop(event.member, None)
    _take_loose(group, grant, shares)
    return Answer(counted=True)


def _claim(group: GroupState, event: Event) -> Answer:
    assert event.epoch is not None
    if not _is_next(group, event):
        return Answer(counted=False, reason="its number has been used")
    new = GrantState.of(event)
    others = [*group.claims.values(), *([group.in_force] if group.in_force else [])]
    in_the_way = holder_of(new.live_shares(), others)
    if in_the_way and not event.detail.get("takeover"):
        return Answer(counted=False, reason="a share is held", holder=in_the_way)
    while in_the_way:
        if in_the_way.epoch.nonce in group.claims:
            _end(group, group.claims.pop(in_the_way.epoch.nonce))
        elif group.in_force is not None:
            _fence(group, group.in_force, in_the_way.member, f"taken over by {event.member!r}")
        others = [*group.claims.values(), *([group.in_force] if group.in_force else [])]
        in_the_way = holder_of(new.live_shares(), others)
    end_acquisitions(group, {share[:2] for share in new.all_shares()})
    group.claims[new.epoch.nonce] = new
    _take_loose(group, new, new.all_shares())
    _adopt_topics(group, new.topic_ids)
    return Answer(counted=True)


def _release(group: GroupState, event: Event) -> Answer:
    fence = group.fenced(event.epoch, event.member)
    if fence:
        return Answer(counted=False, reason=fence)
    grant = group.grant(event.epoch)
    assert grant is not None
    running = list(map(share_from_plain, event.detail.get("running", ())))
    doubts = grant.doubts_of(event.member, running)
    if "left_ms" in event.detail:
        # The member has waited for earlier owners, and knows how long it would still wait.
        left = zip(running, event.detail["left_ms"], strict=True)
        doubts = [Doubt(share, left_ms) for share, left_ms in left]
    if grant.uses_chunks:
        _release_chunks(group, grant, event, running)
    if "shares" in event.detail:
        # The member keeps its other shares, and goes on with them.
        shares = set(map(share_from_plain, event.detail["shares"]))
        grant.handed[event.member] = tuple(sorted(shares.union(grant.handed.get(event.member, ()))))
        _doubt(group, grant, doubts)
        return Answer(counted=True)
    _loosen(group, grant, event.member, doubts)
    grant.fenced[event.member] = RELEASED
    group.claims.pop(grant.epoch.nonce, None)
    return Answer(counted=True)


def _release_chunks(
    group: GroupState, grant: GrantState, event: Event, running: list[Share]
) -> None:
    """Return the chunks of a member that it does not work on any more."""
    at_work = {share[:2] for share in running}
    given = {(topic, partition) for topic, partition, *_ in event.detail.get("shares", ())}
    for at, state in group.partitions.items():
        if at not in at_work and ("shares" not in event.detail or at in given):
            state.acquisitions.release(event.member)
    if "shares" not in event.detail:
        # The member has waited for all other shares in doubt.
        grant.doubts = tuple(sorted(starmap(Doubt, inside(grant.doubts, running))))


def end_all(group: GroupState) -> None:
    """End the epoch in force and all claims."""
    for grant in (group.in_force, *group.claims.values()):
        _end(group, grant)
    group.in_force = None
    group.claims = {}


def _end(group: GroupState, grant: GrantState | None) -> None:
    if grant is None:
        return
    # What members of a cooperative epoch may still work on are their chunks.
    left = grant.doubts if grant.uses_chunks else grant.left_behind()
    group.loose = sorted({*group.loose, *left})


def end_acquisitions(group: GroupState, partitions: Iterable[TopicPartition]) -> None:
    """Return all chunks of partitions; their next owners wait for the members that had them."""
    for at in partitions:
        state = group.partitions.get(at)
        if state is None:
            continue
        chunks = state.acquisitions.chunks.values()
        if chunks:
            longest = max(chunk.life_ms for chunk in chunks)
            group.loose = sorted({*group.loose, Doubt(Share(*at), longest)})
        state.acquisitions = Acquisitions()


def _fence(group: GroupState, grant: GrantState, member: str, why: str) -> None:
    """Fence a member whose shares another member takes without a hand-over."""
    grant.fenced[member] = why
    left = [doubt.share for doubt in grant.left_by(member)]
    _loosen(group, grant, member, grant.doubts_of(member, left))


def _loosen(group: GroupState, grant: GrantState, member: str, doubts: Iterable[Doubt]) -> None:
    if member not in grant.settled:
        grant.settled.add(member)
        _doubt(group, grant, doubts)


def _doubt(group: GroupState, grant: GrantState, doubts: Iterable[Doubt]) -> None:
    if not grant.uses_chunks:
        group.loose = sorted({*group.loose, *doubts})


def _take_loose(group: GroupState, grant: GrantState, shares: Iterable[Share]) -> None:
    """Move doubts about shares to their new owner, which waits for them."""
    found = starmap(Doubt, inside(group.loose, shares))
    grant.doubts = tuple(sorted({*grant.doubts, *found}))
    group.loose = list(starmap(Doubt, outside(group.loose, shares)))


def _is_next(group: GroupState, event: Event) -> bool:
    """Return whether a number is above all others, and record it."""
    assert event.epoch is not None
    is_next = event.epoch.number > group.highest
    group.highest = max(group.highest, event.epoch.number)
    return is_next


def _adopt_topics(group: GroupState, topic_ids: Mapping[str, str]) -> None:
    for at, state in list(group.partitions.items()):
        topic_id = topic_ids.get(at[0])
        if topic_id and state.topic_id not in {"", topic_id}:
            # The topic was deleted and created again: old commits are about other records.
            del group.partitions[at]
            group.initial_partitions[at[0]] = 0
        elif topic_id:
            state.topic_id = topic_id


def _partition_counts(event: Event, grant: GrantState) -> dict[str, int]:
    """Return the partition counts of an epoch: as given by its leader, else from its shares."""
    counts: dict[str, int] = {}
    for share in grant.all_shares():
        counts[share.topic] = max(counts.get(share.topic, 0), share.partition + 1)
    counts.update(event.detail.get("partitions", {}))
    return counts


#: The rule of each kind of event.
GRANT_RULES: Final[Mapping[str, Callable[[GroupState, Event], Answer]]] = {
    "epoch": _open_epoch,
    "takeover": _take_over,
    "claim": _claim,
    "release": _release,
}
