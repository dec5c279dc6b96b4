"""The offsets of a group as sentences and tables, for text, HTML and the live page (pure)."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from coopconsume.admin.offsets.status import NOT_DONE
from coopconsume.admin.tables import Table, age
from coopconsume.texts import due_in, one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from commits import Pending
    from commits.model import TopicPartition
    from coopconsume.admin.offsets.moves import Move
    from coopconsume.admin.offsets.status import Blocker, Gap, PartitionStatus
    from coopconsume.state.resetting import StateMove

#: The most characters of an error; JSON has all of it.
_ERROR: Final = 200
_BLOCKER: Final = (
    "blocker", "state", "key", "attempts", "blocks for", "due in", "done above", "open above",
    "error",
)  # fmt: skip


def offset_table(statuses: Iterable[PartitionStatus]) -> Table:
    """Returns a row for each partition."""
    return Table(
        (
            "partition", "log start", "stable", "end", "done above", "ranges", "gaps", "pending",
            "lag", "Kafka's",
        ),
        [
            (
                one.name, one.log_start, one.stable_offset, one.end_offset, len(one.done),
                one.done.range_count, len(one.open_ranges), len(one.pending), one.lag,
                shown_primary(one),
            )
            for one in statuses
        ],
    )  # fmt: skip


def gap_parts(
    statuses: Iterable[PartitionStatus], now: datetime, limit: int
) -> Iterator[str | Table]:
    """Yields a row for each gap, at most ``limit`` per partition; 0 for all."""
    shown: list[tuple[str, Gap]] = []
    more = []
    for one in statuses:
        shown += [(one.name, gap) for gap in itertools.islice(one.gaps(), limit or None)]
        left = len(one.open_ranges) - limit if limit else 0
        if left > 0:
            more.append(f"{one.name} has {left:,} more gaps: raise --limit")
    yield gap_table(shown, now)
    yield from more


def gap_table(gaps: Iterable[tuple[str, Gap]], now: datetime) -> Table:
    """Returns a row for each gap, with the name of its partition.

    The age of a gap begins with the first commit above it. A blocker blocks its partition from the
    moment at which all below it was done, which may be earlier or later.
    """
    return Table(
        ("partition", "first", "last", "offsets", "age"),
        [(name, gap.first, gap.last, gap.offsets, age(gap.since, now)) for name, gap in gaps],
    )


def failed_table(
    failed: Iterable[tuple[int, Pending]], now: datetime, *, is_worked_on: bool = True
) -> Table:
    """Returns a row for each failed record of a partition, by offset.

    Args:
        failed: The records.
        now: The current time.
        is_worked_on: Whether their group has members or claims.
    """
    return Table(
        ("offset", "attempts", "due in", "error"),
        [
            (
                offset, one.attempts,
                "parked"
                if one.is_parked
                else due_in(one.due_ms / 1000 - now.timestamp(), is_worked_on=is_worked_on),
                one.error,
            )
            for offset, one in failed
        ],
    )  # fmt: skip


def lag_table(
    statuses: Iterable[PartitionStatus], now: datetime, *, is_worked_on: bool = True
) -> Table:
    """Returns a row for each partition, with its blocker; arguments as of `failed_table`."""
    return Table(
        ("partition", "lag", *_BLOCKER),
        [
            (one.name, one.lag, *_blocker(one.blocker, now, is_worked_on=is_worked_on))
            for one in statuses
        ],
    )


def blocker_table(
    statuses: Iterable[PartitionStatus], now: datetime, *, is_worked_on: bool = True
) -> Table:
    """Returns a row for each blocker that needs attention; arguments as of `failed_table`."""
    rows = [
        (one.name, *_blocker(blocker, now, is_worked_on=is_worked_on))
        for one in statuses
        if (blocker := one.blocker) is not None and blocker.needs_attention
    ]
    return Table(("partition", *_BLOCKER), rows)


def _blocker(blocker: Blocker | None, now: datetime, *, is_worked_on: bool) -> tuple[object, ...]:
    if blocker is None:
        return (None,) * len(_BLOCKER)
    due = blocker.due
    return (
        blocker.offset, blocker.shown_state, blocker.shown_key,
        None if blocker.state == NOT_DONE else blocker.attempts, age(blocker.since, now),
        None if due is None else due_in((due - now).total_seconds(), is_worked_on=is_worked_on),
        blocker.done_behind, blocker.open_behind, one_line(blocker.error, _ERROR) or None,
    )  # fmt: skip


def move_parts(
    moves: Sequence[Move],
    counts: Sequence[tuple[int, int]],
    *,
    what: str,
    executed: bool,
    by_query: bool = False,
) -> Iterator[str | Table]:
    """Yields the moves and the number of records or offsets that they affect.

    What is ``by_query`` was done by the query of a checkpoint, and is not skipped.
    """
    passed = "done by query" if by_query else "skipped"
    again, skipped = (sum(both[at] for both in counts) for at in (0, 1))
    yield Table(
        ("partition", "stable", "new stable", "done above", "reprocessed", passed, "note"),
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
    rest = "were done by the query" if by_query else f"{tense} skipped"
    yield f"{again:,} {what} {tense} processed again, {skipped:,} {rest}"
    if not executed:
        yield "dry run, nothing was changed: add --execute to apply the change"


def state_parts(moves: Mapping[TopicPartition, StateMove]) -> Iterator[str | Table]:
    """Yields what becomes of a group's state."""
    yield Table(
        ("partition", "state below", "keys", "keys after"),
        [(f"{topic}-{number}", *one) for (topic, number), one in moves.items()],
    )
    yield ""


def shown_primary(status: PartitionStatus) -> object:
    """Returns the group's offset in Kafka, and whether another client wrote it."""
    if status.primary_offset is None or status.primary_is_ours:
        return status.primary_offset
    return f"{status.primary_offset:,} (not ours)"
