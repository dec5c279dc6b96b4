"""Lost slots excuse repeats of what their workers had not committed, and nothing else."""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING
from unittest.mock import MagicMock

from coopconsume.demo.lost_slots import LostSlot, excuses
from coopconsume.demo.report import repeated_after
from coopconsume.demo.text import lost_slot_lines
from coopconsume.monitoring import JsonFormatter
from coopconsume.runtime.settle import lost_slots
from coopconsume.testing.history import History
from coopconsume.worker.report import SlotEnd, SlotReport
from tests.model.checker_runs import OTHER, TP, B, Run, call, killed

if TYPE_CHECKING:
    import pytest

    from coopconsume.testing.history import Call, Verdict

OVERDUE = "the handler of flights-0@2 did not end in time"

#: A worker handles two records; its third call does not end in time, and the worker is ended.
CALLS = [
    call(0, 0, 5),
    call(1, 6, 9),
    call(2, 10, None),
    call(0, 40, 42, process=OTHER),
    call(1, 43, 45, process=OTHER),
    call(2, 46, 48, process=OTHER, attempt=2),
]


def ended(*committed: int, pid: int = 7, at: int = 30, until: int = 30) -> LostSlot:
    """A lost slot, with the offsets of partition 0 that were committed."""
    return LostSlot(3, pid, OVERDUE, at, until, {TP: [(o, o) for o in committed]})


def verdict(calls: list[Call], *lost: LostSlot) -> Verdict:
    """Returns what the checker finds with the facts about lost slots."""
    kills, seen = excuses(lost)
    return Run(calls, kills=kills, seen=seen).check()


def test_a_worker_that_was_ended_excuses_what_it_had_not_committed() -> None:
    """Its open call ended with it, and what it had not reported is handled again."""
    found = verdict(CALLS, ended())
    assert found.ok, str(found)
    assert found.repeated.count == 2
    assert repeated_after(History.of(CALLS), ended()) == 2


def test_without_the_fact_the_same_history_fails() -> None:
    """Nothing says that the worker has ended."""
    assert set(verdict(CALLS).faults) == {"overlaps", "repeated_outside_flight"}
    other = verdict(CALLS, ended(pid=9))
    assert other.repeated_outside_flight.count == 2


def test_a_repeat_of_a_committed_record_is_not_excused() -> None:
    """It was committed before its worker ended."""
    found = verdict(CALLS, ended(0))
    assert set(found.faults) == {"repeated_outside_flight"}
    assert [witness.offset for witness in found.repeated_outside_flight] == [0]


def test_a_repeat_before_the_worker_ended_is_not_excused() -> None:
    """Another process handled the record while the worker was alive."""
    calls = [*CALLS, call(7, 1, 4, key=B), call(7, 20, 22, key=B, process=OTHER)]
    found = verdict(calls, ended())
    assert [witness.offset for witness in found.repeated_outside_flight] == [7]


def test_a_kill_of_the_job_does_not_excuse_what_a_lost_slot_does_not() -> None:
    """Repeats before the kill are those of the lost slot alone."""
    kills, seen = excuses([ended(0, 1)])
    found = Run(CALLS, kills=[*kills, killed(60, 0, 1, 2)], seen=seen).check()
    assert found.repeated_outside_flight.count == 2


def test_of_a_slot_that_never_reported_the_worker_may_go_on() -> None:
    """What it had begun by the end of its time is excused, if its process is known."""
    calls = [call(0, 0, 5), call(1, 32, 33, key=B)]
    calls += [call(0, 60, 62, process=OTHER), call(1, 60, 61, key=B, process=OTHER)]
    assert verdict(calls, ended(until=50)).ok
    assert verdict(calls, ended(until=31)).repeated_outside_flight.count == 1
    assert verdict(calls, ended(1, until=50)).repeated_outside_flight.count == 1
    assert verdict(calls, ended(pid=0, until=50)).repeated_outside_flight.count == 2


def test_a_lost_slot_is_known_from_its_line_in_the_log_of_the_job(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With what was committed then, and when it was logged on the clock of the history."""
    report = SlotReport(0, 3, pid=7, end=SlotEnd(crashed=True, overdue=True, suspects=[(0, 2)]))
    before = time.monotonic_ns()
    with caplog.at_level(logging.WARNING):
        lost_slots.log_ended_worker(report, [("flights", 0)])
        lost_slots.log_lost_slot(4, 8, 7.0)
    after = time.monotonic_ns()
    committed = {("t", 1): [(0, 4), (6, 6)]}
    lines = map(json.loads, map(JsonFormatter().format, caplog.records))
    one, other = (LostSlot.of(line, committed) for line in lines)
    assert (one.slot, one.pid, one.reason, one.has_ended) == (3, 7, OVERDUE, True)
    assert (other.slot, other.pid, other.has_ended) == (4, 8, False)
    assert other.until_ns - other.at_ns == 7 * 10**9
    assert one.committed == other.committed == committed
    # The time of a line has milliseconds.
    assert before - 10**7 < one.at_ns <= other.at_ns < after + 10**7


def test_the_report_names_lost_slots() -> None:
    """With the worker, why it ended, and what was repeated."""
    report = MagicMock(lost_slots=((ended(), 95), (ended(until=50), 2)))
    first, second = lost_slot_lines(report)
    assert first == (
        "  lost slot             95  repeated, as slot 3 was lost: its worker, process 7, has "
        f"ended: {OVERDUE}"
    )
    assert second == "  lost slot              2  repeated, as slot 3 was lost"
