"""A timer that ends this process, whatever its threads do. Task-side code: the standard library.

A thread of Python cannot end a process in which native code keeps the interpreter lock, nor one
that is stopped. On Linux the timer is the kernel's: it sends SIGKILL, by a clock that runs on while
the host sleeps. Elsewhere it is that of `faulthandler`, whose thread needs no interpreter lock, but
runs only while the process does.
"""

from __future__ import annotations

import ctypes
import errno
import faulthandler
import math
import os
import signal
import sys
import time
from contextlib import suppress
from typing import Any, Final, Protocol

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", None)
_SIGEV_SIGNAL: Final = 0
_TIMER_ABSTIME: Final = 1
#: Bytes of ``struct sigevent`` behind its first members.
_SIGEVENT_REST: Final = 48
#: The descriptor of standard error, which need not be open.
_STDERR: Final = 2


def clock() -> float:
    """Returns the time of the clock that the timer goes by, in seconds.

    On Linux it runs on while the host sleeps; elsewhere it is the monotonic clock.
    """
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


class ProcessTimer(Protocol):
    """A timer that ends this process. It has one instant at a time."""

    def set(self, at: float) -> None:
        """Sets the instant at which this process ends, in place of the one before.

        Args:
            at: On `clock`; an instant that has passed ends the process at once; infinity: never.
        """

    def close(self) -> None:
        """Removes the timer: it ends nothing any more."""


def process_timer() -> ProcessTimer:
    """Returns the timer that this system has."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # The system, or its C library, has no such timer.
            return _KernelTimer()
    return _FaultTimer()


class _SigEvent(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_byte * _SIGEVENT_REST),
    )


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanos", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


class _KernelTimer:
    """A POSIX timer. A process that is forked from this one does not have it.

    Raises:
        OSError: The kernel gives no timer.
        AttributeError: The C library has none.
    """

    def __init__(self) -> None:
        self._id: ctypes.c_void_p | None = None
        self._library = _c_library()
        event, made = _SigEvent(), ctypes.c_void_p()
        event.signo, event.notify = signal.SIGKILL, _SIGEV_SIGNAL
        self._call("timer_create", _CLOCK, ctypes.byref(event), ctypes.byref(made))
        self._id = made

    def set(self, at: float) -> None:
        if self._id is None:
            return
        spec = _TimerSpec()
        if at < math.inf:
            # Zero would disarm it.
            nanos = max(1, int(at * 1e9))
            spec.value.seconds, spec.value.nanos = divmod(nanos, 1_000_000_000)
        self._call("timer_settime", self._id, _TIMER_ABSTIME, ctypes.byref(spec), None)

    def close(self) -> None:
        made, self._id = self._id, None
        if made is not None:
            self._call("timer_delete", made)

    def _call(self, name: str, *args: Any) -> None:
        if getattr(self._library, name)(*args) != 0:
            number = ctypes.get_errno() or errno.EINVAL
            raise OSError(number, f"{name}: {os.strerror(number)}")


class _FaultTimer:
    """The watchdog of `faulthandler`; as it ends the process it writes the stacks of its threads.

    A process has one. A handler that uses it itself takes it away.
    """

    def set(self, at: float) -> None:
        faulthandler.cancel_dump_traceback_later()
        if at < math.inf:
            left = max(0.001, at - clock())
            faulthandler.dump_traceback_later(left, exit=True, file=_STDERR)

    def close(self) -> None:
        faulthandler.cancel_dump_traceback_later()


def _c_library() -> Any:
    """Returns the library that has the timers: before version 2.34 of glibc, that is librt."""
    library = ctypes.CDLL(None, use_errno=True)
    if hasattr(library, "timer_create"):
        return library
    return ctypes.CDLL("librt.so.1", use_errno=True)
