"""State of a resource in the registry: its owner, its waiting claimants and their numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Key = tuple[str, str]
"""A group and a resource."""


class AccessMode(StrEnum):
    """Access to a log, in Pulsar's terms (PIP-68).

    Attributes:
        SHARED: Any number of shared producers write to the log.
        EXCLUSIVE: One producer; refused at once if there is another one.
        EXCLUSIVE_WITH_FENCING: One producer, at once; fences current and waiting producers.
        WAIT_FOR_EXCLUSIVE: One producer; waits until earlier ones are closed, in order.
    """

    SHARED = "shared"
    EXCLUSIVE = "exclusive"
    EXCLUSIVE_WITH_FENCING = "exclusive-with-fencing"
    WAIT_FOR_EXCLUSIVE = "wait-for-exclusive"


@dataclass(frozen=True, order=True)
class Session:
    """One claimant: a name for people, and a unique id.

    Attributes:
        owner: The name; a restarted process may use it again.
        id: The id; a restarted process has another one.
    """

    owner: str
    id: str


@dataclass(frozen=True)
class Holder:
    """A claimant that has a resource or waits for it.

    Attributes:
        mode: Its access mode; None for a claim by generation.
        heartbeat: A counter that grows while the holder lives.
        lease_ms: Milliseconds without a change of the counter after which others consider the
            holder dead; 0: never.
        ticket: Its place in the order of the waiting claims; 0 if it never waited.
        epoch: Its earlier fence epoch when it began to wait, if any.
    """

    session: Session
    mode: AccessMode | None = None
    heartbeat: int = 0
    lease_ms: int = 0
    ticket: int = 0
    epoch: int | None = None


@dataclass(frozen=True)
class Row:
    """A resource of a group; a row that was never written is `Row(group, resource)`.

    Attributes:
        resource: Any words; for a log its topic and partition.
        revision: Grows by one with every change; a conditional update names it.
        generation: The number of the wiki's `own`; 0 if nobody has the resource alone.
        fence_epoch: The fencing number; it never decreases.
        owner: The holder that has the resource alone, if any.
        shared: The holders that share it; none while there is an owner.
        waiters: The holders that wait to have it alone, in the order of their claims.
        next_ticket: The ticket of the next waiter.
        last: The last owner, which may reconnect under its fence epoch if no other one was granted.
        topic_id: Kafka's id of the topic, for a log; else empty.
    """

    group: str
    resource: str
    revision: int = 0
    generation: int = 0
    fence_epoch: int = 0
    owner: Holder | None = None
    shared: tuple[Holder, ...] = ()
    waiters: tuple[Holder, ...] = ()
    next_ticket: int = 1
    last: Session | None = None
    topic_id: str = ""

    @property
    def key(self) -> Key:
        """The group and the resource."""
        return self.group, self.resource

    @property
    def having(self) -> tuple[Holder, ...]:
        """The holders that have the resource, alone or beside others."""
        return self.shared if self.owner is None else (self.owner, *self.shared)

    @property
    def holders(self) -> tuple[Holder, ...]:
        """All holders that have the resource or wait for it."""
        return self.having + self.waiters

    @property
    def is_free(self) -> bool:
        """Whether nobody has the resource, alone or beside others."""
        return not self.having

    def holder(self, session: Session) -> Holder | None:
        """Returns the holder of a session, if there is one."""
        return next((held for held in self.holders if held.session == session), None)

    def is_owned_by(self, session: Session) -> bool:
        """Whether a session has the resource alone."""
        return self.owner is not None and self.owner.session == session

    def follows(self, known: Row | None) -> bool:
        """Whether its revision is the next one after that of the row in a store, if any."""
        return self.revision == (0 if known is None else known.revision) + 1


@dataclass(frozen=True)
class Grant:
    """The answer to a claim that was granted.

    Attributes:
        generation: The wiki's number; 0 for shared access.
        fence_epoch: The fencing number; holders of smaller ones are fenced.
    """

    resource: str
    generation: int
    fence_epoch: int


@dataclass(frozen=True)
class OwnershipEvent:
    """An event in the history of a resource.

    Attributes:
        revision, generation, fence_epoch: Those of the row after it.
        event: `owned`, `shared`, `queued`, `promoted`, `released`, `cancelled`, `expired`,
            `evicted` or `severed`.
        owner, session: Name and id of the holder.
        at_ms: Wall-clock time in milliseconds since 1970, for people only.
    """

    group: str
    resource: str
    revision: int
    event: str
    owner: str
    session: str
    generation: int
    fence_epoch: int
    at_ms: int = field(default=0, compare=False)


class OwnershipStore(Protocol):
    """Rows that change by conditional updates only, all rows of an update or none; one thread.

    A store that cannot be reached raises `OwnershipUnavailable`, and one that contains something
    else `OwnershipFormat`.
    """

    @property
    def place(self) -> str:
        """Where it is, for messages; without secrets."""

    def rows(self) -> Mapping[Key, Row]:
        """Returns all rows, with all changes that were written before the call."""

    def swap(self, rows: Sequence[Row], entries: Sequence[OwnershipEvent]) -> bool:
        """Replaces rows of different keys by their next revisions, and adds to the history.

        A row is replaced only if the store has the revision before it; for revision 1, only if it
        has no row. After an `OwnershipUnavailable` the outcome is not known.

        Returns:
            Whether they were replaced. False may also mean that this is not known: read again.
        """

    def history(self, key: Key) -> Sequence[OwnershipEvent]:
        """Returns the history of a resource, oldest first."""

    def wait(self, seconds: float) -> None:
        """Returns when something may have changed, or after some seconds."""

    def close(self) -> None:
        """Closes the connections; harmless when repeated."""
