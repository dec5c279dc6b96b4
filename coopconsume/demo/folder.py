"""The folder of a run of the demo, with its tables, histories and logs."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_PREFIX: Final = "coopconsume-demo-"
_LOCK: Final = "lock"


@contextmanager
def run_folder() -> Iterator[Path]:
    """Makes a folder that is removed in the end; removes those of runs that were killed.

    A run locks a file in its folder for as long as it lives. A folder without that file is left.
    """
    _remove_abandoned()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    # The file has its name once it is locked.
    with (folder / f".{_LOCK}").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        Path(file.name).rename(folder / _LOCK)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def kept_folder() -> Path:
    """Makes a folder that no run removes."""
    return Path(tempfile.mkdtemp(prefix=_PREFIX))


def _remove_abandoned() -> None:
    for lock in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        try:
            with lock.open("r") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
        except OSError:  # Its run lives, or it is somebody else's.
            continue
