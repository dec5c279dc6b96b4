"""Turns of the writers on one host: who has none goes on without, and nobody needs one."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from commits import CommitStore, PartitionCommits, turns
from commits.delta_log import DeltaLog
from commits.places import taking_turns
from commits.table_files import DiskFiles, entry_name
from commits.turns import Turn
from tests.commit_suite import P0, opened

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from multiprocessing.connection import Connection
    from pathlib import Path

_PATIENCE = 120  # seconds after which a writer that waits for its turn hangs
_SPAWN = multiprocessing.get_context("spawn")


def _log(folder: Path) -> DeltaLog:
    """The log of a table that may have no entry yet."""
    files = DiskFiles(str(folder))
    files.prepare()
    files.create(entry_name(0), b'{"commitInfo":{"operation":"CREATE TABLE"}}')
    return DeltaLog(files, "t", 0)


def _append(log: DeltaLog, token: str, content: bytes = b"rows") -> int:
    return log.append([{"add": {"path": token}}], {}, token, files={token: content})


def _hold(folder: Path, pipe: Connection) -> None:
    """A writer that has the turn until it hears something; then it appends in it."""
    turn = Turn(folder)
    pipe.send(turn.take(0))
    if pipe.recv() == "append":
        files = DiskFiles(str(folder))
        log = DeltaLog(files, "t", 0)
        log._put([{"add": {"path": "theirs"}}], {}, "theirs", {}, "Append", lambda _: False)
    turn.end()
    pipe.send(turn.take(0))


@contextmanager
def _holder(folder: Path) -> Iterator[tuple[Any, Connection]]:
    """A process that has the turn of a table."""
    ours, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=_hold, args=(folder, theirs), daemon=True)
    process.start()
    try:
        assert ours.recv() is True
        yield process, ours
    finally:
        process.kill()
        process.join()


def _waiting(folder: Path, log: DeltaLog, pool: ThreadPoolExecutor) -> Any:
    """Start an append; return when it waits for its turn, with its rows written."""
    is_waiting = threading.Event()
    take = log._files._turn.take  # type: ignore[attr-defined]

    def noted(within: float = _PATIENCE) -> bool:
        if within:
            is_waiting.set()
        found: bool = take(within)
        return found

    log._files._turn.take = noted  # type: ignore[attr-defined]
    answer = pool.submit(_append, log, "ours")
    assert is_waiting.wait(_PATIENCE)
    assert (folder / "ours").read_bytes() == b"rows"
    return answer


def test_a_writer_waits_for_its_turn_and_loses_no_race(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are written meanwhile, and its entry once, behind that of the other one."""
    log, created = _log(tmp_path), []
    create = DiskFiles.create

    def noted(self: DiskFiles, name: str, data: bytes, files: Mapping[str, bytes]) -> bool:
        created.append((name, [*files]))
        return create(self, name, data, files)

    monkeypatch.setattr(DiskFiles, "create", noted)
    with _holder(tmp_path) as (_, holder), ThreadPoolExecutor(1) as pool:
        answer = _waiting(tmp_path, log, pool)
        assert not answer.done()
        holder.send("append")
        assert answer.result(_PATIENCE) == 2
    assert created == [(entry_name(2), [])]
    assert _append(log, "later") == 3
    assert created[1:] == [(entry_name(3), ["later"])], "alone, all is written together"


def test_a_killed_writer_has_no_turn(tmp_path: Path) -> None:
    """The kernel gives it to the next one."""
    log = _log(tmp_path)
    with _holder(tmp_path) as (process, _), ThreadPoolExecutor(1) as pool:
        answer = _waiting(tmp_path, log, pool)
        assert not answer.done()
        os.kill(process.pid, signal.SIGKILL)
        assert answer.result(_PATIENCE) == 1


