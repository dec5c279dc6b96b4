"""Appends rows to a Delta table that has anything else than commits: outputs, changes of a state.

An append is a file of rows and one entry of the table's log, as in a commit table; see `DeltaLog`.
What asks more of a writer is left to `deltalake`: a table that does not exist, has other columns,
or has a feature that an append has to obey.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from deltalake import Schema

from commits.added_files import added_files, can_partition
from commits.delta_log import DeltaLog, host_seconds, now_ms
from commits.engine import AppendConflict
from commits.errors import CorruptCommitLog, UnsupportedTarget
from commits.places import local_folder, refuse_unsafe_path
from commits.secrets import hidden, message_of
from commits.table_features import asks_of_append, refused_feature
from commits.table_files import LOG_FOLDER, files_of
from commits.table_state import DamagedEntry, read_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from commits.added_files import AddedFile
    from commits.entries import VersionEntry
    from commits.table_files import TableFiles
    from commits.table_state import TableState

log = logging.getLogger(__name__)

#: Bytes in memory of an append that is one file in each partition; `deltalake` splits larger ones.
_LARGE: Final = 64 << 20
#: Files that are put side by side.
_WRITERS: Final = 8
#: Openings of a table that others change at the same time.
_MOST_OPENINGS: Final = 20
#: Seconds that an append may take. It is much less than any log retention: an entry that others
#: have created and removed meanwhile would be created a second time.
_STALE_SECONDS: Final = 300.0
#: Options of a store whose writers do not create entries by conditional puts.
_OTHER_WAYS: Final = "locking_provider copy_if_not_exists conditional_put unsafe_rename"
#: Properties of a table that an append has to know, with their defaults.
_INDEXED, _INTERVAL = "delta.dataSkippingNumIndexedCols", "delta.checkpointInterval"
_COLUMNS_WITH_STATISTICS: Final = "delta.dataSkippingStatsColumns"
_TIDIED: Final = "delta.enableExpiredLogCleanup"
_DEFAULTS: Final = {_INDEXED: "32", _INTERVAL: "100", _TIDIED: "true"}


class _Opened:
    """A table whose metadata is known.

    Attributes:
        id: The id of the table.
        schema: Its columns.
        partitioned_by: Its partition columns.
        properties: Its properties.
        is_plain: Whether an append needs nothing but its files and an entry.
        is_for_deltalake: Whether `deltalake` writes to it.
        log: Its log.
    """

    def __init__(self, table: TableState, files: TableFiles, target: str) -> None:
        metadata = table.metadata
        self.id = str(metadata["id"])
        self.schema = pa.schema(Schema.from_json(metadata["schemaString"]).to_arrow())
        self.partitioned_by: Sequence[str] = metadata.get("partitionColumns") or []
        self.properties = {**_DEFAULTS, **table.properties}
        kinds = [self.schema.field(name).type for name in self.partitioned_by]
        self.is_plain = (
            asks_of_append(table, removes=False) is None
            and _COLUMNS_WITH_STATISTICS not in self.properties
            and all(map(can_partition, kinds))
            and not any(_has_required(field.type) for field in self.schema)
        )
        features = table.protocol.get("writerFeatures") or ()
        self.is_for_deltalake = refused_feature(features, appends=False) is None
        self.log = DeltaLog(files, target, table.version)

    def takes(self, rows: pa.Table) -> bool:
        """Whether rows have the columns of the table, and no null where it has none.

        Large ones are left to `deltalake` where it can write.
        """
        if rows.nbytes > _LARGE and self.is_for_deltalake:
            return False
        return len(self.schema) == rows.num_columns and all(
            field.name in rows.column_names
            and rows.schema.field(field.name).type == field.type
            and (field.nullable or not rows.column(field.name).null_count)
            for field in self.schema
        )


class TableAppender:
    """Appends rows to one Delta table. Thread-safe.

    Args:
        uri: The path or URI of the table, which need not exist.
        storage_options: Options of an object store; see `deltalake.DeltaTable`.
        row_group_size: The rows of a row group at most.
    """

    def __init__(
        self,
        uri: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        row_group_size: int | None = None,
    ) -> None:
        self._uri = uri
        self._options = dict(storage_options) if storage_options else None
        self._row_group_size = row_group_size
        self._files = _files(uri, self._options)
        self._opened: _Opened | None = None
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def append(self, rows: pa.Table, check: Callable[[str], None] = lambda _: None) -> int | None:
        """Append rows in one version.

        Args:
            rows: The rows.
            check: Is called with the id of the table if it was opened, and raises if it is another
                table than the caller's.

        Returns:
            The version. None: nothing was written, and `deltalake` has to do it.

        Raises:
            OSError: The storage does not answer or refuses.
        """
        if self._files is None:
            return None
        with self._lock:
            if os.getpid() != self._pid:  # of a fork: its connections are those of the other one
                self._files, self._opened = _files(self._uri, self._options), None
                self._pid = os.getpid()
            for _ in range(_MOST_OPENINGS):
                if self._opened is None and not self._open(check):
                    return None
                opened, self._opened = self._opened, None  # in doubt until there is an answer
                if opened is None or not opened.is_plain or not opened.takes(rows):
                    return None
                try:
                    version = self._once(opened, rows)
                except (AppendConflict, CorruptCommitLog, KeyError, ValueError) as error:
                    log.debug("reopening %s: %s", hidden(self._uri), message_of(error))
                    continue
                if version is not None:
                    self._opened = opened
                    self._checkpoint(opened, version)
                    return version
        return None

    def _open(self, check: Callable[[str], None]) -> bool:
        """Open the newest version of the table; return whether there is one."""
        assert self._files is not None
        try:
            table = read_table(self._files, has_files=False)
            if table is None:
                return False
            opened = _Opened(table, self._files, hidden(self._uri))
        except DamagedEntry as error:  # `deltalake` takes an empty one for a version without rows
            raise OSError(
                f"{message_of(error)}, as after a loss of power. If it is the newest one, remove "
                f"its file in {LOG_FOLDER} and write its rows again; else restore the table"
            ) from error
        except ValueError as error:  # `deltalake` says what is wrong with it, or opens it
            log.debug("opening %s: %s", hidden(self._uri), message_of(error))
            return False
        check(opened.id)
        self._opened = opened
        return True

    def _once(self, opened: _Opened, rows: pa.Table) -> int | None:
        """Append rows behind the newest known version; None if it is not there any more."""
        assert self._files is not None
        began = host_seconds()
        rows = rows.select(opened.schema.names).cast(opened.schema)
        added = list(
            added_files(
                rows, opened.partitioned_by, indexed=int(opened.properties[_INDEXED]),
                now_ms=now_ms(), row_group_size=self._row_group_size,
            )
        )  # fmt: skip
        # Else an entry could be created in a table that has taken the place of this one.
        calls = [opened.log.is_newest_there]
        files = {file.name: file.content for file in added}
        if self._files.is_far:
            calls += [self._writing(file) for file in added]
            files = {}
        if not self._all(calls):
            return None
        actions = [{"add": file.action} for file in added]
        token = uuid.uuid4().hex
        version = opened.log.append(actions, {}, token, files=files, conflicts=_changes_table)
        took = host_seconds() - began
        if took > _STALE_SECONDS:
            raise OSError(f"the append took {took:.0f} s, in which its entry may have been removed")
        return version

    def _writing(self, file: AddedFile) -> Callable[[], bool]:
        def write() -> bool:
            assert self._files is not None
            self._files.write(file.name, file.content)
            return True

        return write

    def _all(self, calls: Sequence[Callable[[], bool]]) -> bool:
        """Whether all calls return true; several are made side by side."""
        if len(calls) == 1:
            return calls[0]()
        try:
            with ThreadPoolExecutor(_WRITERS) as pool:
                return all([*pool.map(lambda call: call(), calls)])
        except RuntimeError:  # no thread can be started
            return all(call() for call in calls)

    def _checkpoint(self, opened: _Opened, version: int) -> None:
        """Write a checkpoint and remove old entries, if the version is one of those that do.

        They are the ones for which `deltalake` does it.
        """
        from deltalake import DeltaTable

        if (version + 1) % int(opened.properties[_INTERVAL]):
            return
        try:
            table = DeltaTable(self._uri, version=version, storage_options=self._options)
            table.create_checkpoint()
            if opened.properties[_TIDIED].lower() == "true":
                table.cleanup_metadata()
                if self._files is not None:
                    self._files.remove_drafts()
        except Exception as error:  # noqa: BLE001 - the rows are written: only later reads are slower
            words = "no checkpoint of %s at version %d: %s"
            log.warning(words, hidden(self._uri), version, message_of(error))


def _files(uri: str, options: Mapping[str, str] | None) -> TableFiles | None:
    """Return the files of a table; None if entries are not created by conditional puts there."""
    names = [name.lower() for name in [*(options or {}), *os.environ]]
    if local_folder(uri) is None and any(w in n for n in names for w in _OTHER_WAYS.split()):
        return None
    try:
        refuse_unsafe_path(uri, options)
        return files_of(uri, options)
    except UnsupportedTarget as error:
        log.debug("appends by deltalake: %s", message_of(error))
        return None


def _changes_table(entry: VersionEntry) -> bool:
    return entry.changes_table


def _has_required(kind: pa.DataType) -> bool:
    """Whether a field within a type may not be null; the keys of a map never are."""
    if pa.types.is_struct(kind):
        return any(not field.nullable or _has_required(field.type) for field in kind)
    if pa.types.is_map(kind):
        return not kind.item_field.nullable or _has_required(kind.item_type)
    if pa.types.is_list(kind):
        return not kind.value_field.nullable or _has_required(kind.value_type)
    return False
