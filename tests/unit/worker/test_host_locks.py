"""What a host knows of its dead: real processes that are killed, frozen, or elsewhere."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from coopconsume.worker import host_locks
from coopconsume.worker.host_locks import (
    DriverLock,
    WorkerLock,
    WorkersFile,
    dead_drivers,
    this_host,
)
from coopconsume.worker.user_folder import user_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.skipif(not this_host(), reason="the system does not name its boot")
_PATIENCE = 60.0
_OPEN = threading.Event()
_DRIVER = """
import sys
from coopconsume.worker.host_locks import DriverLock
lock = DriverLock(sys.argv[1])
for member in sys.argv[2:]:
    lock.note(member, "instance" if member.startswith("static") else None)
print(lock.workers.path, lock.workers.content, flush=True)
sys.stdin.readline()
lock.withdraw()
"""
_WORKER = """
import os, subprocess, sys
from coopconsume.worker.host_locks import WorkerLock, WorkersFile, this_host
lock = WorkerLock(WorkersFile(sys.argv[1], this_host(), sys.argv[2]))
child = None
if sys.argv[3] == "starts a program":
    child = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
print(lock.is_held, child.pid if child else 0, flush=True)
sys.stdin.readline()
lock.release()
print("released", flush=True)
sys.stdin.readline()
"""


class Processes:
    """Drivers and workers of this host."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def _start(self, *args: str) -> subprocess.Popen[str]:
        process = self._stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                text=True,
            )
        )  # fmt: skip
        self._stack.callback(process.kill)
        return process

    def driver(self, group: str, *members: str) -> tuple[subprocess.Popen[str], WorkersFile]:
        """A driver that has its lock."""
        process = self._start(_DRIVER, group, *members)
        path, content = said(process).split()
        return process, WorkersFile(path, this_host(), content)

    def worker(self, file: WorkersFile, does: str = "works") -> tuple[subprocess.Popen[str], int]:
        """A worker of it that has its lock, and the program that it has started."""
        process = self._start(_WORKER, file.path, file.content, does)
        is_held, child = said(process).split()
        assert is_held == "True"
        if int(child):
            self._stack.callback(os.kill, int(child), signal.SIGKILL)
        return process, int(child)


def said(process: subprocess.Popen[str]) -> str:
    """The next line of a process."""
    assert process.stdout is not None
    return process.stdout.readline()


def go_on(process: subprocess.Popen[str]) -> None:
    """Has a process take its next step."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def kill(process: subprocess.Popen[str]) -> None:
    """Kill -9."""
    process.kill()
    process.wait(_PATIENCE)


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder for temporary files of their own."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


@pytest.fixture
def processes() -> Iterator[Processes]:
    """All are ended."""
    with ExitStack() as stack:
        yield Processes(stack)


def dead(group: str = "g") -> list[tuple[int, dict[str, str | None], bool]]:
    """What is known now of dead drivers: process, ids, and whether nothing of it runs."""
    return [
        (one.pid, one.members, one.workers_ended(0.0, _OPEN)) for one in dead_drivers(group)
    ]  # fmt: skip


def until(condition: Callable[[], bool]) -> None:
    """Waits for a condition."""
    end = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_driver_that_lives_is_not_dead_and_one_that_was_killed_is(processes: Processes) -> None:
    """With the ids that it had; the next look at it finds the same."""
    driver, _ = processes.driver("g", "a-1", "a-2", "static-3")
    assert dead() == []
    kill(driver)
    members = {"a-1": None, "a-2": None, "static-3": "instance"}
    assert dead() == dead() == [(driver.pid, members, True)]


def test_one_that_has_left_is_not_known(processes: Processes) -> None:
    """It has given back all itself."""
    driver, file = processes.driver("g", "a-1")
    go_on(driver)
    driver.wait(_PATIENCE)
    assert dead() == []
    assert not Path(file.path).exists()


def test_a_worker_that_outlives_its_driver_is_waited_for_and_not_longer(
    processes: Processes,
) -> None:
    """However it ends: here it goes on for a while, then it is killed."""
    driver, file = processes.driver("g", "a-1")
    worker, _ = processes.worker(file)
    other, _ = processes.worker(file)
    kill(driver)
    assert [ended for _, _, ended in dead()] == [False]
    go_on(other)
    assert said(other) == "released\n"
    assert [ended for _, _, ended in dead()] == [False]
    for found in dead_drivers("g"):
        threading.Timer(0.3, worker.kill).start()
        assert found.workers_ended(_PATIENCE, _OPEN)
    assert worker.wait(_PATIENCE) == -signal.SIGKILL


def test_a_frozen_worker_still_has_its_lock(processes: Processes) -> None:
    """It may go on at any moment; a frozen driver lives."""
    driver, file = processes.driver("g", "a-1")
    worker, _ = processes.worker(file)
    for one in (driver, worker):
        one.send_signal(signal.SIGSTOP)
        until(lambda p=one: Path(f"/proc/{p.pid}/stat").read_text().rpartition(")")[2][1] == "T")
    assert dead() == []
    kill(driver)
    assert [ended for _, _, ended in dead()] == [False]
    kill(worker)
    assert [ended for _, _, ended in dead()] == [True]


def test_the_wait_for_a_worker_ends_with_its_time_and_as_the_consumer_closes(
    processes: Processes,
) -> None:
    """Then all waits are as they were."""
    driver, file = processes.driver("g", "a-1")
    processes.worker(file)
    kill(driver)
    closed = threading.Event()
    closed.set()
    for one in dead_drivers("g"):
        assert not one.workers_ended(0.1, _OPEN)
        assert not one.workers_ended(_PATIENCE, closed)


def test_a_program_that_a_handler_has_started_does_not_keep_the_lock(processes: Processes) -> None:
    """It runs no handler."""
    driver, file = processes.driver("g", "a-1")
    worker, child = processes.worker(file, "starts a program")
    kill(driver)
    kill(worker)
    assert Path(f"/proc/{child}").exists()
    assert [ended for _, _, ended in dead()] == [True]


def test_a_fork_of_a_worker_may_run_its_handler_on(processes: Processes) -> None:
    """It has the lock that the worker had."""
    driver, file = processes.driver("g", "a-1")
    read, write = os.pipe()
    lock = WorkerLock(file)
    child = os.fork()
    if not child:
        os.read(read, 1)
        os._exit(0)
    lock.release()
    kill(driver)
    assert [ended for _, _, ended in dead()] == [False]
    os.write(write, b"x")
    os.waitpid(child, 0)
    for end in (read, write):
        os.close(end)
    assert [ended for _, _, ended in dead()] == [True]


def test_of_two_members_on_one_host_only_the_dead_one_is_found(processes: Processes) -> None:
    """The other one lives, and so may its workers."""
    driver, _ = processes.driver("g", "a-1")
    _, file = processes.driver("g", "b-1")
    processes.worker(file)
    kill(driver)
    assert dead() == [(driver.pid, {"a-1": None}, True)]


def test_a_group_does_not_know_the_dead_of_another_one(processes: Processes) -> None:
    """Nor of the same name elsewhere: cluster and commit table are part of it."""
    driver, _ = processes.driver("g", "a-1")
    kill(driver)
    assert dead("h") == []


def test_a_folder_of_another_host_or_of_an_earlier_boot_says_nothing(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locks of processes elsewhere are not seen here, and a worker elsewhere has none of ours."""
    driver, file = processes.driver("g", "a-1")
    kill(driver)
    name, boot = this_host().split()
    for other in (f"other {boot}", f"{name} other-boot", ""):
        monkeypatch.setattr(host_locks, "this_host", lambda o=other: o)
        assert dead() == []
        assert not WorkerLock(file).is_held
    with pytest.raises(OSError, match="does not name its boot"):
        DriverLock("g")


