"""The data of group overviews, for the command line and for notebooks."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from assignors import KeyRange, Share
from coopconsume.admin.offsets.status import PartitionStatus
from coopconsume.monitoring.verdict import verdict_document
from coopconsume.texts import counted

if TYPE_CHECKING:
    from commits import Acquisition
    from coopconsume.kafka.parked_keys import BehindParked
    from coopconsume.kafka.retention import ExpiringOffsets
    from coopconsume.monitoring.verdict import Verdict

#: A member that has joined and has no shares in the epoch in force yet.
JOINING = "joining"
#: A member of the epoch in force.
WORKING = "working"
#: A member of the epoch in force that Kafka no longer lists.
GONE = "gone"


@dataclass(frozen=True)
class MemberOverview:
    """A member of a group.

    Attributes:
        id: Kafka's member id.
        host: The address it connects from; empty where Kafka does not know it.
        client_id: Its ``client.id``.
        instance_id: Its ``group.instance.id``, if it is static.
        slots: The number of tasks that it runs at once; None while the group rebalances.
        status: ``working``, ``joining``, ``gone``, or the reason why it is fenced.
        shares: The shares that it owns in the epoch in force.
    """

    id: str
    host: str
    client_id: str
    instance_id: str | None
    slots: int | None
    status: str
    shares: tuple[Share, ...]


@dataclass(frozen=True)
class ClaimOverview:
    """A claim of shares by `assign` (KIP-X's standalone mode).

    Attributes:
        epoch: The number of the claim.
        member: The claimant.
        shares: The claimed shares.
        record_filter: The filter of its records, in the words of the options; empty for all.
    """

    epoch: int
    member: str
    shares: tuple[Share, ...]
    record_filter: str = ""


@dataclass(frozen=True)
class OwnedRange:
    """A key range of a partition, and the member or claimant that owns it."""

    member: str
    key_range: KeyRange


@dataclass(frozen=True)
class InDoubtRange:
    """A key range that a former owner may still be processing; the new owner waits for it.

    Attributes:
        key_range: The key range.
        seconds: How long the former owner may continue after the range was assigned to another.
        until: The end of that time, by the clock of the leader or claimant that assigned it; None
            if the log's history does not go back so far: it may long be over.
    """

    key_range: KeyRange
    seconds: float
    until: datetime | None


@dataclass(frozen=True)
class ChunkOverview:
    """A chunk that a member of a cooperative epoch has acquired.

    Attributes:
        member: The member that holds it.
        first: Its first offset that is not acknowledged.
        last: Its last offset that is not acknowledged.
        offsets: The number of its offsets that are not acknowledged.
        renewals: How often the member has renewed it.
        since: When the member requested it, by its clock; None if that is not known.
    """

    member: str
    first: int
    last: int
    offsets: int
    renewals: int
    since: datetime | None

    @classmethod
    def of(cls, chunk: Acquisition) -> Self:
        """Returns the overview of a chunk."""
        held = chunk.offsets
        first, last = held.first or 0, held.last or 0
        return cls(
            chunk.member,
            first,
            last=last,
            offsets=len(held),
            renewals=chunk.renewals,
            since=chunk.since,
        )


@dataclass(frozen=True)
class PartitionOverview(PartitionStatus):
    """The status of a group in a partition (a `PartitionStatus`), and who works on it.

    Attributes:
        owners: The owned key ranges, ascending.
        in_doubt: The key ranges that a former owner may still be processing.
        chunks: The chunks that members of a cooperative epoch hold, the oldest first.
        behind_parked: The records behind its parked ones; None if they were not counted.
    """

    owners: tuple[OwnedRange, ...] = ()
    in_doubt: tuple[InDoubtRange, ...] = ()
    chunks: tuple[ChunkOverview, ...] = ()
    behind_parked: BehindParked | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns the partition for JSON; of its gaps and pending records only the numbers."""
        more = ("owners", "in_doubt", "blocker", "chunks", "behind_parked")
        found = self.figures() | {"pending": len(self.pending)}
        return found | {name: plain(getattr(self, name)) for name in more}


@dataclass(frozen=True)
class GroupEvent:
    """A change of the assignment, or of the offsets by an operator.

    Attributes:
        kind: ``epoch``, ``takeover``, ``claim``, or ``reset`` by an operator.
        at: When it was written, by the writer's clock.
        epoch: The number of the epoch or claim; None for a reset.
        by: The leader, the claimant, or the member that took over.
        members: The number of members of the epoch; None for the other kinds.
        replaces: The member whose shares were taken over; else None.
        counted: Whether it took effect.
        reason: Why it did not; else empty.
    """

    kind: str
    at: datetime
    epoch: int | None
    by: str
    members: int | None
    replaces: str | None
    counted: bool
    reason: str


@dataclass(frozen=True)
class DecisionOverview:
    """A decision of an operator on a failed or parked record.

    Attributes:
        topic, partition, offset: The record.
        action: ``retry``, ``park`` or ``skip`` of a failed record; ``replay`` or ``discard`` of a
            parked one.
        at: When it was made, by the clock of who decided; None: not known.
        by: Who decided; empty: not known.
        reason: Why; empty: none was given.
        status: ``open``, or its outcome; see `coopconsume.runtime.decisions.Decision`.
    """

    topic: str
    partition: int
    offset: int
    action: str
    at: datetime | None
    by: str
    reason: str
    status: str


@dataclass(frozen=True, repr=False)
class GroupOverview:
    """A group: its members, claims, partitions and events.

    Attributes:
        group: The group id.
        state: Kafka's state of the group: ``Stable``, ``Empty``, ``PreparingRebalance``,
            ``CompletingRebalance``, or ``Dead`` if Kafka does not know it.
        assignor: The assignor that its members use; empty if Kafka does not report it.
        cluster: The id of the Kafka cluster.
        servers: Its ``bootstrap.servers``.
        table: The commit table.
        epoch: The number of the epoch in force, if there is one.
        generation: Kafka's generation of that epoch.
        members: The members that Kafka lists, and those of the epoch in force.
        claims: The live standalone claims.
        partitions: The partitions that the group has offsets for or owns.
        events: The epochs, takeovers, claims and resets in the log, the newest last.
        notes: Warnings for the operator, as sentences.
        record_filter: The filter of the epoch's records, in the words of the options; empty for
            all.
        sharing: ``cooperative`` if members of the epoch acquire chunks of whole partitions; empty
            if each has key ranges of its own.
        last_commit: When the last commit was written, by its writer's clock; None if the log does
            not say, or was not read.
        expiring: The offsets that are not done and that retention by time deletes next; None if
            it deletes none soon, or that is not known.
        decisions: The open decisions on records, then the newest that have an outcome.
        last_active: When a member last wrote to the commit log, by its clock: a commit, an epoch,
            or the release of its shares as it left. None if the log does not say, or was not read.
        place: The options of commands that name its cluster and its commit table, without secrets.
        last_members: The names of the members of the epoch in force, of the claimants, or of the
            member that wrote last: their client ids, or ``group.instance.id`` of static members. By
            default a client id has the application, the host and the process id.
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
    record_filter: str = ""
    sharing: str = ""
    last_commit: datetime | None = None
    expiring: ExpiringOffsets | None = None
    decisions: tuple[DecisionOverview, ...] = ()
    last_active: datetime | None = None
    place: str = ""
    last_members: tuple[str, ...] = ()

    @property
    def listed(self) -> int:
        """The number of members that Kafka lists."""
        return sum(member.status != GONE for member in self.members)

    @property
    def is_worked_on(self) -> bool:
        """Whether it has members that Kafka lists and that are not fenced, or claims."""
        return bool(self.workers)

    @property
    def workers(self) -> tuple[str, ...]:
        """The ids of the members that Kafka lists and that are not fenced, then of claimants."""
        members = (one.id for one in self.members if one.status in (WORKING, JOINING))
        claimants = (claim.member for claim in self.claims)
        return tuple(dict.fromkeys((*members, *claimants)))

    @property
    def owners(self) -> tuple[str, ...]:
        """The ids of the members, then of the claimants, each once."""
        claimants = (claim.member for claim in self.claims)
        return tuple(dict.fromkeys((*(member.id for member in self.members), *claimants)))

    @property
    def lag(self) -> int:
        """The number of uncommitted offsets in all partitions with a known lag."""
        return sum(partition.lag or 0 for partition in self.partitions)

    def to_dict(self) -> dict[str, Any]:
        """Returns the overview for JSON, with the verdict of now; times are ISO 8601 strings."""
        from coopconsume.admin.overview.verdict import group_verdicts

        found: dict[str, Any] = plain(replace(self, partitions=()))
        found["partitions"] = [partition.to_dict() for partition in self.partitions]
        verdict = verdict_document(group_verdicts(self, datetime.now(UTC)))
        return found | {"lag": self.lag, "verdict": verdict}

    def _repr_html_(self) -> str:
        from coopconsume.admin.overview.tables import group_html

        return group_html(self)

    def __repr__(self) -> str:
        members = counted(len(self.members), "member")
        facts = f"{self.state}, {members}, {self.lag:,} records not done"
        return f"<GroupOverview {self.group!r}: {facts}>"


@dataclass(frozen=True)
class GroupSummary:
    """The summary of a group.

    Attributes:
        group: The group id.
        state: Kafka's state of the group; see `GroupOverview`.
        members: The number of members that Kafka lists.
        epoch: The number of the epoch in force, if there is one.
        claims: The number of live standalone claims.
        partitions: The number of partitions that it has offsets for or owns.
        lag: The number of uncommitted offsets in all partitions with a known lag.
        verdict: How the group is. Records behind parked ones are not counted.
    """

    group: str
    state: str
    members: int
    epoch: int | None
    claims: int
    partitions: int
    lag: int
    verdict: Verdict

    def to_dict(self) -> dict[str, Any]:
        """Returns the summary for JSON."""
        found: dict[str, Any] = plain(self)
        return found | {"verdict": self.verdict.to_dict()}


def plain(value: Any) -> Any:
    """Returns a value as dictionaries, lists, strings and numbers."""
    if isinstance(value, datetime):
        return value.isoformat()
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, KeyRange | Share):
        return {name: plain(one) for name, one in value._asdict().items()}
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value
