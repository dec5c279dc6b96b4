"""Who may have a resource: the decisions of the registry, as pure functions of its rows.

Two ways to ask lead to the same row: the Kafka wiki's `own` ("Single Reader/Writer"), which never
waits and severs the owner, and the access modes of Pulsar's exclusive producers (PIP-68).
Each function takes a row and returns the row after it, with what happened; a row that stays as it
is comes back itself. No clock is looked at: that a holder is dead is somebody's word, naming the
heartbeat at which the holder stood still.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from coopconsume.fenced.ownership.model import AccessMode, Grant, Holder, Row, Session

Happened = tuple[str, Session]
"""An event of the history, and its session."""


@dataclass(frozen=True)
class Stale:
    """A claim named a lower generation than the owner's."""

    claimed: int
    current: int


@dataclass(frozen=True)
class Queued:
    """The claimant waits; `before` so many wait before it."""

    ticket: int
    before: int


@dataclass(frozen=True)
class Busy:
    """Refused for now: somebody has the resource alone, or waits for that."""

    owner: str


@dataclass(frozen=True)
class Fenced:
    """Refused permanently: another one has, or had meanwhile, the resource."""

    owner: str
    fence_epoch: int


@dataclass(frozen=True)
class Replaced:
    """The topic was deleted and made again."""

    known_id: str
    found_id: str


Outcome = Grant | Stale | Queued | Busy | Fenced | Replaced


@dataclass(frozen=True)
class Step:
    """A decision: the row after it, the answer, and what goes into the history."""

    row: Row
    outcome: Outcome | None = None
    happened: tuple[Happened, ...] = ()


def own(row: Row, claim: Holder, generation: int) -> Step:
    """The wiki's claim, made total.

    Nobody has the resource: the claimant gets the generation it named. An owner of a higher
    generation: refused. Of an equal one: severed, and the claimant gets the next generation. Of a
    lower one: severed, and the claimant gets the generation it named. Generation 0 always claims,
    and gives generation 1. The owner itself, naming its own generation, keeps everything. Those
    who wait go on waiting.

    Raises:
        ValueError: If the generation is negative.
    """
    if generation < 0:
        raise ValueError(f"generation must be at least 0, not {generation}")
    current = row.generation
    if generation == current and row.is_owned_by(claim.session):
        return _reconnected(row)
    if current > generation > 0:
        return Step(row, Stale(generation, current))
    given = current + 1 if 0 < generation == current else max(1, generation)
    rest = _without(row, claim.session)
    severed = [held.session for held in (rest.owner, *rest.shared) if held is not None]
    return _owned(rest, claim, given, row.fence_epoch + 1, severed)


def acquire(row: Row, claim: Holder, topic_id: str = "") -> Step:
    """A claim in one of PIP-68's access modes.

    A claimant that comes back names the fence epoch it had (`claim.epoch`): it keeps that if nobody
    was in between, and is refused permanently if anybody was.

    Raises:
        ValueError: If the claim has no mode.
    """
    if claim.mode is None:
        raise ValueError("a claim by access mode needs a mode")
    if topic_id and row.topic_id not in {"", topic_id} and (row.holders or claim.epoch is not None):
        return Step(row, Replaced(row.topic_id, topic_id))
    if row.is_owned_by(claim.session):
        return _reconnected(row)
    known = replace(row, topic_id=topic_id or row.topic_id)
    return (_share if claim.mode is AccessMode.SHARED else _alone)(row, known, claim)


def beat(row: Row, session: Session) -> Step:
    """A heartbeat; a session without a place gets `Fenced`."""
    held = row.holder(session)
    if held is None:
        return Step(row, _fenced(row))
    alive = replace(held, heartbeat=held.heartbeat + 1)
    owner = alive if row.owner is held else row.owner
    shared, waiters = (
        tuple(alive if at is held else at for at in holders)
        for holders in (row.shared, row.waiters)
    )
    return Step(row.changed(owner=owner, shared=shared, waiters=waiters))


def leave(row: Row, session: Session) -> Step:
    """A holder leaves, or stops waiting; the one that has waited longest comes next."""
    held = row.holder(session)
    if held is None:
        return Step(row)
    return _gone(row, held, "cancelled" if held in row.waiters else "released")


def expire(row: Row, session: Session, heartbeat: int) -> Step:
    """A dead holder is removed, unless its heartbeat has changed since."""
    held = row.holder(session)
    if held is None or held.heartbeat != heartbeat:
        return Step(row)
    return _gone(row, held, "expired")


def evict(row: Row) -> Step:
    """An operator removes the owner; the one that has waited longest comes next."""
    if row.is_free:
        return Step(row)
    out = row.shared if row.owner is None else (row.owner,)
    # Nobody comes back under its old epoch.
    rest, promoted = _promoted(replace(row, owner=None, shared=(), generation=0, last=None))
    happened = (*(("evicted", held.session) for held in out), *promoted)
    return Step(rest.changed(), None, happened)


