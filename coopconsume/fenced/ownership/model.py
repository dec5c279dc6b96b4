"""What the registry knows of a resource: who has it, who waits for it, and under which numbers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coopconsume.fenced.access import AccessMode


Key = tuple[str, str]
"""A group and a resource."""


@dataclass(frozen=True, order=True)
class Session:
    """One live claimant: a name for people, and an id that no other process ever has.

    Attributes:
        owner: The name; a process that starts again may have it again.
        id: The id; a process that starts again has another one.
    """

    owner: str
    id: str


@dataclass(frozen=True)
class Holder:
    """Somebody who has a resource or waits for it.

    Attributes:
        session: Who.
        mode: How it asked for the resource; None for a claim by generation.
        heartbeat: A counter that grows while the holder lives.
        lease_ms: How long the counter may stand still before others take the holder for dead; 0 if
            it may for ever.
        ticket: Its place in the order of asking; 0 if it never waited.
        epoch: The fence epoch that it carried along when it began to wait, if any.
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
        group: The group.
        resource: The resource: any words; for a log its topic and partition.
        revision: Grows by one with every change; what a conditional update names.
        generation: The number of the wiki's `own`; 0 if nobody has the resource alone.
        fence_epoch: The number that fences: never smaller than it was.
        owner: Who has the resource alone, if anybody.
        shared: Who has it beside others, if anybody; nobody while there is an owner.
        waiters: Who waits to have it alone, first come first; nobody unless somebody has it.
        next_ticket: What the next waiter gets.
        last: The last owner, who may come back under its fence epoch while nobody was in between.
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
    def holders(self) -> tuple[Holder, ...]:
        """Everybody who has the resource or waits for it."""
        owner = () if self.owner is None else (self.owner,)
        return owner + self.shared + self.waiters

    @property
    def is_free(self) -> bool:
        """Whether nobody has the resource, alone or beside others."""
        return self.owner is None and not self.shared

    def holder(self, session: Session) -> Holder | None:
        """The place of a session, if it has one."""
        return next((held for held in self.holders if held.session == session), None)

    def is_owned_by(self, session: Session) -> bool:
        """Whether a session has the resource alone."""
        return self.owner is not None and self.owner.session == session

    def changed(self, **changes: object) -> Row:
        """The row after a change, one revision on."""
        return replace(self, revision=self.revision + 1, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Grant:
    """What a claimant was given.

    Attributes:
        resource: The resource.
        generation: Its generation (the wiki's number); 0 for shared access.
        fence_epoch: The number that fences everybody who has a smaller one.
    """

    resource: str
    generation: int
    fence_epoch: int


@dataclass(frozen=True)
class Entry:
    """A line of a resource's history.

    Attributes:
        group: The group.
        resource: The resource.
        revision: The row's revision after it.
        event: `owned`, `shared`, `queued`, `promoted`, `released`, `cancelled`, `expired`,
            `evicted` or `severed`.
        owner: The name of the holder.
        session: Its session.
        generation: The row's generation after it.
        fence_epoch: The row's fence epoch after it.
        at_ms: A wall clock, for people: milliseconds since 1970; it decides nothing.
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
