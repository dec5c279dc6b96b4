"""Locks that say what of a member still runs on its host, however its processes have ended.

A member's driver holds a lock on one file, and each task that may run handlers holds a lock on
another one. The kernel releases a lock with the last process that has it. So a later process on the
host that gets the driver's lock knows that the driver is gone, and if it gets the other lock as
well, that no handler of it runs.

That holds as long as all handlers of the member run under the lock. Before one may run elsewhere
(on another host, in a frame that the user works on, where a lock cannot be taken) the driver
withdraws the files: then nothing is known. Whatever a later process does not find, cannot read or
does not get, it does not know either.

The files are in a folder of the user (see `user_folder`). Their names begin with a hash of host,
boot and group. Used by the driver and by tasks: the standard library alone.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coopconsume.worker.user_folder import user_folder

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger(__name__)

_FLAGS = os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
#: Bytes of a file, at most.
_MOST = 1 << 20
#: Seconds between two tries to get the lock of a dead driver's tasks.
_TRY_EVERY = 0.05


def this_host() -> str:
    """Returns the name of this host and of its boot; empty: the system does not name the boot."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
    return f"{socket.gethostname()} {boot}" if boot else ""


@dataclass(frozen=True)
class WorkersFile:
    """The file that tasks of a member lock.

    Attributes:
        path: Where it is on the driver's host.
        host: The driver's host and boot.
        content: A unique text, which the file has.
    """

    path: str
    host: str
    content: str


class WorkerLock:
    """The lock of a task, which it takes before it asks its driver for a lease.

    It is opened here, in the process that runs the handlers: Spark's daemon, which forks its
    workers, does not have it, nor do the programs that a handler starts.

    Attributes:
        is_held: Whether the host knows of this task; if not, the driver must know that.

    Args:
        file: Of the member; None: it has none.
    """

    def __init__(self, file: WorkersFile | None) -> None:
        self._descriptor = None if file is None else _hold(file)
        self.is_held = self._descriptor is not None

    def release(self) -> None:
        """No handler of the task runs any more; harmless when repeated."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _hold(file: WorkersFile) -> int | None:
    if fcntl is None or this_host() != file.host:
        return None
    try:
        # The file of the driver, not one of that name in another container.
        descriptor = os.open(file.path, os.O_RDONLY | _FLAGS)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if os.pread(descriptor, _MOST, 0) == file.content.encode():
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


class DriverLock:
    """The lock of a member's driver, from before it joins its group until it has left.

    Attributes:
        workers: What the member's tasks lock; None: it has been withdrawn, nothing is known.

    Args:
        group: Identifies the group, among all clusters and commit tables.

    Raises:
        OSError: This host, or the folder, has no such locks.
    """

    def __init__(self, group: str) -> None:
        host = this_host()
        if fcntl is None or not host:
            raise OSError("the system has no locks of files, or does not name its boot")
        unique = uuid.uuid4().hex
        self._path = user_folder() / f"{_prefix(host, group)}{unique}.driver"
        self._workers_path = self._path.with_suffix(".workers")
        self._noted: set[str] = set()
        self._guard = threading.Lock()
        self._descriptor: int | None = None
        self.workers: WorkersFile | None = None
        new = self._path.with_suffix(".new")
        try:
            with self._workers_path.open("x", encoding="ascii") as file:
                file.write(unique)
            self._descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _check_excludes(new)
            self._append({"pid": os.getpid()})
            new.rename(self._path)  # From here on others find it, and it is locked.
        except OSError:
            for path in (new, self._path, self._workers_path):
                with suppress(OSError):
                    path.unlink(missing_ok=True)
            if self._descriptor is not None:
                os.close(self._descriptor)
            raise
        self.workers = WorkersFile(str(self._workers_path), host, unique)

    def note(self, member: str, instance: str | None) -> None:
        """Notes an id that the member has in its group, before it works under it.

        Args:
            member: Kafka's member id; empty: it has none yet.
            instance: Its ``group.instance.id``, if it is static.
        """
        with self._guard:
            if self._descriptor is None or not member or member in self._noted:
                return
            # If it is not noted, a later process finds an id that is not in the group.
            with suppress(OSError):
                self._append({"member": member, "instance": instance})
            self._noted.add(member)

    def _append(self, line: dict[str, object]) -> None:
        assert self._descriptor is not None
        os.lseek(self._descriptor, 0, os.SEEK_END)
        os.write(self._descriptor, json.dumps(line).encode() + b"\n")

    def withdraw(self) -> None:
        """Has later processes know nothing of this member; harmless when repeated.

        Raises:
            OSError: They might still know something.
        """
        with self._guard:
            if self._descriptor is None:
                return
            self.workers = None
            try:
                self._path.unlink(missing_ok=True)
            except OSError:
                os.ftruncate(self._descriptor, 0)
            with suppress(OSError):
                self._workers_path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None


class DeadDriver:
    """A driver of a group that ended on this host without leaving; its lock is ours.

    Attributes:
        pid: Its process id, for people.
        members: The ids that it had in its group, each with its ``group.instance.id``.
    """

    def __init__(self, path: Path, descriptor: int, lines: list[dict[str, object]]) -> None:
        self._path = path
        self._descriptors = [descriptor]
        self.pid = lines[0].get("pid", 0)
        self.members = {
            str(line["member"]): None if line["instance"] is None else str(line["instance"])
            for line in lines[1:]
        }

    def workers_ended(self, within: float, over: threading.Event) -> bool:
        """Waits until none of its tasks can run a handler; returns whether that is so.

        Args:
            within: Seconds.
            over: Ends the wait.
        """
        until = time.monotonic() + within
        try:
            workers = os.open(self._path.with_suffix(".workers"), os.O_RDWR | _FLAGS)
            self._descriptors.append(workers)
            while not _is_free(workers):
                if time.monotonic() >= until or over.wait(_TRY_EVERY):
                    return False
        except OSError:
            return False
        return True

    def forget(self) -> None:
        """Removes what is known of it: all is done that follows from that."""
        for path in (self._path, self._path.with_suffix(".workers")):
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Leaves it to others, if it is not forgotten."""
        while self._descriptors:
            os.close(self._descriptors.pop())


