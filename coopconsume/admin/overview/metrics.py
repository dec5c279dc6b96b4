"""The metrics of watched groups (pure); `monitoring.numbers` declares them."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from assignors import KeyRange
from coopconsume.admin.overview.data import GONE, JOINING, WORKING
from coopconsume.admin.overview.verdict import condition_of, lasting
from coopconsume.monitoring.numbers import (
    GAUGES,
    GROUP_GAUGES,
    INTERVAL,
    JOB_GAUGES,
    MEMBERS,
    OWNED,
    REASONS,
    SEEN_FROM_OUTSIDE,
    SOURCES,
    TABLE_GAUGES,
    Number,
)
from coopconsume.monitoring.pace import pace_of
from coopconsume.monitoring.verdict import verdicts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from coopconsume.admin.overview.data import GroupOverview, PartitionOverview
    from coopconsume.admin.overview.watch import Sources, View
    from coopconsume.monitoring.verdict import Condition

#: The states of members. Each has a number, also 0.
_STATES: Final = (WORKING, JOINING, GONE, "fenced", "claim")
#: The gauges of jobs that are also known from outside.
_OF_JOBS: Final = tuple(n for n in JOB_GAUGES if n.field in ("epoch", "verdictSeverity"))
#: The size of the whole hash space.
_SPACE: Final = KeyRange().size
_OF_PARTITIONS: Final = tuple(n for n in GAUGES if n.field in SEEN_FROM_OUTSIDE)


class Measurement(NamedTuple):
    """A number of a metric.

    Attributes:
        number: The metric.
        labels: Its labels.
        value: Its value.
    """

    number: Number
    labels: dict[str, str]
    value: float


#: All metrics of watched groups, each with its labels.
LABELS: Final[dict[Number, tuple[str, ...]]] = {
    **dict.fromkeys(_OF_PARTITIONS, ("group", "topic", "partition")),
    **dict.fromkeys((*_OF_JOBS, *GROUP_GAUGES), ("group",)),
    MEMBERS: ("group", "state"),
    OWNED: ("group", "member"),
    REASONS: ("group", "reason"),
    SOURCES: ("source",),
    INTERVAL: (),
    **dict.fromkeys(TABLE_GAUGES, ()),
}


def measurements(views: Mapping[str, View], sources: Iterable[Sources]) -> Iterator[Measurement]:
    """Yields the numbers of all metrics of watched groups.

    Args:
        views: What is known of each group.
        sources: What is known of the sources, from each who asks them.
    """
    now = datetime.now(UTC)
    for group, view in sorted(views.items()):
        yield from _of_group(group, view, now)
    yield from _of_sources(sources)
    grown = [
        (view.at, view.reading.growth)
        for view in views.values()
        if view.reading is not None and view.reading.growth is not None
    ]
    if grown:
        _, newest = max(grown, key=lambda both: both[0])
        values = dict(zip(("appends", "size", "due"), newest, strict=True))
        for number in TABLE_GAUGES:
            yield Measurement(number, {}, values[number.field])


def _of_sources(sources: Iterable[Sources]) -> Iterator[Measurement]:
    """Yields whether each source has answered everybody who has asked it."""
    all_of = list(sources)
    for name in ("kafka", "commit_table"):
        answers = [one for each in all_of if (one := getattr(each, name)) is not None]
        if answers:
            yield Measurement(SOURCES, {"source": name}, all(answers))


def _of_group(group: str, view: View, now: datetime) -> Iterator[Measurement]:
    labels = {"group": group}
    found: dict[str, Any] = {"age": max(0.0, now.timestamp() - (view.at or view.since))}
    if view.reading is not None:
        overview = view.reading.overview
        condition = condition_of(overview, now, pace_of(view.samples))
        all_of = verdicts(condition, now)
        found |= _figures(condition) | {
            "epoch": overview.epoch, "verdictSeverity": all_of[0].severity,
        }  # fmt: skip
        yield from _of_members(overview)
        yield from _of_partitions(overview, now, datetime.fromtimestamp(view.at, UTC))
        # Two sentences may have one reason: the more urgent one counts.
        for reason, severity in {one.reason: one.severity for one in reversed(all_of)}.items():
            yield Measurement(REASONS, labels | {"reason": reason}, severity)
    for number in (*_OF_JOBS, *GROUP_GAUGES):
        if found.get(number.field) is not None:
            yield Measurement(number, labels, found[number.field])


def _figures(condition: Condition) -> dict[str, Any]:
    """Returns the numbers of a group by their fields; None for what is not known."""
    expiring, behind = condition.expiring, condition.behind
    return {
        "doneIn": condition.done_in,
        "retentionSeconds": expiring.seconds if expiring else None,
        "retentionRecords": expiring.records if expiring else 0,
        "deleted": condition.deleted,
        "behindParked": behind.records if behind else None,
    }


def _of_members(overview: GroupOverview) -> Iterator[Measurement]:
    """Yields how many members are in each state, and the hash space that each of them owns."""
    known = {state: state for state in (WORKING, JOINING, GONE)}
    states = Counter(known.get(member.status, "fenced") for member in overview.members)
    states["claim"] = len(overview.claims)
    for state in _STATES:
        yield Measurement(MEMBERS, {"group": overview.group, "state": state}, states[state])
    owned: Counter[str] = Counter()
    names = {member.id: member.client_id or member.id for member in overview.members}
    for partition in overview.partitions:
        for owner in partition.owners:
            owned[names.get(owner.member, owner.member)] += owner.key_range.size
    for name, size in owned.items():
        member = {"group": overview.group, "member": name}
        yield Measurement(OWNED, member, size / _SPACE)


def _of_partitions(overview: GroupOverview, now: datetime, at: datetime) -> Iterator[Measurement]:
    for partition in overview.partitions:
        labels = {
            "group": overview.group, "topic": partition.topic,
            "partition": str(partition.partition),
        }  # fmt: skip
        found = _partition(partition, now, at)
        for number in _OF_PARTITIONS:
            if found[number.field] is not None:
                yield Measurement(number, labels, found[number.field])


def _partition(one: PartitionOverview, now: datetime, at: datetime) -> dict[str, Any]:
    """Returns the numbers of a partition by their fields in progress; None: it is not known.

    Whether a record still blocks it is known for the time ``at`` of the reading only.
    """
    blocker = one.blocker
    blocks = blocker.since if blocker is not None else None
    return {
        "lag": one.lag,
        "stableOffset": one.stable_offset,
        "pending": len(one.pending),
        "parked": len(one.parked),
        "gapRanges": len(one.open_ranges),
        "stableAgeSeconds": max(0.0, (at - blocks).total_seconds()) if blocks else 0.0,
        "blockerAttempts": blocker.attempts if blocker is not None else 0,
        "inDoubtSeconds": max((left for _, left in lasting(one, now)), default=0.0),
    }
