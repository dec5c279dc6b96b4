"""The log as a Delta table of a catalog, written by Spark only through delta-spark.

It uses only the public DataFrame and SQL interface. Spark has no handle at a fixed version, so a
snapshot can remove rows unread that arrive in a closed segment while it is written. The history
still has these rows, and the next attempt, which follows immediately, folds them.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from commits.engine import AppendConflict, Tail, TailGone, tail_of
from commits.entries import APPEND, VersionEntry, words_of
from commits.errors import (
    CommitLogUnavailable,
    CommitTableFormat,
    CommitTableNotFound,
    CorruptCommitLog,
    UnsupportedTarget,
)
from commits.places import log_folder, refuse_unsafe_spark, taking_turns
from commits.rows import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


_CONFLICT = re.compile(r"Concurrent\w*Exception|DELTA_CONCURRENT|MetadataChanged|ProtocolChanged")
_PY4J = "An error occurred while calling "
#: Errors of Spark, Delta, Hadoop and Parquet about missing or invalid files. All other errors are
#: outages: a stopped session, a catalog or storage that does not answer, a missing table.
_DAMAGE = re.compile(
    r"\[DELTA_(VERSIONS_NOT_CONTIGUOUS|TRUNCATED_TRANSACTION_LOG|LOG_FILE_NOT_FOUND\w*"
    r"|MISSING_PART_FILES|FILE_NOT_FOUND\w*|CHANGE_DATA_FILE_NOT_FOUND|STATE_RECOVER_ERROR"
    r"|INVALID_LOG_VERSION|MISSING_TRANSACTION_LOG|NO_COMMITS_FOUND)\]"
    r"|FILE_NOT_EXIST|CANNOT_READ_FILE_FOOTER|is not a Parquet file|Checksum(Exception| error)"
    r"|\b(FileNotFound|NoSuchFile|JsonParse|JsonEOF|MismatchedInput|ParquetDecoding)Exception"
)
#: Delta's answer to a query of a version that does not exist.
_NO_VERSION = re.compile(r"Available versions: \[\d+, (\d+)\]")
_TYPES = {pa.int32(): "INT", pa.int64(): "BIGINT", pa.string(): "STRING", pa.binary(): "BINARY"}
_PENDING = (
    "ARRAY<STRUCT<offset: BIGINT, key_hash: BIGINT, attempts: INT, due_ms: BIGINT, error: STRING>>"
)
_NEWEST = 33  # versions
#: Operations of other tools that remove files of the table.
_REMOVING = {"DELETE", "UPDATE", "MERGE", "TRUNCATE", "REPLACE", "OPTIMIZE"}
_READ = pa.schema([*SCHEMA, pa.field("_commit_version", pa.int64())])


class SparkEngine:
    """A Delta table of a catalog; see `commits.engine.LogEngine`.

    Args:
        name: The table.
        spark: The session.

    Raises:
        UnsupportedTarget: If drivers that commit there at once could overwrite each other.
        CorruptCommitLog: If the table is damaged.
        CommitLogUnavailable: If the session, the catalog or the storage does not answer.
    """

    def __init__(self, name: str, spark: Any) -> None:
        self._name = name
        self._spark = spark
        self._read: tuple[int, str] | None = None  # the last version of a tail, and its digest
        try:
            detail = spark.sql(f"DESCRIBE DETAIL {name}").collect()[0]
        except Exception as error:
            raise _not_opened(name, error) from error
        if detail["format"] != "delta":
            raise CommitTableFormat(name, f"a table of format {detail['format']}", "a Delta table")
        self._properties: Mapping[str, str] = dict(detail["properties"])
        self._location = str(detail["location"])
        refuse_unsafe_spark(name, self._location, spark)
        self._folder = log_folder(self._location)
        self._columns = {column: kind for column, kind in spark.table(name).dtypes}  # noqa: C416
        self._version = -1
        self._known: dict[int, VersionEntry] = {}  # entries of the newest versions
        self._own: dict[str, pa.Table] = {}  # the last rows that this engine appended
        self.refresh()

    @classmethod
    def open_or_create(
        cls, name: str, spark: Any, properties: Mapping[str, str] | None
    ) -> SparkEngine:
        """Open the table and create it if it does not exist. Concurrent calls are safe.

        Args:
            name: The table.
            spark: The session.
            properties: The properties of a new table; None to create no table.

        Raises:
            CommitTableNotFound: If the table does not exist and `properties` is None.
            CommitLogUnavailable: If it cannot be created.
            UnsupportedTarget, CorruptCommitLog, CommitTableFormat: As for the class.
        """
        if spark is None:
            raise UnsupportedTarget(
                name,
                "it looks like the name of a table in a catalog, for which a Spark session is "
                f"needed (spark=…); for a path write './{name}', or a URI",
            )
        try:
            is_there = spark.catalog.tableExists(name)
        except Exception as error:
            raise _not_opened(name, error) from error
        if not is_there and properties is None:
            raise CommitTableNotFound(name)
        try:
            if properties is not None and not is_there:
                columns = ", ".join(
                    f"{field.name} {_sql_type(field.type)}{'' if field.nullable else ' NOT NULL'}"
                    for field in SCHEMA
                )
                listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
                spark.sql(
                    f"CREATE TABLE IF NOT EXISTS {name} ({columns}) USING DELTA "
                    f"PARTITIONED BY (segment) TBLPROPERTIES ({listed})"
                ).collect()
        except Exception as error:
            raise _not_opened(name, error) from error
        return cls(name, spark)

    @property
    def target(self) -> str:
        """The table, for messages."""
        return self._name

    @property
    def location(self) -> str:
        """The path or URI of the table's folder."""
        return self._location

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties of the table."""
        return self._properties

    @property
    def columns(self) -> Mapping[str, str]:
        """The names and types of the table's columns."""
        return self._columns

    @staticmethod
    def columns_of(schema: pa.Schema) -> Mapping[str, str]:
        """Return the names and types that the columns of an Arrow schema have in a table."""
        return {
            f.name: _sql_type(f.type).lower().replace(": ", ":").replace(", ", ",") for f in schema
        }

    @property
    def version(self) -> int:
        """The newest known version."""
        return self._version

    def refresh(self, *, reopen: bool = False) -> int:  # noqa: ARG002  (nothing is kept open)
        """Look for newer versions and return the newest."""
        if self._is_newest():
            return self._version
        try:
            self._look(_NEWEST)
        except TailGone as error:
            raise CorruptCommitLog(self._name, f"it cannot be read ({error})") from error
        version = max(self._known)
        if version < self._version:
            raise CorruptCommitLog(
                self._name, f"version {version} is its newest, and {self._version} was there before"
            )
        self._version = version
        return version

    def append(
        self,
        rows: pa.Table,
        *,
        snapshot_of: int | None = None,
        is_synced: bool = True,  # noqa: ARG002 - Spark writes its files
    ) -> int:
        """Append rows and return their version, or a later one."""
        token = uuid.uuid4().hex
        words = {APPEND: token} | ({} if snapshot_of is None else words_of(snapshot_of))
        self._write(
            self._frame(rows)
            .write.format("delta")
            .mode("append")
            .option("userMetadata", json.dumps(words)),
            "append",
        )
        self._own = {token: rows}
        return self.refresh()

    def maintain(self) -> None:
        """Do nothing: Spark writes checkpoints with its appends."""

    def tail(
        self,
        after: int,
        upto: int,
        is_aside: Callable[[Mapping[str, Any]], bool] | None = None,  # noqa: ARG002
    ) -> Tail:
        """Return the rows appended in versions from `after` (excluded) to `upto` (included).

        No rows are set aside: entries that Spark writes have none.
        """
        if upto <= after:
            return Tail()
        try:
            entries = self._known_entries(after, upto)
            appends = [v for v, entry in entries.items() if v > after and entry.is_append]
            rows = self._inserted(appends) if appends else Tail().rows
        except (CommitLogUnavailable, CorruptCommitLog, TailGone):
            raise
        except Exception as error:
            raise self._unreadable(error, f"versions {after + 1} to {upto}") from error
        found = set(rows["_commit_version"].to_pylist()) if appends else set()
        if set(appends) - found:
            missed = min(set(appends) - found)
            raise TailGone(f"version {missed} should contain rows and is empty")
        self._read = upto, entries[upto].digest
        return tail_of(rows, {v: entry for v, entry in entries.items() if v > after})

    def snapshots(self, version: int | None = None) -> pa.Table:
        """Return the rows of kind `snapshot` in a version, by default the newest."""
        at = "" if version is None else f" VERSION AS OF {version}"
        query = f"SELECT *, 0L AS _commit_version FROM {self._name}{at} WHERE kind = 'snapshot'"  # noqa: S608
        try:
            return self._fetched(query)
        except Exception as error:
            raise self._unreadable(error, f"snapshots in version {version}") from error

    def compactions(self) -> list[int]:
        """Return the known versions that added a snapshot, newest first."""
        entries = self._entries(-1, self._version)
        found = [version for version, entry in entries.items() if entry.snapshot_of >= 0]
        return sorted(found, reverse=True)

    def last_append_ms(self) -> int | None:
        """Return the time of the last append by the writer's clock, in milliseconds since 1970."""
        entries = self._entries(max(-1, self._version - 16), self._version)
        appends = [version for version, entry in entries.items() if entry.is_append]
        return entries[max(appends)].timestamp_ms if appends else None

    def replace(self, rows: pa.Table, *, at: int, closed: int | None) -> int:
        """Replace all rows of segments up to `closed` by `rows`, in one version."""
        if self.refresh() > at and self._late_rows(at, closed):
            raise AppendConflict(f"rows were appended after version {at}")
        predicate = "segment >= 0" if closed is None else f"segment <= {closed}"
        writer = (
            self._frame(rows)
            .write.format("delta")
            .mode("overwrite")
            .option("replaceWhere", predicate)
            .option("userMetadata", json.dumps(words_of(at, repair=closed is None)))
        )
        self._write(writer, "compact")
        version = self.refresh()
        # The history still has late rows: fold them and retry. After a repair they do not count.
        if closed is not None and self._late_rows(at, closed):
            raise AppendConflict(f"rows were appended after version {at}")
        return version

    def tidy(self, upto: int) -> None:
        """Do nothing: Spark has no command for it."""

    def vacuum(self, retention_hours: int | None = None) -> int:
        """Remove files that only old versions need, and return their number if Delta reports it."""
        hours = "" if retention_hours is None else f" RETAIN {retention_hours} HOURS"
        try:
            with taking_turns(self._folder):  # a vacuum creates versions as well
                self._spark.sql(f"VACUUM {self._name}{hours}").collect()
            newest = self._spark.sql(f"DESCRIBE HISTORY {self._name} LIMIT 1").collect()[0]
        except Exception as error:
            raise CommitLogUnavailable(self._name, "vacuum", _message(error)) from error
        return int((newest["operationMetrics"] or {}).get("numDeletedFiles", 0))

    def _frame(self, rows: pa.Table) -> Any:
        return self._spark.createDataFrame(rows)

    def _write(self, writer: Any, operation: str) -> None:
        try:
            with taking_turns(self._folder):
                writer.saveAsTable(self._name)
        except Exception as error:
            if _CONFLICT.search(f"{type(error).__name__} {error}"):
                raise AppendConflict(_message(error)) from error
            raise CommitLogUnavailable(self._name, operation, _message(error)) from error

    def _unreadable(self, error: Exception, what: str) -> CommitLogUnavailable | TailGone:
        """Return the error of a failed read: files are missing, or the storage does not answer."""
        if _is_damage(error):
            return TailGone(f"{what}: {_message(error)}")
        return CommitLogUnavailable(self._name, "read", _message(error))

    def _late_rows(self, at: int, closed: int | None) -> bool:
        entries = self._entries(at, self._version)
        late = [v for v, entry in entries.items() if v > at and entry.is_append]
        if not late or closed is None:
            return bool(late)
        segments = self._inserted(late)["segment"].to_pylist()
        return any(segment <= closed for segment in segments)

    def _entries(self, after: int, upto: int) -> dict[int, VersionEntry]:
        """Return the entries of versions from `after` to `upto`, both included."""
        if min(self._known) > max(after, 0):
            self._look(self._version - after + _NEWEST)
        return {v: entry for v, entry in sorted(self._known.items()) if after <= v <= upto}

    def _is_newest(self) -> bool:
        """Return whether Spark says that the newest known version is the newest of the table.

        It is a fraction of the work of reading the history, which decides in all other cases.
        """
        if self._version < 0:
            return False
        query = f"SELECT 1 FROM {self._name} VERSION AS OF {self._version + 1}"  # noqa: S608
        try:
            self._spark.sql(query).schema  # noqa: B018  (a client of Spark Connect analyses late)
        except Exception as error:  # noqa: BLE001  (the history has the same error, or none)
            newest = _NO_VERSION.search(str(error))
            return newest is not None and int(newest[1]) == self._version
        return False

    def _look(self, count: int) -> None:
        """Read the entries of the newest versions; many take about as long as one."""
        try:
            rows = self._spark.sql(f"DESCRIBE HISTORY {self._name} LIMIT {count}").collect()
        except Exception as error:
            raise self._unreadable(error, "its history") from error
        self._known = {int(row["version"]): _entry(row) for row in rows}

    def _known_entries(self, after: int, upto: int) -> dict[int, VersionEntry]:
        """Return the entries after a check that none is missing and that `after` is unchanged."""
        entries = self._entries(after, upto)
        missing = set(range(after + 1, upto + 1)) - set(entries)
        if missing:
            raise TailGone(f"the history of version {min(missing)} is gone")
        was_read = self._read is not None and self._read[0] == after and after in entries
        if was_read and self._read != (after, entries[after].digest):
            raise CorruptCommitLog(
                self._name, f"version {after} is another one than it was: it was replaced"
            )
        return entries

    def _inserted(self, versions: list[int]) -> pa.Table:
        """Return the rows of appends; rows that this engine appended last are not read again."""
        own = {
            v: self._own[token] for v in versions if (token := self._known[v].token) in self._own
        }
        tables = [
            rows.append_column("_commit_version", pa.array([v] * len(rows), pa.int64()))
            for v, rows in own.items()
        ]
        others = sorted(set(versions) - set(own))
        if others:
            changes = f"table_changes('{self._name}', {others[0]}, {others[-1]})"
            columns, wanted = ", ".join(_READ.names), ", ".join(map(str, others))
            tables.append(
                self._fetched(
                    f"SELECT {columns} FROM {changes} WHERE _change_type = 'insert' "  # noqa: S608
                    f"AND _commit_version IN ({wanted})"
                )
            )
        return pa.concat_tables([table.cast(_READ) for table in tables])

    def _fetched(self, query: str) -> pa.Table:
        return self._spark.sql(query).toArrow().select(_READ.names).cast(_READ)


