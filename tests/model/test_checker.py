"""The checker itself: every planted fault is found, and no right history is blamed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from coopconsume.testing.history.recorder import fingerprint
from tests.examples import examples

if TYPE_CHECKING:
    from collections.abc import Callable

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
RIGHT = {
    "deleted and never called, in no book": Run(
        [call(1, 20, 25)], keys={0: A, 1: A}, seen=deleted(10, 1)
    ),
    "deleted and never called, counted as committed afterwards": Run(
        [call(1, 20, 25)],
        keys={0: A},
        done={0, 1},
        seen=deleted(10, 1, commits={9: set(), 12: {0}}),
    ),
    "deleted while it waited for its next attempt, then its successor": Run(
        [call(0, 0, 5, outcome="retry"), call(1, 20, 25)], done={0, 1}, seen=deleted(10, 1)
    ),
    "deleted while it ran, then its successor": Run(
        [call(0, 0, 15, outcome="retry"), call(1, 15, 25)], done={0, 1}, seen=deleted(10, 1)
    ),
    "deleted before its dead letter was written": Run(
        [call(0, 0, 5, outcome="reject")], done={0}, seen=deleted(10, 1)
    ),
    "deleted once it was handled": Run(
        [call(0, 0, 5), call(1, 5, 9)], seen=deleted(10, 1, commits={6: {0}})
    ),
    "deleted before a kill, its successor handled on both sides of it": Run(
        [call(1, 12, 14), call(1, 20, 25)],
        keys={0: A},
        done={0, 1},
        kills=[killed(15)],
        seen=deleted(10, 1),
    ),
    "done by a process that is then disturbed, and again by another": Run(
        [call(0, 0, 5), call(0, 20, 25, process=OTHER)], seen=disturbed(10, 30)
    ),
    "running in a process that is disturbed, and again by another": Run(
        [call(0, 0, 15), call(0, 20, 25, process=OTHER)], seen=disturbed(10, 12)
    ),
    "started by a process that is disturbed, and again after it": Run(
        [call(0, 12, 15), call(0, 40, 45, process=OTHER)], seen=disturbed(10, 30)
    ),
    "committed only after it was started again": Run(
        [call(0, 0, 5), call(0, 20, 25, process=OTHER)],
        seen=disturbed(10, 30, commits={9: set(), 21: {0}}),
    ),
    "its process was seen to be gone, then its successor": Run(
        [call(0, 0, None), call(0, 20, 25, process=OTHER), call(1, 25, 30, process=OTHER)],
        seen=disturbed(5, 30, gone=15),
    ),
    "got the same attempt again after a disturbance": Run(
        [call(0, 0, 5, outcome="retry"), call(0, 20, 25, process=OTHER)], seen=disturbed(3, 30)
    ),
    "nothing at all": Run([]),
    "one after another": Run([call(0, 0, 10), call(1, 10, 20), call(2, 21, 30)]),
    "different keys side by side": Run([call(0, 0, 10), call(1, 5, 15, key=B)]),
    "no key, so no order": Run([call(1, 0, 10, key=None), call(0, 5, 15, key=None)]),
    "the empty key keeps order": Run([call(0, 0, 10, key=b""), call(1, 10, 20, key=b"")]),
    "retry, then the successor": Run(
        [call(0, 0, 5, outcome="retry"), call(0, 6, 9, attempt=2), call(1, 9, 12)]
    ),
    "another key passes one that waits": Run(
        [call(0, 0, 5, outcome="retry"), call(1, 6, 9, key=B), call(0, 10, 12, attempt=2)]
    ),
    "rejected, then the successor": Run([call(0, 0, 5, outcome="reject"), call(1, 6, 9)], dead={0}),
    "out of attempts, then the successor": Run(
        [
            call(0, 0, 5, outcome="retry"),
            call(0, 5, 9, outcome="retry", attempt=2),
            call(1, 9, 12),
        ],
        dead={0},
    ),
    "dead letters that the log counts as committed": Run(
        [call(0, 0, 5, outcome="reject"), call(1, 6, 9)], dead={0}, done={0, 1}
    ),
    "holes that the log counts as committed": Run(
        [call(0, 0, 5), call(3, 6, 9)], done={0, 1, 2, 3, 4}
    ),
    "pending, with the rest of its key": Run(
        [call(0, 0, 5, outcome="retry")], keys={0: A, 1: A}, pending={0, 1}
    ),
    "killed while running, and again": Run([call(0, 0, None), call(0, 20, 30)], kills=[killed(15)]),
    "done but not committed at the kill": Run(
        [call(0, 0, 5), call(1, 5, 9), call(0, 20, 25), call(1, 25, 30)], kills=[killed(15)]
    ),
    "committed in part at the kill": Run(
        [call(0, 0, 5), call(1, 5, 9), call(2, 9, None), call(1, 25, 30), call(2, 30, 31)],
        kills=[killed(15, 0)],
    ),
    "dead letter undone by the kill": Run(
        [
            call(0, 0, 5, outcome="reject"),
            call(1, 5, 9),
            call(0, 20, 25, outcome="reject"),
            call(1, 25, 30),
        ],
        dead={0},
        kills=[killed(15)],
    ),
    "last attempt undone by the kill": Run(
        [
            call(0, 0, 5, outcome="retry", attempt=2),
            call(1, 5, 9),
            call(0, 20, 25, outcome="retry", attempt=2),
            call(1, 25, 30),
        ],
        dead={0},
        kills=[killed(15)],
        max_attempts=2,
    ),
    "attempts that the kill forgot": Run(
        [call(0, 0, 5, outcome="retry", attempt=2), call(0, 20, 25, attempt=1)], kills=[killed(15)]
    ),
    "a lower offset again, after a higher": Run(
        [call(0, 0, 5), call(1, 5, 9), call(0, 20, 25), call(1, 26, 28), call(2, 30, 31)],
        kills=[killed(15), killed(29, 0, 1)],
    ),
    "two kills, the second before the end": Run(
        [call(0, 0, None), call(0, 20, None), call(0, 40, 50)], kills=[killed(30), killed(15)]
    ),
    "a worker's own end": Run(
        [
            call(0, 0, 5, process="8-bb"),
            call(1, 6, None, process="8-bb"),
            call(9, 6, 30, key=B),
            call(0, 20, 25),
            call(1, 25, 30),
        ],
        kills=[killed(15, pids=frozenset({8}))],
    ),
    "ordering none: the same key side by side": Run(
        [call(1, 0, 10), call(0, 5, 15)], ordering="none"
    ),
    "ordering partition": Run([call(0, 0, 5), call(1, 5, 9, key=B)], ordering="partition"),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_histories_pass(name: str) -> None:
    """Nothing that the rules allow is called a fault."""
    verdict = RIGHT[name].check()
    assert verdict.ok, str(verdict)


# Each: the run, the findings that are faults, and the offset that a witness of the first names.
WRONG = {
    "not deleted, though its neighbour was": (
        Run([], keys={0: A, 1: A}, done={0, 1}, seen=deleted(10, 1)),
        {"lost"},
        1,
    ),
    "deleted, but counted as committed before that": (
        Run([], keys={0: A}, done={0}, seen=deleted(10, 1, commits={9: {0}})),
        {"lost"},
        0,
    ),
    "deleted, and dead-lettered without a call": (
        Run([], keys={0: A}, dead={0}, seen=deleted(10, 1)),
        {"lost"},
        0,
    ),
    "its successor before it was deleted": (
        Run([call(1, 9, 12)], keys={0: A}, seen=deleted(10, 1)),
        {"order_breaks"},
        1,
    ),
    "its successor while the deleted record ran": (
        Run([call(0, 0, 15, outcome="retry"), call(1, 12, 20)], done={0, 1}, seen=deleted(10, 1)),
        {"order_breaks", "overlaps"},
        1,
    ),
    "called after it was deleted and its successor was called": (
        Run([call(1, 12, 14), call(0, 20, 25)], seen=deleted(10, 1)),
        {"order_breaks"},
        1,
    ),
    "repeated, though it was deleted": (
        Run([call(0, 0, 5), call(0, 20, 25)], seen=deleted(10, 1)),
        {"repeated_outside_flight"},
        0,
    ),
    "repeated by another though nothing was disturbed": (
        Run([call(0, 0, 5), call(0, 20, 25, process=OTHER)], seen=Seen()),
        {"repeated_outside_flight"},
        0,
    ),
    "repeated though another process was disturbed": (
        Run([call(0, 0, 5), call(0, 20, 25, process=OTHER)], seen=disturbed(10, 30, pid=9)),
        {"repeated_outside_flight"},
        0,
    ),
    "repeated before its process was disturbed": (
        Run([call(0, 0, 5), call(0, 6, 9, process=OTHER)], seen=disturbed(10, 30)),
        {"repeated_outside_flight"},
        0,
    ),
    "repeated though the disturbance was over": (
        Run([call(0, 35, 38), call(0, 40, 45, process=OTHER)], seen=disturbed(10, 30)),
        {"repeated_outside_flight"},
        0,
    ),
    "disturbed, but committed before it was started again": (
        Run(
            [call(0, 0, 5), call(0, 20, 25, process=OTHER)],
            seen=disturbed(10, 30, commits={8: {0}}),
        ),
        {"repeated_outside_flight"},
        0,
    ),
    "seen to be gone too late for its successor": (
        Run(
            [call(0, 0, None), call(0, 12, 14, process=OTHER)],
            seen=disturbed(5, 30, gone=15),
        ),
        {"overlaps"},
        0,
    ),
    "got the same attempt again though nothing was disturbed": (
        Run(
            [call(0, 0, 5, outcome="retry"), call(0, 20, 25, process=OTHER)],
            seen=Seen(),
        ),
        {"attempts_back"},
        0,
    ),
    "in no book": (Run([call(0, 0, 5), call(1, 5, 9)], done={0}), {"lost"}, 1),
    "never called, in no book": (Run([call(0, 0, 5)], keys={7: B}), {"lost"}, 7),
    "done without a call": (Run([call(0, 0, 5)], keys={1: A}, done={0, 1}), {"lost"}, 1),
    "done with a failed call": (Run([call(0, 0, 5, outcome="retry")], done={0}), {"lost"}, 0),
    "done with a call that was killed": (
        Run([call(0, 0, None)], done={0}, kills=[killed(9)]),
        {"lost"},
        0,
    ),
    "done with a call that was rejected": (
        Run([call(0, 0, 5, outcome="reject")], done={0}),
        {"lost"},
        0,
    ),
    "dead-lettered without a call": (Run([], keys={3: A}, dead={3}), {"lost"}, 3),
    "pending and done": (Run([call(0, 0, 5)], pending={0}), {"misplaced"}, 0),
    "pending and dead-lettered": (
        Run([call(0, 0, 5, outcome="reject")], pending={0}, dead={0}),
        {"misplaced"},
        0,
    ),
    "pending, never produced": (Run([], pending={4}), {"misplaced"}, 4),
    "dead-lettered, never produced": (
        Run([], keys={4: A}, done=set(), pending={4}, dead={5}),
        {"misplaced"},
        5,
    ),
    "order inverted": (Run([call(1, 0, 5), call(0, 6, 9)]), {"order_breaks"}, 1),
    "order inverted under the empty key": (
        Run([call(1, 0, 5, key=b""), call(0, 6, 9, key=b"")]),
        {"order_breaks"},
        1,
    ),
    "order inverted two apart": (
        Run([call(0, 0, 5), call(2, 6, 9), call(1, 10, 12)]),
        {"order_breaks"},
        2,
    ),
    "side by side in one key": (
        Run([call(0, 0, 10), call(1, 9, 15)]),
        {"overlaps", "order_breaks"},
        1,
    ),
    "side by side, one within the other": (
        Run([call(0, 0, 100), call(5, 1, 2, key=B), call(1, 50, 60)]),
        {"overlaps", "order_breaks"},
        1,
    ),
    "one record twice at once": (
        Run([call(0, 0, 10, key=None), call(0, 5, 15, key=None)]),
        {"overlaps", "repeated_outside_flight"},
        0,
    ),
    "one record twice at once, both failing": (
        Run(
            [call(0, 0, 10, outcome="retry"), call(0, 5, 15, outcome="retry", attempt=2)],
            pending={0},
        ),
        {"overlaps"},
        0,
    ),
    "successor while the first waits for its retry": (
        Run([call(0, 0, 5, outcome="retry"), call(1, 6, 9), call(0, 10, 12, attempt=2)]),
        {"order_breaks"},
        1,
    ),
    "successor while the first awaits its last attempt": (
        Run(
            [
                call(0, 0, 5, outcome="retry"),
                call(1, 6, 9),
                call(0, 10, 12, outcome="retry", attempt=2),
            ],
            dead={0},
        ),
        {"order_breaks"},
        1,
    ),
    "successor while the first is pending": (
        Run([call(0, 0, 5, outcome="retry"), call(1, 6, 9)], pending={0}),
        {"order_breaks"},
        1,
    ),
    "successor of a record that was never called": (
        Run([call(1, 6, 9)], keys={0: A}, pending={0}),
        {"order_breaks"},
        1,
    ),
    "successor before the failed attempt of a later life": (
        Run(
            [
                call(0, 0, 5, outcome="retry"),
                call(1, 6, 9),
                call(0, 20, 25, outcome="retry", attempt=2),
                call(1, 25, 30),
            ],
            dead={0},
            kills=[killed(15)],
            max_attempts=2,
        ),
        {"order_breaks"},
        1,
    ),
    "successor first after the kill": (
        Run([call(0, 0, 5), call(1, 20, 25), call(0, 26, 30)], kills=[killed(15)]),
        {"order_breaks"},
        1,
    ),
    "committed, and started again after the kill": (
        Run([call(0, 0, 5), call(0, 20, 25)], kills=[killed(15, 0)]),
        {"repeated_outside_flight"},
        0,
    ),
    "committed at the first kill, started after the second": (
        Run([call(0, 0, 5), call(0, 20, 25)], kills=[killed(10, 0), killed(15, 0)]),
        {"repeated_outside_flight"},
        0,
    ),
    "committed at the second kill, started after it": (
        Run([call(0, 0, 5), call(0, 12, 14), call(0, 20, 25)], kills=[killed(10), killed(15, 0)]),
        {"repeated_outside_flight"},
        0,
    ),
    "repeated without a kill": (
        Run([call(0, 0, 5), call(0, 6, 9)]),
        {"repeated_outside_flight"},
        0,
    ),
    "repeated, then failing": (
        Run([call(0, 0, 5), call(0, 6, 9, outcome="retry")]),
        {"repeated_outside_flight"},
        0,
    ),
    "repeated and running at the kill": (
        Run([call(0, 0, 5), call(0, 6, None)], kills=[killed(9)]),
        {"repeated_outside_flight"},
        0,
    ),
    "repeated before the kill": (
        Run([call(0, 0, 5), call(0, 6, 9)], kills=[killed(15)]),
        {"repeated_outside_flight"},
        0,
    ),
    "repeated twice after one kill": (
        Run([call(0, 0, 5), call(0, 20, 25), call(0, 26, 30)], kills=[killed(15)]),
        {"repeated_outside_flight"},
        0,
    ),
    "rejected and started again": (
        Run([call(0, 0, 5, outcome="reject"), call(0, 6, 9, outcome="reject")], dead={0}),
        {"repeated_outside_flight"},
        0,
    ),
    "started again beyond the last attempt": (
        Run(
            [call(0, 0, 5, outcome="retry", attempt=2), call(0, 6, 9, outcome="retry", attempt=3)],
            dead={0},
            max_attempts=2,
        ),
        {"repeated_outside_flight"},
        0,
    ),
    "repeated, though another worker ended": (
        Run([call(0, 0, 5), call(0, 20, 25)], kills=[killed(15, pids=frozenset({8}))]),
        {"repeated_outside_flight"},
        0,
    ),
    "no end and no kill, then its successor": (
        Run([call(0, 0, None), call(1, 10, 12)], pending={0}),
        {"overlaps", "order_breaks"},
        1,
    ),
    "no end, its successor before the kill": (
        Run([call(0, 0, None), call(1, 10, 12), call(0, 20, 22)], kills=[killed(15)]),
        {"overlaps", "order_breaks"},
        1,
    ),
    "no end, and the kill took another worker": (
        Run([call(0, 0, None), call(0, 20, 22)], kills=[killed(15, pids=frozenset({8}))]),
        {"overlaps", "attempts_back"},
        0,
    ),
    "dead letter with its successor too early": (
        Run([call(0, 0, 5, outcome="reject"), call(1, 4, 9)], dead={0}),
        {"overlaps", "order_breaks"},
        1,
    ),
    "same attempt twice": (
        Run([call(0, 0, 5, outcome="retry"), call(0, 6, 9)]),
        {"attempts_back"},
        0,
    ),
    "attempts going back": (
        Run(
            [
                call(0, 0, 5, outcome="retry"),
                call(0, 6, 9, outcome="retry", attempt=2),
                call(0, 10, 12, attempt=1),
            ]
        ),
        {"attempts_back"},
        0,
    ),
    "attempts going back before the kill": (
        Run([call(0, 0, 5, outcome="retry"), call(0, 6, 9)], kills=[killed(15)]),
        {"attempts_back"},
        0,
    ),
    "ordering partition: another key too early": (
        Run([call(0, 0, 10), call(1, 5, 15, key=B)], ordering="partition"),
        {"overlaps", "order_breaks"},
        1,
    ),
    "ordering partition: no key too early": (
        Run([call(1, 0, 5, key=None), call(0, 5, 15, key=None)], ordering="partition"),
        {"order_breaks"},
        1,
    ),
    "ordering none: one record twice at once": (
        Run([call(0, 0, 10), call(0, 5, 15)], ordering="none"),
        {"overlaps", "repeated_outside_flight"},
        0,
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_each_fault_is_found_with_its_witness(name: str) -> None:
    """A planted fault shows as what it is and nothing else, quoting the record and its calls."""
    run, faults, offset = WRONG[name]
    verdict = run.check()
    assert set(verdict.faults) == faults, str(verdict)
    for fault in faults:
        witness = next(iter(verdict.findings[fault]))
        assert (witness.topic, witness.partition, witness.offset) == ("flights", 0, offset)
        assert set(witness.calls) <= set(run.calls)
        quoted = {c.offset for c in witness.calls}
        assert quoted or not any(c.offset == offset for c in run.calls)
        assert str(witness) in str(verdict)


def test_a_call_of_a_record_nobody_produced_is_found() -> None:
    """A call is held against what was produced: its partition, its offset and its key."""
    calls = [
        call(0, 0, 5),
        replace(call(0, 6, 9), partition=1),
        replace(call(0, 6, 9), topic="other"),
        call(1, 6, 9, key=B),
        call(5, 10, 12),
    ]
    verdict = check(History.of(calls), {TP: {0: A, 1: A, 9: A}}, {TP: [(0, 1)]}, {TP: [(9, 9)]}, {})
    assert set(verdict.faults) == {"misplaced"}
    assert verdict.misplaced.count == 4
    assert {w.reason for w in verdict.misplaced} == {
        "called, but never produced",
        "called, but produced with another key",
    }


def test_order_is_kept_by_partition_and_topic() -> None:
    """One key in two partitions, or two topics, has no order between them."""
    calls = [
        call(1, 0, 5),
        replace(call(0, 0, 5), partition=1),
        replace(call(0, 1, 6), topic="other"),
    ]
    produced = {TP: {1: A}, ("flights", 1): {0: A}, ("other", 0): {0: A}}
    done = {tp: [(0, 9)] for tp in produced}
    assert check(History.of(calls), produced, done, {}, {}).ok


def test_the_figures_add_up() -> None:
    """Each record is counted in one place, and records in flight at each kill are counted."""
    run = Run(
        [
            call(0, 0, 5),
            call(1, 5, 9),
            call(2, 9, None),
            call(1, 20, 25),
            call(2, 25, 30, outcome="reject"),
            call(3, 30, 35, outcome="retry"),
        ],
        keys={4: A, 5: B},
        dead={2},
        pending={3, 4},
        kills=[killed(15, 0)],
    )
    verdict = run.check()
    assert verdict.as_dict() == {
        "produced": 6,
        "done": 2,
        "pending": 2,
        "dead_lettered": 1,
        "deleted": 0,
        "calls": 6,
        "in_flight_at_kill": [2],
        "lost": 1,
        "misplaced": 0,
        "order_breaks": 0,
        "overlaps": 0,
        "repeated": 1,
        "repeated_outside_flight": 0,
        "attempts_back": 0,
        "state_breaks": 0,
        "ok": False,
    }
    assert json.loads(json.dumps(verdict.as_dict())) == verdict.as_dict()
    assert [w.offset for w in verdict.lost] == [5]
    assert [w.offset for w in verdict.repeated] == [1]
    assert "broken: lost" in str(verdict)


def test_only_some_witnesses_are_kept() -> None:
    """The count is of all cases, however few are quoted."""
    produced = {TP: dict.fromkeys(range(100), A)}
    verdict = check(History.of([]), produced, {}, {}, {}, witnesses=3)
    assert verdict.lost.count == 100
    assert [w.offset for w in verdict.lost] == [0, 1, 2]
    assert "first 3 of 100" in str(verdict)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"ordering": "keys"}, "ordering='keys'"), ({"witnesses": 0}, "witnesses=0")],
)
def test_parameters_are_checked(wrong: dict[str, Any], message: str) -> None:
    """A parameter out of its range is named."""
    with pytest.raises(ValueError, match=message):
        check(History.of([]), {}, {}, {}, {}, **wrong)


# -- against the rules, written down a second time, one call at a time ------------------------


def plainly(run: Run) -> dict[str, int]:
    """What the checker must count: the rules as its module states them, without any cleverness."""
    calls = sorted(run.calls, key=lambda c: c.start_ns)
    keys = {c.offset: c.key for c in calls} | run.keys
    done = {c.offset for c in calls if c.outcome == "done"} if run.done is None else run.done

    def took(kill: Kill, c: Call) -> bool:
        return kill.pids is None or int(c.process.split("-")[0]) in kill.pids

    def holds(kill: Kill, offset: int) -> bool:
        return any(a <= offset <= b for a, b in kill.committed.get(TP, ()))

    def end(c: Call) -> float:
        after = [k.at_ns for k in run.kills if k.at_ns >= c.start_ns and took(k, c)]
        return c.end_ns if c.end_ns is not None else min(after, default=float("inf"))

    def between(kill: Kill, earlier: float, later: float) -> bool:
        return earlier <= kill.at_ns < later

    def settles(c: Call) -> bool:
        if c.outcome in {"done", "reject"} or c.outcome is None:
            return c.outcome is not None
        if run.max_attempts is not None:
            return c.attempt >= run.max_attempts
        return c.offset in run.dead and c is [d for d in calls if d.offset == c.offset][-1]

    def scope(offset: int) -> object:
        if run.ordering == "partition":
            return "all"
        return offset if run.ordering == "none" or keys[offset] is None else keys[offset]

    deletions = run.seen.deletions if run.seen else ()
    deleted_at = {
        o: min((d.at_ns for d in deletions if o < d.below[TP]), default=float("inf")) for o in keys
    }

    looks = run.seen.commits if run.seen else ()
    committed_at = {
        o: min((at for at, book in looks if (o, o) in book[TP]), default=float("inf")) for o in keys
    }

    def is_gone(offset: int, at: int) -> bool:
        return deleted_at[offset] <= at and all(end(c) <= at for c in calls if c.offset == offset)

    def is_deleted(offset: int) -> bool:
        handled = offset in run.dead or any(
            c.offset == offset and c.outcome == "done" for c in calls
        )
        return deleted_at[offset] < committed_at[offset] and not handled

    def stands(offset: int, at: int) -> bool:
        return is_gone(offset, at) or any(
            end(s) <= at
            and all(
                holds(k, offset) for k in run.kills if k.pids is None and between(k, end(s), at)
            )
            for s in calls
            if s.offset == offset and settles(s)
        )

    breaks = overlaps = back = 0
    repeated, outside = set(), set()
    for i, c in enumerate(calls):
        lower = [o for o in keys if o < c.offset and scope(o) == scope(c.offset)]
        breaks += not all(stands(o, c.start_ns) for o in lower)
        same = [d for d in calls[:i] if scope(d.offset) == scope(c.offset)]
        overlaps += any(end(d) > c.start_ns for d in same)
        own = [d for d in calls[:i] if d.offset == c.offset]
        if own and not settles(own[-1]) and c.attempt <= own[-1].attempt:
            back += not any(
                took(k, own[-1]) and between(k, own[-1].start_ns, c.start_ns) for k in run.kills
            )
        settled = [d for d in own if settles(d)]
        if settled:
            repeated.add(c.offset)
            last = settled[-1]
            explained = any(
                took(k, last) and between(k, end(last), c.start_ns) and not holds(k, c.offset)
                for k in run.kills
            )
            kept = any(k.at_ns < c.start_ns and holds(k, c.offset) for k in run.kills)
            kept |= committed_at[c.offset] <= c.start_ns
            if kept or not explained:
                outside.add(c.offset)
    succeeded = {c.offset for c in calls if c.outcome == "done"}
    called = {c.offset for c in calls}
    lost = sum(
        (o not in done | run.pending | run.dead and not is_deleted(o))
        or (o in done - run.dead - succeeded and not is_deleted(o))
        or (o in run.dead - called)
        for o in keys
    )
    return {
        "deleted": sum(map(is_deleted, keys)),
        "order_breaks": breaks,
        "overlaps": overlaps,
        "attempts_back": back,
        "repeated": len(repeated),
        "repeated_outside_flight": len(outside),
        "lost": lost,
    }


@st.composite
def any_run(draw: st.DrawFn) -> Run:
    """Random calls, commits and kills: seldom right, always well formed."""
    offsets = st.integers(0, 5)
    keys = draw(st.fixed_dictionaries({o: st.sampled_from([None, b"", A]) for o in range(6)}))
    # Starts differ, as the position of calls that start at one instant means nothing.
    starts = draw(st.lists(st.integers(0, 60), unique=True, max_size=10))
    calls = []
    for start in starts:
        offset = draw(offsets)
        outcome = draw(st.sampled_from(["done", "done", "retry", "reject", None]))
        calls.append(
            call(
                offset,
                start,
                None if outcome is None else start + draw(st.integers(0, 15)),
                key=keys[offset],
                outcome=outcome,
                attempt=draw(st.integers(1, 3)),
                process=draw(st.sampled_from(["7-aa", "8-bb"])),
            )
        )
    some = st.sets(offsets)
    seen = st.builds(
        lambda deletions, commits: Seen(
            commits=[(at, {TP: [(o, o) for o in found]}) for at, found in commits],
            deletions=[Deletion(at, {TP: below}) for at, below in deletions],
        ),
        st.lists(st.tuples(st.integers(0, 60), st.integers(0, 6)), max_size=2),
        st.lists(st.tuples(st.integers(0, 60), some), max_size=2),
    )
    kill = st.builds(
        lambda at, committed, pids: killed(at, *committed, pids=pids),
        st.integers(0, 60),
        some,
        st.sampled_from([None, None, frozenset({7}), frozenset({8})]),
    )
    return Run(
        calls,
        keys,
        draw(some),
        draw(some),
        draw(some),
        draw(st.lists(kill, max_size=3)),
        draw(st.sampled_from([None, 2, 3])),
        draw(st.sampled_from(["key", "key", "partition", "none"])),
        draw(st.none() | seen),
    )


@given(any_run())
@settings(max_examples=examples(1000), deadline=None)
def test_the_checker_counts_what_the_rules_say(run: Run) -> None:
    """On any history the columns come to the same as the rules applied call by call."""
    figures = run.check().as_dict()
    assert {name: figures[name] for name in plainly(run)} == plainly(run)


# -- a small consumer that keeps every promise -------------------------------------------------


def simulate(random: Random) -> Run:
    """A right run: keys in order over slots, failures with retries, dead letters, kills, deletions.

    Of what was deleted only calls that run go on; the log counts it as done.
    """
    size, limit = random.randint(1, 25), random.choice([None, 3])
    keys = {o: random.choice([None, b"", A, B]) for o in sorted(random.sample(range(60), size))}
    fails = {o: random.choice([0, 0, 0, 1, 2, 9 if limit else 2]) for o in keys}
    rejects = {o for o in keys if random.random() < 0.05}
    kills, calls = [], []
    kills_left = random.randint(0, 3)
    settled: dict[int, str] = {}
    committed: set[int] = set()
    attempts = dict.fromkeys(keys, 0)
    running: dict[int, Call] = {}
    gone: set[int] = set()
    deletions: list[Deletion] = []
    # The state that the done call of a record left; it is a number of its own for each call.
    left: dict[int, int] = {}

    def state_of(key: bytes | None, below: float = float("inf")) -> int | None:
        before = [o for o in left if keys[o] == key and o < below]
        return left[max(before)] if before else None

    now = 0
    for _ in range(random.randint(0, size * 10)):
        now += random.randint(1, 9)
        busy = {keys[o] for o in running if keys[o] is not None}
        ready = [
            o
            for o in keys
            if o not in settled
            and o not in running
            and o not in gone
            and (keys[o] is None or keys[o] not in busy)
            and all(
                p in settled or (p in gone and p not in running)
                for p in keys
                if p < o and keys[p] == keys[o] and keys[o] is not None
            )
        ]
        step = random.random()
        if step < 0.4 and ready and len(running) < 4:
            offset = random.choice(ready)
            process = f"{len(kills)}{random.randint(1, 2)}-aa"
            attempt = attempts[offset] + 1
            running[offset] = call(
                offset, now, None, key=keys[offset], attempt=attempt, process=process,
                saw="" if keys[offset] is None else fingerprint(state_of(keys[offset], offset)),
            )  # fmt: skip
        elif step < 0.8 and running:
            offset = random.choice([*running])
            begun = running.pop(offset)
            attempts[offset] += 1
            outcome = "reject" if offset in rejects else "done"
            if attempts[offset] <= fails[offset] and outcome == "done":
                outcome = "retry"
            found = ""
            if outcome == "done" and keys[offset] is not None:
                left[offset] = now
                found = fingerprint(now)
            calls.append(replace(begun, end_ns=now, outcome=outcome, left=found))
            if outcome != "retry" or (limit and attempts[offset] >= limit):
                settled[offset] = outcome
        elif step < 0.83:
            below = random.choice([*keys])
            gone |= {o for o in keys if o < below}
            deletions.append(Deletion(now, {TP: below}))
        elif step < 0.95:
            committed |= {o for o in settled if random.random() < 0.5}
        elif kills_left:
            kills_left -= 1
            calls += running.values()
            running.clear()
            kills.append(killed(now, *committed))
            now += 1
            settled = {o: how for o, how in settled.items() if o in committed}
            left = {o: value for o, value in left.items() if o in committed}
            # What the log had of failed attempts is there again, what it had not yet is not.
            attempts |= {o: random.randint(0, attempts[o]) for o in keys if o not in committed}
    for begun in running.values():
        now += 1
        calls.append(replace(begun, end_ns=now, outcome="retry"))
    dead = {o for o, how in settled.items() if how != "done"}
    done = (set(settled) | gone) - dead
    pending = set(keys) - done - dead
    seen = Seen(deletions=deletions)
    states = {key: state for key in (b"", A, B) if (state := state_of(key)) is not None}
    return Run(calls, keys, done, pending, dead, kills, limit, "key", seen, states)


# A run takes some hundred draws: one seed for all is a hundred times faster than a draw each.
SEEDS = st.integers(0, 2**63).map(Random)


@given(SEEDS)
@settings(max_examples=examples(500), deadline=None)
def test_right_runs_are_right(random: Random) -> None:
    """A consumer that keeps the rules is never blamed, whatever fails and whenever it is killed."""
    run = simulate(random)
    verdict = run.check()
    assert verdict.ok, str(verdict)
    assert (
        verdict.produced == verdict.done + verdict.pending + verdict.dead_lettered == len(run.keys)
    )


def _is_deleted(run: Run, offset: int) -> bool:
    assert run.seen is not None
    return any(offset < deletion.below[TP] for deletion in run.seen.deletions)


def _forgotten(run: Run, random: Random) -> tuple[str, int] | None:
    left = [offset for offset in run.keys if not _is_deleted(run, offset)]
    if not left:
        return None
    offset = random.choice(left)
    for book in (run.done, run.pending, run.dead):
        assert book is not None
        book.discard(offset)
    return "lost", offset


def _done_without_success(run: Run, random: Random) -> tuple[str, int] | None:
    done = [offset for offset in sorted(run.done or ()) if not _is_deleted(run, offset)]
    if not done:
        return None
    offset = random.choice(done)
    run.calls = [c for c in run.calls if (c.offset, c.outcome) != (offset, "done")]
    return "lost", offset


def _repeated_at_the_end(run: Run, random: Random) -> tuple[str, int] | None:
    done = [offset for offset in sorted(run.done or ()) if not _is_deleted(run, offset)]
    if not done:
        return None
    offset = random.choice(done)
    last = max(c.end_ns or c.start_ns for c in run.calls)
    run.calls.append(call(offset, last + 1, last + 2, key=run.keys[offset]))
    return "repeated_outside_flight", offset


def _counted_before_its_deletion(run: Run, random: Random) -> tuple[str, int] | None:
    assert run.seen is not None
    called = {c.offset for c in run.calls}
    gone = [
        offset
        for deletion in run.seen.deletions
        for offset in run.keys
        if offset < deletion.below[TP] and offset not in called
    ]
    if not gone:
        return None
    offset = random.choice(gone)
    run.seen = replace(run.seen, commits=[(0, {TP: [(offset, offset)]})])
    return "lost", offset


def _committed_before_the_kill(run: Run, random: Random) -> tuple[str, int] | None:
    again = [
        (k, c.offset)
        for k in range(len(run.kills))
        for c in run.calls
        if c.start_ns > run.kills[k].at_ns
        and any(d.offset == c.offset and (d.end_ns or run.kills[k].at_ns + 1) <= run.kills[k].at_ns
                and d.outcome == "done" for d in run.calls)
    ]  # fmt: skip
    if not again:
        return None
    index, offset = random.choice(again)
    kill = run.kills[index]
    run.kills[index] = killed(kill.at_ns, offset, *(a for a, _ in kill.committed[TP]))
    return "repeated_outside_flight", offset


def _pairs(run: Run) -> list[tuple[Call, Call]]:
    """Calls of one key and life, of neighbouring records, the later record's first."""
    return [
        (later, earlier)
        for later in run.calls
        for earlier in run.calls
        if later.key == earlier.key is not None
        and earlier.offset < later.offset
        and earlier.outcome == "done"
        and earlier.start_ns < later.start_ns
        and not any(earlier.start_ns <= k.at_ns < later.start_ns for k in run.kills)
    ]


