"""A commit table whose storage does not answer is unavailable, and never called damaged."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from commits import (
    CommitLogUnavailable,
    CommitStore,
    CorruptCommitLog,
    PartitionCommits,
    check_table,
    repair_table,
)
from commits.table_files import DiskFiles
from tests.commit_suite import P0, as_written_before, opened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def unmounted(path: Path) -> Iterator[None]:
    """A disk that is not mounted: the folder is missing."""
    away = path.with_name(f"{path.name}-away")
    path.rename(away)
    try:
        yield
    finally:
        if path.exists():
            path.rmdir()
        away.rename(path)


@contextmanager
def empty(path: Path) -> Iterator[None]:
    """A disk that is not mounted: its mount point is an empty folder."""
    with unmounted(path):
        path.mkdir()
        yield


@contextmanager
def broken(path: Path) -> Iterator[None]:
    """Every access is an I/O error: a link to itself."""
    away = path.with_name(f"{path.name}-away")
    path.rename(away)
    path.symlink_to(path)
    try:
        yield
    finally:
        path.unlink()
        away.rename(path)


def table(path: Path) -> Path:
    """The whole table."""
    return path


def log(path: Path) -> Path:
    """Its own log."""
    return path / "_delta_log"


def rows(path: Path) -> Path:
    """Its data files."""
    return path / "segment=0"


OUTAGES = [(unmounted, table), (empty, table), (broken, table), (broken, log), (broken, rows)]


def filled(path: Path) -> CommitStore:
    """A table of an earlier version, with a snapshot and commits after it."""
    store = CommitStore.open(path)
    epoch = opened(store)
    for n in range(4):
        store.commit("g", epoch, "m", {P0: [(2 * n, 2 * n)]})
        if n == 1:
            store.compact()
    as_written_before(path)
    return CommitStore.open(path)


@pytest.mark.parametrize(("outage", "of"), OUTAGES)
def test_an_outage_is_no_damage(
    tmp_path: Path, outage: Callable[[Path], Any], of: Callable[[Path], Path]
) -> None:
    """Every call says that the table is unavailable and can be tried again, none speaks of repair.

    Once the storage answers, the commit is repeated with its id and counts once.
    """
    path = tmp_path / "commits"
    store, stale = filled(path), CommitStore.open(path)
    epoch = store.current_epoch("g")
    assert epoch is not None
    expected = store.state("g")
    store.commit("g", epoch, "m", {P0: [(9, 9)]})

    def commit() -> object:
        return store.commit("g", epoch, "m", {P0: [(1, 1)]}, commit_id="run-1")

    calls: list[Callable[[], object]] = [
        commit, commit, lambda: stale.state("g"), lambda: stale.check("g", epoch, "m"),
        lambda: CommitStore.open(path, create=False), store.compact, lambda: store.history("g"),
        lambda: check_table(path), lambda: repair_table(path),
    ]  # fmt: skip
    if outage is not broken:  # what is not there cannot be distinguished from what never was
        calls = calls[:4]
    elif of is rows:  # the entry has the rows of the last commit
        del calls[2:4]
    with outage(of(path)):
        for call in calls:
            with pytest.raises(CommitLogUnavailable) as caught:
                call()
            assert caught.value.retriable
            assert "repair" not in str(caught.value)
            assert "damaged" not in str(caught.value)
    assert stale.state("g") == store.state("g")
    assert commit() == commit()
    assert expected == {P0: PartitionCommits(1, [(2, 2), (4, 4), (6, 6)])}
    for one in (store, stale, CommitStore.open(path)):
        assert one.state("g") == {P0: PartitionCommits(3, [(4, 4), (6, 6), (9, 9)])}
    assert check_table(path).is_sound


def _calls(path: Path, stale: CommitStore) -> list[Callable[[], object]]:
    return [
        lambda: CommitStore.open(path), lambda: check_table(path), lambda: repair_table(path),
        lambda: stale.state("g"), lambda: stale.history("g"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("of", "calls"),
    [
        ("commits.fold.GroupState.fold", slice(5)),
        ("commits.rows._event", slice(5)),
        ("commits.path_engine.in_version", slice(3)),
        ("commits.snapshot._group_from_event", slice(3)),
        ("pyarrow.concat_tables", slice(3)),
        ("commits.other_groups.rows_of_plain", slice(3, 4)),
    ],
)
def test_a_process_without_memory_is_no_damage(tmp_path: Path, of: str, calls: slice) -> None:
    """Where memory ends while the log is read, it is read from the beginning the next time."""
    path = tmp_path / "commits"
    store, stale = filled(path), CommitStore.open(path)
    epoch = store.current_epoch("g")
    assert epoch is not None
    store.commit("g", epoch, "m", {P0: [(8, 8)]})
    with mock.patch(of, side_effect=MemoryError):
        for call in _calls(path, stale)[calls]:
            with pytest.raises(CommitLogUnavailable, match=r"read failed") as caught:
                call()
            assert "repair" not in str(caught.value)
    assert stale.state("g") == store.state("g") == CommitStore.open(path).state("g")


def test_a_process_without_threads_reads_one_file_after_another(tmp_path: Path) -> None:
    """Only the reads take longer."""
    path = tmp_path / "commits"
    store, stale = filled(path), CommitStore.open(path)
    epoch = store.current_epoch("g")
    assert epoch is not None
    for n in range(20):
        store.commit("g", epoch, "m", {P0: [(10 + 2 * n, 10 + 2 * n)]})
    found = []
    with (
        suppress(RuntimeError),
        mock.patch("threading.Thread.start", side_effect=RuntimeError("can't start new thread")),
    ):
        found = [stale.state("g"), CommitStore.open(path).state("g")]
    assert found == [store.state("g")] * 2


@pytest.mark.parametrize("of", [log, rows])
def test_the_answer_to_a_commit_needs_no_look_at_the_table(
    tmp_path: Path, of: Callable[[Path], Path]
) -> None:
    """Nothing lies between the last version that was read and the one that was created."""
    path = tmp_path / "commits"
    store = filled(path)
    epoch = store.current_epoch("g")
    assert epoch is not None
    engine: Any = store._engine
    append, outage = engine.append, broken(of(path))

    def appended(*args: Any, **more: Any) -> int:
        version = append(*args, **more)
        outage.__enter__()
        return int(version)

    engine.append = appended
    result = store.commit("g", epoch, "m", {P0: [(1, 1)]}, commit_id="run-1")
    engine.append = append
    outage.__exit__(None, None, None)
    assert result[P0].stable_offset == 3
    assert CommitStore.open(path).state("g") == {P0: PartitionCommits(3, [(4, 4), (6, 6)])}


def test_an_outage_while_the_entries_of_others_are_read_is_no_damage(tmp_path: Path) -> None:
    """Whether the commit was written is not known; its repeat counts once."""
    path = tmp_path / "commits"
    store = filled(path)
    epoch = store.current_epoch("g")
    assert epoch is not None
    CommitStore.open(path).commit("g", epoch, "m", {P0: [(3, 3)]})
    for failing in ("read", "create"):
        with (
            mock.patch.object(DiskFiles, failing, side_effect=OSError("away")),
            pytest.raises(CommitLogUnavailable, match="append failed: away"),
        ):
            store.commit("g", epoch, "m", {P0: [(1, 1)]}, commit_id="run-1")
    for one in (store, CommitStore.open(path)):
        one.commit("g", epoch, "m", {P0: [(1, 1)]}, commit_id="run-1")
        assert one.state("g") == {P0: PartitionCommits(5, [(6, 6)])}


def test_an_outage_while_recovering_is_no_damage(tmp_path: Path) -> None:
    """A file that cannot be read for a moment is tried again; one that is gone is damage."""
    path = tmp_path / "commits"
    store = filled(path)
    expected = store.state("g")
    newest = max(rows(path).glob("*.parquet"), key=os.path.getmtime)
    with broken(newest), pytest.raises(CommitLogUnavailable):
        CommitStore.open(path)
    with broken(newest), pytest.raises(CommitLogUnavailable):
        check_table(path)
    assert CommitStore.open(path).state("g") == expected
    newest.rename(tmp_path / "gone")
    with pytest.raises(CorruptCommitLog, match="rows are missing") as caught:
        CommitStore.open(path)
    assert not caught.value.retriable
    assert not check_table(path).is_sound
    for nonsense in (b"", b"PAR1 nonsense PAR1", b"PAR1" + bytes(30) + b"\x08\0\0\0PAR1"):
        newest.write_bytes(nonsense)
        with pytest.raises(CorruptCommitLog, match="rows are missing"):
            CommitStore.open(path)


_WRITES = """
import pyarrow as pa
from commits import CommitStore
from coopconsume.sinks.merge import MergeTable
from coopconsume.sinks.table import Table
from coopconsume.state.table import StateTable
from deltalake import write_deltalake

