"""Offsets that are set back together with the state: what is left, and what a crash leaves."""

from __future__ import annotations

import shutil
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from assignors import KeyRange
from commits import FencedMember
from commits.table_appender import TableAppender
from coopconsume.errors import (
    OutputNotWritten,
    ResetNotFinished,
    StateAhead,
    StateNotChosen,
    StateNotReadable,
)
from coopconsume.runtime.commit.state_log import StateLog
from coopconsume.state.note import StateNote, begin_with_state
from coopconsume.state.resetting import StateReset
from coopconsume.state.store import LocalStore
from tests.unit.state.test_state_reading import ORIGIN, PLACE, Job

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Disk(Exception):
    """A write that fails."""


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A job that has loaded its state."""
    job = Job(tmp_path)
    begin(job)
    return job


def begin(job: Job, log: StateLog | None = None) -> Any:
    """A new epoch of the job begins with the state, or is refused; returns what it owns."""
    job.open_epoch()
    owned = SimpleNamespace(
        ranges=(KeyRange(),), stable=job.offset, committed=Below(job.offset), owns_first=True
    )
    assignment: Any = SimpleNamespace(
        options=SimpleNamespace(group_id="g", ordering_key=None),
        cluster=SimpleNamespace(cluster_id="c"),
        store=job.store, topic_ids={"t": ORIGIN.topic_id}, owned={PLACE: owned},
        proof=SimpleNamespace(check=lambda within: None),
        begin_with_state=lambda found: begin_with_state(job.store, "g", "c", "m", found),
    )  # fmt: skip
    log = log or StateLog(job.changelog.path, job.changelog.schema)
    try:
        log.begin(assignment)
    finally:
        log.close()
    return assignment


class Below:
    """All offsets below one."""

    def __init__(self, offset: int) -> None:
        self.offset = offset

    def __contains__(self, offset: int) -> bool:
        return offset < self.offset


def planned(job: Job, below: int) -> StateReset:
    """A reset of the state of the partition."""
    return StateReset(None, job.store, "c", "g", {PLACE: below})


def reset(job: Job, below: int, *, to: int | None = None) -> None:
    """Sets offsets and state back."""
    planned(job, below).execute(offsets(job, below if to is None else to))


def offsets(job: Job, to: int) -> Callable[[], None]:
    """Returns what sets the offsets back."""

    def change() -> None:
        job.store.reset("g", {PLACE: to})

    return change


def values(job: Job) -> dict[str, int]:
    """The state by key."""
    rows = job.committed().rows().to_pylist()
    return {row["key"].decode(): row["value"] for row in rows}


def test_the_state_goes_back_with_the_offsets(job: Job) -> None:
    """Also in local stores, and what is done again changes it again."""
    job.change("w-0", a=1, b=1)
    job.change("w-1", a=2, b=None, d=5)
    store = LocalStore(job.changelog, ORIGIN, str(job.folder / "stores"))
    everything = [(0, KeyRange().last)]

    def stored(key: bytes) -> int | None:
        counted = job.store.counted_commits("g")
        store.bring_up_to_date(everything, job.changelog.version, counted.__contains__)
        found: int | None = store.get(key)
        return found

    assert [stored(key) for key in (b"a", b"b", b"d")] == [2, None, 5]
    assert planned(job, 2).moves[PLACE] == (2, 2, 2)
    job.store.reset("g", {PLACE: 2})
    with pytest.raises(StateAhead, match="--restore-state"):
        begin(job)
    reset(job, 2)
    assert values(job) == {"a": 1, "b": 1}
    assert [stored(key) for key in (b"a", b"b", b"d")] == [1, 1, None]
    begin(job)
    job.change("w-2", a=3)
    assert values(job) == {"a": 3, "b": 1}
    assert stored(b"a") == 3
    reset(job, 0)
    begin(job)
    assert (values(job), stored(b"a"), job.offset) == ({}, None, 0)
    store.close()


def test_an_offset_whose_changes_were_removed_is_refused(job: Job) -> None:
    """Nothing is changed then; the state can still be removed."""
    job.change("w-0", a=1)
    first = job.snapshot()
    job.change("w-1", a=2, b=1)
    second = job.snapshot(first)
    job.change("w-2", a=3)
    job.snapshot(second)
    assert planned(job, 3).moves[PLACE] == (3, 2, 2)
    with pytest.raises(StateNotReadable, match="below offset 3"):
        planned(job, 1)
    reset(job, 3)
    assert values(job) == {"a": 2, "b": 1}
    begin(job)
    reset(job, 0, to=3)
    begin(job)
    assert values(job) == {}
    with pytest.raises(StateNotReadable, match="were removed"):
        job.committed().diff("w-1")


class Faults:
    """Lets the n-th write to any table fail, before or after it took place."""

    def __init__(self, at: int, *, after: bool) -> None:
        self.left, self.after = at, after

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the call with the fault."""

        def run(*args: Any, **kwargs: Any) -> Any:
            self.left -= 1
            if self.left == 0 and not self.after:
                raise Disk
            found = call(*args, **kwargs)
            if self.left == 0:
                raise Disk
            return found

        return run


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("below", [0, 3])
def test_a_reset_that_is_interrupted_anywhere_is_finished_by_a_repeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: int, *, after: bool
) -> None:
    """Until then no job begins, or nothing had changed."""
    job = Job(tmp_path / "first")
    begin(job)
    job.change("w-0", a=1, b=1)
    job.snapshot()
    job.change("w-1", c=1)
    job.snapshot()
    job.change("w-2", a=2, b=None, d=5)
    before, offset, expected = values(job), job.offset, {"a": 1, "b": 1, "c": 1}
    for at in range(1, 9):
        shutil.copytree(tmp_path / "first", tmp_path / str(at))
        job = Job(tmp_path / str(at))
        begin(job)
        plan = planned(job, below)
        faults = Faults(at, after=after)
        with monkeypatch.context() as patch, suppress(Disk, OutputNotWritten):
            patch.setattr("deltalake.write_deltalake", faults.around(_write_deltalake()))
            patch.setattr(TableAppender, "append", faults.around(TableAppender.append))
            patch.setattr(DeltaTable, "delete", faults.around(DeltaTable.delete))
            patch.setattr(job.store, "set_setting", faults.around(job.store.set_setting))
            plan.execute(faults.around(offsets(job, below)))
        try:
            begin(job)
        except ResetNotFinished:
            reset(job, below)
            begin(job)
        if job.offset == offset:
            assert (at, values(job)) == (1, before)
        else:
            assert (job.offset, values(job)) == (below, expected if below else {})
    assert faults.left > 0


