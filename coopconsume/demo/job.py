"""The demo's jobs: ``coopconsume run`` as child processes that can be killed."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from coopconsume.demo.handlers import OUTPUT_SCHEMA, FlightFaults
from coopconsume.demo.processes import kill_tree
from coopconsume.errors.base import DeclaredError
from coopconsume.option_names import COMMAND_CONFIG

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_ATTEMPTS = 3
SLOTS = 4

_MODULE = "flights_job"
_HANDLER = f'''\
"""The handler of the job, for `coopconsume run {_MODULE}:handle`, in this folder."""

from coopconsume.demo.handlers import FlightFaults, FollowAircraft
from coopconsume.testing import recorded

handle = recorded(FollowAircraft({{legs!r}}), {{history!r}}, {{faults!r}})
'''
_TAIL_LINES = 15
_LOOK_EVERY = 0.05
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class DemoFailed(DeclaredError):
    """The demo did not finish.

    Attributes:
        reason: What happened.
        log_tail: The last lines of the job's log, if there are any.
    """

    reason: str
    log_tail: str = ""

    def __str__(self) -> str:
        tail = f"\nLast lines of the job's log:\n{self.log_tail}" if self.log_tail else ""
        return f"the demo's job failed: {self.reason}{tail}"


@dataclass(frozen=True)
class Query:
    """A job that processes the flights as one group.

    Attributes:
        group: The group.
        folder: The folder of its handler, of its tables ``commits``, ``rows`` and ``dead``, of its
            history and of its logs.
        faults: The faults of its handler.
    """

    group: str
    folder: str
    faults: FlightFaults = field(default_factory=FlightFaults)

    def path(self, name: Literal["commits", "rows", "dead", "history", "legs", "scratch"]) -> str:
        """Returns the path of a table, of the calls' history or of another folder."""
        return str(Path(self.folder, name))

    def command(self, servers: str, topic: str) -> list[str]:
        """Returns the command that processes what the topic has."""
        java = f"-Djava.io.tmpdir={self.path('scratch')} -XX:TieredStopAtLevel=1"
        return [
            *("coopconsume", "run", f"{_MODULE}:handle"),
            *("-o", f"kafka.bootstrap.servers={servers}"),
            *("-o", f"kafka.group.id={self.group}"),
            *("-o", f"subscribe={topic}"),
            *("-o", f"commitTable={self.path('commits')}"),
            *("-o", f"slots={SLOTS}"),
            *("--output", self.path("rows"), "--output-schema", OUTPUT_SCHEMA),
            *("--dead-letter", self.path("dead"), "--max-attempts", str(MAX_ATTEMPTS)),
            *("--backoff", "0.1", "--available-now", "--log-format", "json"),
            # In a JVM that runs for so short, the optimising compiler costs more than it saves.
            *("--spark-conf", f"spark.driver.extraJavaOptions={java}"),
        ]


class JobProcess:
    """A running `Query` with its JVM and workers.

    Args:
        query: The query.
        servers: The bootstrap servers of the cluster.
        topic: The topic.
        log_name: The name of the file in the query's folder for the job's log.
    """

    def __init__(self, query: Query, servers: str, topic: str, log_name: str) -> None:
        folder = Path(query.folder)
        Path(query.path("scratch")).mkdir(parents=True, exist_ok=True)
        folder.joinpath(f"{_MODULE}.py").write_text(
            _HANDLER.format(
                legs=query.path("legs"), history=query.path("history"), faults=query.faults
            )
        )
        self._log = folder / log_name
        with self._log.open("wb") as log:
            # With a process group of its own: only the demo receives Ctrl-C, and ends the job.
            self._process = subprocess.Popen(
                [sys.executable, "-m", *query.command(servers, topic)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                start_new_session=True,
                # The options of the user's own cluster are not those of the demo's broker.
                env=os.environ | {"TMPDIR": query.path("scratch"), COMMAND_CONFIG: ""},
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - while it starts, no other thread runs
            )

    def events(self) -> Iterator[dict[str, Any]]:
        """Yields the lines of the job's log until it ends.

        Raises:
            DemoFailed: Its exit code is not 0.
        """
        with self._log.open(encoding="utf-8", errors="replace") as log:
            line = ""
            while True:
                has_ended = self._process.poll() is not None
                while line := line + log.readline():
                    if not line.endswith("\n"):
                        break
                    yield _parsed(line)
                    line = ""
                if has_ended:
                    break
                time.sleep(_LOOK_EVERY)
        if self._process.returncode:
            self.fail(f"it ended with exit code {self._process.returncode}")

    def kill(self) -> int:
        """Kills the process and its descendants with SIGKILL; returns their number."""
        return kill_tree(self._process) if self._process.poll() is None else 0

    def fail(self, reason: str) -> None:
        """Raises an error with the last lines of the log.

        Raises:
            DemoFailed: Always.
        """
        with self._log.open(errors="replace") as lines:
            raise DemoFailed(reason, "".join(deque(lines, _TAIL_LINES)).strip())


def _parsed(line: str) -> dict[str, Any]:
    """Returns a line of the log; what is written before the log begins is not JSON."""
    try:
        found = json.loads(line)
    except ValueError:
        return {"msg": line}
    return found if isinstance(found, dict) else {"msg": line}


def _die_with_parent() -> None:
    """Has Linux kill the job if the demo is killed."""
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
