"""Shows on the driver what handlers log and print, with its records."""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from coopconsume.closing import Closing
from coopconsume.worker.handler_lines import HandlerLine, LineLimit, note_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from coopconsume.worker.handler_lines import SlotLines

log = logging.getLogger(__name__)

#: Seconds between two notes of how many lines were left out.
_NOTES_APART: Final = 1.0
#: Seconds that `close` waits for the last lines to be shown.
_PATIENCE: Final = 1.0


def to_stderr(line: HandlerLine) -> None:
    """Writes a line to standard error."""
    if sys.stderr is not None:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


class LineDisplay(Closing):
    """Shows lines in a thread of its own, so many a second: its job waits for none of them.

    What comes beyond that, or while so many lines wait to be shown, is counted.

    Args:
        most: Lines shown in a second.
        show: Shows a line; called in one thread.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        most: int,
        show: Callable[[HandlerLine], object] = to_stderr,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._show = show
        self._clock = clock
        self._limit = LineLimit(most, clock)
        self._changed = threading.Condition()
        self._waiting: deque[HandlerLine] = deque()
        self._left_out = 0
        self._noted_at = -math.inf
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def take(self, found: SlotLines) -> None:
        """Takes the lines of a report. Only the loop calls it."""
        with self._changed:
            self._left_out += found.left_out
            for line in found.lines:
                if len(self._waiting) < self._most and self._limit.passes():
                    self._waiting.append(line)
                else:
                    self._left_out += 1
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="coopconsume-handler-lines", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Shows what is left; waits for that for a second at most."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(_PATIENCE)

    def _run(self) -> None:
        while True:
            with self._changed:
                lines, is_last = self._next(), self._is_closed
                if not (lines or is_last):
                    self._changed.wait(_NOTES_APART if self._left_out else None)
            for line in lines:
                self._show_one(line)
            if is_last:
                return

    def _next(self) -> list[HandlerLine]:
        """Returns the lines to show now; it needs the lock."""
        lines = [*self._waiting]
        self._waiting.clear()
        now = self._clock()
        if self._left_out and (self._is_closed or now - self._noted_at >= _NOTES_APART):
            lines.append(note_of(self._left_out))
            self._left_out, self._noted_at = 0, now
        return lines

    def _show_one(self, line: HandlerLine) -> None:
        try:
            self._show(line)
        except Exception:
            log.exception("a line of a handler cannot be shown")
