"""Formats the offsets of groups as text and as JSON."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from coopconsume.admin.offsets.status import NOT_DONE, seconds_since
from coopconsume.admin.overview.data import plain
from coopconsume.cli.text import short, shown_primary, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from commits.model import TopicPartition
    from coopconsume.admin.offsets import Move, PartitionStatus
    from coopconsume.state.resetting import StateMove

SHOW_COLUMNS = (
    "PARTITION", "LOG START", "STABLE", "END", "DONE ABOVE", "RANGES", "GAPS", "PENDING",
    "LAG", "KAFKA'S",
)  # fmt: skip
GAP_COLUMNS = ("PARTITION", "FIRST", "LAST", "OFFSETS", "AGE")
LAG_COLUMNS = (
    "PARTITION", "LAG", "BLOCKER", "STATE", "KEY", "ATTEMPTS", "AGE", "DUE IN",
    "DONE ABOVE", "OPEN ABOVE", "ERROR",
)  # fmt: skip


def show_lines(statuses: Iterable[PartitionStatus]) -> list[str]:
    """Returns one line per partition."""
    return table(
        SHOW_COLUMNS,
        [
            (
                one.name, one.log_start, one.stable_offset, one.end_offset, len(one.done),
                one.done.range_count, len(one.open_ranges), len(one.pending), one.lag,
                shown_primary(one),
            )
            for one in statuses
        ],
    )  # fmt: skip


def gap_lines(statuses: Iterable[PartitionStatus], now: datetime, limit: int) -> Iterator[str]:
    """Yields one line per gap, at most ``limit`` per partition; 0 for all."""
    rows, more = [], []
    for one in statuses:
        shown = itertools.islice(one.gaps(), limit or None)
        rows += [(one.name, g.first, g.last, g.offsets, age(g.since, now)) for g in shown]
        left = len(one.open_ranges) - limit if limit else 0
        if left > 0:
            more.append(f"{one.name} has {left:,} more gaps: raise --limit")
    yield from table(GAP_COLUMNS, rows)
    yield from more


def lag_lines(statuses: Iterable[PartitionStatus], now: datetime) -> list[str]:
    """Returns one line per partition, with its blocker."""
    rows = []
    for one in statuses:
        blocker = one.blocker
        if blocker is None:
            rows.append((one.name, one.lag, *(None,) * (len(LAG_COLUMNS) - 2)))
            continue
        due = blocker.due
        rows.append(
            (
                one.name, one.lag, blocker.offset, blocker.shown_state, blocker.shown_key,
                None if blocker.state == NOT_DONE else blocker.attempts, age(blocker.since, now),
                None if due is None else _span(max(0.0, (due - now).total_seconds())),
                blocker.done_behind, blocker.open_behind, short(blocker.error or None),
            )
        )  # fmt: skip
    return table(LAG_COLUMNS, rows)


def move_lines(
    moves: Sequence[Move], counts: Sequence[tuple[int, int]], *, what: str, executed: bool
) -> Iterator[str]:
    """Yields the table of the moves and the number of records or offsets that they affect."""
    again, skipped = (sum(both[at] for both in counts) for at in (0, 1))
    yield from table(
        ("PARTITION", "STABLE", "NEW STABLE", "DONE ABOVE", "REPROCESSED", "SKIPPED", "NOTE"),
        [
            (
                m.before.name, m.before.stable_offset, m.stable_offset, len(m.done), *both,
                m.note or None,
            )
            for m, both in zip(moves, counts, strict=True)
        ],
    )  # fmt: skip
    yield ""
    tense = "will be" if executed else "would be"
    yield f"{again:,} {what} {tense} processed again, {skipped:,} {tense} skipped"
    if not executed:
        yield "dry run, nothing was changed: add --execute to apply the change"


def state_lines(moves: Mapping[TopicPartition, StateMove]) -> Iterator[str]:
    """Yields the table of what becomes of a group's state."""
    yield from table(
        ("PARTITION", "STATE BELOW", "KEYS", "KEYS AFTER"),
        [(f"{topic}-{number}", *one) for (topic, number), one in moves.items()],
    )
    yield ""


def status_document(one: PartitionStatus) -> dict[str, Any]:
    """Returns the status of a partition for JSON."""
    return one.figures() | {
        "log_start": one.log_start,
        "ranges": one.done.pairs(),
        "pending": [plain(pending) for pending in one.pending.values()],
    }


def gap_documents(one: PartitionStatus) -> list[dict[str, Any]]:
    """Returns the gaps of a partition for JSON."""
    partition = {"topic": one.topic, "partition": one.partition}
    return [partition | {"offsets": gap.offsets} | plain(gap) for gap in one.gaps()]


def lag_document(one: PartitionStatus) -> dict[str, Any]:
    """Returns the lag of a partition and its blocker for JSON."""
    figures = one.figures()
    shown = {n: figures[n] for n in ("topic", "partition", "lag", "stable_offset", "end_offset")}
    return shown | {"blocker": plain(one.blocker)}


def move_document(move: Move, again: int, skipped: int) -> dict[str, Any]:
    """Returns a move for JSON."""
    return {
        "topic": move.before.topic,
        "partition": move.before.partition,
        "stable_offset": move.before.stable_offset,
        "new_stable_offset": move.stable_offset,
        "committed_above": len(move.done),
        "again": again,
        "skipped": skipped,
        "note": move.note,
    }


def age(since: datetime | None, now: datetime) -> str | None:
    """Returns how long ago a time is, as text; None if it is not known."""
    seconds = seconds_since(since, now)
    return None if seconds is None else _span(seconds)


def _span(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
