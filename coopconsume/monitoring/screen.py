"""Console output of a command: lines, and a status that a terminal updates in place."""

from __future__ import annotations

import io
import os
import shutil
import sys
import textwrap
import threading
import time
from typing import TextIO

from coopconsume.closing import Closing

_BAR = 24
_PLAIN_EVERY = 10.0
_REDRAW_EVERY = 0.1
_RATE_SPAN = 3.0


class Screen(Closing):
    """Writes lines and a status. Without a terminal it writes a status every ten seconds.

    A terminal shows the whole status, in as many rows as it takes. All threads may write.

    Args:
        stream: The stream; by default standard output.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._moving = self._stream.isatty()
        self._rows: list[str] = []
        self._written_at = 0.0
        self._lock = threading.RLock()

    def line(self, text: str = "") -> None:
        """Write a line that stays."""
        with self._lock:
            self._wipe()
            self._write(f"{text}\n")
            self._written_at = time.monotonic()

    def above(self, text: str) -> None:
        """Write a line that stays above the status, which stays, too."""
        with self._lock:
            rows = self._rows
            self._wipe()
            self._write(f"{text}\n")
            self._draw(rows)

    def status(self, text: str, *, force: bool = False) -> None:
        """Replace the status, unless the last one is too recent."""
        with self._lock:
            now = time.monotonic()
            interval = _REDRAW_EVERY if self._moving else _PLAIN_EVERY
            if now - self._written_at < interval and not force:
                return
            self._written_at = now
            if not self._moving:
                self._write(f"{text}\n")
                return
            size = _size_of(self._stream)
            # What scrolls out of the terminal cannot be removed. Ctrl-C is shown as ^C behind it.
            rows = textwrap.wrap(text, max(1, size.columns - 3))[: max(1, size.lines - 1)]
            self._wipe()
            self._draw(rows)

    def close(self) -> None:
        """Remove the status."""
        with self._lock:
            self._wipe()

    def _draw(self, rows: list[str]) -> None:
        if rows:
            self._write("\n".join(rows))
        self._rows = rows

    def _wipe(self) -> None:
        if self._rows:
            self._write("\r\x1b[2K" + "\x1b[1A\x1b[2K" * (len(self._rows) - 1))
            self._rows = []

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except UnicodeEncodeError as error:
            self._write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))
        except (BrokenPipeError, ValueError):
            # Nobody reads it any more, as with `| head`, or it is closed; the job goes on.
            self._stream = io.StringIO()
            self._moving = False


def _size_of(stream: TextIO) -> os.terminal_size:
    """Returns the size of a stream's terminal, unless ``COLUMNS`` and ``LINES`` say another one."""
    try:
        own = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        own = os.terminal_size((80, 24))
    return shutil.get_terminal_size(own)


class Rate:
    """The number of records per second over the last few seconds."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = [(time.monotonic(), 0)]

    def at(self, records: int) -> float:
        """Record the current number of records and return the rate."""
        now = time.monotonic()
        self._seen.append((now, records))
        while len(self._seen) > 2 and self._seen[1][0] < now - _RATE_SPAN:  # noqa: PLR2004 - two make a span
            del self._seen[0]
        since, before = self._seen[0]
        return (records - before) / max(now - since, 0.001)


def bar(done: int, of: int) -> str:
    """Return a progress bar with the percentage."""
    part = min(1.0, done / of) if of else 1.0
    full = round(part * _BAR)
    return f"[{'#' * full}{'-' * (_BAR - full)}] {part:4.0%}"
