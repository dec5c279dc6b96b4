"""Notes when processes that handle records end, for the checker."""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING, Self

from commits import CommitStore
from coopconsume.testing.history import Kill
from tests.spark.cluster import is_there
from tests.spark.support import done_book

if TYPE_CHECKING:
    from pathlib import Path


class Deaths:
    """Notes when processes that handle records end, and what was committed when they had.

    Args:
        history: Where they record their calls, each in a file that bears its process id.
        table: The commit table.
        group: The group.
    """

    def __init__(self, history: Path, table: str, group: str) -> None:
        self.kills: list[Kill] = []
        self._history, self._table, self._group = history, table, group
        self._over = threading.Event()
        self._gone: queue.Queue[tuple[int, frozenset[int]] | None] = queue.Queue()
        # Two, as a look at the log may take longer than the next death.
        self._threads = [threading.Thread(target=one) for one in (self._watch, self._look)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def workers(self) -> set[int]:
        """Processes that have handled records, those that have ended among them."""
        return {int(path.name.split("-")[1]) for path in self._history.glob("calls-*")}

    def store(self) -> CommitStore:
        """The job's commits."""
        (cluster,) = CommitStore.open(self._table).clusters(self._group)
        return CommitStore.open(self._table, cluster=cluster)

    def _watch(self) -> None:
        dead: set[int] = set()
        while not self._over.wait(0.02):
            gone = frozenset(pid for pid in self.workers() - dead if not is_there(pid))
            if gone:
                self._gone.put((time.monotonic_ns(), gone))
                dead |= gone
        self._gone.put(None)

    def _look(self) -> None:
        while (found := self._gone.get()) is not None:
            at, gone = found
            self.kills.append(Kill(at, done_book(self.store(), self._group), gone))
