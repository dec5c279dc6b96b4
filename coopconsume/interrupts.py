"""Ctrl-C and SIGTERM: both raise KeyboardInterrupt while a command or a query is waited for."""

from __future__ import annotations

import math
import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

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

    The earlier handlers are restored at the end. After a KeyboardInterrupt the next signal restores
    them, unless it comes together with the first one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupt = Interrupt()
    try:
        interrupt.install()
        yield
    except KeyboardInterrupt:
        interrupt.is_left = True
        raise
    finally:
        if not interrupt.is_left:
            interrupt.uninstall()


class Interrupt:
    """Handles Ctrl-C and SIGTERM: raises KeyboardInterrupt, once for signals that come together.

    `timeout` sends its signal to the command and to its process group. The second one would
    interrupt what the program does at its end.

    Attributes:
        is_left: Whether the wait was interrupted and is over. A later signal restores the earlier
            handlers and goes to them.

    Args:
        clock: Returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_left = False
        self._clock = clock
        self._raised_at = -math.inf
        self._before: dict[signal.Signals, Any] = {}
        #: While handlers are set, a signal is only noted.
        self._is_setting = self._is_noted = False

    def install(self) -> None:
        """Takes the place of default handlers.

        Raises:
            KeyboardInterrupt: A signal has come meanwhile.
        """
        self._is_setting = True
        for number in _SIGNALS:
            found = signal.getsignal(number)
            if isinstance(found, Interrupt) and found.is_left:
                found.uninstall()
            if _is_default(number):
                self._before[number] = signal.signal(number, self)
        self._have_set()

    def uninstall(self) -> None:
        """Restores the earlier handlers.

        Raises:
            KeyboardInterrupt: A signal has come meanwhile.
        """
        self._is_setting = True
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._have_set()

    def _have_set(self) -> None:
        noted, self._is_setting, self._is_noted = self._is_noted, False, False
        if noted:
            self._raised_at = self._clock()
            raise KeyboardInterrupt

    def __call__(self, number: int = signal.SIGINT, _frame: object = None) -> None:
        """Handles a signal."""
        now = self._clock()
        if now - self._raised_at < _TOGETHER:
            return
        if self._is_setting:
            self._is_noted = True
        elif self.is_left:
            self.uninstall()
            signal.raise_signal(number)
        else:
            self._raised_at = now
            raise KeyboardInterrupt


def _is_default(number: signal.Signals) -> bool:
    found = signal.getsignal(number)
    is_of_pyspark = (getattr(found, "__module__", None) or "").startswith("pyspark.")
    return is_of_pyspark or found in (signal.SIG_DFL, signal.default_int_handler)
