"""A program in a process of its own that reports events to its test."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


class EventProcess:
    """Runs a module that writes its events to standard output, one JSON object a line.

    Args:
        module: The name of the module.
        config: Its argument, as JSON.
    """

    def __init__(self, module: str, config: dict[str, Any]) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(config)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.events: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            if line.endswith("\n"):  # A killed process may leave part of a line.
                self._reported(json.loads(line))

    def _reported(self, event: dict[str, Any]) -> None:
        self.events.append(event)
