"""Opens and creates Delta tables on paths and in object stores."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING

from deltalake import Schema

from commits.delta_log import DeltaLog
from commits.errors import (
    CommitLogUnavailable,
    CommitTableFormat,
    CommitTableNotFound,
    CorruptCommitLog,
    UnsupportedTarget,
)
from commits.path_engine import PathEngine, state_of
from commits.places import local_path, refuse_unsafe_path, refuse_unwritable
from commits.rows_file import SEGMENT
from commits.secrets import message_of
from commits.table_files import LOG_FOLDER, files_of
from commits.table_state import listed_versions

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa


def open_or_create(
    target: str | os.PathLike[str],
    schema: pa.Schema,
    properties: Mapping[str, str] | None,
    storage_options: Mapping[str, str] | None = None,
    *,
    over_remains: bool = False,
    is_written: bool = True,
) -> PathEngine:
    """Open the table and create it if it does not exist. Concurrent calls are safe.

    Args:
        target: The path or URI.
        schema: The columns of a new table.
        properties: The properties of a new table; None to create no table.
        storage_options: Options of the object store.
        over_remains: Whether a directory that has only data files of a lost table counts as
            none; a writer leaves some if the table goes away while it writes.
        is_written: As for `PathEngine`.

    Raises:
        CommitTableNotFound: If the table does not exist and `properties` is None.
        UnsupportedTarget: If its scheme is unknown, or writers could overwrite each other.
        CommitTableFormat: If the location has other files than a Delta table.
        CorruptCommitLog: If the table is damaged.
        CommitLogUnavailable: If the storage cannot be reached, read or written.
    """
    uri = _uri_of(target)
    options = dict(storage_options) if storage_options else None
    refuse_unsafe_path(uri, options)
    try:
        files = files_of(uri, options)
        _refuse_file(uri)
        # Looked for first: a table that another process creates meanwhile has files, too.
        is_foreign = _has_foreign_files(uri, over_remains=over_remains)
        opened = state_of(uri, files)
        if opened is None:
            if is_foreign:
                found = "a directory with other files"
                raise CommitTableFormat(uri, found, "a Delta table or nothing")
            if properties is None:
                raise CommitTableNotFound(uri)
            refuse_unwritable(uri)
            DeltaLog.create(files, Schema.from_arrow(schema).to_json(), SEGMENT, properties)
    except OSError as error:
        raise CommitLogUnavailable(uri, "open", message_of(error)) from error
    return PathEngine(uri, storage_options, opened=opened, is_written=is_written)


def newest_readable(
    target: str | os.PathLike[str],
    storage_options: Mapping[str, str] | None,
    versions: int,
) -> PathEngine | None:
    """Open the newest readable one of the last `versions` versions, for reads only."""
    uri = _uri_of(target)
    options = dict(storage_options) if storage_options else None
    try:
        listed = listed_versions(files_of(uri, options))
    except OSError as error:
        raise CommitLogUnavailable(uri, "read", message_of(error)) from error
    for version in listed[:versions]:
        with suppress(CorruptCommitLog):
            return PathEngine(uri, storage_options, version)
    return None


def _uri_of(target: str | os.PathLike[str]) -> str:
    uri = os.fspath(target)
    if not uri.strip():
        raise UnsupportedTarget(uri, "it is empty; give the path of a Delta table")
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/(?!/)", uri):
        raise UnsupportedTarget(uri, "write two slashes after the colon: s3://…, or file:///…")
    # The handle is reopened later, maybe in another working directory.
    return uri if "://" in uri else str(Path(uri).absolute())


def _refuse_file(uri: str) -> None:
    path = _local(uri)
    # deltalake reports a path without permission as one without a table.
    with suppress(FileNotFoundError):
        if S_ISREG(path.stat().st_mode):
            raise CommitTableFormat(uri, "a file", "a Delta table or nothing")
        (path / LOG_FOLDER).stat()


def _has_foreign_files(uri: str, *, over_remains: bool) -> bool:
    path = _local(uri)
    # An empty log directory belongs to a table that another process is creating.
    names = [entry.name for entry in path.iterdir()] if path.is_dir() else []
    others = [name for name in names if not (over_remains and name.startswith(f"{SEGMENT}="))]
    return any(name != LOG_FOLDER for name in others)


def _local(uri: str) -> Path:
    return Path(local_path(uri))
