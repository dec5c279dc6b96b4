"""The log output of a command: plain lines or JSON."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from coopconsume.monitoring.logs import JsonFormatter
from coopconsume.monitoring.screen import Screen

if TYPE_CHECKING:
    from typing import TextIO

log = logging.getLogger("coopconsume.run")


class LogScreen(Screen):
    """Logs the lines of a screen as JSON; progress events replace its status line.

    Args:
        stream: The stream to write to.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        handler = logging.StreamHandler(stream)
        handler.setFormatter(JsonFormatter())
        root = logging.getLogger("coopconsume")
        root.addHandler(handler)
        self._before = root.level, root.propagate
        root.setLevel(logging.INFO)
        root.propagate = False
        self._handler = handler

    def line(self, text: str = "") -> None:
        """Logs a line."""
        if text:
            log.info(text)

    def status(self, text: str, *, force: bool = False) -> None:
        """Does nothing; progress events have the status."""

    def close(self) -> None:
        """Stops logging to the stream."""
        root = logging.getLogger("coopconsume")
        root.removeHandler(self._handler)
        level, root.propagate = self._before
        root.setLevel(level)
