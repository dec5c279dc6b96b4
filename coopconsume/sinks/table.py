"""Delta tables that a job appends to, and the output table."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from commits.conflicts import create_if_not_exists, repeated_write
from commits.places import refuse_unwritable
from commits.program_end import table_calls
from commits.secrets import message_of
from commits.table_appender import TableAppender
from commits.table_features import refused_feature
from coopconsume.errors import InvalidOption, OutputNotWritten, TableUnusable
from coopconsume.sinks.base import ORIGIN, output_schema
from coopconsume.values.schema import kept_by_delta

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from deltalake import DeltaTable
    from pyspark.sql.types import StructType

    from coopconsume.sinks.base import Outputs


class Table:
    """A Delta table with a known schema, created by the first write.

    Args:
        path: The path of the table.
        schema: The schema of the rows, without `ORIGIN`: DDL, a Spark or an Arrow schema.
        storage_options: As for `deltalake.DeltaTable`.
        partition_by: The columns that partition the table if the first write creates it; empty:
            those of the table that exists, or none.

    Attributes:
        rows_written: The number of rows that were written, repeated ones included.

    Raises:
        InvalidOption: The schema has a type that Delta lacks, or a name that is taken, or a column
            cannot partition the table.
        TableUnusable: The table at the path has other columns, is partitioned otherwise or cannot
            be written, or the path is not a table.
    """

    what = "table"
    beside = ORIGIN
    hears_all: ClassVar[bool] = False
    #: Whether rows are written by `deltalake` alone.
    merges: ClassVar[bool] = False
    #: The table's properties, if the first write creates it.
    properties: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls) -> None:
        table_calls(cls)

    def __init__(
        self,
        path: str,
        schema: str | StructType | pa.Schema,
        storage_options: Mapping[str, str] | None = None,
        *,
        partition_by: str | Sequence[str] = (),
    ) -> None:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        schema = output_schema(schema)
        try:
            self.schema = kept_by_delta(schema)
        except Exception as error:
            raise InvalidOption(
                "output_schema", message_of(error), "give types that a Delta table has"
            ) from error
        self.path = path
        self.rows_written = 0
        self._full = pa.schema([*self.schema, *self.beside])
        self._partition_by = partition_columns(partition_by, self._full)
        self._storage_options = dict(storage_options or {})
        self._appender = TableAppender(path, self._storage_options)
        try:
            found = DeltaTable(path, storage_options=self._storage_options or None)
        except TableNotFoundError:
            return
        except (DeltaError, OSError) as error:
            raise TableUnusable(self.what, path, message_of(error)) from None
        names = [field.name for field in found.schema().fields]
        odd = sorted(set(names) ^ set(self._full.names))
        if odd:
            raise TableUnusable(
                self.what, path, f"its columns differ from those of the rows in {odd}"
            )
        known = pa.schema(found.schema().to_arrow())
        for field in self.schema:
            kind = known.field(field.name).type
            if _without_nulls(kind) != _without_nulls(field.type):
                raise TableUnusable(
                    self.what,
                    path,
                    f"its column {field.name} has the type {kind}, not {field.type}",
                )
        self._check_layout(found)
        # Rows that the table would refuse, such as those with a null, fail their records.
        self.schema = pa.schema([known.field(name) for name in self.schema.names])
        self._full = pa.schema([*self.schema, *self.beside])

    @property
    def columns(self) -> pa.Schema:
        """All columns of the table, `ORIGIN` included."""
        return self._full

    def _check_layout(self, found: DeltaTable) -> None:
        """Makes sure that the table is partitioned as it is asked for, and can be written."""
        wanted, there = self._partition_by, found.metadata().partition_columns
        if wanted and {*wanted} != {*there}:
            is_by = f"it is partitioned by {', '.join(there)}" if there else ""
            raise TableUnusable(
                self.what,
                self.path,
                f"{is_by or 'it has no partition columns'}, and output_partition_by is "
                f"{', '.join(wanted)}: leave it out",
            )
        features = found.protocol().writer_features or ()
        refused = refused_feature(features, appends=not self.merges)
        if refused is not None:
            remedy = "a merge cannot write: give output_mode='append'" if self.merges else (
                "appends do not know: remove it"
            )  # fmt: skip
            raise TableUnusable(
                self.what, self.path, f"it has the table feature {refused}, which {remedy}"
            )

    def close(self) -> None:
        """Does nothing; no connection stays open."""

    def _append(self, table: pa.Table) -> None:
        """Appends rows.

        Raises:
            OutputNotWritten: The write to Delta failed.
        """
        rows = table.select(self._full.names).cast(self._full)
        self._repeated(lambda: self._write(rows))
        self.rows_written += rows.num_rows

    def _repeated(self, write: Callable[[], None]) -> None:
        """Opens the table and writes to it, as `repeated_write` does.

        Raises:
            OutputNotWritten: The write to Delta failed.
        """
        from deltalake.exceptions import DeltaError

        try:
            repeated_write(write)
        except (DeltaError, OSError) as error:
            raise self._failed(error) from error

    def _write(self, rows: pa.Table) -> None:
        from deltalake import write_deltalake

        refuse_unwritable(self.path, rows.nbytes)
        if self._appender.append(rows) is None:
            write_deltalake(self._created(), rows, mode="append")

    def _created(self) -> DeltaTable:
        """Returns the table, which is created if it does not exist."""
        return create_if_not_exists(
            self.path, self._full, self._storage_options,
            partition_by=self._partition_by or None, configuration=self.properties or None,
        )  # fmt: skip

    def _failed(self, error: Exception) -> OutputNotWritten:
        return OutputNotWritten(f"rows of the {self.what}", self.path, message_of(error))


def partition_columns(given: str | Sequence[str], schema: pa.Schema) -> list[str]:
    """Returns the columns that partition a table, as they are given.

    Args:
        given: The name of a column, or some.
        schema: The schema of the table.

    Raises:
        InvalidOption: A column is not there, is given twice, or cannot partition a table.
    """

    def refused(what: object, remedy: str) -> InvalidOption:
        return InvalidOption("output_partition_by", str(what), remedy)

    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise refused(repr(given), "give names of columns")
    if len({*names}) < len(names):
        raise refused(", ".join(names), "give each column once")
    for name in names:
        if name not in schema.names:
            fits = [field.name for field in schema if _may_partition(field.type)]
            raise refused(name, f"the table has no such column: give some of {', '.join(fits)}")
        kind = schema.field(name).type
        if not _may_partition(kind):
            remedy = f"it has the type {kind}: give columns of numbers, text, dates or booleans"
            raise refused(name, remedy)
    return [*names]


def _may_partition(kind: pa.DataType) -> bool:
    return not (pa.types.is_nested(kind) or pa.types.is_binary(kind))


def _without_nulls(kind: pa.DataType) -> pa.DataType:
    """Returns a type whose fields may all be null, to compare types by."""
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _without_nulls(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_without_nulls(kind.key_type), _without_nulls(kind.item_type))
    return pa.list_(_without_nulls(kind.value_type)) if pa.types.is_list(kind) else kind


class OutputTable(Table):
    """Appends the rows that handlers return; readers use `committed_rows` to filter them.

    Args:
        path: The path of the Delta table, which is created with the first rows.
        schema: The schema of the rows: DDL (``"tail string, leg int"``), a Spark or Arrow schema.
        partition_by: As for `Table`.

    Raises:
        InvalidOption, TableUnusable: As for `Table`.
    """

    what = "output table"

    def write(self, outputs: Outputs) -> None:
        """Writes rows.

        Raises:
            OutputNotWritten: The write to Delta failed.
        """
        self._append(outputs.table(self.schema))