def _too_early(run: Run, random: Random) -> tuple[str, int] | None:
    pairs = [
        (later, earlier)
        for later, earlier in _pairs(run)
        if [c for c in run.calls if c.offset == earlier.offset and c.outcome == "done"] == [earlier]
    ]
    if not pairs:
        return None
    later, earlier = random.choice(pairs)
    run.calls.remove(later)
    # Strictly before any other call of the key at that instant.
    run.calls.append(replace(later, start_ns=earlier.start_ns - 1, end_ns=earlier.start_ns))
    return "order_breaks", later.offset


def _side_by_side(run: Run, random: Random) -> tuple[str, int] | None:
    if not (pairs := _pairs(run)):
        return None
    later, earlier = random.choice(pairs)
    run.calls.remove(earlier)
    run.calls.append(replace(earlier, end_ns=later.start_ns + 1))
    return "overlaps", later.offset


def _same_attempt_twice(run: Run, random: Random) -> tuple[str, int] | None:
    retried = [
        (b, a)
        for a in run.calls
        for b in run.calls
        if a.offset == b.offset
        and a.outcome == "retry"
        and a.attempt + 1 == b.attempt
        and a.start_ns < b.start_ns
        and not any(a.start_ns <= k.at_ns < b.start_ns for k in run.kills)
        and not (run.max_attempts and a.attempt >= run.max_attempts)
    ]
    if not retried:
        return None
    later, earlier = random.choice(retried)
    run.calls.remove(later)
    run.calls.append(replace(later, attempt=earlier.attempt))
    return "attempts_back", later.offset


