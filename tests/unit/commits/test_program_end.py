"""A program may end while threads of the library write to tables."""

from __future__ import annotations

import subprocess
import sys
import threading
from types import FunctionType
from typing import TYPE_CHECKING

import pytest

from commits import program_end
from commits.path_engine import PathEngine
from coopconsume.fenced.ownership.delta_store import DeltaStore
from coopconsume.sinks.letters import DeadLetterTable
from coopconsume.sinks.merge import MergeTable
from coopconsume.sinks.purgatory import Purgatory
from coopconsume.sinks.table import OutputTable
from coopconsume.state.changelog import Changelog
from coopconsume.state.snapshots import Snapshots

if TYPE_CHECKING:
    from pathlib import Path

#: It ends with the exit code of its own, while a thread renews a claim without a pause; what is to
#: be done at its end takes a while.
_PROGRAM = """
import atexit
import sys
import time

atexit.register(time.sleep, 0.2)
from commits import CommitStore
from coopconsume.group.claims import ClaimKeeper

store = CommitStore.open(sys.argv[1])
epoch = store.claim("g", "m", [("t", 0)], topic_ids={"t": "id"})
keeper = ClaimKeeper(store, "g", epoch, "m", 0.0)
time.sleep(0.3)
sys.exit(7)
"""


def test_a_program_ends_with_its_own_exit_code(tmp_path: Path) -> None:
    """A thread that came back from native code meanwhile would crash it (139)."""
    for n in range(3):
        table = str(tmp_path / str(n))
        ended = subprocess.run([sys.executable, "-c", _PROGRAM, table], check=False, timeout=120)
        assert ended.returncode == 7


@pytest.mark.parametrize("is_away", [False, True])
def test_the_end_waits_for_a_call_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_away: bool
) -> None:
    """A storage that does not answer must not keep a program."""
    call = compile("began.set(); answers.wait()", f"{program_end._PLACES[0]}/table.py", "exec")
    began, answers = threading.Event(), threading.Event()
    thread = threading.Thread(target=exec, args=(call, {"began": began, "answers": answers}))
    thread.start()
    assert began.wait(60)
    monkeypatch.setattr(program_end, "_LONGEST", 0.0 if is_away else 60.0)
    ending = threading.Thread(target=program_end._wait_for_calls)
    try:
        ending.start()
        ending.join(60 if is_away else 0.1)
        assert ending.is_alive() is not is_away
        answers.set()
        ending.join(60)
        assert not ending.is_alive()
        assert bool(caplog.messages) is is_away
    finally:
        answers.set()
        thread.join(60)
        program_end._ending.clear()


@pytest.mark.parametrize(
    "table",
    [
        PathEngine, DeltaStore, DeadLetterTable, MergeTable, OutputTable, Purgatory, Changelog,
        Snapshots,
    ],
)  # fmt: skip
def test_threads_work_on_every_kind_of_table_by_such_calls(table: type) -> None:
    """Otherwise an end waits for a call, and the next one begins."""
    methods = {name: f for name, f in vars(table).items() if isinstance(f, FunctionType)}
    public = {name for name in methods if not name.startswith("_")}
    assert public
    assert all(hasattr(methods[name], "__wrapped__") for name in public)
