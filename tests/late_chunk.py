"""Rows of a chunk that was committed late, after another member acquired part of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import write_deltalake

from commits import AcquireRequest, AcquisitionId, CommitStore, Wanted

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["COUNTING", "write_late_chunk"]

_AT = ("t", 3)
COUNTING = [(0, "b"), (1, "b"), (2, "late"), (3, "late"), (4, "late")]
"""Offsets and texts of the rows that count."""


def write_late_chunk(folder: Path) -> tuple[str, str, str]:
    """Write the commits of two members and their rows; return table, commit table and group."""
    store = CommitStore.open(folder / "commits")
    epoch = store.open_epoch("g", {"a": [_AT], "b": [_AT]}, previous=None, sharing="cooperative")
    store.start("g", epoch, "a", {_AT: 0})
    store.acquire("g", epoch, "a", AcquireRequest("a-1", {_AT: Wanted(5, 4)}))
    (chunk,) = store.acquisitions("g")[_AT]
    expire = (AcquisitionId(*_AT, chunk.id),)
    store.acquire("g", epoch, "b", AcquireRequest("b-1", {_AT: Wanted(2, 4)}, expire=expire))
    store.commit("g", epoch, "a", {_AT: [(0, 4)]}, commit_id="late-1")
    store.commit("g", epoch, "b", {_AT: [(0, 1)]}, commit_id="run-1")
    rows = [("late-1", offset, "late") for offset in range(5)]
    rows += [("run-1", offset, "b") for offset in range(2)]
    table = pa.table(
        {
            "text": [text for _, _, text in rows],
            "_topic": ["t"] * len(rows),
            "_partition": pa.array([3] * len(rows), pa.int32()),
            "_offset": pa.array([offset for _, offset, _ in rows], pa.int64()),
            "_commit": [commit for commit, _, _ in rows],
        }
    )
    write_deltalake(folder / "out", table)
    return str(folder / "out"), str(folder / "commits"), "g"
