"""An output table in which the rows of each record appear exactly once without a filter."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from commits.arrow_dataset import arrow_dataset
from commits.places import refuse_unwritable
from coopconsume.sinks.base import GONE, ORIGIN, ROW
from coopconsume.sinks.table import Table

if TYPE_CHECKING:
    from coopconsume.sinks.base import Outputs

_IDENTITY = ("_topic_id", "_partition", "_offset", ROW.name)


class MergeTable(Table):
    """Merges the rows that handlers return by record.

    If a record is processed again after a crash, its new rows replace the old ones, and surplus
    old rows are deleted. Both happen in one commit of Delta. A merge takes several times as long
    as an append.

    Args:
        path: The path of the Delta table, which is created with the first rows.
        schema: The schema of the rows: DDL, a Spark or an Arrow schema.
        partition_by: As for `Table`.

    Raises:
        InvalidOption, TableUnusable: As for `Table`.
    """

    what = "merged output table"
    hears_all: ClassVar[bool] = True
    merges: ClassVar[bool] = True
    beside = pa.schema([ROW, *ORIGIN])

    def write(self, outputs: Outputs) -> None:
        """Merges rows.

        Raises:
            OutputNotWritten: The write to Delta failed.
        """
        rows = outputs.table(self.schema)
        self._repeated(lambda: self._merge(rows, self._left_over(rows, outputs)))
        self.rows_written += rows.num_rows

    def _left_over(self, rows: pa.Table, outputs: Outputs) -> pa.Table:
        """Returns the rows in the table that their records no longer have."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        new = set(zip(*(rows.column(name).to_pylist() for name in _IDENTITY), strict=True))
        try:
            table = DeltaTable(self.path, storage_options=self._storage_options or None)
        except TableNotFoundError:
            return self._full.empty_table()
        found = []
        for (topic, partition), done in outputs.done.items():
            if done.first is None:
                continue
            topic_id = outputs.topic_ids.get(topic, "")
            where = (
                (pc.field("_topic_id") == topic_id)
                & (pc.field("_partition") == partition)
                & (pc.field("_offset") >= done.first)
                & (pc.field("_offset") <= done.last)
            )
            there = arrow_dataset(table).to_table(columns=self._full.names, filter=where)
            gone = [
                offset in done and (*place, offset, row) not in new
                for *place, offset, row in zip(
                    *(there.column(name).to_pylist() for name in _IDENTITY), strict=True
                )
            ]
            found.append(there.filter(pa.array(gone, pa.bool_())).cast(self._full))
        return pa.concat_tables(found) if found else self._full.empty_table()

    def _merge(self, rows: pa.Table, gone: pa.Table) -> None:
        if not rows.num_rows and not gone.num_rows:
            return
        source = pa.concat_tables(
            part.select(self._full.names)
            .cast(self._full)
            .append_column(GONE, pa.repeat(pa.scalar(is_gone), part.num_rows))
            for part, is_gone in ((rows, False), (gone, True))
        )
        refuse_unwritable(self.path, source.nbytes)
        table = self._created()
        span = pc.min_max(source.column("_offset")).as_py()
        same = " AND ".join(f"t.{name} = s.{name}" for name in _IDENTITY)
        # The bounds let Delta skip files by their statistics.
        near = f"t._offset >= {span['min']} AND t._offset <= {span['max']}"
        columns = {f"`{name}`": f"s.`{name}`" for name in self._full.names}
        (
            table.merge(source, f"{same} AND {near}", source_alias="s", target_alias="t")
            .when_matched_delete(f"s.{GONE}")
            .when_matched_update(columns, f"NOT s.{GONE}")
            .when_not_matched_insert(columns, f"NOT s.{GONE}")
            .execute()
        )
