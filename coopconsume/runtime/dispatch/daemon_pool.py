"""A pool of threads that do not delay the end of the program."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class DaemonPool:
    """Runs calls in daemon threads, and keeps the threads for further calls.

    Python waits at its end for the threads of a `ThreadPoolExecutor`. A call of Spark may take
    minutes while no broker answers.

    Args:
        most: Threads at most.
        name: Of the threads.
    """

    def __init__(self, most: int, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._most = most
        self._name = name
        self._lock = threading.Lock()
        self._threads = self._open = 0
        self._is_closed = False

    def submit(self, call: Callable[..., object], *args: Any) -> None:
        """Runs a call as soon as a thread is free; drops it if the pool is closed by then."""
        with self._lock:
            if self._is_closed:
                return
            self._open += 1
            self._calls.put(lambda: call(*args))
            if self._threads < min(self._most, self._open):
                self._threads += 1
                name = f"{self._name}-{self._threads}"
                threading.Thread(target=self._run, name=name, daemon=True).start()

    def close(self) -> None:
        """Starts no further call; waits for none."""
        with self._lock:
            self._is_closed = True
            for _ in range(self._threads):
                self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                if not self._is_closed:
                    call()
            finally:
                with self._lock:
                    self._open -= 1