def append():
    store = CommitStore.open("./commits", cluster="c")
    store.open_epoch("g", {"m": [("t", 0)]}, previous=store.current_epoch("g"))

def output():
    table = Table("rows", pa.schema([("a", pa.int64())]))
    table._append(table._full.empty_table())

def merge():
    table = MergeTable("merged", pa.schema([("a", pa.int64())]))
    row = {name: None for name in table._full.names} | {"_offset": 1}
    table._repeated(lambda: table._merge(pa.Table.from_pylist([row], table._full),
                                         table._full.empty_table()))

def state():
    with StateTable(".", "state").writing():
        write_deltalake("state", pa.table({"a": [1]}), mode="append")

for write in (append, output, merge, state):
    try:
        write()
        print("written")
    except Exception as error:
        print(error)
"""


def _without_rights_of_root() -> None:
    """Lets permissions count for root, too; others may not do this and need not."""
    libc = ctypes.CDLL(None)
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


def _program(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True,
        preexec_fn=_without_rights_of_root,
    )  # fmt: skip


def test_a_folder_that_nobody_may_write_to_is_a_sentence_and_no_dump(tmp_path: Path) -> None:
    """Where deltalake finds it out, a thread of its Rust library panics on standard error."""
    assert _program(_WRITES, tmp_path).stdout.splitlines() == ["written"] * 4
    folders = [path for path in tmp_path.rglob("*") if path.is_dir()]
    for folder in folders:
        folder.chmod(0o555)
    try:
        refused = _program(_WRITES, tmp_path)
    finally:
        for folder in folders:
            folder.chmod(0o755)
    said = refused.stdout.splitlines()
    assert len(said) == 4
    assert all("permission denied" in line.lower() for line in said), said
    assert refused.stderr == ""


@pytest.mark.parametrize(
    ("disk", "said"),
    [
        ({"f_flag": os.ST_RDONLY}, "the file system is read-only"),
        ({"f_bavail": 1, "f_bfree": 1}, "the disk is full"),
        ({"f_blocks": 0, "f_bavail": 0, "f_bfree": 0}, ""),
    ],
)
def test_a_disk_that_takes_nothing_is_found_before_the_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: dict[str, int], said: str
) -> None:
    """A file system that does not say how large it is counts as one with space."""
    store = CommitStore.open(tmp_path / "commits")
    found = os.statvfs(tmp_path)
    names = ("f_frsize", "f_blocks", "f_bavail", "f_bfree", "f_flag")
    facts = {name: getattr(found, name) for name in names} | disk
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(**facts))
    if not said:
        opened(store)
        return
    with pytest.raises(CommitLogUnavailable, match=said):
        opened(store)
    monkeypatch.undo()
    opened(store)