def dead_drivers(group: str) -> Iterator[DeadDriver]:
    """Yields drivers of a group that ended on this host without leaving; it closes each.

    Args:
        group: As for `DriverLock`.
    """
    host = this_host()
    if fcntl is None or not host:
        return
    try:
        paths = sorted(user_folder().glob(f"{_prefix(host, group)}*.driver"))
    except OSError:
        return
    for path in paths:
        found = _dead(path)
        if found is not None:
            try:
                yield found
            finally:
                found.close()


def _dead(path: Path) -> DeadDriver | None:
    try:
        descriptor = os.open(path, os.O_RDWR | _FLAGS)
    except OSError:
        return None
    with suppress(OSError, ValueError, KeyError, AttributeError):
        if _is_free(descriptor):
            _check_excludes(path)
            # Of a driver that was killed as it wrote, the last line has no end.
            lines = os.pread(descriptor, _MOST, 0).split(b"\n")[:-1]
            if lines:
                return DeadDriver(path, descriptor, [json.loads(line) for line in lines])
    os.close(descriptor)
    return None


def _is_free(descriptor: int) -> bool:
    """Takes the lock on a file for this process alone; returns whether it has it."""
    assert fcntl is not None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _prefix(host: str, group: str) -> str:
    return hashlib.sha256(f"{host}\0{group}".encode()).hexdigest()[:32] + "-"


def _check_excludes(path: Path) -> None:
    """Makes sure that the lock that we have on a file keeps others from having it.

    Raises:
        OSError: It does not: the file was removed, or its file system has no locks.
    """
    other = os.open(path, os.O_RDWR | _FLAGS)
    try:
        if _is_free(other):
            raise OSError(f"the file system of {path} does not keep locks apart")
    finally:
        os.close(other)
