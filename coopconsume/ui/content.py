"""The content of the live page as plain data for JSON (pure)."""

from __future__ import annotations

import math
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from assignors import KeyRange
from coopconsume.admin.offsets.tables import blocker_table, failed_table, gap_table
from coopconsume.admin.overview.tables import GroupTables
from coopconsume.admin.overview.verdict import condition_of, lasting
from coopconsume.admin.pictures import OffsetMap, OffsetState, map_of
from coopconsume.admin.tables import Owner, Table, cell
from coopconsume.monitoring.pace import pace_of
from coopconsume.monitoring.verdict import verdict_document, verdicts
from coopconsume.ui.blocked import CHOICES, BlockedRows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from coopconsume.admin.offsets.status import Blocker, PartitionStatus
    from coopconsume.admin.overview.data import GroupOverview, InDoubtRange, PartitionOverview
    from coopconsume.admin.overview.reader import GroupReading
    from coopconsume.admin.overview.watch import View

Sort = Literal["name", "lag", "age", "failed"]
#: The columns of the small map of a partition, and of the large one.
SMALL, LARGE = 120, 600
#: The whole hash space, in the numbers that the page gets.
SPACE: Final = 10_000
_EVENTS = 20
_BLOCKERS = 100
_GAPS = 200
_IN_DOUBT = 50
_TEXT = 500


def group_content(
    view: View, *, sort: Sort = "name", find: str = "", start: int = 0, limit: int = 50
) -> dict[str, Any]:
    """Returns the status of a group: all that the page shows beside dead letters.

    Args:
        view: What is known of the group.
        sort: The order of the rows: by name; or most lag, oldest blocker, or most failed records
            first.
        find: Only rows whose names contain this text.
        start: The number of the first row, from 0.
        limit: The number of rows, at most.
    """
    now = datetime.now(UTC)
    found: dict[str, Any] = {
        "at": view.at,
        "age": max(0.0, now.timestamp() - view.at),
        "error": view.error,
        "errorSince": view.error_since,
        "series": [
            (one.at, one.lag, one.done_rate, one.new_rate, one.pending) for one in view.samples
        ],
    }
    if view.reading is None:
        return found
    overview = view.reading.overview
    pace = pace_of(view.samples)
    condition = condition_of(overview, now, pace)
    tables = GroupTables(overview, now)
    clients = {one.id: one.client_id for one in overview.members}
    names = [clients.get(one) or one for one in overview.owners]
    numbers = {name: number for number, name in enumerate(overview.owners)}
    rows = [one for one in overview.partitions if find.lower() in one.name.lower()]
    rows.sort(key=lambda one: _order(sort, one))
    return found | _blocked_keys(view.reading, now) | _blockers(overview, now) | {
        "verdict": verdict_document(verdicts(condition, now)),
        "pace": None if pace is None else asdict(pace) | {"doneIn": condition.done_in},
        "group": overview.group, "state": overview.state, "assignor": overview.assignor,
        "cluster": overview.cluster, "servers": overview.servers, "table": overview.table,
        "epoch": overview.epoch, "generation": overview.generation, "lag": overview.lag,
        "filter": overview.record_filter, "notes": list(overview.notes[:_GAPS]),
        "pending": sum(len(one.pending) for one in overview.partitions),
        "parked": sum(len(one.parked) for one in overview.partitions),
        "members": table_content(tables.members()),
        "claims": table_content(tables.claims()), "unknown": len(condition.unknown),
        "owners": names, "workers": len(overview.workers),
        "slots": sum(one.slots or 0 for one in overview.members),
        "inDoubt": _in_doubt(overview, now),
        # One for each partition, in the order of their names: a small array, as there may be many.
        "partitions": [
            (one.topic, one.partition, _level(one), one.lag, _owners(one, numbers))
            for one in overview.partitions
        ],
        "found": len(rows),
        "rows": [_row(one, numbers, now) for one in rows[start : start + limit]],
        "events": table_content(tables.events(_EVENTS)),
    }  # fmt: skip


def _blocked_keys(reading: GroupReading, now: datetime) -> dict[str, Any]:
    rows = BlockedRows(reading.overview, reading.blocked)
    return {
        "blockedKeys": table_content(rows.table(now)), "blockedPlaces": rows.places,
        "blockedCount": reading.blocked.count, "choices": CHOICES,
    }  # fmt: skip


def _blockers(overview: GroupOverview, now: datetime) -> dict[str, Any]:
    blocked = _blocked(overview.partitions)
    table = blocker_table(blocked[:_BLOCKERS], now, is_worked_on=overview.is_worked_on)
    return {"blockers": table_content(table), "oldest": _oldest(blocked)}


