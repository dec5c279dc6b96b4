"""The log as a Delta table on a path, written by `deltalake`.

Three measures keep an append at a few milliseconds, however long the log is. The open handle is
reused. The writer of every 50th version writes a checkpoint, in place of `deltalake`'s own
post-commit hooks. The handle is reopened after as many versions, because it slows down with every
version that it has loaded. The last two are work of `maintain`: a commit need not wait for them.
"""

from __future__ import annotations

import logging
import math
import os
import re
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import (
    ColumnProperties,
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    QueryBuilder,
    Schema,
    WriterProperties,
    write_deltalake,
)
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileSelector

from commits.engine import AppendConflict, Tail, TailGone
from commits.entries import APPEND, VersionEntry, tail_of, words_of
from commits.errors import (
    CommitLogUnavailable,
    CommitTableFormat,
    CommitTableNotFound,
    CorruptCommitLog,
    UnsupportedTarget,
)
from commits.places import local_path, refuse_unsafe_path, refuse_unwritable
from commits.program_end import table_calls
from commits.rows import SCHEMA
from commits.secrets import hidden, message_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


log = logging.getLogger(__name__)

CHECKPOINT_VERSIONS = 50
# Statistics and dictionaries of bitmaps and single values cost space and time without a benefit.
# The statistics of the kind allow snapshots to be found without reading the rest.
_PLAIN = ColumnProperties(dictionary_enabled=False, statistics_enabled="NONE")
_WRITER = WriterProperties(
    compression="ZSTD",
    compression_level=1,
    default_column_properties=_PLAIN,
    column_properties={"kind": ColumnProperties(statistics_enabled="CHUNK")},
)
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
_CHECKPOINT_PAUSE = 10  # versions after which a failed checkpoint is tried again
_ONE_BY_ONE = 16  # files up to which one thread reads them
_READERS = 16
#: Seconds for which a handle writes without a look at the log, and which a write may take. It is
#: much less than the table's log retention.
_STALE_SECONDS = 300.0
_PROBED = 2 * CHECKPOINT_VERSIONS  # entries that are read to distinguish an outage from damage
_NO_TABLE = "there is no table (its disk may not be mounted, or it was moved or deleted)"
_IN_FILES = SCHEMA.remove(SCHEMA.get_field_index("segment"))  # a partition column

T = TypeVar("T")
R = TypeVar("R")

#: Hours that removed files stay by default, and files that a writer has not yet added. Longer than
#: checkpoints know the removed ones (``delta.deletedFileRetentionDuration``).
_FILE_HOURS = 6

MIN_RETENTION_HOURS = 1
"""Younger files may belong to a version that is being written or read."""


