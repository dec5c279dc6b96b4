"""The content of the live page as plain data for JSON (pure)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from assignors import KeyRange
from coopconsume.admin.overview.data import MemberOverview, plain
from coopconsume.admin.pictures import OffsetMap, OffsetState, map_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coopconsume.admin.offsets.status import PartitionStatus
    from coopconsume.admin.overview.data import GroupOverview, InDoubtRange, PartitionOverview
    from coopconsume.ui.watch import View

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
    found: dict[str, Any] = {
        "at": view.at,
        "age": max(0.0, datetime.now(UTC).timestamp() - view.at),
        "error": view.error,
        "errorSince": view.error_since,
        "series": [
            (one.at, one.lag, one.done_rate, one.new_rate, one.pending) for one in view.samples
        ],
    }
    if view.reading is None:
        return found
    overview = view.reading.overview
    numbers = {name: number for number, name in enumerate(overview.owners)}
    rows = [one for one in overview.partitions if find.lower() in one.name.lower()]
    rows.sort(key=lambda one: _order(sort, one))
    return found | {
        "group": overview.group, "state": overview.state, "assignor": overview.assignor,
        "cluster": overview.cluster, "servers": overview.servers, "table": overview.table,
        "epoch": overview.epoch, "generation": overview.generation, "lag": overview.lag,
        "filter": overview.record_filter, "notes": list(overview.notes[:_GAPS]),
        "pending": sum(len(one.pending) for one in overview.partitions),
        "parked": sum(len(one.parked) for one in overview.partitions),
        "members": _members(overview),
        "inDoubt": _in_doubt(overview),
        # One for each partition, in the order of their names: a small array, as there may be many.
        "partitions": [
            (one.topic, one.partition, _level(one), one.lag, _owners(one, numbers))
            for one in overview.partitions
        ],
        "found": len(rows),
        "rows": [_row(one, numbers) for one in rows[start : start + limit]],
        "blockers": _blockers(overview.partitions),
        "events": [plain(event) for event in overview.events[: -_EVENTS - 1 : -1]],
    }  # fmt: skip


def partition_content(
    status: PartitionStatus, first: int | None = None, end: int | None = None
) -> dict[str, Any]:
    """Returns the large map of a partition, with its gaps and failed records.

    Args:
        status: The status.
        first: The first offset of the map; by default the log's start.
        end: The offset after the last one; by default the log's end.
    """
    low, high = status.log_start or 0, status.end_offset or 0
    first = low if first is None else min(max(first, low), max(low, high - 1))
    end = high if end is None else max(min(end, high), first + 1)
    shown = [gap for gap in status.gaps() if gap.last >= first and gap.first < end]
    failed = sorted(item for item in status.pending.items() if first <= item[0] < end)
    found: dict[str, Any] = {
        "topic": status.topic, "partition": status.partition, "logStart": status.log_start,
        "stable": status.stable_offset, "end": status.end_offset, "map": None,
        "gaps": [
            {"first": gap.first, "last": gap.last, "since": plain(gap.since)}
            for gap in shown[:_GAPS]
        ],
        "gapCount": len(shown),
        "failed": [
            {
                "offset": offset, "attempts": one.attempts, "error": one.error[:_TEXT],
                "parked": one.is_parked, "due": None if one.is_parked else one.due_ms / 1000,
            }
            for offset, one in failed[:_GAPS]
        ],
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


def _members(overview: GroupOverview) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    claims = [
        MemberOverview(one.member, "", "", None, None, f"standalone claim {one.epoch}", one.shares)
        for one in overview.claims
    ]
    for one in (*overview.members, *claims):
        facts = {
            "id": one.id, "client": one.client_id, "host": one.host, "slots": one.slots,
            "status": one.status, "instance": one.instance_id,
            "partitions": len({(share.topic, share.partition) for share in one.shares}),
            "space": round(sum(share.key_range.size for share in one.shares) / KeyRange().size, 3),
        }  # fmt: skip
        found.setdefault(one.id, facts)
    return list(found.values())


def _scaled(key_range: KeyRange) -> tuple[int, int]:
    size = KeyRange().size
    return key_range.first * SPACE // size, (key_range.last + 1) * SPACE // size


def _owners(one: PartitionOverview, numbers: Mapping[str, int]) -> list[tuple[int, int, int]]:
    return [(numbers.get(o.member, -1), *_scaled(o.key_range)) for o in one.owners]


def _in_doubt(overview: GroupOverview) -> list[dict[str, Any]]:
    found = [_wait(one, range_) for one in overview.partitions for range_ in _lasting(one)]
    return sorted(found, key=lambda one: one["until"] or 0.0, reverse=True)[:_IN_DOUBT]


def _lasting(one: PartitionOverview) -> list[InDoubtRange]:
    """Returns the ranges of a partition that are still in doubt."""
    now = datetime.now(UTC)
    return [range_ for range_ in one.in_doubt if range_.until is None or range_.until > now]


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


def _row(one: PartitionOverview, numbers: Mapping[str, int]) -> dict[str, Any]:
    low, high = one.log_start or 0, one.end_offset or 0
    return {
        "topic": one.topic, "partition": one.partition, "name": one.name,
        "logStart": one.log_start, "stable": one.stable_offset, "end": one.end_offset,
        "lag": one.lag, "above": one.committed_above, "gaps": len(one.open_ranges),
        "pending": len(one.pending), "parked": len(one.parked),
        "primary": one.primary_offset, "owners": _owners(one, numbers),
        "inDoubt": [_scaled(range_.key_range) for range_ in _lasting(one)],
        "map": _worst(map_of(one, columns=SMALL)) if low < high else "",
    }  # fmt: skip


def _blockers(statuses: Sequence[PartitionStatus]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for status in statuses:
        blocker = status.blocker
        if blocker is None or not (blocker.attempts or blocker.deleted_by or blocker.done_behind):
            continue
        found.append(
            {
                "partition": status.name, "offset": blocker.offset, "state": blocker.shown_state,
                "key": _short(blocker.shown_key), "attempts": blocker.attempts,
                "since": blocker.since.timestamp() if blocker.since else None,
                "due": blocker.due.timestamp() if blocker.due else None,
                "error": blocker.error[:_TEXT], "behind": blocker.done_behind,
            }
        )  # fmt: skip
    found.sort(key=lambda one: (one["since"] or float("inf"), -one["behind"]))
    return found[:_BLOCKERS]


def _short(text: str | None) -> str | None:
    return None if text is None else text[:_TEXT]


def _order(sort: Sort, status: PartitionStatus) -> tuple[Any, ...]:
    name = (status.topic, status.partition)
    if sort == "lag":
        return (-(status.lag or 0), *name)
    if sort == "failed":
        return (-len(status.parked), -len(status.pending), *name)
    if sort == "age":
        blocker = status.blocker
        since = blocker.since.timestamp() if blocker and blocker.since else float("inf")
        return (since, *name)
    return name
