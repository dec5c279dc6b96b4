"""A store of the registry in a Delta table, which SQL can read.

One commit is one conditional update: a MERGE through a handle at the version that was read, without
retries, so that any commit in between is a conflict. With blind appends two claimants could both
write generation 1, because appends do not conflict with each other.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from commits.conflicts import create_if_not_exists
from commits.program_end import table_calls
from commits.table_files import files_of, side_by_side
from coopconsume.errors.fenced import OwnershipFormat
from coopconsume.fenced.ownership import wire
from coopconsume.fenced.ownership.model import Key, OwnershipEvent, Row
from coopconsume.kafka.call_limit import Deadline

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

SCHEMA = pa.schema(
    [
        ("kind", pa.string()),  # row: the present state; entry: an event of the history
        ("group_id", pa.string()),
        ("resource", pa.string()),
        ("revision", pa.int64()),
        ("generation", pa.int64()),
        ("fence_epoch", pa.int64()),
        ("owner", pa.string()),
        ("session", pa.string()),
        ("mode", pa.string()),
        ("waiting", pa.int64()),
        ("event", pa.string()),
        ("written_at", pa.timestamp("us", "UTC")),
        ("detail", pa.string()),  # all of it, as JSON
    ]
)
_PROPERTY = "coopconsume.ownership.format"
_LOOK = 0.1  # seconds between two looks for a newer version
# With retries, the loser of a race would be merged into a newer version.
_ONCE = CommitProperties(max_commit_retries=0)
#: Table features whose files have other rows or columns than the table.
_ASKS_OF_READERS = {"columnMapping", "deletionVectors"}


@table_calls
class DeltaStore:
    """An `OwnershipStore` in a Delta table.

    Heartbeats are commits: use leases of a minute or more.

    Args:
        target: The path or URI of the table.
        storage_options: For an object store. It must commit by put-if-absent, like local disks and
            object stores with conditional puts.
        create: Whether to create a missing table.

    Raises:
        OwnershipFormat: It is another table, or is missing and ``create`` is False.
        OwnershipUnavailable: The table cannot be read or written.
    """

    def __init__(
        self,
        target: str | os.PathLike[str],
        storage_options: Mapping[str, str] | None = None,
        *,
        create: bool = True,
    ) -> None:
        self.place = str(target)
        self._reporting = partial(wire.reporting, self.place, (DeltaError, OSError))
        self._options = dict(storage_options) if storage_options else None
        self._known: dict[Key, Row] = {}
        with self._reporting("opening"):
            self._files = files_of(self.place, self._options)
            try:
                self._table = self._opened()
            except TableNotFoundError:
                if not create:
                    expected = "an ownership store"
                    raise OwnershipFormat(self.place, "no Delta table", expected) from None
                self._table = self._created()
        found = self._table.metadata().configuration.get(_PROPERTY)
        if found != str(wire.FORMAT):
            expected = f"{_PROPERTY}={wire.FORMAT}"
            raise OwnershipFormat(self.place, f"a table with {_PROPERTY}={found}", expected)
        self._read_at = -1

    def rows(self) -> Mapping[Key, Row]:
        """Returns all rows of the newest version."""
        with self._reporting("reading"):
            self._table.update_incremental()
            if self._table.version() != self._read_at:
                rows = [wire.parsed(Row, self.place, each["row"]) for each in self._details("row")]
                known = {row.key: row for row in rows}
                if len(known) != len(rows):
                    raise OwnershipFormat(self.place, "two rows of one resource", "one row each")
                self._known, self._read_at = known, self._table.version()
        return self._known

    def swap(self, rows: Sequence[Row], entries: Sequence[OwnershipEvent]) -> bool:
        """Replaces rows by one MERGE if nothing was committed since they were read."""
        if self._read_at < 0:
            self.rows()
        if not all(row.follows(self._known.get(row.key)) for row in rows):
            return False
        lines = [*map(_line, rows), *map(_line, entries, range(len(entries)))]
        source = pa.Table.from_pylist(lines, schema=SCHEMA)
        with self._reporting("changing"), suppress(CommitFailedError):
            self._table.merge(
                source,
                "t.kind = 'row' AND s.kind = 'row' AND t.group_id = s.group_id "
                "AND t.resource = s.resource",
                source_alias="s",
                target_alias="t",
                commit_properties=_ONCE,
            ).when_matched_update_all().when_not_matched_insert_all().execute()
            return True
        return False

    def history(self, key: Key) -> Sequence[OwnershipEvent]:
        """Returns the history of a resource in the newest version."""
        with self._reporting("reading"):
            self._table.update_incremental()
            lines = sorted(self._details("entry"), key=itemgetter("place"))
        entries = [wire.parsed(OwnershipEvent, self.place, line["entry"]) for line in lines]
        mine = [entry for entry in entries if (entry.group, entry.resource) == key]
        return sorted(mine, key=attrgetter("revision"))

    def wait(self, seconds: float) -> None:
        """Returns when there is a newer version, or after some seconds."""
        deadline = Deadline(seconds)
        while not deadline.is_over and self._table.version() == self._read_at:
            time.sleep(min(_LOOK, deadline.left))
            with self._reporting("reading"):
                self._table.update_incremental()

    def close(self) -> None:
        """Nothing is held open."""

    def _opened(self) -> DeltaTable:
        return DeltaTable(self.place, storage_options=self._options)

    def _created(self) -> DeltaTable:
        return create_if_not_exists(
            self.place, SCHEMA, self._options, partition_by=["kind"],
            description="Who owns which log: the ownership registry of coopconsume.",
            configuration={_PROPERTY: str(wire.FORMAT)}, raise_if_key_not_exists=False,
        )  # fmt: skip

    def _details(self, kind: str) -> list[dict[str, Any]]:
        odd = _ASKS_OF_READERS & {*(self._table.protocol().reader_features or ())}
        if odd:
            expected = "a table without it: remove it by ALTER TABLE … DROP FEATURE"
            raise OwnershipFormat(self.place, f"the table feature {min(odd)}", expected)
        # By `deltalake` no other thread would run while a store answers.
        added = pa.table(self._table.get_add_actions(flatten=True)).to_pylist()
        names = [unquote(one["path"]) for one in added if one["partition.kind"] == kind]
        contents = side_by_side(self._files.read, names, is_far=self._files.is_far)
        return [
            wire.loads(self.place, text)
            for content in contents
            for text in _column(content, "detail")
        ]


def _column(content: bytes, name: str) -> list[str]:
    found: list[str] = pq.read_table(pa.BufferReader(content), columns=[name])[name].to_pylist()
    return found


def _line(of: Row | OwnershipEvent, place: int = 0) -> dict[str, Any]:
    # Others than the table's columns are left out.
    columns = vars(of) | {"kind": "entry", "group_id": of.group}
    if isinstance(of, OwnershipEvent):
        columns["written_at"] = datetime.fromtimestamp(of.at_ms / 1000, UTC)
    else:
        columns |= {"kind": "row", "waiting": len(of.waiters), "written_at": datetime.now(UTC)}
        if of.owner is not None:
            session = of.owner.session
            columns |= {"owner": session.owner, "session": session.id, "mode": of.owner.mode}
    document = {"format": wire.FORMAT, columns["kind"]: asdict(of), "place": place}
    return columns | {"detail": wire.dumps(document).decode()}
