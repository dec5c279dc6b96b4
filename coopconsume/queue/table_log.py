"""A replica's log in a Delta table, by the engine of the commit tables.

A version of the table has the rows of one write. The position of a row is the version and the
number of the row in it.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from commits.engine import AppendConflict, TailGone
from commits.errors import (
    CommitLogUnavailable,
    CommitStoreBusy,
    CommitStoreError,
    CommitTableFormat,
    CommitTableNotFound,
    CorruptCommitLog,
)
from commits.path_opening import open_or_create
from commits.rows import FORMAT, SCHEMA
from commits.secrets import hidden
from commits.table import LOG_PROPERTIES
from coopconsume.errors import CoopConsumeError
from coopconsume.errors.queue import QueueLogFormat, QueueNotFound
from coopconsume.queue.log_client import LogClient
from coopconsume.queue.rows import decode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from commits.path_engine import PathEngine
    from coopconsume.queue.log_client import LogRecord


log = logging.getLogger(__name__)

_PROPERTY: Final = "coopconsume.queue.format"
_PLACES: Final = 20  # bits of a position for the number of the row in its version
_SEGMENT: Final = 100  # versions of the table whose rows are removed together
_VACUUM_SEGMENTS: Final = 20
_TRIES: Final = 20
_OPENING: Final = 5.0
_VERSION: Final = itemgetter(0)
_ORDER: Final = itemgetter(0, 1, 2)
#: Seconds between two looks for a new version: at first, and at most.
_LOOK: Final = 0.02
_LONGEST_LOOK: Final = 1.0
#: Seconds after which an idle reader opens the table again.
_REOPEN: Final = 10.0


class TableLog(LogClient):
    """A log in a Delta table on a path or an object store.

    Args:
        queue: The group and the topic of the queue.
        table: The path or URI.
        storage: The options of the object store, as for `deltalake.DeltaTable`.
    """

    snapshot_every = 500

    def __init__(self, queue: str, table: str, storage: Mapping[str, str] | None = None) -> None:
        self.place = f"table {hidden(table)}"
        self._queue = queue
        self._table = table
        self._storage = storage
        self._was_there = False
        self._is_ready = threading.Event()
        self._writer: PathEngine | None = None
        self._vacuumed = 0
        self._written = threading.Event()  # wakes the reader
        self._reader: PathEngine | None = None
        self._snapshot: LogRecord | None = None  # what is read first
        self._version = -1
        #: When the reader looks for a new version, and the seconds from one look to the next.
        self._look_at, self._pause = 0.0, _LOOK
        self._opened_at = 0.0

    def prepare(self, *, create: bool) -> None:
        """Creates the table if it does not exist, but never again: its disk may be away."""
        self._reader = self._opened(create=create and not self._was_there)
        if not self._was_there:
            self._vacuumed = self._reader.version // (_SEGMENT * _VACUUM_SEGMENTS)
        self._was_there = True
        self.identity = self._reader.table_id
        self._is_ready.set()

    def write(self, rows: Sequence[bytes]) -> None:
        """Appends rows as one version, and each snapshot as one of its own."""
        if not self._is_ready.wait(_OPENING):
            raise CommitLogUnavailable(self._table, "append", "it was not opened yet")
        engine, self._writer = self._writer or self._opened(), None
        for kind, same in groupby(rows, key=_kind):
            if kind == "row":
                self._append(engine, kind, [*same])
            else:
                for snapshot in same:
                    try:
                        self._replace(engine, snapshot)
                    except CommitStoreError as error:  # the next one comes after as many rows
                        log.warning("no snapshot of %s: %s", self.place, error)
                        engine = self._opened()
        self._writer = engine  # after an error another one is opened

    def write_now(self, row: bytes) -> bool:  # noqa: ARG002
        """Returns False: each write waits for the storage."""
        return False

    def delete_before(self, position: int) -> None:
        """Removes old entries of the table's log, and now and then files of removed rows."""
        engine = self._writer or self._opened()
        version = position >> _PLACES
        engine.tidy(version)
        count = version // (_SEGMENT * _VACUUM_SEGMENTS)
        if count > self._vacuumed:
            engine.vacuum()
            self._vacuumed = count

    def end_writing(self) -> None:
        """Does nothing: what was written is in the table."""

    def begin_reading(self) -> tuple[int, int]:
        """Begins behind the newest snapshot."""
        assert self._reader is not None
        self._snapshot = self._newest_snapshot(self._reader)
        start = 0 if self._snapshot is None else self._snapshot[0] + 1
        self._version = (start >> _PLACES) if start else -1
        self._look_at = 0.0
        return start, (self._reader.version + 1) << _PLACES

    def read(self, seconds: float) -> Sequence[LogRecord] | None:
        """Waits for the rows of the next versions."""
        assert self._reader is not None
        if self._snapshot is not None:
            first, self._snapshot = self._snapshot, None
            return [first]
        deadline = time.monotonic() + seconds
        while True:
            pause = min(self._look_at, deadline) - time.monotonic()
            if self._written.wait(max(0.0, pause)):
                self._written.clear()
                self._pause = _LOOK
            elif time.monotonic() < self._look_at:
                return []
            before = self._version
            try:
                records = self._new_records(self._reader)
            except (CorruptCommitLog, TailGone):
                return None
            is_new = self._version > before
            self._pause = _LOOK if is_new else min(2 * self._pause, _LONGEST_LOOK)
            now = time.monotonic()
            self._look_at = now + self._pause
            if is_new or now >= deadline:
                return records

    def position(self) -> int:
        """Returns the first position of the next version; before that, that of the snapshot."""
        return (self._version + 1) << _PLACES if self._snapshot is None else self._snapshot[0]

    def end_reading(self) -> None:
        """Forgets the table."""
        self._reader = None

    def explained(self, error: Exception) -> CoopConsumeError:
        """Returns a damaged table as one that is away, so that the other replicas go on."""
        if isinstance(error, CoopConsumeError) and not isinstance(error, CorruptCommitLog):
            return error
        found: CoopConsumeError = CommitLogUnavailable(self._table, "read", str(error))  # type: ignore[assignment]
        return found

    def _opened(self, *, create: bool = False) -> PathEngine:
        properties = {**LOG_PROPERTIES, _PROPERTY: str(FORMAT)} if create else None
        try:
            engine = open_or_create(
                self._table, SCHEMA, properties, self._storage, over_remains=True
            )
        except (CommitTableNotFound, CommitTableFormat) as error:
            if self._was_there:  # a part of it may be left
                problem = "it is not there any longer"
                raise CommitLogUnavailable(self._table, "open", problem) from error
            if isinstance(error, CommitTableNotFound):
                raise QueueNotFound(self._queue, self.place) from None
            raise
        found = engine.properties.get(_PROPERTY)
        if found != str(FORMAT):
            raise QueueLogFormat(
                self.place, f"the property {_PROPERTY}={found}", f"{_PROPERTY}={FORMAT}"
            )
        return engine

    def _append(self, engine: PathEngine, kind: str, rows: Sequence[bytes]) -> None:
        for _ in range(_TRIES):
            try:
                # An append that did not know of the last replacement is a conflict. After it the
                # newest version lies behind it, so the segment is never a removed one.
                engine.append(self._to_table(kind, rows, engine.version // _SEGMENT))
            except AppendConflict:
                engine.refresh()
            else:
                self._written.set()  # the reader does not wait for a checkpoint
                engine.maintain()
                return
        raise CommitStoreBusy(self._table, "append", _TRIES)

    def _replace(self, engine: PathEngine, snapshot: bytes) -> None:
        """Appends a snapshot, in place of the old segments that it contains."""
        (upto,) = json.loads(snapshot)["positions"]
        at = (upto - 1) >> _PLACES
        closed = (at - _SEGMENT // 2) // _SEGMENT - 1
        if closed >= 0:
            rows = self._to_table("snapshot", [snapshot], closed)
            try:
                engine.replace(rows, at=at, closed=closed)
            except AppendConflict:  # another consumer was faster
                engine.refresh(reopen=True)
            else:
                self._written.set()
                return
        self._append(engine, "snapshot", [snapshot])

    def _to_table(self, kind: str, rows: Sequence[bytes], segment: int) -> pa.Table:
        common: dict[str, Any] = {
            "format": FORMAT, "kind": kind, "row_id": uuid.uuid4().hex, "cluster_id": "",
            "group_id": self._queue, "written_at": round(time.time() * 1e6), "segment": segment,
        }  # fmt: skip
        count = len(rows)
        each = {"row": range(count), "detail": [row.decode() for row in rows]}
        each |= {name: [value] * count for name, value in common.items()}
        # Much faster than from rows: most columns have no values.
        arrays = [
            pa.array(each[field.name], field.type)
            if field.name in each
            else pa.nulls(count, field.type)
            for field in SCHEMA
        ]
        return pa.Table.from_arrays(arrays, schema=SCHEMA)

    def _newest_snapshot(self, engine: PathEngine) -> LogRecord | None:
        """Returns the newest snapshot. Its position is the last one that it replaces."""
        try:
            found = engine.snapshots()
        except TailGone as error:
            raise CorruptCommitLog(self._table, str(error)) from error
        newest: LogRecord | None = None
        for queue, detail in _columns(found, "group_id", "detail"):
            value = (detail or "").encode()
            row = decode(value, self.place)
            if row is None or row.kind != "snapshot" or not row.positions:
                continue  # of another writer
            if newest is None or row.positions[0] - 1 > newest[0]:
                newest = row.positions[0] - 1, queue.encode(), value
        return newest

    def _new_records(self, engine: PathEngine) -> list[LogRecord]:
        # That another table has taken its place is seen only if it is opened again.
        is_idle = self._pause >= _LONGEST_LOOK and time.monotonic() - self._opened_at > _REOPEN
        version = engine.refresh(reopen=is_idle)
        if is_idle:
            self._opened_at = time.monotonic()
        if version <= self._version:
            return []
        tail = engine.tail(self._version, version)
        records: list[LogRecord] = []
        rows = _columns(tail.rows, "_commit_version", "row_id", "row", "group_id", "detail")
        for at, same in groupby(sorted(rows, key=_ORDER), key=_VERSION):
            for number, (_, _, _, queue, detail) in enumerate(same):
                value = None if detail is None else detail.encode()
                records.append(((at << _PLACES) + number, queue.encode(), value))
        if tail.snapshot_of >= 0:  # a replacement: its snapshot is not among the rows
            snapshot = self._newest_snapshot(engine)
            if snapshot is not None:
                last = records[-1][0] if records else -1
                records.append((max(last + 1, version << _PLACES), *snapshot[1:]))
        self._version = version
        return records


def _kind(row: bytes) -> str:
    return "snapshot" if json.loads(row)["kind"] == "snapshot" else "row"


def _columns(table: pa.Table, *names: str) -> list[tuple[Any, ...]]:
    if not table.num_rows:
        return []
    return list(zip(*(table.column(name).to_pylist() for name in names), strict=True))
