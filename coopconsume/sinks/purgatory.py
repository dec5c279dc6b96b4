"""KIP-X's purgatory: rows of records that are done wait here until the stable offset passes them.

A Delta table, so that they wait over crashes and for whichever member publishes them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from commits.arrow_dataset import arrow_dataset
from commits.secrets import hidden, message_of
from coopconsume.errors import OutputsNotPublished
from coopconsume.sinks.base import ORIGIN, ROW, as_bytes
from coopconsume.sinks.table import Table
from coopconsume.state.rows import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from coopconsume.sinks.base import Outputs
    from coopconsume.state.rows import Origin

log = logging.getLogger(__name__)

#: What a record of a topic is made of; text that handlers return is bytes here.
RECORD = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("partition", pa.int32()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
_WRITTEN = pa.field("_written_at", pa.timestamp("us", "UTC"))
_AGE = ("_offset", "_written_at", "_commit")
#: Offsets that are looked at for each row of a transaction, and how many times more if they were
#: too few.
_OFFSETS_A_ROW, _WIDER = 2, 8


class Chunk(NamedTuple):
    """What one transaction publishes.

    Attributes:
        rows: In the order of their records.
        next: The offset below which everything is published then.
    """

    rows: pa.Table
    next: int


class Purgatory(Table):
    """Rows that wait to be written to a topic.

    Args:
        root: The folder or URI of all purgatories.
        names: Of the group and of the topic; they identify the purgatory.

    Raises:
        TableUnusable: There is a table of other columns, or something else at the path.
    """

    what = "purgatory"
    beside = pa.schema([ROW, *ORIGIN, _WRITTEN])
    # How long files stay whose rows are published: a reader may be at them. On a local disk each
    # append lists all entries of the table's log.
    properties: ClassVar = {
        "delta.deletedFileRetentionDuration": "interval 1 hours",
        "delta.logRetentionDuration": "interval 1 hours",
    }

    def __init__(self, root: str, names: tuple[str, str]) -> None:
        super().__init__(purgatory_path(root, names), RECORD)
        #: How often key ranges have come, and how often they had as the newest row was looked for.
        self._gains, self._looked = 1, 0
        self._last = 0

    def write(self, outputs: Outputs, schema: pa.Schema) -> None:
        """Have rows of a commit wait; they count with it.

        Args:
            outputs: The rows.
            schema: Of the rows.

        Raises:
            OutputNotWritten: Delta did not take them.
        """
        rows = outputs.table(schema)
        columns = {name: _column(rows, name) for name in RECORD.names}
        columns |= {name: rows.column(name) for name in (ROW.name, *ORIGIN.names)}
        written = pa.scalar(self._next_time(), pa.int64()).cast(_WRITTEN.type)
        columns[_WRITTEN.name] = pa.repeat(written, rows.num_rows)
        self._append(pa.table(columns))

    def gain(self) -> None:
        """Key ranges come: the rows of their earlier owners are older than those from now on."""
        self._gains += 1

    def _next_time(self) -> int:
        """Microseconds since 1970, above those of all rows that the present owner can find.

        A record's rows of an earlier attempt were written by this process, or before its key came.
        So a clock that steps back, or that of another host, does not make older rows newer.

        Raises:
            OutputNotWritten: The table cannot be read.
        """
        gains = self._gains
        if self._looked != gains:
            self._last = max(self._last, self._newest_time())
            self._looked = gains
        self._last = max(int(time.time() * 1_000_000), self._last + 1)
        return self._last

    def _newest_time(self) -> int:
        from deltalake.exceptions import DeltaError

        try:
            files = pa.table(self._created().get_add_actions(flatten=True))
        except (DeltaError, OSError) as error:
            raise self._failed(error) from error
        name = f"max.{_WRITTEN.name}"
        newest = pc.max(files.column(name)).as_py() if name in files.column_names else None
        # Statistics of Delta leave out the microseconds.
        return 0 if newest is None else int(newest.timestamp() * 1_000_000) + 1_000

    def chunk(
        self, origin: Origin, first: int, stop: int, most: int, counts: Callable[[str], bool]
    ) -> Chunk:
        """The next rows of a partition that count, of offsets from ``first`` to below ``stop``.

        Where a record was done again, after an operator's word or in a log that was cut, its
        newest rows are taken.

        Args:
            origin: The partition.
            first: Everything below is published.
            stop: The stable offset.
            most: Rows at most; those of one record stay together.
            counts: Whether the commit log counts a commit.

        Raises:
            OutputsNotPublished: The table cannot be read.
        """
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        nothing = self._full.empty_table()
        try:
            # Opened after the stable offset was read: rows below it are there by then.
            table = DeltaTable(self.path)
            # Not all that waits is looked at for each transaction, as most records have a few rows.
            upto = min(stop, first + _OFFSETS_A_ROW * most)
            index = self._index(table, origin, first, upto, counts)
            while upto < stop and index.num_rows <= most:
                upto = min(stop, first + _WIDER * (upto - first))
                index = self._index(table, origin, first, upto, counts)
            end = cut(_rows_of(index), most, upto)
            rows = self._read(table, origin, first, end) if index.num_rows else nothing
        except TableNotFoundError:
            return Chunk(nothing, stop)
        except (DeltaError, OSError) as error:
            raise OutputsNotPublished(self.path, message_of(error)) from error
        rows = counted(rows, counts)
        kept = newest(zip(*(rows.column(n).to_pylist() for n in _AGE), strict=True))
        rows = rows.filter(pa.array(kept, pa.bool_()))
        return Chunk(rows.sort_by([("_offset", "ascending"), (ROW.name, "ascending")]), end)

    def forget(self, origin: Origin, below: int) -> None:
        """Delete what is published; where that fails, it is left for the next time."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            table = DeltaTable(self.path)
            table.delete(f"{origin.predicate} AND _offset < {below}")
            table.vacuum(dry_run=False)
        except TableNotFoundError:
            return
        except (DeltaError, OSError) as error:
            log.info(
                "published rows are left in %s for now: %s", hidden(self.path), hidden(str(error))
            )

    def _index(
        self, table: Any, origin: Origin, first: int, stop: int, counts: Callable[[str], bool]
    ) -> pa.Table:
        return counted(self._read(table, origin, first, stop, ["_offset", "_commit"]), counts)

    def _read(
        self, table: Any, origin: Origin, first: int, stop: int, columns: list[str] | None = None
    ) -> pa.Table:
        where = (
            (pc.field("_topic_id") == origin.topic_id)
            & (pc.field("_partition") == origin.partition)
            & (pc.field("_offset") >= first)
            & (pc.field("_offset") < stop)
        )
        names = columns or list(self._full.names)
        return arrow_dataset(table).to_table(columns=names, filter=where)