def test_a_frozen_writer_holds_up_each_other_one_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go on without turns, and have turns again once it goes on."""
    log = _log(tmp_path)
    tries: list[bool] = []
    lock = turns.lock

    def noted(folder: int, within: float) -> bool:
        tries.append(within > 0)
        return lock(folder, within)

    monkeypatch.setattr(turns, "lock", noted)
    with _holder(tmp_path) as (process, holder):
        os.kill(process.pid, signal.SIGSTOP)
        assert [_append(log, f"a{n}") for n in range(3)] == [1, 2, 3]
        assert tries.count(True) == 1
        os.kill(process.pid, signal.SIGCONT)
        holder.send("end")
        assert holder.recv() is True
        process.kill()
        process.join()
        assert _append(log, "b") == 4
    with _holder(tmp_path):
        tries.clear()
        assert _append(log, "c") == 5
    assert tries == [False, True], "it waits again"


def test_a_process_that_was_forked_in_a_turn_does_not_keep_it(tmp_path: Path) -> None:
    """It has the folder open for as long as it runs."""
    mine, other = Turn(tmp_path), Turn(tmp_path)
    assert mine.take(0)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    try:
        assert not other.take(0)
        mine.end()
        assert other.take(0)
    finally:
        os.write(writer, b".")
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("problem", [errno.ENOLCK, errno.EBADF, errno.EOPNOTSUPP])
def test_a_folder_without_locks_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: int
) -> None:
    """File systems of a network may have none; who creates an entry has it all the same."""

    def refused(*_: object) -> None:
        raise OSError(problem, os.strerror(problem))

    monkeypatch.setattr(turns.fcntl, "flock", refused)
    before = len(os.listdir("/proc/self/fd"))
    logs = [_log(tmp_path), DeltaLog(DiskFiles(str(tmp_path)), "t", 0)]
    assert [_append(logs[n % 2], f"a{n}") for n in range(4)] == [1, 2, 3, 4]
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_folder_that_is_missing_is_said_by_the_append(tmp_path: Path) -> None:
    """It cannot be opened for a lock either."""
    log = _log(tmp_path / "table")
    (tmp_path / "table").rename(tmp_path / "gone")
    with pytest.raises(FileNotFoundError):
        _append(log, "a")
    (tmp_path / "gone").rename(tmp_path / "table")
    assert _append(log, "a") == 1


def test_a_turn_ends_before_the_folder_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others see the entry then, and need not wait for the disk."""
    log, other, free = _log(tmp_path), Turn(tmp_path), []
    link, sync = os.link, DiskFiles._sync

    def linked(source: Any, target: Any) -> None:
        free.append(other.take(0))
        link(source, target)

    def synced(self: DiskFiles, folder: Path) -> None:
        free.append(other.take(0))
        other.end()
        sync(self, folder)

    monkeypatch.setattr(os, "link", linked)
    monkeypatch.setattr(DiskFiles, "_sync", synced)
    _append(log, "a")
    assert free == [False, True]


def test_large_files_are_written_before_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others need not wait while an output of many rows is written."""
    log, other, free = _log(tmp_path), Turn(tmp_path), {}
    write = DiskFiles._write_together

    def noted(self: DiskFiles, files: Mapping[str, bytes], *drafts: tuple[Path, bytes]) -> None:
        free.update(dict.fromkeys(files, other.take(0)))
        other.end()
        write(self, files, *drafts)

    monkeypatch.setattr(DiskFiles, "_write_together", noted)
    _append(log, "small")
    _append(log, "large", bytes((1 << 20) + 1))
    assert free == {"small": False, "large": True}


def test_a_commit_needs_no_turn_of_spark(tmp_path: Path) -> None:
    """Spark's writers lock the folder of the log, and give up after a wait."""
    store = CommitStore.open(tmp_path / "commits")
    epoch = opened(store)
    with taking_turns(tmp_path / "commits" / "_delta_log", 0):
        store.commit("g", epoch, "m", {P0: [(0, 0)]})
    assert store.state("g")[P0] == PartitionCommits(1)


def _commit(path: Path, number: int, times: int) -> None:
    store = CommitStore.open(path)
    epoch = store.open_epoch(f"g{number}", {"m": [P0]}, previous=None)
    for n in range(times):
        store.commit(f"g{number}", epoch, "m", {P0: [(n, n)]})


def test_writers_of_many_processes_commit_beside_one_that_is_killed(tmp_path: Path) -> None:
    """Each commit counts once, also if its writer has the turn when it ends."""
    CommitStore.open(tmp_path / "commits")
    processes = [
        _SPAWN.Process(target=_commit, args=(tmp_path / "commits", n, 15)) for n in range(3)
    ]
    victim = _SPAWN.Process(target=_commit, args=(tmp_path / "commits", 3, 100_000))
    for process in (victim, *processes):
        process.start()
    reader = CommitStore.open(tmp_path / "commits")
    while not reader.state("g3") and victim.is_alive():
        victim.join(0.05)
    victim.kill()
    for process in (victim, *processes):
        process.join(_PATIENCE)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert [reader.state(f"g{n}") for n in range(3)] == [{P0: PartitionCommits(15)}] * 3