def _write_deltalake() -> Callable[..., Any]:
    from deltalake import write_deltalake

    return write_deltalake


def test_the_commit_table_notes_the_state_of_a_group(job: Job) -> None:
    """So that a reset asks for it, and finds it."""
    assert StateNote.of(job.store, "g").path == job.changelog.path
    assert StateNote.of(job.store, "another") == StateNote()
    with pytest.raises(StateNotChosen, match="does not note"):
        StateReset(None, job.store, "c", "another", {PLACE: 0})


def test_a_snapshot_before_a_reset_trims_nothing(job: Job) -> None:
    """Records below its stable offset change the state again, after its version."""
    log = StateLog(job.changelog.path, job.changelog.schema)
    job.change("w-0", a=1, b=1)
    log.snapshot(begin(job, log), PLACE)
    assignment = begin(job, log)
    assert [below for _, below, *_ in log._snapshots.values()] == [2]
    reset(job, 1)
    assignment = begin(job, log)
    assert log._snapshots == {}
    job.change("w-1", b=2)
    log.snapshot(assignment, PLACE)
    assert values(job) == {"a": 1, "b": 2}


@pytest.mark.parametrize("is_late", [False, True])
def test_a_snapshot_that_outlives_its_epoch_changes_nothing(job: Job, *, is_late: bool) -> None:
    """Neither before it is written nor after; the changes since the reset are kept."""
    log = StateLog(job.changelog.path, job.changelog.schema)
    job.change("w-0", a=1, b=1, c=1)
    log.snapshot(begin(job, log), PLACE)
    assignment = begin(job, log)
    job.change("w-1", a=2)
    over: list[int] = []
    write = log._changelog.write_snapshot

    def slow(*given: Any, check: Callable[[], object], **more: Any) -> int:
        def reset_meanwhile(below: int) -> None:
            reset(job, below)
            begin(job)
            job.change("w-2", b=10, c=10)
            over.append(1)

        if not is_late:
            reset_meanwhile(1)
        keys = write(*given, check=check, **more)
        if is_late:
            reset_meanwhile(0)
        return keys

    def check(within: float) -> None:
        assert within == 0
        if over:
            raise FencedMember("g", "m", None, None, "the epoch is over")

    log._changelog.write_snapshot = slow  # type: ignore[method-assign]
    assignment.proof.check = check
    with pytest.raises(FencedMember):
        log.snapshot(assignment, PLACE)
    assert values(job) == {"b": 10, "c": 10} | ({} if is_late else {"a": 1})


def test_rows_that_are_written_while_others_are_removed_are_kept(job: Job) -> None:
    """Whatever their offsets: nothing is removed then."""
    job.change("w-0", a=1, b=1)
    version, below = job.snapshot()

    def write() -> None:
        job.offset = 0
        job.change("w-1", a=2, b=2, counts=False)

    with pytest.raises(OutputNotWritten, match="concurrent"):
        job.changelog.trim(ORIGIN, below, version, check=write)
    everything = [(0, KeyRange().last)]
    kept = job.changelog.changes(ORIGIN, job.changelog.version, everything, above=-1)
    assert sorted(kept.column("value").to_pylist()) == [1, 1, 2, 2]


def test_an_interrupted_reset_is_repeated_with_its_state(job: Job, tmp_path: Path) -> None:
    """Not with another one, which would leave the first as it is."""
    job.change("w-0", a=1, b=1)

    def interrupted() -> None:
        raise Disk

    with pytest.raises(Disk):
        planned(job, 1).execute(interrupted)
    shutil.copytree(job.changelog.path, tmp_path / "copy")
    with pytest.raises(ResetNotFinished):
        StateReset(str(tmp_path / "copy"), job.store, "c", "g", {PLACE: 1})
    reset(job, 1)
    assert values(job) == {"a": 1}