def _saw_another_state(run: Run, random: Random) -> tuple[str, int] | None:
    """A handler is given a state that nobody left, as after a lost or repeated change."""
    with_state = [i for i, c in enumerate(run.calls) if c.saw]
    if not with_state:
        return None
    i = random.choice(with_state)
    run.calls[i] = replace(run.calls[i], saw=fingerprint(-1))
    return "state_breaks", run.calls[i].offset


def _saw_the_state_before_the_last(run: Run, random: Random) -> tuple[str, int] | None:
    """The change of the record before was not there yet."""
    deletions = run.seen.deletions if run.seen else ()
    pairs = [
        (i, a)
        for i, b in enumerate(run.calls)
        for a in run.calls
        if a.left
        and b.saw == a.left
        and not any(d.at_ns < b.start_ns and a.offset < d.below[TP] for d in deletions)
        and not any(c.offset == a.offset and c is not a and c.outcome != "retry" for c in run.calls)
    ]
    if not pairs:
        return None
    i, before = random.choice(pairs)
    run.calls[i] = replace(run.calls[i], saw=before.saw)
    return "state_breaks", run.calls[i].offset


def _the_last_change_is_lost(run: Run, random: Random) -> tuple[str, int] | None:
    """The state at the end is another one than the last record of a key left."""
    assert run.states is not None
    assert run.done is not None
    last = {c.key: max(run.done & {d.offset for d in run.calls if d.key == c.key and d.left},
                       default=-1) for c in run.calls if c.key is not None}  # fmt: skip
    keys = [key for key, offset in last.items() if offset >= max(0, _first_kept(run))]
    if not keys:
        return None
    key = random.choice(keys)
    assert key is not None
    run.states[key] = -1
    return "state_breaks", last[key]


