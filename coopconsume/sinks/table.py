"""Delta tables that a job appends to, and the rows that handlers return."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from coopconsume.errors import OutputNotWritten, TableUnusable
from coopconsume.sinks.base import ORIGIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql.types import StructType


class Table:
    """A Delta table of a known schema, made when first written.

    Args:
        path: Where.
        schema: Of the rows, without `ORIGIN`.
        storage_options: As `deltalake.DeltaTable` takes them.
        younger: Columns that a table of an earlier release may lack; they are added.

    Raises:
        TableUnusable: There is a table of other columns, or something else at the path.
    """

    what = "table"

    def __init__(
        self,
        path: str,
        schema: pa.Schema,
        storage_options: Mapping[str, str] | None = None,
        *,
        younger: Iterable[str] = (),
    ) -> None:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        taken = [name for name in schema.names if name in ORIGIN.names]
        if taken:
            raise TableUnusable(
                self.what, path, f"column {taken[0]!r} is the library's own; rename it"
            )
        self.path = path
        self.schema = schema
        self._full = pa.schema([*schema, *ORIGIN])
        self._storage_options = dict(storage_options or {})
        try:
            found = DeltaTable(path, storage_options=self._storage_options or None)
        except TableNotFoundError:
            return
        except (DeltaError, OSError) as error:
            raise TableUnusable(self.what, path, str(error)) from None
        names = [field.name for field in found.schema().fields]
        odd = sorted(set(names) ^ set(self._full.names))
        if set(odd) - (set(younger) - set(names)):
            raise TableUnusable(
                self.what, path, f"its columns differ from what is to be written in {odd}"
            )

    def _append(self, table: pa.Table) -> None:
        from deltalake import write_deltalake
        from deltalake.exceptions import DeltaError

        try:
            write_deltalake(
                self.path,
                table.select(self._full.names).cast(self._full),
                mode="append",
                schema_mode="merge",
                storage_options=self._storage_options or None,
            )
        except (DeltaError, OSError) as error:
            raise OutputNotWritten(f"rows of the {self.what}", self.path, str(error)) from error


class OutputTable(Table):
    """The rows that handlers return.

    Args:
        path: Of the Delta table; created when the first rows come.
        schema: Of the rows, as DDL (``"tail string, leg int"``), a Spark or an Arrow schema.

    Raises:
        TableUnusable: There is a table of other columns, or something else at the path.
    """

    what = "output table"

    def __init__(self, path: str, schema: str | StructType | pa.Schema) -> None:
        super().__init__(path, arrow_schema(schema))

    def append(
        self,
        parts: Sequence[tuple[Sequence[tuple[str, int]], bytes]],
        topic_ids: Mapping[str, str],
        commit_id: str,
    ) -> None:
        """Write rows as slots reported them, with the partitions their ``_part`` counts."""
        tables = []
        for partitions, data in parts:
            table = pa.ipc.open_stream(data).read_all()
            topics = pa.array([topic for topic, _ in partitions], pa.string())
            ids = pa.array([topic_ids.get(topic, "") for topic, _ in partitions], pa.string())
            numbers = pa.array([number for _, number in partitions], pa.int32())
            part = table.column("_part")
            table = table.drop_columns(["_part"])
            table = table.append_column("_topic", topics.take(part.combine_chunks()))
            table = table.append_column("_topic_id", ids.take(part.combine_chunks()))
            table = table.append_column("_partition", numbers.take(part.combine_chunks()))
            commit = pa.repeat(pa.scalar(commit_id, pa.string()), table.num_rows)
            tables.append(table.append_column("_commit", commit))
        self._append(pa.concat_tables(tables))


def arrow_schema(schema: str | StructType | pa.Schema) -> pa.Schema:
    """An Arrow schema from DDL, a Spark schema or an Arrow schema.

    Raises:
        TypeError: It is none of them.
    """
    if isinstance(schema, pa.Schema):
        return schema
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType, _parse_datatype_string

    parsed = _parse_datatype_string(schema) if isinstance(schema, str) else schema
    if not isinstance(parsed, StructType):
        raise TypeError(f"output schema {schema!r}: give DDL such as 'name string, count int'")
    return to_arrow_schema(parsed)
