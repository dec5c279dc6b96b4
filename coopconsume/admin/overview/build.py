"""Builds the overview of a group from the state of Kafka and of the commit log (pure)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from assignors.shares import inside, outside
from commits.model import share_from_plain
from coopconsume.admin.overview.data import (
    GONE,
    JOINING,
    WORKING,
    ChunkOverview,
    ClaimOverview,
    DecisionOverview,
    GroupEvent,
    GroupOverview,
    InDoubtRange,
    MemberOverview,
    OwnedRange,
    PartitionOverview,
)
from coopconsume.kafka.coordinator import DEAD, KafkaGroup

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from assignors import Share
    from commits import Acquisition, Assignment
    from commits.model import TopicPartition
    from coopconsume.admin.offsets.status import PartitionStatus
    from coopconsume.kafka.coordinator import KafkaMember
    from coopconsume.kafka.parked_keys import BehindParked
    from coopconsume.kafka.retention import ExpiringOffsets
    from coopconsume.runtime.decisions import Decision

#: A share in doubt, for how many milliseconds, and when it was assigned; None if the log's history
#: does not go back so far.
_Wait: TypeAlias = "tuple[Share, tuple[int, datetime | None]]"

_STABLE = "Stable"
#: What brokers append to a client id, or the id of a static member, to make a member id.
_ID_OF_KAFKA: Final = re.compile("-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


@dataclass(frozen=True)
class GroupFacts:
    """The state of a group in Kafka and in the commit log.

    Attributes:
        kafka: The coordinator's description of the group.
        row: The epoch in force.
        claims: The live claims.
        history: The result of `commits.CommitStore.history`; may be empty.
        statuses: The partitions that the group has offsets for or owns, ascending.
        known_primary: The offsets written by other clients that the commit log has accepted.
        acquisitions: The chunks that members of a cooperative epoch hold.
        behind: The records behind parked ones, of partitions in which they were counted.
        expiring: The offsets that retention deletes next, if there are any.
        group: The group id.
        cluster: The id of the Kafka cluster.
        servers: Its ``bootstrap.servers``.
        table: The commit table.
        store: The id of the commit store in the table.
        place: The options of commands that name the cluster and the table.
        decisions: The decisions on its records.
    """

    kafka: KafkaGroup = field(default_factory=KafkaGroup)
    row: Assignment | None = None
    claims: Sequence[Assignment] = ()
    history: Sequence[Mapping[str, Any]] = ()
    statuses: Sequence[PartitionStatus] = ()
    known_primary: Mapping[TopicPartition, int] = field(default_factory=dict)
    acquisitions: Mapping[TopicPartition, Sequence[Acquisition]] = field(default_factory=dict)
    behind: Mapping[TopicPartition, BehindParked] = field(default_factory=dict)
    expiring: ExpiringOffsets | None = None
    group: str = ""
    cluster: str = ""
    servers: str = ""
    table: str = ""
    store: str = ""
    place: str = ""
    decisions: Sequence[Decision] = ()

    @property
    def is_in_log(self) -> bool:
        """Whether the commit log knows the group."""
        has_offsets = any(status.stable_offset is not None for status in self.statuses)
        return has_offsets or bool(self.row or self.claims or self.history)

    @property
    def owned(self) -> set[TopicPartition]:
        """The partitions that the group owns."""
        return {tp for row in self.grants for tp, _ in _live(row)}

    @property
    def grants(self) -> list[Assignment]:
        """The epoch in force and the live claims."""
        return [row for row in (self.row, *self.claims) if row is not None]


def build(facts: GroupFacts) -> GroupOverview:
    """Builds the overview of a group."""
    events = [event for entry in facts.history if (event := _event(entry)) is not None]
    partitions = _partitions(facts)
    return GroupOverview(
        facts.group,
        facts.kafka.state,
        assignor=facts.kafka.assignor,
        cluster=facts.cluster,
        servers=facts.servers,
        table=facts.table,
        epoch=facts.row.epoch.number if facts.row else None,
        generation=facts.row.generation if facts.row else None,
        members=_members(facts),
        claims=tuple(
            ClaimOverview(claim.epoch.number, member, shares, claim.record_filter)
            for claim in facts.claims
            for member, shares in claim.members.items()
        ),
        partitions=partitions,
        events=tuple(events),
        notes=tuple(_notes(facts, partitions)),
        record_filter=facts.row.record_filter if facts.row else "",
        sharing=facts.row.sharing if facts.row else "",
        last_commit=_last(facts.history, is_commit=True),
        expiring=facts.expiring,
        decisions=tuple(map(_decision, facts.decisions)),
        last_active=_last(facts.history),
        place=facts.place,
        last_members=tuple(_last_members(facts)),
    )


def _last_members(facts: GroupFacts) -> Iterable[str]:
    """Returns the names of the members that are there, or were there last."""
    found = [member for row in facts.grants for member in row.members]
    if not found:
        found = [
            one["member"]
            for one in facts.history
            if one["counted"] and one["epoch"] is not None and one["member"]
        ][-1:]
    return dict.fromkeys(_ID_OF_KAFKA.sub("", member) for member in found)


def _last(history: Iterable[Mapping[str, Any]], *, is_commit: bool = False) -> datetime | None:
    """Returns when a member last wrote something that counted, or last committed."""
    times = [
        one["written_at"]
        for one in history
        if one["counted"]
        and one["epoch"] is not None
        and (one["kind"] == "commit" or not is_commit)
    ]
    return max(times, default=None)


def _decision(one: Decision) -> DecisionOverview:
    return DecisionOverview(
        one.topic,
        one.partition,
        offset=one.offset,
        action=one.action,
        at=one.by.at,
        by=one.by.name,
        reason=one.by.reason,
        status=one.status,
    )


def _members(facts: GroupFacts) -> tuple[MemberOverview, ...]:
    listed = facts.row.members if facts.row else {}
    fenced = facts.row.fenced if facts.row else {}
    seen = {member.id: member for member in facts.kafka.members}
    # A fenced member that Kafka no longer lists has just left the group.
    known = {name: shares for name, shares in listed.items() if name in seen or name not in fenced}
    found = [
        _member(name, seen.get(name), known.get(name), fenced.get(name, ""))
        for name in dict.fromkeys((*known, *seen))
    ]
    # In the order of their key ranges, as the maps show them.
    return tuple(sorted(found, key=lambda member: (not member.shares, member.shares, member.id)))


def _member(
    name: str, seen: KafkaMember | None, shares: tuple[Share, ...] | None, fence: str
) -> MemberOverview:
    status = JOINING if shares is None else fence or (GONE if seen is None else WORKING)
    subscription = seen.subscription if seen else None
    return MemberOverview(
        name,
        seen.host if seen else "",
        client_id=seen.client_id if seen else "",
        instance_id=seen.instance_id if seen else None,
        slots=subscription.slots if subscription else None,
        status=status,
        shares=() if fence else shares or (),
    )


def _partitions(facts: GroupFacts) -> tuple[PartitionOverview, ...]:
    owners: dict[TopicPartition, list[OwnedRange]] = {}
    in_doubt: dict[TopicPartition, list[InDoubtRange]] = {}
    for row in facts.grants:
        for tp, owned in _live(row):
            owners.setdefault(tp, []).append(owned)
        for share, (life_ms, given_at) in _waits(row, facts.history):
            life = timedelta(milliseconds=life_ms)
            in_doubt.setdefault(share[:2], []).append(
                InDoubtRange(
                    share.key_range,
                    life.total_seconds(),
                    given_at + life if given_at else None,
                )
            )
    return tuple(
        PartitionOverview(
            **vars(status),
            owners=tuple(sorted(owners.get(tp, ()), key=lambda owned: owned.key_range)),
            in_doubt=tuple(sorted(in_doubt.get(tp, ()), key=lambda doubt: doubt.key_range)),
            chunks=tuple(map(ChunkOverview.of, facts.acquisitions.get(tp, ()))),
            behind_parked=facts.behind.get(tp),
        )
        for status in facts.statuses
        for tp in [(status.topic, status.partition)]
    )


def _live(row: Assignment) -> Iterable[tuple[TopicPartition, OwnedRange]]:
    for member, shares in row.members.items():
        if member not in row.fenced:
            for share in shares:
                yield share[:2], OwnedRange(member, share.key_range)


def _given_at(row: Assignment, history: Iterable[Mapping[str, Any]]) -> datetime | None:
    """Returns when an epoch or claim last assigned shares; None: the log does not say it any more.

    That is so behind a snapshot, for as long as the epoch is in force.
    """
    times: list[datetime] = [
        entry["written_at"]
        for entry in history
        if entry["kind"] in ("epoch", "takeover", "claim")
        and entry["counted"]
        and entry["nonce"] == row.epoch.nonce
    ]
    return max(times, default=None)


def _waits(row: Assignment, history: Sequence[Mapping[str, Any]]) -> list[_Wait]:
    """Returns what the owners of an epoch or claim wait for, and since when.

    A member that continues its work does not wait for itself. Of the shares that it had, only that
    is in doubt for which it waits since an earlier epoch.
    """
    members: dict[int, dict[str, list[Share]]] = {}
    waits: dict[int, list[_Wait]] = {}
    for entry in history:
        number, doubts = entry["epoch"], list(entry["doubts"])
        if entry["kind"] not in ("epoch", "takeover") or not entry["counted"]:
            continue
        found = waits.setdefault(number, [])
        if entry["kind"] == "epoch":
            members[number] = {
                member: list(map(share_from_plain, shares))
                for member, shares in entry["detail"]["members"].items()
            }
            for member, before in entry["detail"].get("continues", {}).items():
                had = inside(doubts, members.get(before, {}).get(member, ()))
                own = inside(had, members[number].get(member, ()))
                doubts = outside(doubts, [share for share, _ in own])
                found += inside(waits.get(before, ()), [share for share, _ in own])
        known = {(share, life_ms) for share, (life_ms, _) in found}
        found += [(s, (ms, entry["written_at"])) for s, ms in doubts if (s, ms) not in known]
    if row.epoch.number not in waits:
        given_at = _given_at(row, history)
        return [(share, (life_ms, given_at)) for share, life_ms in row.doubts]
    return inside(waits[row.epoch.number], [share for share, _ in row.doubts])


def _event(entry: Mapping[str, Any]) -> GroupEvent | None:
    kind, detail = entry["kind"], entry["detail"]
    by_operator = kind == "reset" and entry["epoch"] is None
    if kind not in ("epoch", "takeover", "claim") and not by_operator:
        return None
    return GroupEvent(
        kind,
        entry["written_at"],
        epoch=entry["epoch"],
        by=entry["member"],
        members=len(detail["members"]) if kind == "epoch" else None,
        replaces=detail["replaces"] if kind == "takeover" else None,
        counted=entry["counted"],
        reason=entry["reason"],
    )


def _notes(facts: GroupFacts, partitions: Sequence[PartitionOverview]) -> Iterable[str]:
    if facts.kafka.state == DEAD:
        yield "Kafka does not know the group: it has no members and no offsets there"
    elif not facts.is_in_log:
        yield f"commit table {facts.table} has no rows of the group"
    for member in facts.kafka.members:
        found = member.subscription
        if found is not None and (store := found.terms["store"]) != facts.store:
            yield (
                f"{member.id} uses another commit table: its store id is {store}, that of "
                f"{facts.table} is {facts.store}"
            )
        elif found is None and facts.kafka.state == _STABLE:
            yield f"{member.id} is not a coopconsume member"
    for topic in sorted({p.topic for p in partitions if p.end_offset is None}):
        yield f"topic {topic} or a partition of it does not exist, or this user may not see it"
    for p in partitions:
        expected = None, p.stable_offset, facts.known_primary.get((p.topic, p.partition))
        if p.primary_offset not in expected and not p.primary_is_ours:
            yield (
                f"Kafka's offset {p.primary_offset} of {p.topic}-{p.partition} was written by "
                "another client: see onExternalReset"
            )
