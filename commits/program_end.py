"""The end of a program waits for calls of deltalake in daemon threads, and lets none begin.

A daemon thread that returns from native code once Python has begun to end is ended within that
code. Code in Rust cannot be: the process would crash, with the exit code 139 in place of its own.
"""

from __future__ import annotations

import atexit
import functools
import logging
import sys
import threading
import time
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

import deltalake

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

log = logging.getLogger(__name__)

#: A thread is at work on a table in these files.
_PLACES: Final = (str(Path(deltalake.__file__).parent), __file__)
#: Seconds for which calls are waited for: a storage that does not answer must not keep a program.
_LONGEST: Final = 10.0

_ending = threading.Event()
#: The daemon threads that wait for the end of the process.
_held: set[int] = set()


def table_call(call: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function that calls deltalake: it never begins in a daemon thread at the end."""

    @functools.wraps(call)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        if _ending.is_set() and threading.current_thread().daemon:
            _held.add(threading.get_ident())
            threading.Event().wait()
        return call(*args, **kwargs)

    return checked


def table_calls(cls: type[T]) -> type[T]:
    """Decorates all public methods of a class as `table_call` does."""
    for name, value in list(vars(cls).items()):
        if isinstance(value, FunctionType) and not name.startswith("_"):
            setattr(cls, name, table_call(value))
    return cls


def _wait_for_calls() -> None:
    _ending.set()
    deadline = time.monotonic() + _LONGEST
    while _is_called():
        if time.monotonic() > deadline:
            log.warning("a call of deltalake has not ended for %g s", _LONGEST)
            return
        time.sleep(0.002)


def _is_called() -> bool:
    """Whether another thread is at work on a table."""
    frames = sys._current_frames()  # noqa: SLF001 - the documented way, in spite of its name
    for ident in (threading.get_ident(), *_held):
        frames.pop(ident, None)
    return any(map(_is_within, frames.values()))


def _is_within(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(_PLACES):
            return True
        frame = frame.f_back
    return False


atexit.register(_wait_for_calls)
