"""What is seen of a chaos run from outside: the commit log, the processes, the disturbances."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from commits import CommitStoreError
from coopconsume.group.owned import LEASE
from coopconsume.testing.history import Deletion, Disturbance, Seen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.chaos.harness import App
    from tests.chaos.topics import Place

    Book = dict[Place, list[tuple[int, int]]]

_SAMPLE_EVERY = 0.25
_FOR_EVER = 2**62


class Watcher:
    """Looks at the commit log and at the applications' processes all along.

    Args:
        apps: The applications, as they are at the moment.
        book: What the commit log counts as done now.
    """

    def __init__(self, apps: Callable[[], Iterable[App]], book: Callable[[], Book]) -> None:
        self._apps = apps
        self._book = book
        self._commits: list[tuple[int, Book]] = []
        self._disturbed: list[tuple[frozenset[int] | App, int, int]] = []
        self._deletions: list[Deletion] = []
        self._gone: dict[int, int] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join(60)

    def disturb(self, whose: frozenset[int] | App) -> None:
        """What these processes have not committed by now may be lost, until `settled` is called."""
        self._disturbed.append((whose, time.monotonic_ns(), _FOR_EVER))

    def woke(self, app: App) -> None:
        """A driver stood still and goes on: for no longer than a lease, that loses nothing.

        Its slots end their processes a grace after the lease: that is no excuse if it was there.
        """
        now = time.monotonic_ns()
        self._disturbed = [
            (whose, since, end)
            for whose, since, end in self._disturbed
            if not (whose is app and end == _FOR_EVER and now - since <= 1e9 * LEASE)
        ]

    def deletes(self, below: dict[Place, int]) -> None:
        """The records below these offsets are about to be deleted, whether handled or not."""
        self._deletions.append(Deletion(time.monotonic_ns(), below))

    def settled(self, after: float) -> None:
        """All applications that live work as members again.

        Args:
            after: Seconds from now for which batches from before may go on.
        """
        until = time.monotonic_ns() + int(1e9 * after)
        self._disturbed = [
            # Of what has ended nothing is committed any more.
            (whose, since, min(end, until) if _lives(whose) else end)
            for whose, since, end in self._disturbed
        ]

    def disturbed_for(self) -> float:
        """Returns for how many seconds what living applications do may still be lost."""
        ends = [end for whose, _, end in self._disturbed if _lives(whose)]
        return max(0.0, max(ends, default=0) / 1e9 - time.monotonic())

    def seen(self) -> Seen:
        """All of it, for the checker."""
        self._look_at_workers()
        return Seen(
            [
                Disturbance(since, until, whose if isinstance(whose, frozenset) else whose.workers)
                for whose, since, until in self._disturbed
            ],
            self._commits,
            self._gone,
            self._deletions,
        )

    def _watch(self) -> None:
        while not self._closing.wait(_SAMPLE_EVERY):
            with suppress(CommitStoreError):  # the next look will do
                book = self._book()
                # Taken after the look: all of it was committed by then.
                self._commits.append((time.monotonic_ns(), book))
            self._look_at_workers()

    def _look_at_workers(self) -> None:
        for app in self._apps():
            for pid in app.workers - self._gone.keys():
                if not runs(pid):
                    self._gone[pid] = time.monotonic_ns()


def _lives(whose: frozenset[int] | App) -> bool:
    return not isinstance(whose, frozenset) and whose.is_alive


def runs(pid: int) -> bool:
    """Whether a process is there and not dead."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
