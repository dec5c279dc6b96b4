"""The offsets of groups as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coopconsume.admin.overview.data import plain

if TYPE_CHECKING:
    from coopconsume.admin.offsets import Move, PartitionStatus


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


def move_document(
    move: Move, again: int, skipped: int, *, by_query: bool = False
) -> dict[str, Any]:
    """Returns a move for JSON; what is ``by_query`` was done by the query of a checkpoint."""
    return {
        "topic": move.before.topic,
        "partition": move.before.partition,
        "stable_offset": move.before.stable_offset,
        "new_stable_offset": move.stable_offset,
        "committed_above": len(move.done),
        "again": again,
        "done_by_query" if by_query else "skipped": skipped,
        "note": move.note,
    }
