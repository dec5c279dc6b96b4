"""The state of the commit log by its newest readable snapshot."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from commits.engine import TailGone
from commits.errors import CorruptCommitLog
from commits.fold import LogState
from commits.rows import decode
from commits.snapshot import newest_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from commits.engine import LogEngine, Tail

#: The number of attempts to read a table whose old entries go away meanwhile.
_LOOKS: Final = 3


def newest_seen(engine: LogEngine, *, reopen: bool = True) -> tuple[int, LogState, Tail]:
    """Return the newest version, and its `_newest`."""
    for look in range(_LOOKS):
        reopen = reopen or look > 0
        version = engine.refresh(reopen=True) if reopen else engine.version
        try:
            return version, *_newest(engine, version)
        except CorruptCommitLog:
            # Others may have removed old entries or files while this process was frozen.
            if engine.refresh(reopen=True) == version:
                raise
    version = engine.version
    return version, *_newest(engine, version)


def _newest(engine: LogEngine, version: int) -> tuple[LogState, Tail]:
    """Return the state of the newest readable snapshot, and the appends after it."""
    state = LogState()
    try:
        state = _snapshot(engine) or state
        tail = engine.tail(state.version, version)
    except TailGone as error:
        problem = f"rows are missing: {error}"
    except CorruptCommitLog as error:
        problem = error.problem
    else:
        if tail.repair_of <= state.version:
            return state, tail
        problem = "the snapshot of a repair is missing"
    # Its file may be lost, or the table restored to a version without the newest snapshot.
    for at in engine.compactions():
        with suppress(TailGone, CorruptCommitLog):
            found = _snapshot(engine, at)
            if found is not None and found.version > state.version:
                tail = engine.tail(found.version, version)
                if tail.repair_of <= found.version:
                    return found, tail
    raise CorruptCommitLog(engine.target, problem)


def _snapshot(engine: LogEngine, version: int | None = None) -> LogState | None:
    target = engine.target
    try:
        rows = engine.snapshots(version)
    except TailGone as error:
        raise CorruptCommitLog(target, f"snapshots cannot be read: {error}") from error
    events = [event for _, event in decode(rows, target)]
    try:
        return newest_snapshot(events)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptCommitLog(target, f"a snapshot is not valid: {error!r}") from error


@contextmanager
def folding(target: str, upto: int) -> Iterator[None]:
    """Report rows that cannot be folded as damage of the table.

    Raises:
        CorruptCommitLog: A row is not valid.
    """
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        problem = f"a row up to version {upto} is not valid: {error!r}"
        raise CorruptCommitLog(target, problem) from error
