"""The steps of the demo, without its processes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest

from coopconsume.demo import report as reports
from coopconsume.demo.job import DemoFailed, JobProcess, Query
from coopconsume.demo.runner import Demo
from coopconsume.demo.text import BlockerLines, progress_line, summary_lines
from coopconsume.option_names import COMMAND_CONFIG
from coopconsume.testing.history import History
from tests.model.checker_runs import call

if TYPE_CHECKING:
    from pathlib import Path


def test_a_restart_after_a_kill_that_came_too_late_has_nothing_to_do() -> None:
    """All flights were done by then: the job ends without a progress event."""
    screen, job = MagicMock(), MagicMock()
    job.events.return_value = iter([{"msg": "query started", "context": {"query": {}}}])
    Demo(screen)._finish(job, time.monotonic(), done=5_000)
    assert "processed the other 0 flights" in screen.line.call_args.args[0]


def test_a_job_that_ends_before_its_kill_fails_the_demo() -> None:
    """There would be nothing to show of a kill."""
    job = MagicMock()
    job.events.return_value = iter([{"msg": "query terminated"}])
    job.fail.side_effect = DemoFailed("it ended")
    with pytest.raises(DemoFailed):
        Demo(MagicMock())._follow(job, until=5_000)


def test_a_job_that_fails_ends_the_demo_with_the_last_lines_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason is in the log of the job, which is deleted with the demo's folder.

    It is not that of a file of options: those of the user's own cluster do not reach the job.
    """
    monkeypatch.setenv(COMMAND_CONFIG, "/nowhere")
    job = JobProcess(Query("g", str(tmp_path)), "", "flights", "job.log")
    with pytest.raises(DemoFailed, match=r"(?s)exit code 2\nLast lines .*kafka.bootstrap.servers"):
        list(job.events())
    assert job.kill() == 0


def verdict(**values: Any) -> MagicMock:
    """A verdict of a run without faults, unless values say otherwise."""
    counts = {"produced": 100, "done": 98, "dead_lettered": 2, "calls": 120, **values}
    named = ("repeated", "repeated_outside_flight", "order_breaks")
    faults = {name: MagicMock(count=counts.pop(name, 0)) for name in named}
    return MagicMock(in_flight_at_kill=(7, 3), **counts, **faults)


def test_the_last_screen_says_what_was_killed_repeated_and_lost() -> None:
    """In sentences, for a reader who knows no term of the report."""
    report = MagicMock(verdict=verdict(repeated=9), lost=0, next_call=6.54)
    assert summary_lines(report, passed=True) == [
        "",
        "  Killed:        the whole job; 10 flights were started and not committed.",
        "  Started again: with the same command; next flight after 6.5 s.",
        "  Repeated:      9 flights, 0 of them not in flight at the kill.",
        "  Lost:          0 of 100 flights.",
        "  Done:          98 flights, each with one output row.",
        "  Dead letters:  2 flights, which failed 3 times.",
        "  Out of order:  0 of 120 handler calls.",
        "  Checks:        all passed.",
    ]
    assert summary_lines(report, passed=False)[-1].endswith("some failed.")


def test_the_time_to_the_next_call_is_that_after_the_kill() -> None:
    """Not of a call before it, and not of the clock."""
    history = History.of([call(0, 10 * 10**9, 11 * 10**9), call(1, 23 * 10**9, 24 * 10**9)])
    assert reports.seconds_to_next_call(history, 20 * 10**9) == 3.0
    assert reports.seconds_to_next_call(history, 24 * 10**9) == 0.0


def test_a_demo_that_waits_says_for_what() -> None:
    """A job that has been killed begins with a wait for its own lease: not 0/s without a reason."""
    why = {"reason": "lostMember", "message": "waiting for a lost member until 12:00:00 (5 s)"}
    progress = {"slots": [{"handled": 3}, {"handled": 1_000}], "waitingFor": why}
    line = progress_line(progress, 500, 1_000, 0.0)
    assert line.endswith(
        "500 of 1,000 flights, 0/s, by slot: 3 1,000; waiting for a lost member until 12:00:00 "
        "(5 s)"
    )
    assert progress_line(progress | {"waitingFor": None}, 0, 1, 0.0).endswith("by slot: 3 1,000")


def test_a_failed_record_is_named_only_where_the_stable_offset_stands() -> None:
    """What is done below it may not be committed yet."""
    at = {
        "topic": "flights", "partition": 0, "stableOffset": 5, "highestDone": 90,
        "gapRanges": 2, "firstGaps": [[5, 5], [40, 40]],
    }  # fmt: skip
    failed = {
        "offset": 40, "attempts": 1, "key": "N2", "error": "poison", "dueInSeconds": None,
        "behind": 3,
    }  # fmt: skip
    lines = BlockerLines({("flights", 0): {5: b"N1", 40: b"N2"}}, "SLOW")
    lines.look([{**at, "blocker": failed}])
    assert lines.lines() == []
    lines.look([{**at, "stableOffset": 40, "firstGaps": [[40, 40]], "blocker": failed}])
    (line,) = lines.lines()
    assert "stable offset 40" in line
    assert "N2 blocks it: poison" in line