def test_a_folder_of_another_user_is_not_used(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that may write there could say that somebody is dead."""
    driver, _ = processes.driver("g", "a-1")
    kill(driver)
    folder = user_folder()
    folder.chmod(0o770)
    assert dead() == []
    with pytest.raises(PermissionError):
        DriverLock("g")
    folder.chmod(0o700)
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    folder.rename(folder.with_name(f"coopconsume-{os.getuid()}"))
    assert dead() == []
    with pytest.raises(PermissionError):
        DriverLock("g")


def _no_locks(*_: Any) -> None:
    raise OSError(errno.ENOLCK, "no locks available")


@pytest.mark.parametrize("flock", [_no_locks, lambda *_: None], ids=["refused", "ignored"])
def test_without_locks_nothing_is_known(
    processes: Processes, monkeypatch: pytest.MonkeyPatch, flock: Callable[..., None]
) -> None:
    """Also where a file system takes them and does not keep them apart."""
    driver, _ = processes.driver("g", "a-1")
    kill(driver)
    assert host_locks.fcntl is not None
    monkeypatch.setattr(host_locks.fcntl, "flock", flock)
    assert dead() == []
    before = set(user_folder().iterdir())
    with pytest.raises(OSError, match="locks"):
        DriverLock("g")
    assert set(user_folder().iterdir()) == before


def test_a_worker_has_no_lock_of_a_file_that_is_not_its_drivers(processes: Processes) -> None:
    """Another container may have a file of that name, or none, or the driver has taken it away."""
    _, file = processes.driver("g", "a-1")
    assert not WorkerLock(None).is_held
    assert not WorkerLock(replace(file, content="another")).is_held
    assert not WorkerLock(replace(file, path=file.path + "x")).is_held
    held = WorkerLock(file)
    assert held.is_held
    held.release()


def test_a_line_that_was_not_written_to_its_end_does_not_count(processes: Processes) -> None:
    """The driver was killed meanwhile. Without any line nothing is known."""
    driver, file = processes.driver("g", "a-1")
    kill(driver)
    path = Path(file.path).with_suffix(".driver")
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"member": "a-2", "inst')
    assert dead() == [(driver.pid, {"a-1": None}, True)]
    for torn in (b"", b"{", b"[1]\n", b'{"pid": 1}\n{"memb": 2}\n'):
        path.write_bytes(torn)
        assert dead() == []


def test_what_was_done_for_a_dead_driver_is_not_done_again(processes: Processes) -> None:
    """Its files are removed."""
    driver, file = processes.driver("g", "a-1")
    kill(driver)
    for one in dead_drivers("g"):
        assert one.workers_ended(0.0, _OPEN)
        one.forget()
    assert dead() == []
    assert not Path(file.path).exists()


def test_withdrawn_is_withdrawn_also_where_files_cannot_be_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And an id that comes after that is not noted anywhere."""
    lock = DriverLock("g")
    lock.note("a-1", None)

    def no_unlink(*_: Any, **__: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "unlink", no_unlink)
    lock.withdraw()
    lock.note("a-2", None)
    lock.withdraw()
    assert lock.workers is None
    assert dead() == []
