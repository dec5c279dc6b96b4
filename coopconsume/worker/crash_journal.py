"""A file that names the records that a worker runs handlers on, for the case that it dies.

It is a small memory-mapped file in the folder for temporary files. A worker that finishes removes
it. If a worker dies, Spark's second attempt of the task reads it, if it runs on the same host. A
*seat* is one of the handlers that run at the same time in a worker, counted from 0. Task-side
code: the standard library alone.
"""

from __future__ import annotations

import math
import mmap
import os
import socket
import tempfile
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

from coopconsume.worker.process_timer import clock

if TYPE_CHECKING:
    from coopconsume.worker.report import BatchSpec

#: Cells: process, place, seats, and the times of the worker's deadlines (see `FailStop`).
_TIMES = 3
_HEAD = _TIMES + 4
_CELL = 8
_NANO = 1_000_000_000


class Deadline(IntEnum):
    """What ends a worker's process at a time, whatever its threads do.

    Attributes:
        SLOT: The time of the slot is over, and that of its running handlers.
        CALL: The time of a handler call is over.
        LEASE: Nothing was heard of the driver for too long.
    """

    SLOT = 0
    CALL = 1
    LEASE = 2


#: Of the times: when the worker's Python was last seen to run.
_SEEN = len(Deadline)


@dataclass(frozen=True)
class AtCrash:
    """The records that a worker ran handlers on when it died.

    Attributes:
        running: Their (part, offset).
        overdue: Those of them whose handlers ran longer than their time limit.
        pid: The process id of the worker.
        deadline: The deadline that has ended the worker; None: something else has.
        stood_still: Seconds before that deadline for which no Python code of the worker was seen
            to run.
    """

    running: list[tuple[int, int]] = field(default_factory=list)
    overdue: list[tuple[int, int]] = field(default_factory=list)
    pid: int = 0
    deadline: Deadline | None = None
    stood_still: float = 0.0

    @property
    def culprits(self) -> list[tuple[int, int]]:
        """The records that certainly ended the worker: overdue ones, or the only running one."""
        return self.overdue or (self.running if len(self.running) == 1 else [])

    @property
    def was_overdue(self) -> bool:
        """Whether the worker was ended as a handler did not end in time."""
        return bool(self.overdue) or self.deadline in (Deadline.SLOT, Deadline.CALL)


class CrashJournal:
    """Notes the record of each seat of this process.

    Attributes:
        cells: Two for each seat, from `FIRST` on: part + 1, negative if it is
            overdue, 0 if no handler runs; and the offset.

    Args:
        path: The file; None: nothing is kept for a second attempt.
        seats: How many handlers run at once at most.
    """

    FIRST = _HEAD

    def __init__(self, path: Path | None, seats: int) -> None:
        self._path = path
        self._map: mmap.mmap | bytearray = bytearray((_HEAD + 2 * seats) * _CELL)
        if path is not None:
            self._map = _mapped(path, len(self._map)) or self._map
        self.cells = memoryview(self._map).cast("q")
        self.cells[0], self.cells[1], self.cells[2] = os.getpid(), place_of_process(), seats

    def enter(self, seat: int, part: int, offset: int) -> None:
        """A handler starts."""
        at = _HEAD + 2 * seat
        self.cells[at + 1] = offset
        self.cells[at] = part + 1

    def note_deadline(self, of: Deadline, at: float) -> None:
        """Notes when the process ends, on the clock of its timer; infinity: it does not."""
        self.cells[_TIMES + of] = int(at * _NANO) if at < math.inf else 0

    def note_seen(self, at: float) -> None:
        """Notes that Python code of the worker runs, on the clock of its timer."""
        with suppress(ValueError):  # The cells are released.
            self.cells[_TIMES + _SEEN] = int(at * _NANO)

    def leave(self, seat: int) -> None:
        """The handler has ended."""
        self.cells[_HEAD + 2 * seat] = 0

    def leave_all(self) -> None:
        """No handler runs."""
        for at in range(_HEAD, len(self.cells), 2):
            self.cells[at] = 0

    @property
    def is_at_work(self) -> bool:
        """Whether a handler runs; none does once the journal is closed."""
        with suppress(ValueError):  # The cells are released.
            return any(self.cells[_HEAD::2])
        return False

    def mark_overdue(self, seat: int | None = None) -> None:
        """The handler of a seat, or of all, runs longer than its time limit."""
        cells = self.cells
        seats = range(_HEAD, len(cells), 2) if seat is None else [_HEAD + 2 * seat]
        for at in seats:
            cells[at] = -abs(cells[at])

    def close(self) -> None:
        """Removes the file: the worker has finished."""
        self.cells.release()
        if isinstance(self._map, mmap.mmap):
            self._map.close()
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)


def journal_path(spec: BatchSpec, slot: int) -> Path | None:
    """Returns the path of the journal of a slot in a batch; None: it has none."""
    if not spec.run:
        return None
    return Path(tempfile.gettempdir(), f"coopconsume-{spec.run}-{spec.batch}-{slot}")


def read_journal(path: Path | None, now: float | None = None) -> AtCrash | None:
    """Reads the journal of a worker that died, and removes it.

    Args:
        path: The journal; None: the worker had no journal.
        now: The time on the clock of the worker's timer; None: now.

    Returns:
        None without one, or if the worker may still run.
    """
    if path is None:
        return None
    now = clock() if now is None else now
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if len(data) < _HEAD * _CELL or len(data) % _CELL:
        return None
    cells = memoryview(data).cast("q")
    if cells[1] != place_of_process() or not has_ended(cells[0]):
        return None
    with suppress(OSError):
        path.unlink()
    seats = zip(cells[_HEAD::2].tolist(), cells[_HEAD + 1 :: 2].tolist(), strict=True)
    busy = [(code, offset) for code, offset in seats if code]
    deadline, at = _passed(cells, now)
    return AtCrash(
        [(abs(code) - 1, offset) for code, offset in busy],
        [(-code - 1, offset) for code, offset in busy if code < 0],
        cells[0],
        deadline,
        at - cells[_TIMES + _SEEN] / _NANO,
    )


def _passed(cells: memoryview[int], now: float) -> tuple[Deadline | None, float]:
    """Returns the first deadline of a worker that has passed, and when that was."""
    times = [(cells[_TIMES + of] / _NANO, of) for of in Deadline if cells[_TIMES + of]]
    at, of = min(times, default=(math.inf, None))
    return (of, at) if at <= now else (None, now)


def _mapped(path: Path, size: int) -> mmap.mmap | None:
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.ftruncate(handle, size)
            return mmap.mmap(handle, size)
        finally:
            os.close(handle)
    except OSError:
        return None  # The worker runs without a journal.


def place_of_process() -> int:
    """Returns the identity of the host or container; a process number is valid only within it."""
    try:
        space = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        space = ""
    return zlib.crc32(f"{socket.gethostname()} {space}".encode())


def has_ended(pid: int) -> bool:
    """Whether a process of this place certainly runs no more; a zombie process does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return False
    return state in ("Z", "X")
