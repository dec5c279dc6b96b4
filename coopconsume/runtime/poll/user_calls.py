"""The calls of a consumer that its user makes, and what ends those that wait."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from coopconsume.errors import AlreadyClosed, PollWokenUp

if TYPE_CHECKING:
    from collections.abc import Iterator


class UserCalls:
    """Knows whether the user is at work with a consumer, has closed it, or wakes a `poll`.

    Args:
        lock: Of what the calls work with; those that wait are notified by it.

    Attributes:
        closed: Set once the consumer is closed.
    """

    def __init__(self, lock: threading.Condition) -> None:
        self._lock = lock
        self.closed = threading.Event()
        self._is_woken = False
        self._calls = 0
        self._called_at = time.monotonic()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """While a call of the user's is made, and from its end on, the frames are not forgotten."""
        with self._lock:
            self._calls += 1
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1
                self._called_at = time.monotonic()

    def unused(self) -> float:
        """Returns the seconds since the last call of the user's; 0 while one is made."""
        with self._lock:
            return 0.0 if self._calls else time.monotonic() - self._called_at

    def close(self) -> None:
        """Hands out nothing more; calls that wait end with `AlreadyClosed`."""
        with self._lock:
            self.closed.set()
            self._lock.notify_all()

    def check_closed(self) -> None:
        """Makes sure that the consumer is not closed.

        Raises:
            AlreadyClosed: It is.
        """
        if self.closed.is_set():
            raise AlreadyClosed("the consumer")

    def wake(self) -> None:
        """Ends a `poll` that waits, or the next one, with `PollWokenUp`."""
        with self._lock:
            self._is_woken = True
            self._lock.notify_all()

    def check_woken(self) -> None:
        """Makes sure that nobody has called `wake` since it was noticed last.

        Raises:
            PollWokenUp: Somebody has.
        """
        with self._lock:
            is_woken, self._is_woken = self._is_woken, False
        if is_woken:
            raise PollWokenUp

    def wait(self, timeout: float) -> None:
        """Waits for some seconds, or until something changes."""
        with self._lock:
            if not (self.closed.is_set() or self._is_woken):
                self._lock.wait(timeout)
