"""A program in a process of its own that reports events to its test."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_PATIENCE = 120.0


def report(event: str, **facts: Any) -> None:
    """Print an event of this process, with the time on the monotonic clock."""
    line = json.dumps({"event": event, "at": time.monotonic(), **facts})
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def wait_for_end(ended: threading.Event) -> None:
    """Wait until the standard input of this process is closed, then set an event."""
    sys.stdin.read()
    ended.set()


class EventProcess:
    """Runs a module that writes its events to standard output, one JSON object a line.

    Args:
        module: The name of the module.
        config: Its argument, as JSON.
        root: The sources that it runs.
    """

    def __init__(self, module: str, config: dict[str, Any], root: Path = ROOT) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(config)],
            cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.events: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def kill(self) -> None:
        """End it by SIGKILL and read its last events."""
        self.popen.kill()
        self.finish()

    def finish(self) -> None:
        """Close its standard input, wait for its end and read its last events."""
        assert self.popen.stdin is not None
        self.popen.stdin.close()
        self.popen.wait(_PATIENCE)
        self._reader.join(_PATIENCE)

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            if line.endswith("\n"):  # A killed process may leave part of a line.
                self._reported(json.loads(line))

    def _reported(self, event: dict[str, Any]) -> None:
        self.events.append(event)
