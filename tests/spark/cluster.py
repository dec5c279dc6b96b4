"""A Spark standalone cluster on this machine: a master, workers, and what runs below them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import urllib.request
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coopconsume.demo.processes import process_tree
from coopconsume.testing.local.jars import pyspark_home
from tests.jvm import JVM_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_START_TIMEOUT = 300.0
_END_TIMEOUT = 120.0
_LOOK_EVERY = 0.02
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


class StandaloneCluster:
    """A running cluster; made by `standalone_cluster`.

    Attributes:
        master: Its address, as ``spark://host:port``.
        workers: Process ids of the workers.
    """

    def __init__(self, master: str, status: str, workers: list[int]) -> None:
        self.master = master
        self.workers = workers
        self._status = status

    def status(self) -> dict[str, Any]:
        """What the master reports of its workers and applications."""
        with urllib.request.urlopen(self._status, timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def executors(self) -> list[int]:
        """Process ids of the executors that run, in the order of their workers."""
        below = [pid for worker in self.workers for pid in process_tree(worker)[1:]]
        return [pid for pid in below if _EXECUTOR in _command_line(pid)]


@contextmanager
def standalone_cluster(
    folder: Path, workers: int = 2, cores: int = 1
) -> Iterator[StandaloneCluster]:
    """A master and workers of 1 GiB each, on free ports of the loopback interface.

    Args:
        folder: For logs, and for the workers' files.
        workers: How many.
        cores: Tasks at once of each.

    Raises:
        AssertionError: They did not start, or what they started was still there at the end.
    """
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        stack.enter_context(_daemon("Master", folder / "master", ["--port", "0"]))
        log = folder / "master" / "log"
        address = _logged(log, r"Starting Spark master at (spark://\S+)")
        page = _logged(log, r"MasterWebUI.* started at (http://\S+)")
        pids = []
        for number in range(workers):
            home = folder / f"worker-{number}"
            words = ["--cores", str(cores), "--memory", "1g", "--work-dir", str(home / "work")]
            pids.append(stack.enter_context(_daemon("Worker", home, [*words, address])))
        cluster = StandaloneCluster(address, f"{page}/json/", pids)
        wait_until(lambda: cluster.status()["aliveworkers"] == workers, _START_TIMEOUT)
        yield cluster


def wait_until(condition: Callable[[], object], timeout: float) -> None:
    """Wait for a condition.

    Raises:
        AssertionError: It does not hold after ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout} s without success"
        time.sleep(_LOOK_EVERY)


def is_there(pid: int) -> bool:
    """Whether a process runs; one that is dead and not yet waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@contextmanager
def _daemon(kind: str, folder: Path, words: list[str]) -> Iterator[int]:
    """The process id of a master or worker, which ends with all below it as the context closes."""
    (folder / "scratch").mkdir(parents=True)
    home = pyspark_home()
    settings = {
        "SPARK_HOME": str(home),
        "JDK_JAVA_OPTIONS": JVM_OPTIONS,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_PUBLIC_DNS": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder / "scratch"),
        "SPARK_DAEMON_MEMORY": "256m",
        # Nobody needs the port that it would take.
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
    }
    command = [
        *(str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind.lower()}.{kind}"),
        *("--host", "127.0.0.1", "--webui-port", "0", *words),
    ]
    # What executors inherit: they have our packages from what a job brings along, or not at all.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, env=inherited | settings, stdout=log, stderr=log, cwd=folder
        )
    try:
        yield process.pid  # spark-class becomes the JVM
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process by word, and by force what is left of it and of all below it."""
    below = process_tree(process.pid)
    process.terminate()
    deadline = time.monotonic() + _END_TIMEOUT
    while (left := list(filter(is_there, below))) and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait(_END_TIMEOUT)
    assert not left, f"had to be killed: {left}"


def _logged(log: Path, pattern: str) -> str:
    """What a daemon says of itself in its log, once it has."""
    found: list[str] = []

    def look() -> bool:
        found.extend(re.findall(pattern, log.read_text(errors="replace")))
        return bool(found)

    wait_until(look, _START_TIMEOUT)
    return found[0]


def _command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:  # gone meanwhile
        return []
