"""Has a commit table lose the answer to an append, or the row itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commits import CommitLogUnavailable

if TYPE_CHECKING:
    import pyarrow as pa

    from commits import CommitStore

__all__ = ["lose", "lose_each_first"]


def lose(store: CommitStore, loss: str, *, after: int = 0) -> None:
    """One append of a store fails; those after it do not.

    Args:
        store: The store.
        loss: `answer` for an append that wrote its row, `row` for one that did not.
        after: How many appends go well before it.
    """
    engine: Any = store._engine
    append, left = engine.append, [after]

    def fail(rows: pa.Table, **more: Any) -> int:
        left[0] -= 1
        if left[0] >= 0:
            return int(append(rows, **more))
        if loss == "answer":
            append(rows, **more)  # Tried again after a conflict: then nothing was written.
        engine.append = append
        raise CommitLogUnavailable(store.target, "append", "the answer was lost")

    engine.append = fail


def lose_each_first(store: CommitStore, loss: str) -> set[tuple[str, str]]:
    """The first append of each commit fails, and the first one of every other kind of row.

    Args:
        store: The store.
        loss: As for `lose`.

    Returns:
        What failed, filled as it does: kinds of rows, with the id of each commit.
    """
    engine: Any = store._engine
    append, lost = engine.append, set()

    def fail(rows: pa.Table, **more: Any) -> int:
        kind, row_id = (rows.column(name)[0].as_py() for name in ("kind", "row_id"))
        what = (kind, row_id if kind == "commit" else "")
        if what in lost:
            return int(append(rows, **more))
        if loss == "answer":
            append(rows, **more)
        lost.add(what)
        raise CommitLogUnavailable(store.target, "append", "the answer was lost")

    engine.append = fail
    return lost