def partition_content(
    status: PartitionStatus,
    first: int | None = None,
    end: int | None = None,
    *,
    is_worked_on: bool = True,
) -> dict[str, Any]:
    """Returns the large map of a partition, with its gaps and failed records.

    Args:
        status: The status.
        first: The first offset of the map; by default the log's start.
        end: The offset after the last one; by default the log's end.
        is_worked_on: Whether its group has members or claims.
    """
    low, high = status.log_start or 0, status.end_offset or 0
    now = datetime.now(UTC)
    first = low if first is None else min(max(first, low), max(low, high - 1))
    end = high if end is None else max(min(end, high), first + 1)
    shown = [gap for gap in status.gaps() if gap.last >= first and gap.first < end]
    failed = sorted(item for item in status.pending.items() if first <= item[0] < end)
    found: dict[str, Any] = {
        "topic": status.topic, "partition": status.partition, "logStart": status.log_start,
        "stable": status.stable_offset, "end": status.end_offset, "map": None,
        "gaps": table_content(gap_table([(status.name, gap) for gap in shown[:_GAPS]], now)),
        "gapCount": len(shown),
        "failed": table_content(failed_table(failed[:_GAPS], now, is_worked_on=is_worked_on)),
    }  # fmt: skip
    if low < high:
        drawn = map_of(status, first, end, columns=LARGE)
        found["map"] = {
            "first": int(drawn.edges[0]),
            "end": int(drawn.edges[-1]),
            "counts": drawn.counts.tolist(),
            "worst": _worst(drawn),
            "totals": [drawn.total(state) for state in OffsetState],
        }
    return found


def table_content(table: Table, most: int = _TEXT) -> dict[str, Any]:
    """Returns a table for JSON: texts of some length at most, and owners with their letters."""
    return {
        "titles": table.titles,
        "numeric": table.numeric,
        "rows": [[_cell(value, most) for value in row] for row in table.rows],
    }


def _cell(value: object, most: int) -> str | dict[str, Any]:
    if isinstance(value, Owner):
        return {"owner": value.number, "letter": str(value)}
    return cell(value)[:most]


def _scaled(key_range: KeyRange) -> tuple[int, int]:
    size = KeyRange().size
    return key_range.first * SPACE // size, (key_range.last + 1) * SPACE // size


def _owners(one: PartitionOverview, numbers: Mapping[str, int]) -> list[tuple[int, int, int]]:
    return [(numbers.get(o.member, -1), *_scaled(o.key_range)) for o in one.owners]


def _in_doubt(overview: GroupOverview, now: datetime) -> list[dict[str, Any]]:
    found = [_wait(one, doubt) for one in overview.partitions for doubt, _ in lasting(one, now)]
    return sorted(found, key=lambda one: one["until"] or 0.0, reverse=True)[:_IN_DOUBT]


def _wait(one: PartitionOverview, range_: InDoubtRange) -> dict[str, Any]:
    first, end = _scaled(range_.key_range)
    until = range_.until.timestamp() if range_.until else None
    return {
        "partition": f"{one.topic}-{one.partition}", "first": first, "end": end,
        "seconds": range_.seconds, "until": until,
    }  # fmt: skip


def _level(status: PartitionStatus) -> int:
    """Returns the most urgent state in a partition."""
    if status.parked:
        return OffsetState.PARKED
    if status.pending:
        return OffsetState.PENDING
    if status.open_ranges:
        return OffsetState.GAP
    return OffsetState.NOT_COMMITTED if status.lag or status.lag is None else OffsetState.DONE


def _worst(drawn: OffsetMap) -> str:
    return "".join(map(str, drawn.worst().tolist()))


def _row(one: PartitionOverview, numbers: Mapping[str, int], now: datetime) -> dict[str, Any]:
    low, high = one.log_start or 0, one.end_offset or 0
    return {
        "topic": one.topic, "partition": one.partition, "name": one.name,
        "logStart": one.log_start, "stable": one.stable_offset, "end": one.end_offset,
        "lag": one.lag, "above": one.committed_above, "gaps": len(one.open_ranges),
        "pending": len(one.pending), "parked": len(one.parked),
        "primary": one.primary_offset, "owners": _owners(one, numbers),
        "inDoubt": [_scaled(doubt.key_range) for doubt, _ in lasting(one, now)],
        "map": _worst(map_of(one, columns=SMALL)) if low < high else "",
    }  # fmt: skip


def _blocked(statuses: Iterable[PartitionStatus]) -> list[PartitionStatus]:
    """Returns the partitions with blockers that need attention, the oldest one first."""
    found = [(one.blocker, one) for one in statuses]
    shown = [
        (blocker, one) for blocker, one in found if blocker is not None and blocker.needs_attention
    ]
    shown.sort(key=lambda both: (_since(both[0]), -both[0].done_behind))
    return [one for _, one in shown]


def _oldest(blocked: Sequence[PartitionStatus]) -> dict[str, Any] | None:
    """Returns the blocker that has blocked for longest, if that is known."""
    if not blocked or (blocker := blocked[0].blocker) is None or blocker.since is None:
        return None
    since = blocker.since.timestamp()
    return {"partition": blocked[0].name, "since": since, "attempts": blocker.attempts}


def _since(blocker: Blocker | None) -> float:
    """Returns since when it blocks, in seconds; infinite if that is not known."""
    return blocker.since.timestamp() if blocker and blocker.since else math.inf


def _order(sort: Sort, status: PartitionStatus) -> tuple[Any, ...]:
    name = (status.topic, status.partition)
    if sort == "lag":
        return (-(status.lag or 0), *name)
    if sort == "failed":
        return (-len(status.parked), -len(status.pending), *name)
    if sort == "age":
        return (_since(status.blocker), *name)
    return name
