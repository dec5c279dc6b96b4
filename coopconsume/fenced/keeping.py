"""A thread that writes checkpoints into the log of an idle owner."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from coopconsume.errors import CoopConsumeError

if TYPE_CHECKING:
    from collections.abc import Callable


log = logging.getLogger(__name__)

#: Seconds before the next try of a checkpoint that failed.
_AGAIN: Final = 10.0


class Checkpoints:
    """Writes a checkpoint whenever nothing was written for some time, until it is stopped.

    Args:
        every: Seconds; None: never.
        write: Writes a checkpoint if one is due, and returns the seconds until the next one is.
    """

    def __init__(self, every: float | None, write: Callable[[float], float]) -> None:
        self._every = every
        self._write = write
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread; harmless when repeated."""
        if self._every is not None and self._thread is None:
            name = "coopconsume-checkpoint"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stops the thread once it has written what it is writing."""
        self._stopped.set()

    def _run(self) -> None:
        every = self._every or 0.0
        wait = every
        while not self._stopped.wait(wait):
            try:
                wait = self._write(every)
            except CoopConsumeError as error:
                log.warning("no checkpoint was written: %s", error)
                wait = min(every, _AGAIN)
