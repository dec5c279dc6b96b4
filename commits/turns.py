"""Turns of writers on one host: each locks the folder of the table while it appends.

A turn saves work and decides nothing: who creates the entry of a version has it. Without turns, all
writers but one have written and synced an entry for the same version, and do it again for the next.
So a writer goes on without a turn where a folder cannot be locked, and where another one does not
end its own.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from pathlib import Path

#: Seconds that a writer waits for its turn: those of dozens of others take less.
MOST_SECONDS: Final = 1.0
#: Seconds between two tries, at first and at most. The kernel's queue has no wait with a limit.
_PAUSE, _MOST_PAUSE = 0.0005, 0.004


def lock(folder: int, within: float) -> bool:
    """Lock an open folder for this process alone; return whether it was free in time.

    The kernel releases the lock when the process ends. Else it has to be unlocked and not only
    closed: a forked process may have the folder open as well.

    Args:
        folder: The descriptor of the folder.
        within: Seconds; 0 for one try.

    Raises:
        OSError: It cannot be locked.
    """
    if fcntl is None:
        raise OSError("the system has no such locks")
    until, pause = time.monotonic() + within, _PAUSE
    while True:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
        else:
            return True
        time.sleep(pause)
        pause = min(2 * pause, _MOST_PAUSE)


def unlock(folder: int) -> None:
    """Release the lock of an open folder."""
    fcntl.flock(folder, fcntl.LOCK_UN)


class Turn:
    """The turn of one writer. Not thread-safe.

    Args:
        folder: The folder that is locked.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._handle: int | None = None
        self._is_stuck = False  # Another writer did not end its turn.

    def take(self, within: float = MOST_SECONDS) -> bool:
        """Wait for the turn; return whether no other writer of this host has it.

        After a wait that ran out each call tries once, until one succeeds: a process that is frozen
        while it has the turn holds up each of the others once.

        Args:
            within: Seconds; 0 for one try.
        """
        self.end()
        try:
            self._handle = os.open(self._folder, os.O_RDONLY)
            is_free = lock(self._handle, 0 if self._is_stuck else within)
        except OSError:  # no such locks, or no such folder: the write says so
            self._close()
            return True
        if is_free:
            self._is_stuck = False
        else:
            self._is_stuck |= within > 0
            self._close()
        return is_free

    def end(self) -> None:
        """Leave the turn to others; harmless when repeated."""
        if self._handle is not None:
            with suppress(OSError):
                unlock(self._handle)
            self._close()

    def _close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)
