"""The log as a Delta table on a path.

Appends, compactions and looks for new versions are those of `DeltaLog`: a commit is two requests
and a look is one, however long the log is. `read_table` opens the table, and `deltalake` vacuums
it. The writer of every 50th version, and of a snapshot, writes a checkpoint by `deltalake`, which
is work of `maintain`: a commit need not wait for it.
"""

from __future__ import annotations

import logging
import math
import os
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError

from commits.delta_log import DeltaLog, conflicts_with_append
from commits.delta_log import host_seconds as _now
from commits.engine import AppendConflict, Tail, TailGone, tail_of
from commits.entries import VersionEntry, words_of
from commits.entry_rows import rows_of_plain
from commits.errors import CommitLogUnavailable, CorruptCommitLog, UnsupportedTarget
from commits.places import alone, local_folder, refuse_unwritable
from commits.program_end import table_calls
from commits.rows_file import IN_FILES, RowFiles, added_rows, in_version, removed_files, segment_of
from commits.secrets import hidden, message_of
from commits.table_features import check_appendable
from commits.table_files import LOG_FOLDER, ONE_BY_ONE, files_of, side_by_side
from commits.table_state import listed_versions, pointed_at, read_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from commits.table_files import TableFiles
    from commits.table_state import TableState


log = logging.getLogger(__name__)

CHECKPOINT_VERSIONS = 50
#: What `deltalake` says of a listing of a log during which others have appended.
_GAP = "found gap"
_PAUSES = (0.0, 0.01, 0.03)  # seconds before an opening that failed is tried again
_CHECKPOINT_PAUSE = 10  # versions after which a failed checkpoint is tried again
_LATE_VERSIONS = 500  # versions after which a checkpoint is written beside that of another process
#: Entries that one look reads one by one: in a store, and on a disk.
_FEW, _MANY = 16, 500
#: Seconds for which an object store is taken to have the entries that it had.
_PLACED_SECONDS = 5.0
#: Seconds for which a handle writes without a look at the log, and which a write may take. It is
#: much less than the table's log retention.
_STALE_SECONDS = 300.0
_NO_TABLE = "there is no table (its disk may not be mounted, or it was moved or deleted)"

#: Hours that removed files stay by default, and files that a writer has not yet added. Longer than
#: checkpoints know the removed ones (``delta.deletedFileRetentionDuration``).
_FILE_HOURS = 1

MIN_RETENTION_HOURS = 1
"""Younger files may belong to a version that is being written or read."""