def _first_kept(run: Run) -> int:
    """The offset from which on nothing was deleted."""
    return max((one.below[TP] for one in run.seen.deletions), default=0) if run.seen else 0


def _done_and_pending(run: Run, random: Random) -> tuple[str, int] | None:
    if not run.done:
        return None
    offset = random.choice(sorted(run.done))
    run.pending.add(offset)
    return "misplaced", offset


PLANTS = (
    _forgotten,
    _done_without_success,
    _repeated_at_the_end,
    _counted_before_its_deletion,
    _committed_before_the_kill,
    _too_early,
    _side_by_side,
    _same_attempt_twice,
    _done_and_pending,
    _saw_another_state,
    _saw_the_state_before_the_last,
    _the_last_change_is_lost,
)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__.strip("_"))
def test_a_fault_planted_in_a_right_run_is_found(
    plant: Callable[[Run, Random], tuple[str, int] | None],
) -> None:
    """Whatever the run, one fault planted in it is found, and a witness names its record."""
    found = 0

    @given(SEEDS)
    @settings(max_examples=examples(150), deadline=None)
    def search(random: Random) -> None:
        nonlocal found
        run = simulate(random)
        planted = plant(run, random)
        if planted is None:
            return
        fault, offset = planted
        finding = run.check().findings[fault]
        assert offset in {witness.offset for witness in finding} or finding.count > 5
        assert finding.count
        found += 1

    search()
    assert found >= 5
