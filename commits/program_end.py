"""The end of a program waits for calls of deltalake that run in daemon threads.

A daemon thread that returns from native code once Python has begun to end is ended within that
code. Code in Rust cannot be: the process would crash, with the exit code 139 in place of its own.
"""

from __future__ import annotations

import atexit
import logging
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import deltalake

if TYPE_CHECKING:
    from types import FrameType

log = logging.getLogger(__name__)

#: The code of deltalake, and what calls its objects in Rust itself.
_PLACES: Final = (
    str(Path(deltalake.__file__).parent), str(Path(__file__).with_name("path_engine.py")),
)  # fmt: skip
#: Seconds for which calls are waited for: a storage that does not answer must not keep a program.
_LONGEST: Final = 10.0
#: Seconds for which the main thread keeps Python's lock after the last look.
_KEEP: Final = 1.0


def _wait_for_calls() -> None:
    interval, deadline = sys.getswitchinterval(), time.monotonic() + _LONGEST
    while True:
        # After the last look no other thread begins a call.
        sys.setswitchinterval(_KEEP)
        if not _is_called():
            return
        sys.setswitchinterval(interval)
        if time.monotonic() > deadline:
            log.warning("a call of deltalake has not ended for %g s", _LONGEST)
            return
        time.sleep(0.002)


def _is_called() -> bool:
    """Whether another thread is within deltalake."""
    frames = sys._current_frames()  # noqa: SLF001 - the documented way, in spite of its name
    frames.pop(threading.get_ident(), None)
    return any(map(_is_within, frames.values()))


def _is_within(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(_PLACES):
            return True
        frame = frame.f_back
    return False


atexit.register(_wait_for_calls)
