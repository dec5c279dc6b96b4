"""Who may have a resource: the decisions of the registry, as pure functions of its rows.

Two ways to ask lead to the same row: the Kafka wiki's `own` ("Single Reader/Writer"), which never
waits and severs the owner, and the access modes of Pulsar's exclusive producers (PIP-68).
Each function takes a row and returns the row after it, with what happened; a row that stays as it
is comes back itself. The registry counts revisions, and finds out which holders are dead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from coopconsume.fenced.ownership.model import AccessMode, Grant, Holder, Row, Session

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    """The wiki's claim: see `OwnershipRegistry.own`. Those who wait go on waiting."""
    if generation < 0:
        raise ValueError(f"generation of {row.resource!r} must be at least 0, not {generation}")
    current = row.generation
    if generation == current and row.is_owned_by(claim.session):
        return _reconnected(row)
    if current > generation > 0:
        return Step(row, Stale(generation, current))
    given = current + 1 if 0 < generation == current else max(1, generation)
    rest = _replaced(row, claim.session)
    return _owned(rest, claim, given, row.fence_epoch + 1, rest.having)


def acquire(row: Row, claim: Holder, topic_id: str = "") -> Step:
    """A claim in one of PIP-68's access modes.

    A claimant that comes back names the epoch it had: it keeps that if nobody was in between, else
    it is refused permanently.
    """
    if topic_id and row.topic_id not in {"", topic_id} and (row.holders or claim.epoch is not None):
        return Step(row, Replaced(row.topic_id, topic_id))
    if row.is_owned_by(claim.session):
        return _reconnected(row)
    if claim.epoch is not None and claim.epoch < row.fence_epoch:
        return Step(row, _fenced(row))
    step = (_share if claim.mode is AccessMode.SHARED else _alone)(row, claim)
    if topic_id and step.row is not row:
        return replace(step, row=replace(step.row, topic_id=topic_id))
    return step


def look(row: Row, session: Session) -> Step:
    """The state of a claim: granted, queued, or `Fenced` without a place."""
    held = row.holder(session)
    if held is None:
        return Step(row, _fenced(row))
    if held in row.waiters:
        return Step(row, Queued(held.ticket, row.waiters.index(held)))
    return _reconnected(row)


def beat(row: Row, session: Session) -> Step:
    """A heartbeat; a session without a place gets `Fenced`."""
    held = row.holder(session)
    if held is None:
        return Step(row, _fenced(row))
    return Step(_replaced(row, session, replace(held, heartbeat=held.heartbeat + 1)))


def leave(row: Row, session: Session) -> Step:
    """A holder leaves, or stops waiting; the one that has waited longest comes next."""
    return _gone(row, session, "cancelled" if row.holder(session) in row.waiters else "released")


def expire(row: Row, session: Session) -> Step:
    """A dead holder is removed; the one that has waited longest comes next."""
    return _gone(row, session, "expired")


def evict(row: Row) -> Step:
    """An operator removes the owner; the one that has waited longest comes next."""
    if row.is_free:
        return Step(row)
    # Nobody comes back under its old epoch.
    rest, promoted = _promoted(replace(row, owner=None, shared=(), generation=0, last=None))
    return Step(rest, None, (*(("evicted", held.session) for held in row.having), *promoted))


def _gone(row: Row, session: Session, event: str) -> Step:
    if row.holder(session) is None:
        return Step(row)
    rest = _replaced(row, session)
    if row.is_owned_by(session):
        rest = replace(rest, generation=0, last=session)
    rest, promoted = _promoted(rest)
    return Step(rest, None, ((event, session), *promoted))


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


def _owned(row: Row, claim: Holder, generation: int, epoch: int, severed: Iterable[Holder]) -> Step:
    owned = replace(
        row, owner=claim, shared=(), generation=generation, fence_epoch=epoch, last=None
    )
    out = tuple(("severed", held.session) for held in severed)
    return Step(owned, Grant(row.resource, generation, epoch), (*out, ("owned", claim.session)))


def _epoch_for(row: Row, claim: Holder) -> int:
    """The fence epoch of a new owner: the next one, or its own if nobody was in between."""
    if claim.epoch is None:
        return row.fence_epoch + 1
    is_back = claim.epoch > row.fence_epoch or (row.is_free and row.last == claim.session)
    return claim.epoch if is_back else row.fence_epoch + 1


def _share(row: Row, claim: Holder) -> Step:
    grant = Grant(row.resource, 0, row.fence_epoch)
    if row.holder(claim.session) in row.shared:
        return Step(row, grant)
    if row.owner is not None or row.waiters:
        return Step(row, Busy((row.owner or row.waiters[0]).session.owner))
    return Step(replace(row, shared=(*row.shared, claim)), grant, (("shared", claim.session),))


def _alone(row: Row, claim: Holder) -> Step:
    if claim.mode is AccessMode.WAIT_FOR_EXCLUSIVE and row.holder(claim.session) in row.waiters:
        return look(row, claim.session)
    rest = _replaced(row, claim.session)  # nobody is in its own way
    if claim.mode is AccessMode.EXCLUSIVE_WITH_FENCING or not rest.holders:
        given = 1 if row.owner is None else row.generation + 1
        epoch = _epoch_for(rest, claim)
        return _owned(replace(rest, waiters=()), claim, given, epoch, rest.holders)
    if claim.mode is AccessMode.EXCLUSIVE:
        return Step(row, _fenced(row))
    waiting = replace(claim, ticket=row.next_ticket)
    rest = replace(rest, waiters=(*rest.waiters, waiting), next_ticket=row.next_ticket + 1)
    after, promoted = _promoted(rest)  # the claimant may have been what the head waited for
    queued = Queued(waiting.ticket, after.waiters.index(waiting))
    return Step(after, queued, (("queued", claim.session), *promoted))


def _reconnected(row: Row) -> Step:
    return Step(row, Grant(row.resource, row.generation, row.fence_epoch))


def _replaced(row: Row, session: Session, *by: Holder) -> Row:
    """The row with another holder, or none, in the place of a session's."""

    def put(holders: Iterable[Holder]) -> tuple[Holder, ...]:
        return tuple(
            new for held in holders for new in (by if held.session == session else (held,))
        )

    owner = None if row.owner is None else next(iter(put([row.owner])), None)
    return replace(row, owner=owner, shared=put(row.shared), waiters=put(row.waiters))


def _fenced(row: Row) -> Fenced:
    first = next(iter(row.holders), None)
    return Fenced("" if first is None else first.session.owner, row.fence_epoch)
