"""Ctrl-C and SIGTERM: both raise KeyboardInterrupt while a command or a query is waited for."""

from __future__ import annotations

import math
import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: Seconds after a signal in which further ones belong to it.
_TOGETHER = 0.5


@contextmanager
def interruptible() -> Iterator[None]:
    """Lets Ctrl-C and SIGTERM raise KeyboardInterrupt in the main thread.

    A handler that the program has set stays, and so does a signal that it ignores. PySpark's
    handler of Ctrl-C does not: it cancels all Spark jobs, so that records in flight are processed
    again.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        interrupt = Interrupt()
        before = {n: signal.signal(n, interrupt) for n in _SIGNALS if _is_default(n)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_default(number: signal.Signals) -> bool:
    found = signal.getsignal(number)
    is_of_pyspark = (getattr(found, "__module__", None) or "").startswith("pyspark.")
    return is_of_pyspark or found in (signal.SIG_DFL, signal.default_int_handler)


class Interrupt:
    """Handles Ctrl-C and SIGTERM: raises KeyboardInterrupt, once for signals that come together.

    `timeout` sends its signal to the command and to its process group. The second one would
    interrupt what the command does at its end.

    Args:
        clock: Returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._raised_at = -math.inf

    def __call__(self, *_: object) -> None:
        """Handles a signal."""
        now = self._clock()
        if now - self._raised_at >= _TOGETHER:
            self._raised_at = now
            raise KeyboardInterrupt
