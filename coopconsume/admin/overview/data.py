"""What is told of a group: plain data, for the command line and for notebooks alike."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assignors import KeyRange, Share
    from coopconsume.admin.offsets import Holder

#: A member that has joined and has no place in the epoch in force yet.
JOINING = "joining"
#: A member of the epoch in force.
WORKING = "working"
#: A member of the epoch in force that Kafka does not count in any more.
GONE = "gone"


@dataclass(frozen=True)
class MemberOverview:
    """A member of a group.

    Attributes:
        id: Kafka's member id.
        host: The address it connects from; empty where Kafka does not know it.
        client_id: Its ``client.id``.
        instance_id: Its ``group.instance.id``, if it is static.
        slots: Tasks side by side that it offers; None while the group rebalances.
        standing: ``working``, ``joining``, ``gone``, or why it may not commit any more.
        shares: What is its own under the epoch in force.
    """

    id: str
    host: str
    client_id: str
    instance_id: str | None
    slots: int | None
    standing: str
    shares: tuple[Share, ...]


@dataclass(frozen=True)
class ClaimOverview:
    """Shares that somebody has claimed by hand (KIP-X's standalone mode).

    Attributes:
        epoch: Number of the claim.
        member: Who.
        shares: What.
    """

    epoch: int
    member: str
    shares: tuple[Share, ...]


@dataclass(frozen=True)
class OwnedRange:
    """Key hashes of a partition, and the member or claimant whose they are."""

    member: str
    key_range: KeyRange


@dataclass(frozen=True)
class DoubtedRange:
    """Key hashes on which an earlier owner may still be at work; the new one waits for its end.

    Attributes:
        key_range: Which.
        seconds: How long it may go on, at most, from when they were given to another.
        until: When that is over, by the clock of whoever gave them; None if the log's history does
            not go back so far.
    """

    key_range: KeyRange
    seconds: float
    until: datetime | None


@dataclass(frozen=True)
class PartitionOverview:
    """How far a group is in a partition, and who works on it.

    Attributes:
        topic: The topic.
        partition: The partition.
        owners: Whose which key hashes are, ascending.
        doubts: Key hashes that may still be waited for.
        stable_offset: The first offset that is not done; None if the log does not know it yet.
        end_offset: The offset that the next record gets; None if there is no such partition.
        committed_above: Offsets that are done above the stable offset.
        gaps: Ranges of offsets that are not done although one above them is.
        pending: Records that failed and wait to be tried again.
        lag: Records that are not done; None where an offset is not known.
        primary_offset: The group's offset in ``__consumer_offsets``, if there is one.
        primary_is_ours: Whether a member of the group wrote it.
        holder: What holds the stable offset, and since when; None if nothing is left to do.
    """

    topic: str
    partition: int
    owners: tuple[OwnedRange, ...]
    doubts: tuple[DoubtedRange, ...]
    stable_offset: int | None
    end_offset: int | None
    committed_above: int
    gaps: int
    pending: int
    lag: int | None
    primary_offset: int | None
    primary_is_ours: bool
    holder: Holder | None = None


@dataclass(frozen=True)
class GroupEvent:
    """Something that said who may commit what.

    Attributes:
        kind: ``epoch``, ``takeover``, ``claim``, or ``reset`` by an operator.
        at: When, by the clock of whoever wrote it.
        epoch: Number of the epoch or claim; None for a reset.
        by: The leader, the claimant, or the member that took over.
        members: How many members the epoch has; None for the other kinds.
        replaces: The member that was taken over from; else None.
        counted: Whether it counted.
        reason: Why not; else empty.
    """

    kind: str
    at: datetime
    epoch: int | None
    by: str
    members: int | None
    replaces: str | None
    counted: bool
    reason: str


@dataclass(frozen=True, repr=False)
class GroupOverview:
    """A group: who is in it, who has what, how far it is, and what happened.

    Attributes:
        group: Its id.
        state: As Kafka calls it: ``Stable``, ``Empty``, ``PreparingRebalance``,
            ``CompletingRebalance``; ``Dead`` if Kafka does not know it.
        assignor: On which its members agreed; empty where Kafka does not tell.
        cluster: Id of the Kafka cluster.
        servers: Its ``bootstrap.servers``.
        table: The commit table.
        epoch: Number of the epoch in force, if there is one.
        generation: Kafka's generation that it was opened for.
        members: Those that Kafka counts in, and those of the epoch in force.
        claims: Live claims by hand.
        partitions: All that the group has anything to do with.
        events: What said who may commit what, the newest last; as far back as the log goes.
        notes: What an operator should look at, in sentences.
    """

    group: str
    state: str
    assignor: str
    cluster: str
    servers: str
    table: str
    epoch: int | None
    generation: int | None
    members: tuple[MemberOverview, ...]
    claims: tuple[ClaimOverview, ...]
    partitions: tuple[PartitionOverview, ...]
    events: tuple[GroupEvent, ...]
    notes: tuple[str, ...]

    @property
    def lag(self) -> int:
        """Records that are not done, in all partitions of which that is known."""
        return sum(partition.lag or 0 for partition in self.partitions)

    def to_dict(self) -> dict[str, Any]:
        """All of it, fit for JSON; times as ISO 8601 texts."""
        told: dict[str, Any] = plain(self)
        return told | {"lag": self.lag}

    def _repr_html_(self) -> str:
        from coopconsume.admin.overview.drawing import group_html

        return group_html(self)

    def __repr__(self) -> str:
        return (
            f"<GroupOverview {self.group!r}: {self.state}, {len(self.members)} members, "
            f"{self.lag:,} records not done>"
        )


@dataclass(frozen=True)
class GroupSummary:
    """A group in one line.

    Attributes:
        group: Its id.
        state: As Kafka calls it; see `GroupOverview`.
        members: How many members Kafka counts in.
        epoch: Number of the epoch in force, if there is one.
        claims: How many live claims by hand.
        partitions: How many the log knows.
        lag: Records that are not done, in all partitions that exist.
    """

    group: str
    state: str
    members: int
    epoch: int | None
    claims: int
    partitions: int
    lag: int


def plain(value: Any) -> Any:
    """The same as dictionaries, lists, texts and numbers."""
    if isinstance(value, datetime):
        return value.isoformat()
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    return value
