"""The folder of this user for what the processes of a host share. The standard library alone."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path


def user_folder() -> Path:
    """Returns a folder in that for temporary files, which nobody else can read or change.

    Raises:
        OSError: It cannot be made, or belongs to somebody else.
    """
    folder = Path(tempfile.gettempdir(), f"coopconsume-{os.getuid()}")
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077 or not folder.is_dir():
        raise PermissionError(f"{folder} is not a folder of this user alone")
    return folder
