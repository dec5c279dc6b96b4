"""The steps of the demo, without its processes."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING
from unittest.mock import MagicMock

from coopconsume.demo.job import Query
from coopconsume.demo.runner import Demo
from coopconsume.demo.text import BlockerLines, progress_line

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_restart_after_a_kill_that_came_too_late_has_nothing_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All flights were done by then: the query ends without a progress event."""
    screen, job = MagicMock(), MagicMock()
    job.events.return_value = iter({"event": name, "run": 0} for name in ("started", "ended"))
    monkeypatch.setattr(Demo, "_start", lambda *_: job)
    query = Query("failing", str(tmp_path), window=10, batch_time=1.0)
    Demo(screen)._start_again(ExitStack(), tmp_path, query, done=5_000)
    assert "processed the other 0 flights" in screen.line.call_args.args[0]
    job.kill.assert_called_once_with()


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