@table_calls
class PathEngine:
    """A Delta table on a local path or an object store; see `commits.engine.LogEngine`.

    Args:
        uri: The path or URI.
        storage_options: Options of the object store; see `deltalake.DeltaTable`.
        version: A fixed version, for reads only; None for the newest version.
    """

    def __init__(
        self,
        uri: str,
        storage_options: Mapping[str, str] | None = None,
        version: int | None = None,
    ) -> None:
        self._uri = uri
        self._options = dict(storage_options) if storage_options else None
        self._pinned = version
        self._files = DeltaStorageHandler(uri, self._options)
        self._table = self._open()
        self._opened_at = self._table.version()
        self._read: tuple[int, bytes] | None = None  # the last version of a tail, and its digest
        self._own: dict[str, pa.Table] = {}  # the last rows that this engine appended
        self._in_doubt = False
        self._checkpoint_from = math.inf  # the version from which on a checkpoint is due
        self._looked_at = _now()

    @classmethod
    def open_or_create(
        cls,
        target: str | os.PathLike[str],
        schema: pa.Schema,
        properties: Mapping[str, str] | None,
        storage_options: Mapping[str, str] | None = None,
        *,
        over_remains: bool = False,
    ) -> PathEngine:
        """Open the table and create it if it does not exist. Concurrent calls are safe.

        Args:
            target: The path or URI.
            schema: The columns of a new table.
            properties: The properties of a new table; None to create no table.
            storage_options: Options of the object store.
            over_remains: Whether a directory that has only data files of a lost table counts as
                none; a writer leaves some if the table goes away while it writes.

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
            _refuse_file(uri)
            # Looked for first: a table that another process creates meanwhile has files, too.
            is_foreign = _has_foreign_files(uri, over_remains=over_remains)
            if not DeltaTable.is_deltatable(uri, options):
                if is_foreign:
                    found = "a directory with other files"
                    raise CommitTableFormat(uri, found, "a Delta table or nothing")
                if properties is None:
                    raise CommitTableNotFound(uri)
                _create(uri, schema, properties, options)
        except (DeltaError, OSError) as error:
            if "Unknown scheme" in str(error):
                raise UnsupportedTarget(
                    uri,
                    f"deltalake has no storage for {uri.partition('://')[0]}://; give a path or a "
                    "URI of file://, s3://, az://, abfss:// or gs://",
                ) from error
            raise CommitLogUnavailable(uri, "open", message_of(error)) from error
        return cls(uri, storage_options)

    @classmethod
    def opened_at(
        cls,
        target: str | os.PathLike[str],
        storage_options: Mapping[str, str] | None,
        versions: int,
    ) -> PathEngine | None:
        """Open the newest readable one of the last `versions` versions, for reads only."""
        uri = _uri_of(target)
        options = dict(storage_options) if storage_options else None
        try:
            listed = _listed(DeltaStorageHandler(uri, options))
        except OSError as error:
            raise CommitLogUnavailable(uri, "read", message_of(error)) from error
        for version in listed[:versions]:
            with suppress(CorruptCommitLog):
                return cls(uri, storage_options, version)
        return None

    @property
    def target(self) -> str:
        """The table, for messages; without secrets."""
        return hidden(self._uri)

    @property
    def location(self) -> str:
        """The path or URI of the table's folder."""
        return self._uri

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties of the table."""
        configuration: Mapping[str, str] = self._table.metadata().configuration
        return configuration

    @property
    def table_id(self) -> str:
        """The id of the table; one that takes its place has another."""
        return str(self._table.metadata().id)

    @property
    def columns(self) -> Mapping[str, str]:
        """The names and types of the table's columns."""
        return _columns_of(self._table.schema())

    @staticmethod
    def columns_of(schema: pa.Schema) -> Mapping[str, str]:
        """Return the names and types that the columns of an Arrow schema have in a table."""
        return _columns_of(Schema.from_arrow(schema))

    @property
    def version(self) -> int:
        """The newest known version."""
        return self._table.version()

    def refresh(self, *, reopen: bool = False) -> int:
        """Look for newer versions and return the newest."""
        if self._pinned is not None:
            return self._pinned
        self._looked_at = _now()
        if not reopen:
            try:
                self._table.update_incremental()
            except (DeltaError, OSError) as error:
                log.debug("reopening %s: %s", self.target, message_of(error))
                reopen = True
            else:
                self._check_mounted("read")
        if reopen or self._in_doubt or self._is_slow:
            table = self._open()
            if table.version() < self.version:
                raise CorruptCommitLog(
                    self._uri,
                    f"version {table.version()} is its newest, and {self.version} was there before",
                )
            self._table, self._opened_at, self._in_doubt = table, table.version(), False
        return self.version

    def append(self, rows: pa.Table, *, snapshot_of: int | None = None) -> int:
        """Append rows and return their version, or a later one."""
        # Without the check rows could be written into the mount point of an unmounted disk.
        self._check_mounted("append")
        if self._in_doubt or self._is_slow:
            self.refresh(reopen=True)
        elif _now() - self._looked_at > _STALE_SECONDS:
            self.refresh()
        token, began = uuid.uuid4().hex, _now()
        try:
            refuse_unwritable(self._uri, rows.nbytes)
            write_deltalake(
                self._table,
                rows,
                mode="append",
                writer_properties=_WRITER,
                commit_properties=CommitProperties(
                    custom_metadata={APPEND: token}
                    | ({} if snapshot_of is None else words_of(snapshot_of))
                ),
                post_commithook_properties=_NO_HOOKS,
            )
        except CommitFailedError as error:
            raise AppendConflict(message_of(error)) from error
        except (DeltaError, OSError) as error:
            self._in_doubt = True
            raise CommitLogUnavailable(self._uri, "append", message_of(error)) from error
        self._check_duration("append", began)
        self._own = {token: rows}
        version = self.version
        if version % CHECKPOINT_VERSIONS == 0:
            self._checkpoint_from = min(version, self._checkpoint_from)
        return version

    def maintain(self) -> None:
        """Write a checkpoint if one is due, and reopen the handle if it has become slow."""
        if self.version >= self._checkpoint_from:
            self._checkpoint()
        if self._is_slow:
            try:
                self.refresh(reopen=True)
            except Exception as error:  # noqa: BLE001 - the next append tries again
                log.warning("%s was not reopened: %s", self.target, message_of(error))

    def tail(self, after: int, upto: int) -> Tail:
        """Return the rows appended in versions from `after` (excluded) to `upto` (included)."""
        if upto <= after:
            return Tail()
        try:
            self._check_history(after)
            # The table's history() returns wrong versions during concurrent appends, and its
            # change data feed takes five times as long as reading the files.
            entries = self._entries(range(after + 1, upto + 1))
            appends = {v: entry for v, entry in entries.items() if entry.is_append}
            # Rows that this engine appended last are not read again.
            own = {
                v: rows for v, e in appends.items() if (rows := self._own.get(e.token)) is not None
            }
            files = [(v, f) for v, e in appends.items() if v not in own for f in e.files]
            found = [_in_version(rows.select(_IN_FILES.names), v) for v, rows in own.items()]
            found += _side_by_side(self._rows, files)
            rows = pa.concat_tables(found) if found else Tail().rows
        except (CommitLogUnavailable, CorruptCommitLog):
            raise
        except Exception as error:  # a file of nonsense can raise anything
            raise self._unreadable(error, f"versions {after + 1} to {upto}") from error
        self._read = upto, entries[upto].digest
        return tail_of(rows, entries)

    def snapshots(self, version: int | None = None) -> pa.Table:
        """Return the rows of kind `snapshot` in a version, by default the newest."""
        what = f"snapshots in version {version or self.version}"
        try:
            table = self._table
            if version is not None:
                table = DeltaTable(self._uri, version=version, storage_options=self._options)
        except (DeltaError, OSError) as error:
            raise self._unreadable(error, what) from error
        try:
            return _snapshot_rows(table)
        except Exception as error:  # the query engine raises nothing more specific  # noqa: BLE001
            log.debug("reading %s of %s: %s", what, self.target, message_of(error))
        self._check_answers(table.get_add_actions(flatten=True).column("path").to_pylist())
        try:  # the storage may have come back in between
            return _snapshot_rows(table)
        except MemoryError as error:
            raise self._unreadable(error, what) from error
        except Exception as error:
            raise TailGone(f"{what}: {message_of(error)}") from error

    def last_append_ms(self) -> int | None:
        """Return the time of the last append by the writer's clock, in milliseconds since 1970.

        None if the last versions have no append, or if their entries cannot be read.
        """
        versions = range(self.version, max(-1, self.version - _ONE_BY_ONE), -1)
        entries = self._entries(versions, broken_ok=True).values()
        return next((entry.timestamp_ms for entry in entries if entry.is_append), None)

    def compactions(self) -> list[int]:
        """Return the known versions that added a snapshot, newest first."""
        try:
            versions = [version for version in _listed(self._files) if version <= self.version]
        except OSError as error:
            raise self._unreadable(error, "the entries of its log") from error
        found = self._entries(versions, broken_ok=True)
        return [version for version, entry in found.items() if entry.snapshot_of >= 0]

    def replace(self, rows: pa.Table, *, at: int, closed: int | None) -> int:
        """Replace all rows of segments up to `closed` by `rows`, in one version."""
        predicate = "segment >= 0" if closed is None else f"segment <= {closed}"
        # The handle is at the folded version, so that later appends to the closed segments are a
        # conflict. A newer handle would remove these rows unread.
        began = _now()
        try:
            refuse_unwritable(self._uri, rows.nbytes)
            pinned = DeltaTable(self._uri, version=at, storage_options=self._options)
            write_deltalake(
                pinned,
                rows,
                mode="overwrite",
                predicate=predicate,
                writer_properties=_WRITER,
                commit_properties=CommitProperties(
                    custom_metadata=words_of(at, repair=closed is None)
                ),
                post_commithook_properties=_NO_HOOKS,
            )
        except CommitFailedError as error:
            raise AppendConflict(message_of(error)) from error
        except (DeltaError, OSError) as error:
            self._in_doubt = True
            raise CommitLogUnavailable(self._uri, "compact", message_of(error)) from error
        self._check_duration("compact", began)
        version: int = pinned.version()
        self.refresh(reopen=True)
        self._checkpoint()
        return version

    def tidy(self, upto: int) -> None:
        """Remove log entries up to a version that are older than the table's log retention."""
        try:
            pinned = DeltaTable(self._uri, version=upto, storage_options=self._options)
            pinned.cleanup_metadata()
        except (DeltaError, OSError) as error:
            log.warning(
                "old log entries of %s were not removed: %s", self.target, message_of(error)
            )

    def vacuum(self, retention_hours: int | None = None) -> int:
        """Remove files that only old versions need, and return their number."""
        hours = _FILE_HOURS if retention_hours is None else retention_hours
        try:
            began, table = _now(), self._open()
            # Files that were added since a long-ago opening would count as old ones.
            self._check_duration("vacuum", began)
            # The vacuum lists all files: the table no longer knows the files of old removals.
            removed = table.vacuum(
                hours, dry_run=False, enforce_retention_duration=False, full=True
            )
        except (DeltaError, OSError) as error:
            raise CommitLogUnavailable(self._uri, "vacuum", message_of(error)) from error
        return len(removed)

    def _check_duration(self, operation: str, began: float) -> None:
        """Check that this process was not frozen for so long that what it saw may be gone.

        deltalake creates the entry of a version that has no entry. If it had one, and others
        removed it meanwhile, they never see the new one.
        """
        took = _now() - began
        if took > _STALE_SECONDS:
            self._in_doubt = True
            raise CommitLogUnavailable(self._uri, operation, f"it took {took:.0f} s")

    def _check_history(self, version: int) -> None:
        """Check that a version was not replaced since it was read, as by a restore of files."""
        if self._read is None or self._read[0] != version:
            return
        if self._entry(version).digest != self._read[1]:
            # It may be that of a process that was frozen, in the place of a removed one. Then the
            # next one is missing, and the tail is gone.
            self._entry(version + 1)
            self._in_doubt = True
            raise CorruptCommitLog(
                self._uri, f"version {version} is another one than it was: its files were replaced"
            )

    def _entries(
        self, versions: Sequence[int], *, broken_ok: bool = False
    ) -> dict[int, VersionEntry]:
        def read(version: int) -> VersionEntry | None:
            try:
                return self._entry(version)
            except (KeyError, FileNotFoundError, ValueError):
                if broken_ok:
                    return None
                raise
            except OSError as error:
                raise self._unreadable(error, f"version {version}") from error

        entries = _side_by_side(read, versions)
        return {v: entry for v, entry in zip(versions, entries, strict=True) if entry is not None}

    def _rows(self, append: tuple[int, str]) -> pa.Table:
        version, file = append
        data = pa.BufferReader(self._files.open_input_file(file).read())
        try:
            rows = pq.ParquetFile(data).read(columns=_IN_FILES.names).cast(_IN_FILES)
        except OSError as error:  # of the content: the bytes are here
            raise ValueError(f"{file} is no Parquet file: {message_of(error)}") from error
        if not rows.num_rows:
            raise ValueError(f"{file} should contain rows and is empty")
        return _in_version(rows, version)

    def _entry(self, version: int) -> VersionEntry:
        return VersionEntry.parse(
            self._files.open_input_file(f"_delta_log/{version:020d}.json").read()
        )

    def _open(self) -> DeltaTable:
        try:
            try:
                return self._opened()
            except TableNotFoundError:
                raise
            except DeltaError as error:
                log.debug("opening %s: %s", self.target, message_of(error))
                self._check_answers(self._log_files())
                return self._opened()  # the storage may have come back in between
        except TableNotFoundError as error:
            raise CommitLogUnavailable(self._uri, "read", _NO_TABLE) from error
        except OSError as error:
            raise CommitLogUnavailable(self._uri, "read", message_of(error)) from error
        except DeltaError as error:
            raise CorruptCommitLog(
                self._uri, f"it cannot be opened ({message_of(error)})"
            ) from error

    def _opened(self) -> DeltaTable:
        return DeltaTable(self._uri, version=self._pinned, storage_options=self._options)

    def _log_files(self) -> list[str]:
        found = self._files.get_file_info_selector(FileSelector("_delta_log"))
        return sorted((info.path for info in found if info.is_file), reverse=True)[:_PROBED]

    def _check_mounted(self, operation: str) -> None:
        """Check that a local table exists: deltalake reports no change if it is missing."""
        if "://" in self._uri and not self._uri.startswith("file://"):
            return
        try:
            with os.scandir(_local(self._uri) / "_delta_log") as entries:
                is_there = next(entries, None) is not None
        except FileNotFoundError:
            is_there = False
        except OSError as error:
            raise CommitLogUnavailable(self._uri, operation, message_of(error)) from error
        if not is_there:
            raise CommitLogUnavailable(self._uri, operation, _NO_TABLE)

    def _check_answers(self, files: Iterable[str]) -> None:
        """Read files of the table to check that its storage answers; they may be missing.

        Raises:
            CommitLogUnavailable: If the storage does not answer.
        """
        try:
            for file in files:
                with suppress(FileNotFoundError):
                    self._files.open_input_file(unquote(file)).read()
        except OSError as error:
            raise CommitLogUnavailable(self._uri, "read", message_of(error)) from error

    def _unreadable(self, error: Exception, what: str) -> CommitLogUnavailable | TailGone:
        """Return the error of a failed read: files are missing, or the storage does not answer."""
        is_away = isinstance(error, OSError) and not isinstance(error, FileNotFoundError)
        if is_away or isinstance(error, MemoryError):
            return CommitLogUnavailable(self._uri, "read", message_of(error))
        return TailGone(f"{what}: {message_of(error)}")

    @property
    def _is_slow(self) -> bool:
        return self.version - self._opened_at >= CHECKPOINT_VERSIONS

    def _checkpoint(self) -> None:
        self._checkpoint_from = math.inf
        try:
            self._table.create_checkpoint()
        except Exception as error:  # noqa: BLE001 - the row is written: only later reads are slower
            self._checkpoint_from = self.version + _CHECKPOINT_PAUSE
            log.warning(
                "no checkpoint of %s at version %d: %s",
                self.target,
                self.version,
                message_of(error),
            )