def _entry(row: Any) -> VersionEntry:
    """Convert a row of DESCRIBE HISTORY to an entry."""
    metrics = row["operationMetrics"] or {}
    parameters = row["operationParameters"] or {}
    operation = row["operation"]
    info = {
        "operation": operation,
        "operationParameters": parameters,
        "userMetadata": row["userMetadata"],
        "timestamp": int(1000 * row["timestamp"].timestamp()),
    }
    added = int(metrics.get("numFiles", metrics.get("num_added_files", 1)))
    is_overwrite = parameters.get("mode") == "Overwrite"
    removes = is_overwrite or operation in _REMOVING
    actions: list[dict[str, Any]] = [{"commitInfo": info}]
    actions += [{"add": {"path": ""}}] if added else []
    actions += [{"remove": {"dataChange": True}}] if removes else []
    facts = [row["version"], str(row["timestamp"]), operation, row["userMetadata"], sorted(metrics)]
    entry = VersionEntry.parse(b"\n".join(json.dumps(action).encode() for action in actions))
    digest = hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()
    return replace(entry, files=(), digest=digest)


def _sql_type(kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return "TIMESTAMP"
    return _PENDING if pa.types.is_list(kind) else _TYPES[kind]


def _not_opened(name: str, error: Exception) -> CommitLogUnavailable | CorruptCommitLog:
    if _is_damage(error):
        return CorruptCommitLog(name, f"it cannot be opened ({_message(error)})")
    return CommitLogUnavailable(name, "open", _message(error))


def _is_damage(error: Exception) -> bool:
    """Return whether files of the table are missing or invalid although the storage answers."""
    return _DAMAGE.search(str(error)) is not None


def _message(error: Exception) -> str:
    """Return the message of an error in one line and without the Java stack."""
    lines = [line.lstrip(": ") for line in str(error).splitlines() if line.strip()]
    text = next((line for line in lines if not line.startswith(_PY4J)), type(error).__name__)
    return " ".join(text.split())[:500]
