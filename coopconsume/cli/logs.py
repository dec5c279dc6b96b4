"""How a command logs: lines for people, or JSON for machines."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from coopconsume.monitoring.logs import JsonFormatter
from coopconsume.monitoring.screen import Screen

if TYPE_CHECKING:
    from typing import TextIO

log = logging.getLogger("coopconsume.run")


class LogScreen(Screen):
    """Logs what a screen would show; what goes on is told by progress events instead.

    Args:
        stream: Where the log goes.
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
        """Log a line."""
        if text:
            log.info(text)

    def status(self, text: str, *, force: bool = False) -> None:
        """Nothing: progress events tell it."""

    def close(self) -> None:
        """Log there no more."""
        root = logging.getLogger("coopconsume")
        root.removeHandler(self._handler)
        level, root.propagate = self._before
        root.setLevel(level)
