"""The status of a group as sentences and tables, for text and for HTML (pure)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from assignors import KeyRange
from commits.model import has_failed
from coopconsume.admin.html import html
from coopconsume.admin.offsets.tables import blocker_table, lag_table, shown_primary
from coopconsume.admin.overview.verdict import group_verdicts, lasting
from coopconsume.admin.records.tables import shown_action
from coopconsume.admin.tables import (
    Headline,
    KeyRangeMap,
    OwnedPart,
    Owner,
    Table,
    cell,
    share_of_space,
)
from coopconsume.kafka.coordinator import DEAD
from coopconsume.texts import counted, failures, some

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kafka import TopicPartition as KafkaPartition

    from commits.model import TopicPartition
    from coopconsume.admin.overview import (
        GroupEvent,
        GroupOverview,
        GroupSummary,
        OwnedRange,
        PartitionOverview,
    )
    from coopconsume.admin.tables import Part
    from coopconsume.monitoring.verdict import Verdict


def summaries(groups: list[GroupSummary]) -> Table:
    """Returns a row for each group."""
    return Table(
        ("group", "state", "members", "epoch", "claims", "partitions", "lag", "verdict"),
        [
            (
                g.group, g.state, g.members, g.epoch, g.claims, g.partitions, g.lag,
                g.verdict.sentence,
            )
            for g in groups
        ],
    )  # fmt: skip


def verdict_parts(found: Sequence[Verdict], shown_by: str = "") -> Iterator[str | Headline]:
    """Yields the verdict on a group, the next command if somebody has to act, and the others.

    Args:
        found: All that holds of the group.
        shown_by: How the command begins that shows this, which is not the next one.
    """
    first, *others = found
    yield Headline(first.sentence, first.level)
    if first.command and not (shown_by and first.command.startswith(shown_by)):
        yield f"next: {first.command}"
    yield from (f"also: {one.sentence}" for one in others)


def lag_parts(group: GroupOverview, now: datetime) -> Iterator[Part]:
    """Yields the verdict on a group, and the lag of each partition with its blocker."""
    yield from verdict_parts(group_verdicts(group, now), shown_by="coopconsume lag ")
    yield ""
    yield lag_table(group.partitions, now, is_worked_on=group.is_worked_on)


def group_parts(
    group: GroupOverview, now: datetime, *, history: int = 10, me: str | None = None
) -> Iterator[Part]:
    """Yields the overview of a group, its verdict first.

    Args:
        group: The group.
        now: The current time, which decides what ranges are still in doubt.
        history: The number of last events, and of last decisions with an outcome, to show.
        me: The id of the member to mark.
    """
    shown = GroupTables(group, now, me)
    dead = "unknown to Kafka" if group.state == DEAD else group.state
    members = counted(group.listed, "member")
    yield from verdict_parts(group_verdicts(group, now), shown_by="coopconsume groups describe ")
    yield f"group {group.group}: {dead}, {members}, {group.lag:,} records not done"
    yield f"commit table {group.table}"
    yield f"Kafka {group.servers}, cluster {group.cluster}"
    if group.epoch is not None:
        by = f", {group.assignor}" if group.assignor else ""
        yield f"epoch {group.epoch}, generation {group.generation}{by}"
    if not group.is_worked_on and group.last_active is not None:
        commit = f"last commit {cell(group.last_commit)}" if group.last_commit else "no commit"
        last = f", last members: {some(group.last_members)}" if group.last_members else ""
        yield f"nobody works since {cell(group.last_active)}, {commit}{last}"
    if group.record_filter:
        yield f"filter {group.record_filter}"
    yield from (f"note: {note}" for note in group.notes)
    yield from _of_rows(shown.members())
    yield from _of_rows(shown.claims())
    for claim in group.claims:
        if claim.record_filter:
            yield f"filter of {shown.name(claim.member)}: {claim.record_filter}"
    for table in (
        shown.partitions(),
        shown.chunks(),
        blocker_table(group.partitions, now, is_worked_on=group.is_worked_on),
        shown.in_doubt(),
    ):
        yield from _of_rows(table)
    yield from _of_rows(shown.decisions(history))
    yield from _of_rows(shown.events(history))


def group_html(group: GroupOverview, me: str | None = None) -> str:
    """Returns the overview of a group as HTML; arguments are those of `group_parts`."""
    return html(group_parts(group, datetime.now(UTC), me=me))


def assignment_table(ranges: Mapping[TopicPartition, Sequence[KeyRange]]) -> Table:
    """Returns a row for each partition, with a map of the key ranges of one owner."""
    mine = Owner(0)
    return Table(
        ("partition", "key hashes"),
        [
            (
                f"{topic}-{number}",
                KeyRangeMap(tuple(OwnedPart(one, mine, str(one)) for one in owned)),
            )
            for (topic, number), owned in sorted(ranges.items())
        ],
    )


class DrawnAssignment(dict["KafkaPartition", "list[KeyRange]"]):
    """Key ranges by partition, which notebooks draw."""

    def _repr_html_(self) -> str:
        return html([assignment_table(self)])


def progress_table(partitions: Iterable[Mapping[str, Any]]) -> Table:
    """Returns a row for each partition of a progress event."""
    return Table(
        ("partition", "stable", "end", "lag", "gaps", "blocker"),
        [
            (
                f"{at['topic']}-{at['partition']}",
                *(at[name] for name in ("stableOffset", "endOffset", "lag", "gapRanges")),
                _blocking(at["blocker"]),
            )
            for at in partitions
        ],
    )


def _blocking(blocker: Mapping[str, Any] | None) -> str | None:
    if blocker is None:
        return None
    key = f" key {blocker['key']}," if blocker["key"] is not None else ""
    found = f"{blocker['offset']:,},{key} {blocker['state']} for {blocker['ageSeconds']:,} s"
    if has_failed(blocker["attempts"], blocker["error"]):
        found += f", {failures(blocker['attempts'])}: {blocker['error']}"
    return found


def _of_rows(table: Table) -> Iterator[str | Table]:
    """Yields a table behind an empty line, if it has rows."""
    if table.rows:
        yield ""
        yield table


class GroupTables:
    """The tables of a group.

    Args:
        group: The group.
        now: The current time.
        me: The id of the member to mark.
    """

    def __init__(self, group: GroupOverview, now: datetime, me: str | None = None) -> None:
        self._group, self._now, self._me = group, now, me
        self._numbers = {name: number for number, name in enumerate(group.owners)}

    def name(self, member: str) -> str:
        """Returns the letter of an owner; another one's name."""
        return str(self._owner(member)) if member in self._numbers else member

    def members(self) -> Table:
        """Returns the members that Kafka lists, and those of the epoch in force."""
        return Table(
            ("", "member", "host", "client", "instance", "slots", "has", "status"),
            [
                (
                    self._owner(m.id), self._marked(m.id), m.host or None, m.client_id or None,
                    m.instance_id, m.slots, share_of_space(share.key_range for share in m.shares),
                    m.status,
                )
                for m in self._group.members
            ],
        )  # fmt: skip

    def claims(self) -> Table:
        """Returns the live standalone claims."""
        return Table(
            ("", "standalone claim of", "claim", "has"),
            [
                (
                    self._owner(c.member), self._marked(c.member), c.epoch,
                    share_of_space(share.key_range for share in c.shares),
                )
                for c in self._group.claims
            ],
        )  # fmt: skip

    def partitions(self) -> Table:
        """Returns the partitions, each with a map of its hash space."""
        return Table(
            (
                "partition", "key hashes", "stable", "end", "done above", "gaps", "pending", "lag",
                "Kafka's",
            ),
            [
                (
                    p.name, f"all, {sharing}" if (sharing := self._group.sharing) else self._map(p),
                    p.stable_offset, p.end_offset, p.committed_above, len(p.open_ranges),
                    len(p.pending), p.lag, shown_primary(p),
                )
                for p in self._group.partitions
            ],
        )  # fmt: skip

    def chunks(self) -> Table:
        """Returns what each member holds of each partition, and for how long."""
        rows: list[tuple[object, ...]] = []
        for p in self._group.partitions:
            for member in sorted({chunk.member for chunk in p.chunks}):
                held = [chunk for chunk in p.chunks if chunk.member == member]
                oldest = min((chunk.since for chunk in held if chunk.since), default=None)
                rows.append(
                    (
                        p.name, self.name(member), len(held), sum(c.offsets for c in held),
                        min(c.first for c in held), max(c.last for c in held),
                        oldest and max(0, round((self._now - oldest).total_seconds())),
                    )
                )  # fmt: skip
        return Table(
            ("partition", "held by", "chunks", "offsets", "first", "last", "seconds"), rows
        )

    def in_doubt(self) -> Table:
        """Returns the key ranges that a former owner may still be processing."""
        return Table(
            ("waits for a lost member", "key hashes", "seconds at most"),
            [
                (p.name, _percent(doubt.key_range), f"{left:.0f}")
                for p in self._group.partitions
                for doubt, left in lasting(p, self._now)
            ],
        )

    def decisions(self, most: int) -> Table:
        """Returns the open decisions on records, and the newest with an outcome."""
        all_of = self._group.decisions
        settled = [one for one in all_of if one.status != "open"]
        return Table(
            ("decided on", "decision", "when", "by", "reason", "outcome"),
            [
                (
                    f"{one.topic}-{one.partition}@{one.offset}", shown_action(one.action), one.at,
                    one.by or None, one.reason or None, one.status,
                )
                for one in all_of
                if one.status == "open" or one in settled[:most]
            ],
        )  # fmt: skip

    def events(self, most: int) -> Table:
        """Returns the last changes of the assignment and of the offsets, the newest first."""
        shown = self._group.events[-most:] if most else ()
        return Table(
            ("epoch", "when", "what", "by", "counted"),
            [
                (
                    event.epoch, event.at, self._what(event), self.name(event.by),
                    "yes" if event.counted else f"no: {event.reason}",
                )
                for event in reversed(shown)
            ],
        )  # fmt: skip

    def _what(self, event: GroupEvent) -> str:
        if event.kind == "epoch":
            return counted(event.members or 0, "member")
        if event.kind == "takeover":
            return f"takes over from {self.name(event.replaces or '')}"
        return "standalone claim" if event.kind == "claim" else "offsets set by an operator"

    def _owner(self, member: str) -> Owner:
        return Owner(self._numbers.get(member))

    def _marked(self, member: str) -> str:
        return f"{member} (this one)" if member == self._me else member

    def _map(self, partition: PartitionOverview) -> KeyRangeMap:
        return KeyRangeMap(tuple(map(self._part, partition.owners)))

    def _part(self, owned: OwnedRange) -> OwnedPart:
        tooltip = f"{owned.member} {owned.key_range}"
        return OwnedPart(owned.key_range, self._owner(owned.member), tooltip)


def _percent(key_range: KeyRange) -> str:
    first, last = (100 * end / KeyRange().size for end in (key_range.first, key_range.last + 1))
    return f"{first:.1f} to {last:.1f} %"
