"""The checker itself: every fault is found with its witness, and no right history is blamed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from coopconsume.testing.history import (
    History,
    Seen,
    check,
)
from tests.model.checker_runs import OTHER, TP, A, B, Run, call, deleted, disturbed, killed

if TYPE_CHECKING:
    pass


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
