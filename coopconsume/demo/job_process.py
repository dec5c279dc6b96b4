"""`JobProcess`: the demo's job as a child process that reports events and can be killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from typing import TYPE_CHECKING, Any

from coopconsume.demo.processes import kill_tree
from coopconsume.errors.base import DeclaredError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from coopconsume.demo.job import JobSettings

_TAIL_LINES = 15
_END_TIMEOUT = 60.0


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


class JobProcess:
    """A running ``coopconsume.demo.job`` with its JVM and workers.

    Args:
        slots: The number of slots of its queries.
        scratch: The folder for its temporary files.
        log_file: The file for its standard error and the log of Spark.
    """

    def __init__(self, slots: int, scratch: Path, log_file: Path) -> None:
        self._log = log_file
        with self._log.open("wb") as log:
            # With a process group of its own: only the demo receives Ctrl-C, and ends the job.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "coopconsume.demo.job", str(slots), str(scratch)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                env=os.environ | {"TMPDIR": str(scratch)},
            )

    def configure(self, settings: JobSettings) -> None:
        """Sends the settings; the process starts Spark before it receives them."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(settings.line())
            self._process.stdin.flush()
        except BrokenPipeError:
            self._fail("it ended before it received its settings")

    def events(self) -> Iterator[dict[str, Any]]:
        """Yields the events of the job until it ends.

        Raises:
            DemoFailed: The job reported a failure, or its exit code is not 0.
        """
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event: dict[str, Any] = json.loads(line)
            if event["event"] == "failed":
                self._fail(event["error"])
            yield event
        code = self._process.wait(_END_TIMEOUT)
        if code:
            self._fail(f"it ended with exit code {code}")

    def kill(self) -> int:
        """Kills the process and its descendants with SIGKILL; returns their number."""
        running = self._process.poll() is None
        killed = kill_tree(self._process) if running else 0
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        return killed

    def _fail(self, reason: str) -> None:
        with self._log.open(errors="replace") as lines:
            tail = "".join(deque(lines, _TAIL_LINES)).strip()
        raise DemoFailed(reason, "" if reason and tail in reason else tail)