def _create(
    uri: str, schema: pa.Schema, properties: Mapping[str, str], options: dict[str, str] | None
) -> None:
    try:
        DeltaTable.create(
            uri,
            schema,
            mode="error",
            partition_by=["segment"],
            description="An append-only log of coopconsume.",
            configuration=dict(properties),
            storage_options=options,
            # Without retries: the loser of a race would create the table again as version 1.
            commit_properties=CommitProperties(max_commit_retries=0),
            raise_if_key_not_exists=False,
        )
    except (DeltaError, OSError):
        # Another process may have created the table; otherwise this is the cause.
        if not DeltaTable.is_deltatable(uri, options):
            raise


def _snapshot_rows(table: DeltaTable) -> pa.Table:
    query = "SELECT *, 0 AS _commit_version FROM log WHERE kind = 'snapshot'"
    return pa.table(QueryBuilder().register("log", table).execute(query).read_all())


def _now() -> float:
    """Return seconds on a clock that also runs while the host sleeps, where there is one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _listed(files: DeltaStorageHandler) -> list[int]:
    """Return the versions with an entry in the log, newest first."""
    listed = files.get_file_info_selector(FileSelector("_delta_log"))
    names = [re.fullmatch(r"(\d{20})\.json", Path(info.path).name) for info in listed]
    return sorted((int(name[1]) for name in names if name), reverse=True)


def _in_version(rows: pa.Table, version: int) -> pa.Table:
    return rows.append_column("_commit_version", pa.array([version] * len(rows), pa.int64()))


def _side_by_side(read: Callable[[T], R], things: Sequence[T]) -> list[R]:
    if len(things) <= _ONE_BY_ONE:
        return [read(thing) for thing in things]
    first = read(things[0])  # old entries first: if they are missing, the others are not read
    try:
        with ThreadPoolExecutor(_READERS) as pool:
            return [first, *pool.map(read, things[1:])]
    except RuntimeError:  # no thread can be started
        return [first, *map(read, things[1:])]


def _columns_of(schema: Schema) -> Mapping[str, str]:
    return {field.name: str(field.type) for field in schema.fields}


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
        (path / "_delta_log").stat()


def _has_foreign_files(uri: str, *, over_remains: bool) -> bool:
    path = _local(uri)
    # An empty log directory belongs to a table that another process is creating.
    names = [entry.name for entry in path.iterdir()] if path.is_dir() else []
    others = [name for name in names if not (over_remains and name.startswith("segment="))]
    return any(name != "_delta_log" for name in others)


def _local(uri: str) -> Path:
    return Path(local_path(uri))
