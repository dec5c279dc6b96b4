"""A commit table that does not answer says for how long, to any thread and without a look."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from commits import (
    CommitLogUnavailable,
    CommitStore,
    CorruptCommitLog,
    FencedMember,
    silence,
)
from tests.commit_suite import P0, opened
from tests.unit.commits.test_commit_outage import broken

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of the clock that silence is measured by."""
    found = [100.0]
    monkeypatch.setattr(silence, "time", SimpleNamespace(monotonic=lambda: found[0]))
    return found


def test_an_outage_is_said_from_its_first_call_to_the_next_answer(
    tmp_path: Path, now: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    """With its cause; a short one is not worth a word."""
    store = CommitStore.open(tmp_path / "commits")
    epoch = opened(store)
    calls: list[Callable[[], object]] = [
        lambda: store.state("g"), lambda: store.commit("g", epoch, "m", {P0: [(0, 0)]}),
    ]  # fmt: skip
    assert store.unanswered == ""
    with broken(tmp_path / "commits"):
        for call in calls:
            with pytest.raises(CommitLogUnavailable):
                call()
            now[0] += 2.0
            assert store.unanswered == ("" if call is calls[0] else f"for 4 s: {_problem(call)}")
    now[0] += 8.0
    assert store.unanswered.startswith("for 12 s: ")
    for call in calls:
        call()
        assert store.unanswered == ""
    assert caplog.text.count("has answered again, after 12 s") == 1


def _problem(call: Callable[[], object]) -> str:
    with pytest.raises(CommitLogUnavailable) as caught:
        call()
    return caught.value.problem


def test_a_refusal_is_an_answer(tmp_path: Path, now: list[float]) -> None:
    """As is damage, or any other error than that the table does not answer."""
    store = CommitStore.open(tmp_path / "commits")
    old = opened(store)
    opened(store, previous=old)
    with pytest.raises(FencedMember):
        store.commit("g", old, "m", {P0: [(0, 0)]})
    now[0] += 60.0
    assert store.unanswered == ""
    newest = tmp_path / "commits" / "_delta_log" / f"{store.version() + 1:020d}.json"
    newest.write_text("nonsense")
    with pytest.raises(CorruptCommitLog):
        store.state("g")
    now[0] += 60.0
    assert store.unanswered == ""


def test_a_request_that_hangs_is_said_while_it_hangs(
    tmp_path: Path, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asking does not wait for it, and needs no lock that it holds."""
    store: Any = CommitStore.open(tmp_path / "commits")
    is_asked, may_end = threading.Event(), threading.Event()
    refresh = store._engine.refresh

    def hangs(**how: Any) -> int:
        is_asked.set()
        assert may_end.wait(60)
        return int(refresh(**how))

    monkeypatch.setattr(store._engine, "refresh", hangs)
    thread = threading.Thread(target=store.state, args=("g",))
    thread.start()
    assert is_asked.wait(60)
    now[0] += 7.0
    assert store.unanswered == "for 7 s: a request to it is under way"
    may_end.set()
    thread.join()
    assert store.unanswered == ""