def purgatory_path(root: str, names: tuple[str, str]) -> str:
    """Returns the folder of the rows that wait; other names have another one."""
    digest = hashlib.sha256(json.dumps(names).encode()).hexdigest()[:12]
    readable = re.sub(r"[^A-Za-z0-9_-]", "_", "-".join(names))[:80]
    return f"{root.rstrip('/')}/{readable}-{digest}"


def cut(rows: Iterable[tuple[int, int]], most: int, stop: int) -> int:
    """Where a transaction ends that takes some rows at most, and one record at least.

    Args:
        rows: Offsets, ascending, with how many rows each has.
        most: How many rows.
        stop: Where it ends if all of them fit.
    """
    taken = 0
    for offset, count in rows:
        if taken and taken + count > most:
            return offset
        taken += count
    return stop


def newest(rows: Iterable[tuple[int, Any, str]]) -> list[bool]:
    """For each row whether its commit is the newest that has rows of its record.

    Args:
        rows: Offset, time of writing and commit.
    """
    listed = list(rows)
    last: dict[int, tuple[Any, str]] = {}
    for offset, *age in listed:
        last[offset] = max(last.get(offset, tuple(age)), tuple(age))
    return [last[offset] == tuple(age) for offset, *age in listed]


def _rows_of(index: pa.Table) -> Iterator[tuple[int, int]]:
    each = index.group_by("_offset").aggregate([("_commit", "count")]).sort_by("_offset")
    offsets, counts = each.column("_offset"), each.column("_commit_count")
    return zip(offsets.to_pylist(), counts.to_pylist(), strict=True)


def _column(rows: pa.Table, name: str) -> pa.ChunkedArray | pa.Array:
    """A column of a record; what the handlers' rows lack is null."""
    kind = RECORD.field(name).type
    if name not in rows.column_names:
        return pa.nulls(rows.num_rows, kind)
    column = rows.column(name)
    if name != "headers":
        return column.cast(kind)
    headers = [
        [{"key": h["key"], "value": as_bytes(h["value"])} for h in of_row or ()]
        for of_row in column.to_pylist()
    ]
    return pa.array(headers, kind)
