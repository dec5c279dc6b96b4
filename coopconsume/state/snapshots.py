"""The snapshots of a state: a Delta table of the newest counted row of each key of a partition.

Rows of a snapshot are sorted by key hash, so that a restore of some key ranges reads only parts of
the files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from commits.program_end import table_calls
from coopconsume.state.table import PARTITION, RETENTION, SNAPSHOTS, StateTable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalake import DeltaTable

    from coopconsume.state.rows import Origin, Range

_SNAPSHOT: Final = pa.field("_snapshot", pa.int64())
#: Of a snapshot, the same in each row: see `Snapshot`.
_FACTS: Final = pa.schema([(name, pa.int64()) for name in ("_keys", "_commits", "_top", "_first")])
#: Rows of a row group of a snapshot: a restore reads those that its key ranges fall into.
_ROW_GROUP: Final = 20_000


class Snapshot(NamedTuple):
    """What is known of a snapshot of a partition without reading its rows.

    Attributes:
        version: The version of the changelog that it is of.
        keys: The number of keys.
        files, size: Its files and their bytes.
        made_at: When it was written, in milliseconds since 1970.
        commits: All commits in it had counted at this version of the commit table; None: unknown.
        top: The highest offset of a change in it, or of a removed key; None: unknown.
        is_first: Whether no change was removed from the changelog before it was made.
    """

    version: int
    keys: int
    files: int
    size: int
    made_at: int
    commits: int | None
    top: int | None
    is_first: bool


@table_calls
class Snapshots:
    """The table of the snapshots of a state.

    Args:
        state: The folder or URI of the state.
        schema: The columns of the changelog.
    """

    def __init__(self, state: str, schema: pa.Schema) -> None:
        self.table = StateTable(state, SNAPSHOTS, _ROW_GROUP)
        self._schema = schema

    def of(self, origin: Origin) -> list[Snapshot]:
        """Returns what is known of the snapshots of a partition, the oldest first.

        Raises:
            StateNotReadable: The state cannot be read.
        """
        table = self.table.open()
        found: dict[int, list[dict[str, Any]]] = {}
        if table is not None:
            actions = self.table.read(table.get_add_actions, flatten=True)
            for file in pa.table(actions).to_pylist():
                place = (file["partition._topic_id"], int(file["partition._partition"]))
                if place == origin:
                    found.setdefault(int(file["partition._snapshot"]), []).append(file)
        return [_snapshot_of(version, files) for version, files in sorted(found.items())]

    def versions(self, origin: Origin) -> list[int]:
        """Returns the versions of the changelog that a partition has snapshots of, ascending."""
        return self._versions(self.table.open(), origin)

    def _versions(self, table: DeltaTable | None, origin: Origin) -> list[int]:
        # A Delta table lists its files in any order.
        return sorted(int(place[_SNAPSHOT.name]) for place in self.table.places(table, origin))

    def rows(
        self, origin: Origin, ranges: Sequence[Range], *, number: int | None = None
    ) -> pa.Table:
        """Returns the rows of some key ranges in a snapshot of a partition.

        Args:
            origin: The partition.
            ranges: Key hashes, first and last.
            number: The version that the snapshot is of; None: the newest.

        Raises:
            StateNotReadable: The state cannot be read, or the snapshot was removed.
        """
        table = self.table.open()
        # Of the same version of the table: a snapshot that is written meanwhile is not in it.
        known = self._versions(table, origin)
        if number is not None and number not in known:
            raise self.table.unreadable("a newer snapshot has taken its place; retry")
        number = max(known, default=None) if number is None else number
        if table is None or number is None:
            return self._schema.empty_table()
        filters = [*origin.filters, (_SNAPSHOT.name, "=", str(number))]
        rows = self.table.rows(table, self._schema, filters, ranges=ranges)
        return rows.filter(pc.is_valid(rows.column("key")))

    def before(self, origin: Origin, *, commits: int | None, offset: int | None) -> Snapshot | None:
        """Returns the newest snapshot of an earlier time, or below an offset.

        Args:
            origin: The partition.
            commits: The version of the commit table of that time; None: now.
            offset: The offset; None: any.

        Returns:
            None: no change of that time was removed from the changelog, so no snapshot is needed.

        Raises:
            StateNotReadable: It cannot be read, or changes of that time or below the offset are
                removed.
        """
        found = self.of(origin)
        base = next(
            (
                one
                for one in reversed(found)
                if (commits is None or (one.commits is not None and one.commits <= commits))
                and (offset is None or (one.top is not None and one.top < offset))
            ),
            None,
        )
        if base is None and found and not (len(found) == 1 and found[0].is_first):
            oldest = found[0]
            kept = (
                f"as of version {oldest.commits} of the commit table"
                if offset is None
                else f"below offset {None if oldest.top is None else oldest.top + 1}"
            )
            raise self.table.unreadable(
                f"changes of partition {origin.partition} of that time were removed; the oldest "
                f"state that is kept is that {kept}; foreach_with_state(history=...) sets how many "
                "changes are kept",
            )
        return base

    def add(
        self,
        origin: Origin,
        version: int,
        rows: pa.Table,
        *,
        commits: int | None,
        top: int | None,
        is_first: bool,
    ) -> None:
        """Writes a snapshot; the arguments are those of `Snapshot`.

        Raises:
            OutputNotWritten: Delta did not take it.
        """
        from deltalake import WriterProperties, write_deltalake

        facts = [rows.num_rows, commits, top, int(is_first)]
        if not rows.num_rows:
            # One row without a key, so that the snapshot is there.
            nothing = {"_topic_id": origin.topic_id, "_partition": origin.partition, "_key_hash": 0}
            rows = pa.Table.from_pylist([nothing], self._schema)
        rows = rows.sort_by([("_key_hash", "ascending")])
        for field, value in zip([_SNAPSHOT, *_FACTS], [version, *facts], strict=True):
            same = pa.repeat(pa.scalar(value, field.type), rows.num_rows)
            rows = rows.append_column(field, same)
        # Delta has statistics of the first columns only.
        full = pa.schema([*_FACTS, *self._schema, _SNAPSHOT])
        rows = rows.select(full.names).cast(full)
        with self.table.writing():
            if self.table.appender.append(rows) is None:
                write_deltalake(
                    self.table.path, rows, mode="append",
                    partition_by=[*PARTITION, _SNAPSHOT.name], configuration=RETENTION,
                    writer_properties=WriterProperties(max_row_group_size=_ROW_GROUP),
                    schema_mode="merge",
                )  # fmt: skip

    def remove_before(self, origin: Origin, version: int) -> None:
        """Removes the snapshots of a partition that are of lower versions.

        Raises:
            OutputNotWritten: Delta did not do it.
        """
        table = self.table.open()
        if table is not None:
            with self.table.writing():
                table.delete(f"{origin.predicate} AND _snapshot < {version}")


def _snapshot_of(version: int, files: Sequence[Mapping[str, Any]]) -> Snapshot:
    keys, commits, top, first = (files[0].get(f"min.{name}") for name in _FACTS.names)
    return Snapshot(
        version=version,
        keys=sum(file["num_records"] for file in files) if keys is None else keys,
        files=len(files),
        size=sum(file["size_bytes"] for file in files),
        made_at=max(file["modification_time"] for file in files),
        commits=commits,
        top=top,
        is_first=first == 1,
    )
