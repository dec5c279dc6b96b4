"""Lines and a progress line: one that moves on a terminal, now and then a plain one elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

from coopconsume.closing import Closing

_BAR = 24
_PLAIN_EVERY = 10.0
_REDRAW_EVERY = 0.1
_RATE_SPAN = 3.0


class Screen(Closing):
    """Where a command tells what goes on.

    Args:
        stream: Where to; standard output if None.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._moving = self._stream.isatty()
        self._shown = ""
        self._told = 0.0

    def line(self, text: str = "") -> None:
        """Write a line of its own."""
        self._wipe()
        self._write(f"{text}\n")
        self._told = time.monotonic()

    def status(self, text: str, *, force: bool = False) -> None:
        """Show what goes on now, in place of the last status."""
        now = time.monotonic()
        if now - self._told < (_REDRAW_EVERY if self._moving else _PLAIN_EVERY) and not force:
            return
        self._told = now
        if not self._moving:
            self._write(f"{text}\n")
            return
        room = shutil.get_terminal_size().columns - 1
        self._wipe()
        self._shown = text[:room]
        self._write(self._shown)

    def close(self) -> None:
        """Take the status away."""
        self._wipe()

    def _wipe(self) -> None:
        if self._shown:
            self._write("\r\x1b[2K")
            self._shown = ""

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class Rate:
    """Records a second over the last few seconds."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = [(time.monotonic(), 0)]

    def at(self, records: int) -> float:
        """Note how many records there are now; returns the rate."""
        now = time.monotonic()
        self._seen.append((now, records))
        while len(self._seen) > 2 and self._seen[1][0] < now - _RATE_SPAN:  # noqa: PLR2004 - two make a span
            del self._seen[0]
        since, before = self._seen[0]
        return (records - before) / max(now - since, 0.001)


def bar(done: int, of: int) -> str:
    """A bar with the part that is done in per cent."""
    part = min(1.0, done / of) if of else 1.0
    full = round(part * _BAR)
    return f"[{'#' * full}{'-' * (_BAR - full)}] {part:4.0%}"