def _gone(row: Row, held: Holder, event: str) -> Step:
    last = held.session if row.owner is held else row.last
    rest = replace(_without(row, held.session), last=last)
    if row.owner is held:
        rest = replace(rest, generation=0)
    rest, promoted = _promoted(rest)
    return Step(rest.changed(), None, ((event, held.session), *promoted))


def _promoted(row: Row) -> tuple[Row, tuple[Happened, ...]]:
    """The head of the queue becomes the owner if nobody has the resource."""
    happened: list[Happened] = []
    while row.is_free and row.waiters:
        head, *rest = row.waiters
        row = replace(row, waiters=tuple(rest))
        if head.epoch is not None and head.epoch < row.fence_epoch:
            happened.append(("severed", head.session))
            continue
        epoch = _epoch_for(row, head)
        row = replace(row, owner=head, generation=1, fence_epoch=epoch, last=None)
        happened.append(("promoted", head.session))
    return row, tuple(happened)


def _taken(row: Row, claim: Holder, severed: list[Session]) -> Step:
    """Granted by an access mode: the next generation, as every change of hands has one."""
    given = row.generation + 1 if row.owner is not None else 1
    return _owned(row, claim, given, _epoch_for(row, claim), severed)


def _owned(row: Row, claim: Holder, generation: int, epoch: int, severed: list[Session]) -> Step:
    owned = row.changed(owner=claim, shared=(), generation=generation, fence_epoch=epoch, last=None)
    out = tuple(("severed", session) for session in severed)
    grant = Grant(row.resource, generation, epoch)
    return Step(owned, grant, (*out, ("owned", claim.session)))


def _epoch_for(row: Row, claim: Holder) -> int:
    """The fence epoch of a new owner: the next one, or its own if nobody was in between."""
    if claim.epoch is None:
        return row.fence_epoch + 1
    is_back = claim.epoch > row.fence_epoch or (row.is_free and row.last == claim.session)
    return claim.epoch if is_back else row.fence_epoch + 1


def _share(row: Row, known: Row, claim: Holder) -> Step:
    grant = Grant(row.resource, 0, row.fence_epoch)
    if any(held.session == claim.session for held in row.shared):
        return Step(row, grant)
    if row.owner is not None or row.waiters:
        return Step(row, Busy((row.owner or row.waiters[0]).session.owner))
    shared = known.changed(shared=(*row.shared, claim))
    return Step(shared, grant, (("shared", claim.session),))


def _waiting(row: Row, claim: Holder) -> Step | None:
    """The answer to one that waits already."""
    for before, held in enumerate(row.waiters):
        if held.session == claim.session:
            return Step(row, Queued(held.ticket, before))
    return None


def _alone(row: Row, known: Row, claim: Holder) -> Step:
    if claim.epoch is not None and claim.epoch < row.fence_epoch:
        return Step(row, _fenced(row))
    if claim.mode is AccessMode.WAIT_FOR_EXCLUSIVE and (waiting := _waiting(row, claim)):
        return waiting
    rest = _without(known, claim.session)  # nobody is in its own way
    if claim.mode is AccessMode.EXCLUSIVE_WITH_FENCING:
        severed = [held.session for held in rest.holders]
        return _taken(replace(rest, waiters=()), claim, severed)
    if rest.is_free and not rest.waiters:
        return _taken(rest, claim, [])
    if claim.mode is AccessMode.EXCLUSIVE:
        return Step(row, _fenced(row))
    return _wait(rest, claim)


def _wait(row: Row, claim: Holder) -> Step:
    ticket = row.next_ticket
    waiting = replace(
        row, waiters=(*row.waiters, replace(claim, ticket=ticket)), next_ticket=ticket + 1
    )
    after, promoted = _promoted(waiting)  # the claimant may have been what the head waited for
    before = next(i for i, held in enumerate(after.waiters) if held.session == claim.session)
    return Step(after.changed(), Queued(ticket, before), (("queued", claim.session), *promoted))


def _reconnected(row: Row) -> Step:
    return Step(row, Grant(row.resource, row.generation, row.fence_epoch))


def _without(row: Row, session: Session) -> Row:
    owner = None if row.is_owned_by(session) else row.owner
    shared, waiters = (
        tuple(held for held in holders if held.session != session)
        for holders in (row.shared, row.waiters)
    )
    return replace(row, owner=owner, shared=shared, waiters=waiters)


def _fenced(row: Row) -> Fenced:
    first = next(iter(row.holders), None)
    return Fenced("" if first is None else first.session.owner, row.fence_epoch)
