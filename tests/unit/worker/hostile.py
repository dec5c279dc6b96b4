"""Hostile handlers, and what each may cost, for every kind of runner.

A handler is hostile at one record. Whatever it does, all other records are done in the order of
their keys, none of them is given up, and the hostile one becomes a dead letter after its attempts
or is done.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

#: The kinds of runners, by their classes.
RUNNERS = {
    "SerialRunner": "plain",
    "ThreadRunner": "threads",
    "AsyncRunner": "coroutines",
    "FrameRunner": "frames",
}
#: Those that call ordinary functions.
PLAIN = ("plain", "threads", "frames")
#: Seconds of `RetryPolicy.timeout`.
LIMIT = 1.0
#: Calls of a hostile record, at most.
ATTEMPTS = 2


@dataclass(frozen=True)
class Hostile:
    """What a handler does at one record, and what that may cost.

    Attributes:
        act: What it does; it may return a coroutine, which a coroutine handler awaits.
        once: Whether it does so at its first call alone.
        fails: Whether each such call counts as a failed attempt.
        ends_worker: Whether its worker ends.
        by_time: Whether that takes `LIMIT`, so that it is certain which record it was.
        harms: Whether calls that run beside it may fail, too.
        kinds: The runners that it concerns.
    """

    act: Callable[[], Any]
    once: bool = False
    fails: bool = True
    ends_worker: bool = False
    by_time: bool = False
    harms: bool = False
    kinds: tuple[str, ...] = tuple(RUNNERS.values())


def _kills() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def _ignores_its_cancellation() -> None:
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(3_600)


def _cancels_all() -> None:
    for task in asyncio.all_tasks():
        task.cancel()


def _stops_its_loop() -> None:
    asyncio.get_running_loop().stop()


def _breaks_the_clock() -> None:
    time.time = time.monotonic = None  # type: ignore[assignment]


def _uses_all_threads() -> None:
    def start(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threading.Thread.start = start  # type: ignore[method-assign]


def _breaks_json() -> None:
    json.dumps = None  # type: ignore[assignment]


def _lowers_the_recursion_limit() -> None:
    depth, frame = 0, sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    sys.setrecursionlimit(depth + 3)


def _closes_all_files() -> None:
    os.closerange(3, 1_024)


HOSTILE = {
    "raises SystemExit": Hostile(lambda: sys.exit(3)),
    "raises KeyboardInterrupt": Hostile(
        lambda: signal.raise_signal(signal.SIGINT), kinds=("plain",)
    ),
    "ends its worker": Hostile(lambda: os._exit(9), ends_worker=True),
    "kills its worker": Hostile(_kills, ends_worker=True),
    "never returns": Hostile(
        lambda: time.sleep(3_600), ends_worker=True, by_time=True
    ),
    "waits for ever": Hostile(lambda: asyncio.sleep(3_600), kinds=("coroutines",)),
    "ignores its cancellation": Hostile(
        _ignores_its_cancellation, ends_worker=True, by_time=True, kinds=("coroutines",)
    ),
    "cancels all tasks": Hostile(
        _cancels_all, once=True, fails=False, harms=True, kinds=("coroutines",)
    ),
    "stops its loop": Hostile(_stops_its_loop, fails=False, kinds=("coroutines",)),
    "breaks the clock": Hostile(_breaks_the_clock, once=True, fails=False, ends_worker=True),
    "uses all threads": Hostile(_uses_all_threads, once=True, fails=False, ends_worker=True),
    "breaks json": Hostile(_breaks_json, once=True, fails=False, ends_worker=True),
    "lowers the recursion limit": Hostile(
        _lowers_the_recursion_limit, once=True, fails=False, ends_worker=True,
        # The rest of a frame's call fails as well.
        kinds=("plain", "threads", "coroutines"),
    ),
    "closes all files": Hostile(_closes_all_files, once=True, fails=False, ends_worker=True),
}  # fmt: skip


class Attack:
    """A handler that is hostile at one record, and notes all its calls in a file.

    Args:
        name: Of `HOSTILE`.
        at: The offset of that record.
        folder: Of the file.
    """

    def __init__(self, name: str, at: int, folder: Path) -> None:
        self.name, self.at, self.folder = name, at, str(folder)

    def of(self, kind: str) -> Any:
        """The handler for a kind of runner."""
        return {
            "plain": self.plain, "threads": self.beside, "coroutines": self.awaited,
            "frames": self.frame,
        }[kind]  # fmt: skip

    def plain(self, record: Any) -> None:
        """A function of a record."""
        self._called(record.offset, record.attempt)

    def beside(self, record: Any) -> None:
        """The same, where others run beside it."""
        self._called(record.offset, record.attempt)
        time.sleep(0.01)

    async def awaited(self, record: Any) -> None:
        """A coroutine."""
        answer = self._called(record.offset, record.attempt)
        if answer is not None:
            await answer
        await asyncio.sleep(0.01)

    def frame(self, frame: Any) -> None:
        """A function of a frame."""
        offsets, attempts = (frame.column(n).to_pylist() for n in ("offset", "attempt"))
        for offset, attempt in zip(offsets, attempts, strict=True):
            self._called(offset, attempt)

    def _called(self, offset: int, attempt: int) -> Any:
        calls = os.open(f"{self.folder}/calls", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(calls, f"{offset} {attempt} {os.getpid()}\n".encode())
        os.close(calls)
        if offset != self.at:
            return None
        hostile, done = HOSTILE[self.name], Path(self.folder, "damaged")
        if hostile.once:
            if done.exists():
                return None
            done.touch()
        return hostile.act()

    @property
    def calls(self) -> list[tuple[int, int, int]]:
        """(offset, attempt, process) of all calls."""
        lines = Path(self.folder, "calls").read_text().splitlines()
        found = [tuple(map(int, line.split())) for line in lines]
        return [(offset, attempt, pid) for offset, attempt, pid in found]
