"""What a task finds where it runs: packages, and which ports it reaches. Needs no package.

`coopconsume.diagnose` sends it by value, so that it also runs where coopconsume is missing.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import resource
import socket
import time
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_CGROUP = "/sys/fs/cgroup"
#: The most bytes of a driver's answer: its time.
_ANSWER = 64


class Look:
    """The function of a task that looks what its worker has.

    Args:
        packages: What to import.
        sources: Packages whose sources must be those of the driver.
        driver: Host and port of the driver, and a token to send, if not empty; None: it is not
            reached.
        brokers: Hosts and ports of brokers.
        timeout: Seconds to connect.
    """

    def __init__(
        self,
        packages: Iterable[str],
        sources: Iterable[str],
        driver: tuple[str, int, bytes] | None,
        brokers: Iterable[tuple[str, int]],
        timeout: float,
    ) -> None:
        self._packages = tuple(packages)
        self._sources = tuple(sources)
        self._driver = driver
        self._brokers = tuple(brokers)
        self._timeout = timeout

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yields one row, whose column ``found`` has what was found, as JSON."""
        import pyarrow as pa

        for _ in batches:
            pass
        yield pa.RecordBatch.from_pydict({"found": [json.dumps(self.found())]})

    def found(self) -> dict[str, Any]:
        """Returns what was found."""
        missing = missing_packages(self._packages)
        has_sources = not any(name in missing for name in self._sources)
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "python": platform.python_version(),
            "missing": missing,
            "sources": digest(self._sources) if has_sources else "",
            "driver": self._reach_driver(),
            "brokers": {f"{host}:{port}": self._reach(host, port) for host, port in self._brokers},
            "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "free": free_memory(),
        }

    def _reach_driver(self) -> dict[str, Any]:
        """Returns why the driver is not reached, and how far its clock is behind, at least."""
        if self._driver is None:
            return {"why": "", "ahead": None}
        host, port, token = self._driver
        if not token:
            return {"why": self._reach(host, port), "ahead": None}
        try:
            with socket.create_connection((host, port), self._timeout) as sock:
                begin = time.time()
                sock.sendall(token + b"\n")
                answer = sock.makefile("rb").readline(_ANSWER)
                end = time.time()
            return {"why": "", "ahead": outside(float(answer), begin, end)}
        except ValueError:
            return {"why": "something else listens there", "ahead": None}
        except OSError as error:
            return {"why": str(error) or type(error).__name__, "ahead": None}

    def _reach(self, host: str, port: int) -> str:
        """Connects; returns why that fails."""
        try:
            socket.create_connection((host, port), self._timeout).close()
        except OSError as error:
            return str(error) or type(error).__name__
        return ""


def outside(there: float, begin: float, end: float) -> float:
    """Returns by how much a clock here is ahead of another one, at least; negative: behind.

    Args:
        there: What the other clock showed at an instant.
        begin: What this clock showed before it.
        end: And after it.
    """
    return max(0.0, begin - there) + min(0.0, end - there)


def missing_packages(names: Iterable[str]) -> dict[str, str]:
    """Returns the packages that cannot be imported, and why."""
    missing = {}
    for name in names:
        try:
            import_module(name)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what is to be said
            missing[name] = f"{type(error).__name__}: {error}"
    return missing


def digest(packages: Iterable[str]) -> str:
    """Returns a digest of the sources of some packages, in folders or in archives."""
    total = hashlib.sha256()

    def add(folder: Any, at: str) -> None:
        for one in sorted(folder.iterdir(), key=lambda found: found.name):
            name = f"{at}/{one.name}"
            if one.is_dir():
                add(one, name)
            elif name.endswith(".py"):
                total.update(name.encode() + b"\0" + one.read_bytes())

    for package in packages:
        add(files(package), package)
    return total.hexdigest()


def free_memory() -> int:
    """Returns the bytes of memory that are free for this process; 0 if it is unknown."""
    free = _counted("/proc/meminfo", "MemAvailable:") * 1024
    try:
        limit, used = (
            int(Path(_CGROUP, name).read_text()) for name in ("memory.max", "memory.current")
        )
    except (OSError, ValueError):  # No control group, or one without a limit.
        return free
    cached = _counted(f"{_CGROUP}/memory.stat", "inactive_file")
    return min(free, max(0, limit - used + cached))


def _counted(file: str, name: str) -> int:
    """Returns the number behind a name in a file of the kernel; 0 if it is not there."""
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(name)), 0)
