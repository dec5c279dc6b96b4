"""Histories of handler calls as the tests of the checker write them down."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from coopconsume.testing.history import (
    Call,
    Deletion,
    Disturbance,
    History,
    Kill,
    Seen,
    Verdict,
    check,
)

if TYPE_CHECKING:
    pass


TP = ("flights", 0)

A, B = b"N1", b"N2"


def call(offset: int, start: int, end: int | None, **more: Any) -> Call:
    """A call of key A on partition 0, by default done on its first attempt."""
    known = {"key": A, "process": "7-aa", "outcome": "done" if end is not None else None}
    return Call("flights", 0, offset, start_ns=start, end_ns=end, **known | more)


@dataclass
class Run:
    """A run as the checker gets it; the parts that a test does not name follow the calls."""

    calls: list[Call]
    keys: dict[int, bytes | None] = field(default_factory=dict)
    done: set[int] | None = None
    pending: set[int] = field(default_factory=set)
    dead: set[int] = field(default_factory=set)
    kills: list[Kill] = field(default_factory=list)
    max_attempts: int | None = None
    ordering: str = "key"
    seen: Seen | None = None
    states: dict[bytes, int] | None = None

    def check(self) -> Verdict:
        keys = {c.offset: c.key for c in self.calls} | self.keys
        done = self.done
        if done is None:
            done = {c.offset for c in self.calls if c.outcome == "done"}
        return check(
            History.of(self.calls),
            {TP: keys},
            {TP: [(offset, offset) for offset in done]},
            {TP: np.array(sorted(self.pending), np.int64)},
            {TP: [(offset, offset) for offset in self.dead]},
            kills=self.kills,
            seen=self.seen,
            ordering=self.ordering,
            max_attempts=self.max_attempts,
            states=None if self.states is None else {TP: self.states},
        )


def killed(at: int, *committed: int, pids: frozenset[int] | None = None) -> Kill:
    """A kill with the offsets of partition 0 that were committed."""
    return Kill(at, {TP: [(offset, offset) for offset in committed]}, pids)


def disturbed(
    since: int, until: int, *, pid: int = 7, commits: dict[int, set[int]] | None = None,
    gone: int | None = None,
) -> Seen:  # fmt: skip
    """A disturbance of one process, with what the log counted as committed at some instants."""
    return Seen(
        [Disturbance(since, until, frozenset({pid}))],
        [(at, {TP: [(o, o) for o in offsets]}) for at, offsets in (commits or {}).items()],
        {} if gone is None else {pid: gone},
    )


def deleted(at: int, below: int, *, commits: dict[int, set[int]] | None = None) -> Seen:
    """Retention deletes the offsets of partition 0 below one."""
    seen = [(when, {TP: [(o, o) for o in offsets]}) for when, offsets in (commits or {}).items()]
    return Seen(commits=seen, deletions=[Deletion(at, {TP: below})])


OTHER = "8-bb"