@table_calls
class PathEngine:
    """A Delta table on a local path or an object store; see `commits.engine.LogEngine`.

    Args:
        uri: The path or URI.
        storage_options: Options of the object store; see `deltalake.DeltaTable`.
        version: A fixed version, for reads only; None for the newest version.
        opened: The newest version, if it was read.
        is_written: Whether rows may be appended; a table that is only read may have any feature.
    """

    def __init__(
        self,
        uri: str,
        storage_options: Mapping[str, str] | None = None,
        version: int | None = None,
        opened: TableState | None = None,
        *,
        is_written: bool = True,
    ) -> None:
        self._uri = uri
        self._options = dict(storage_options) if storage_options else None
        self._pinned = version
        self._is_written = is_written and version is None
        self._files = files_of(uri, self._options)
        self._is_far = local_folder(uri) is None
        self._rows = RowFiles(self._files, is_far=self._is_far)
        self._table = self._checked(opened) if opened else self._open()
        self._log = DeltaLog(self._files, self.target, self._table.version)
        self._own: dict[str, pa.Table] = {}  # the last rows that this engine appended
        self._in_doubt = False
        self._pid = os.getpid()
        self._placed_at = _now()  # when the newest known entry was last seen to be in its place
        self._checkpoint_from = math.inf  # the version from which on a checkpoint is due
        self._looked_at = _now()

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
        return self._table.properties

    @property
    def table_id(self) -> str:
        """The id of the table; one that takes its place has another."""
        return str(self._table.metadata["id"])

    @property
    def columns(self) -> Mapping[str, str]:
        """The names and types of the table's columns."""
        return _columns_of(Schema.from_json(self._table.metadata["schemaString"]))

    @staticmethod
    def columns_of(schema: pa.Schema) -> Mapping[str, str]:
        """Return the names and types that the columns of an Arrow schema have in a table."""
        return _columns_of(Schema.from_arrow(schema))

    @property
    def version(self) -> int:
        """The newest known version."""
        return self._log.version

    def refresh(self, *, reopen: bool = False) -> int:
        """Look for newer versions and return the newest."""
        if self._pinned is not None:
            return self._pinned
        self._refuse_fork()
        began = _now()
        # After a long time, entries after the last one that was read may have been removed.
        is_stale = began - self._looked_at > _STALE_SECONDS
        if not (reopen or is_stale or self._in_doubt) and self._is_in_place("read"):
            try:
                # Of more entries than that, `tail` reads many at a time.
                has_all = self._log.read_on(_FEW if self._is_far else _MANY)
            except OSError as error:
                raise CommitLogUnavailable(self._uri, "read", message_of(error)) from error
            except (KeyError, ValueError) as error:
                log.debug("reopening %s: %s", self.target, message_of(error))
            else:
                self._looked_at = began
                self._check_features()
                if has_all:
                    return self.version
        table = self._open()
        if table.version < self.version:
            raise CorruptCommitLog(
                self._uri,
                f"version {table.version} is its newest, and {self.version} was there before",
            )
        if table.version == self.version and not self._is_newest_there("read"):
            problem = f"version {self.version} is another one than it was: its files were replaced"
            raise CorruptCommitLog(self._uri, problem)
        self._table, self._in_doubt, self._log.is_changed = table, False, False
        self._log.restart(table.version)
        self._looked_at = began
        return self.version

    def append(
        self, rows: pa.Table, *, snapshot_of: int | None = None, is_synced: bool = True
    ) -> int:
        """Append rows and return their version."""
        self._prepare("append")
        token, began = uuid.uuid4().hex, _now()
        self._files.is_synced = is_synced
        try:
            refuse_unwritable(self._uri, rows.get_total_buffer_size())
            files, adds, words = added_rows(rows, snapshot_of)
            version = self._log.append(adds, words, token, files=files)
        except (OSError, KeyError, ValueError) as error:
            self._in_doubt = True
            raise CommitLogUnavailable(self._uri, "append", message_of(error)) from error
        finally:
            self._files.is_synced = True
        self._check_duration("append", began)
        self._own = {token: rows}
        # After a snapshot, too: an opening reads the entries since the checkpoint and the snapshot.
        if version % CHECKPOINT_VERSIONS == 0 or snapshot_of is not None:
            self._checkpoint_from = version
        return version

    def _prepare(self, operation: str) -> None:
        """Make sure that the next version would lie behind the newest one of this table."""
        self._refuse_fork()
        # Without the check rows could be written into the mount point of an unmounted disk.
        is_in_place = self._is_in_place(operation)
        if not is_in_place or self._in_doubt or _now() - self._looked_at > _STALE_SECONDS:
            self.refresh(reopen=True)
        self._check_features()

    def _refuse_fork(self) -> None:
        """Refuse calls in a forked process: its commits would have the ids of the other one's."""
        if os.getpid() != self._pid:
            problem = "it was opened before a fork; open it again in this process"
            raise UnsupportedTarget(self._uri, problem)

    def _check_features(self) -> None:
        """Look at the table again if an entry has changed its properties or features.

        Raises:
            CommitTableFormat: Rows cannot be appended to it any more.
        """
        if self._log.is_changed:
            self._table = self._open()
            self._log.is_changed = False

    def maintain(self) -> None:
        """Write a checkpoint if one is due."""
        if self.version >= self._checkpoint_from:
            self._checkpoint()

    def tail(
        self, after: int, upto: int, is_aside: Callable[[Mapping[str, Any]], bool] | None = None
    ) -> Tail:
        """Return the rows appended in versions from `after` (excluded) to `upto` (included)."""
        if upto <= after:
            return Tail()
        versions = range(after + 1, upto + 1)
        try:
            # The table's history() returns wrong versions during concurrent appends, and its
            # change data feed takes five times as long as reading the files.
            entries = self._log.known(versions)
            read = self._table.take_entries(versions)  # by the opening
            read |= self._entries([v for v in versions if v not in entries and v not in read])
            self._log.check(read)
            entries |= read
            appends = {v: entry for v, entry in entries.items() if entry.is_append}
            if is_aside:  # What a snapshot has is folded, or set aside.
                appends = {v: entry for v, entry in appends.items() if entry.snapshot_of < 0}
            own = {v: self._own[e.token] for v, e in appends.items() if e.token in self._own}
            plains = {v: e.rows for v, e in appends.items() if v not in own and e.rows is not None}
            known = own.keys() | plains.keys()
            aside = {v: appends[v] for v, rows in plains.items() if is_aside and is_aside(rows)}
            plains = {v: rows for v, rows in plains.items() if v not in aside}
            files = [(v, file) for v, e in appends.items() if v not in known for file in e.files]
            parts = [in_version(rows.select(IN_FILES.names), v) for v, rows in own.items()]
            parts += [rows_of_plain(plains, IN_FILES)] if plains else []
            parts += self._rows.read(files)
            rows = pa.concat_tables(parts) if parts else Tail().rows
        except (CommitLogUnavailable, CorruptCommitLog):
            raise
        except Exception as error:  # a file of nonsense can raise anything
            raise _unreadable(self._uri, error, f"versions {after + 1} to {upto}") from error
        return tail_of(rows, entries)._replace(aside=aside)

    def snapshots(self, version: int | None = None) -> pa.Table:
        """Return the rows of kind `snapshot` in a version, by default the newest."""
        what = f"snapshots in version {version or self.version}"
        files = self._at(self.version if version is None else version).snapshot_files()
        try:
            found = self._rows.read_snapshot(files)
            rows = pa.concat_tables([in_version(IN_FILES.empty_table(), 0), *found])
        except Exception as error:  # a file of nonsense can raise anything
            raise _unreadable(self._uri, error, what) from error
        return rows.filter(pc.field("kind") == "snapshot")

    def last_append_ms(self) -> int | None:
        """Return the time of the last append by the writer's clock, in milliseconds since 1970.

        None if the last versions have no append, or if their entries cannot be read.
        """
        versions = range(self.version, max(-1, self.version - ONE_BY_ONE), -1)
        entries = self._entries(versions, broken_ok=True).values()
        return next((entry.timestamp_ms for entry in entries if entry.is_append), None)

    def compactions(self) -> list[int]:
        """Return the known versions that added a snapshot, newest first."""
        try:
            versions = [v for v in listed_versions(self._files) if v <= self.version]
        except OSError as error:
            raise _unreadable(self._uri, error, "the entries of its log") from error
        found = self._entries(versions, broken_ok=True)
        return [version for version, entry in found.items() if entry.snapshot_of >= 0]

    def replace(self, rows: pa.Table, *, at: int, closed: int | None) -> int:
        """Replace all rows of segments up to `closed` by `rows`, in one version."""

        def conflicts(entry: VersionEntry) -> bool:
            """Whether an append is among the rows that are replaced, which do not contain it."""
            is_late = closed is None or any(segment_of(file) <= closed for file in entry.files)
            return conflicts_with_append(entry) or is_late

        self._prepare("compact")
        if at > self.version:
            self.refresh(reopen=True)
        began = _now()
        try:
            refuse_unwritable(self._uri, rows.nbytes)
            removes = [*removed_files(self._at(at).files, closed)]
            files, adds, _ = added_rows(rows, at)
            later = self._entries(range(at + 1, self.version + 1)).values()
            if any(map(conflicts, later)):
                raise AppendConflict(f"rows were appended after version {at}")
            words = words_of(at, repair=closed is None)
            version = self._log.append(
                [*removes, *adds],
                words,
                uuid.uuid4().hex,
                files=files,
                mode="Overwrite",
                conflicts=conflicts,
            )
        except (OSError, KeyError, TailGone, ValueError) as error:
            self._in_doubt = True
            raise CommitLogUnavailable(self._uri, "compact", message_of(error)) from error
        self._check_duration("compact", began)
        self._checkpoint_from = version
        self.maintain()
        return version

    def tidy(self, upto: int) -> None:
        """Remove log entries up to a version that are older than the table's log retention."""
        try:
            _loaded(self._uri, self._options, upto).cleanup_metadata()
            self._files.remove_drafts()
        except (DeltaError, OSError) as error:
            log.warning(
                "old log entries of %s were not removed: %s", self.target, message_of(error)
            )

    def vacuum(self, retention_hours: int | None = None) -> int:
        """Remove files that only old versions need, and return their number."""
        hours = _FILE_HOURS if retention_hours is None else retention_hours
        try:
            began, table = _now(), _loaded(self._uri, self._options)
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

        The entry of a version is created unless it exists. If it did, and others removed it
        meanwhile, they never see the new one.
        """
        took = _now() - began
        if took > _STALE_SECONDS:
            self._in_doubt = True
            raise CommitLogUnavailable(self._uri, operation, f"it took {took:.0f} s")

    def _entries(
        self, versions: Sequence[int], *, broken_ok: bool = False
    ) -> dict[int, VersionEntry]:
        def read(version: int) -> VersionEntry | None:
            try:
                return self._log.entry(version)
            except (KeyError, FileNotFoundError, ValueError):
                if broken_ok:
                    return None
                raise
            except OSError as error:
                raise _unreadable(self._uri, error, f"version {version}") from error

        entries = side_by_side(read, versions, is_far=self._is_far, oldest_alone=True)
        return {v: entry for v, entry in zip(versions, entries, strict=True) if entry is not None}

    def _at(self, version: int) -> TableState:
        """Return a version of the table; raises `TailGone` if it cannot be read any more."""
        if version == self._table.version:
            return self._table
        try:
            return self._newest(version)
        except CorruptCommitLog as error:
            raise TailGone(f"version {version}: {error.problem}") from error

    def _open(self) -> TableState:
        """Return the newest version of the table."""
        return self._checked(self._newest(self._pinned))

    def _checked(self, table: TableState) -> TableState:
        if self._is_written:
            check_appendable(table, self.target)
        return table

    def _newest(self, version: int | None) -> TableState:
        try:
            table = state_of(self._uri, self._files, version)
        except OSError as error:
            raise CommitLogUnavailable(self._uri, "read", message_of(error)) from error
        if table is None:
            raise CommitLogUnavailable(self._uri, "read", _NO_TABLE)
        return table

    def _is_in_place(self, operation: str) -> bool:
        """Whether the table still has its newest known entry; asked of a store now and then.

        Raises:
            CommitLogUnavailable: Its folder is missing, or is empty.
        """
        if self._is_far and _now() - self._placed_at < _PLACED_SECONDS:
            return True
        is_placed = self._pinned is None and self._is_newest_there(operation)
        if is_placed:
            self._placed_at = _now()
        folder = local_folder(self._uri)
        if folder is None or is_placed:
            return is_placed
        try:
            with os.scandir(Path(folder, LOG_FOLDER)) as entries:
                is_there = next(entries, None) is not None
        except FileNotFoundError:
            is_there = False
        except OSError as error:
            raise CommitLogUnavailable(self._uri, operation, message_of(error)) from error
        if not is_there:
            raise CommitLogUnavailable(self._uri, operation, _NO_TABLE)
        return False

    def _is_newest_there(self, operation: str) -> bool:
        try:
            return self._log.is_newest_there()
        except OSError as error:
            raise CommitLogUnavailable(self._uri, operation, message_of(error)) from error

    def _checkpoint(self) -> None:
        """Write a checkpoint, or leave it to another process of this host that writes one.

        It takes time for each version since the last one: side by side, all do the same work.
        """
        due, self._checkpoint_from = self._checkpoint_from, math.inf
        try:
            with alone(self._uri) as is_free:
                newest = -1 if self._is_far else pointed_at(self._files)
                if due <= newest <= self.version:
                    return
                # The other one may have been stopped while it writes.
                if not is_free and self.version < newest + _LATE_VERSIONS:
                    self._checkpoint_from = min(due, self._checkpoint_from)
                    return
                _loaded(self._uri, self._options, self.version).create_checkpoint()
        except Exception as error:  # noqa: BLE001 - the row is written: only later reads are slower
            self._checkpoint_from = self.version + _CHECKPOINT_PAUSE
            log.warning(
                "no checkpoint of %s at version %d: %s",
                self.target,
                self.version,
                message_of(error),
            )


def _unreadable(uri: str, error: Exception, what: str) -> CommitLogUnavailable | TailGone:
    """Return the error of a failed read: files are missing, or the storage does not answer."""
    is_away = isinstance(error, OSError) and not isinstance(error, FileNotFoundError)
    if is_away or isinstance(error, MemoryError):
        return CommitLogUnavailable(uri, "read", message_of(error))
    return TailGone(f"{what}: {message_of(error)}")


def state_of(uri: str, files: TableFiles, version: int | None = None) -> TableState | None:
    """Return a version of a table, by default the newest; None if there is no table.

    Raises:
        CorruptCommitLog: It is damaged.
        OSError: The storage does not answer or refuses.
    """
    try:
        return read_table(files, version)
    except ValueError as error:
        raise CorruptCommitLog(uri, f"it cannot be opened ({message_of(error)})") from error


def _loaded(uri: str, options: dict[str, str] | None, version: int | None = None) -> DeltaTable:
    """Return a version of a table, by default the newest, for what `deltalake` does."""
    for pause in (*_PAUSES, None):
        try:
            return DeltaTable(uri, version=version, storage_options=options)
        except DeltaError as error:
            if pause is None or _GAP not in str(error):
                raise
        time.sleep(pause)
    raise AssertionError


def _columns_of(schema: Schema) -> Mapping[str, str]:
    return {field.name: str(field.type) for field in schema.fields}
