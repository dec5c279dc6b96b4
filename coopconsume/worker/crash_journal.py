"""What a worker was doing when it ended without a word, kept where its successor finds it.

A small mapped file in the folder for temporary files names the records that handlers work on. A
worker that dies leaves it behind; one that is through removes it. Spark's second attempt of the
task reads it, if it runs on the same host. Task-side code: the standard library alone.
"""

from __future__ import annotations

import mmap
import os
import socket
import tempfile
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coopconsume.worker.report import BatchSpec

_HEAD = 3  # Cells: process, place, seats.
_CELL = 8


@dataclass(frozen=True)
class AtCrash:
    """What an ended worker was doing.

    Attributes:
        running: (index of the partition, offset) of the records at work.
        overdue: Those of them that had more than their time.
    """

    running: list[tuple[int, int]] = field(default_factory=list)
    overdue: list[tuple[int, int]] = field(default_factory=list)


class CrashJournal:
    """The records at work in this process, one a seat.

    Attributes:
        cells: Two a seat from `FIRST` on: index of the partition + 1, negative where it is
            overdue, 0 where nobody works; and the offset.

    Args:
        path: Of the file; None keeps it in memory, for nobody to find.
        seats: Records at work at once at most.
    """

    FIRST = _HEAD

    def __init__(self, path: Path | None, seats: int) -> None:
        self._path = path
        self._map: mmap.mmap | bytearray = bytearray((_HEAD + 2 * seats) * _CELL)
        if path is not None:
            self._map = _mapped(path, len(self._map)) or self._map
        self.cells = memoryview(self._map).cast("q")
        self.cells[0], self.cells[1], self.cells[2] = os.getpid(), _place(), seats

    def enter(self, seat: int, part: int, offset: int) -> None:
        """A handler begins."""
        at = _HEAD + 2 * seat
        self.cells[at + 1] = offset
        self.cells[at] = part + 1

    def leave(self, seat: int) -> None:
        """It is through."""
        self.cells[_HEAD + 2 * seat] = 0

    def enter_all(self, rows: Sequence[tuple[int, int]]) -> None:
        """One handler begins with several records: (index of the partition, offset)."""
        for seat, (part, offset) in enumerate(rows):
            self.enter(seat, part, offset)

    def leave_all(self) -> None:
        """Nobody works."""
        for at in range(_HEAD, len(self.cells), 2):
            self.cells[at] = 0

    def mark_overdue(self, seat: int | None = None) -> None:
        """The handler at a seat, or at all, has had more than its time."""
        cells = self.cells
        seats = range(_HEAD, len(cells), 2) if seat is None else [_HEAD + 2 * seat]
        for at in seats:
            cells[at] = -abs(cells[at])

    def close(self) -> None:
        """All went well: nothing is left behind."""
        self.cells.release()
        if isinstance(self._map, mmap.mmap):
            self._map.close()
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)


def journal_path(spec: BatchSpec, slot: int) -> Path | None:
    """Where the box of a slot's part of a batch lies; None: it has none."""
    if not spec.run:
        return None
    return Path(tempfile.gettempdir(), f"coopconsume-{spec.run}-{spec.batch}-{slot}")


def read_journal(path: Path | None) -> AtCrash | None:
    """What an ended worker left behind, taken away.

    Returns:
        None if there is nothing, or if the worker may still be at work.
    """
    if path is None:
        return None
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if len(data) < _HEAD * _CELL or len(data) % _CELL:
        return None
    cells = memoryview(data).cast("q")
    if cells[1] != _place() or _is_alive(cells[0]):
        return None
    with suppress(OSError):
        path.unlink()
    seats = zip(cells[_HEAD::2].tolist(), cells[_HEAD + 1 :: 2].tolist(), strict=True)
    busy = [(code, offset) for code, offset in seats if code]
    return AtCrash(
        [(abs(code) - 1, offset) for code, offset in busy],
        [(-code - 1, offset) for code, offset in busy if code < 0],
    )


def _mapped(path: Path, size: int) -> mmap.mmap | None:
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.ftruncate(handle, size)
            return mmap.mmap(handle, size)
        finally:
            os.close(handle)
    except OSError:
        return None  # Nothing will be known of this worker's end; that must not end it.


def _place() -> int:
    """Returns the identity of the host or container; a process number is valid only within it."""
    try:
        space = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        space = ""
    return zlib.crc32(f"{socket.gethostname()} {space}".encode())


def _is_alive(pid: int) -> bool:
    """Whether a process may still run; one that only waits to be buried does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            return True
        return True
    return state not in ("Z", "X")
