"""Tries whether a place can have a commit table: whether it never overwrites an existing file."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from commits.errors import UnsupportedTarget
from commits.places import local_folder, refuse_unsafe_path, refuse_unwritable
from commits.secrets import hidden
from commits.table_files import LOG_FOLDER, DiskFiles, files_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commits.table_files import TableFiles

_PREFIX = "_coopconsume_trial_"
_OVERWRITES = (
    "it overwrote a file that was to be created only if absent, so that writers lose each other's "
    "commits there: give a store with conditional puts (If-None-Match), or the name of a table in "
    "a catalog"
)


@dataclass(frozen=True)
class PlaceTrial:
    """What a place has shown.

    Attributes:
        has_table: Whether a Delta table is there.
        is_local: Whether it is a folder of this machine, which other machines may not have.
        seconds: What creating a file took.
        left: The name of the file, if it could not be removed.
    """

    has_table: bool
    is_local: bool
    seconds: float
    left: str | None = None


def try_place(uri: str, storage_options: Mapping[str, str] | None = None) -> PlaceTrial:
    """Creates a small file at a place twice, and removes it.

    On a local disk it is created in the nearest folder that exists.

    Args:
        uri: The path or URI of a table, which need not exist.
        storage_options: Options of an object store, as for `deltalake.DeltaTable`.

    Raises:
        UnsupportedTarget: Writers could overwrite each other's commits there.
        OSError: The place cannot be reached or written to.
    """
    refuse_unsafe_path(uri, storage_options)
    refuse_unwritable(uri)
    files = files_of(uri, storage_options)
    folder = local_folder(uri)
    has_table = bool(files.names(LOG_FOLDER))
    seconds, left = _create_twice(uri, files if folder is None else DiskFiles(_existing(folder)))
    return PlaceTrial(has_table, folder is not None, seconds, left)


def _create_twice(uri: str, files: TableFiles) -> tuple[float, str | None]:
    """Returns what creating a file took, and its name if it could not be removed."""
    name = f"{_PREFIX}{uuid.uuid4().hex}"
    begin = time.monotonic()
    files.create(name, b"1")
    seconds = time.monotonic() - begin
    try:
        is_safe = not files.create(name, b"2") and files.read(name) == b"1"
    finally:
        left = None if _removed(files, name) else name
    if not is_safe:
        raise UnsupportedTarget(hidden(uri), _OVERWRITES)
    return seconds, left


def _removed(files: TableFiles, name: str) -> bool:
    try:
        files.remove(name)
    except OSError:
        return False
    return True


def _existing(folder: str) -> str:
    path = Path(folder).absolute()
    return str(next(one for one in (path, *path.parents) if one.is_dir()))
