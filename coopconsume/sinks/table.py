"""Delta tables that a job appends to, and the output table."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from commits.conflicts import repeated_write
from commits.places import refuse_unwritable
from commits.program_end import table_calls
from commits.secrets import message_of
from commits.table_appender import TableAppender
from coopconsume.errors import InvalidOption, OutputNotWritten, TableUnusable
from coopconsume.sinks.base import ORIGIN, output_schema
from coopconsume.values.schema import kept_by_delta

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql.types import StructType

    from coopconsume.sinks.base import Outputs


class Table:
    """A Delta table with a known schema, created by the first write.

    Args:
        path: The path of the table.
        schema: The schema of the rows, without `ORIGIN`: DDL, a Spark or an Arrow schema.
        storage_options: As for `deltalake.DeltaTable`.

    Raises:
        InvalidOption: The schema has a type that Delta lacks, or a name that is taken.
        TableUnusable: The table at the path has other columns, or the path is not a table.
    """

    what = "table"
    beside = ORIGIN
    hears_all: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        table_calls(cls)

    def __init__(
        self,
        path: str,
        schema: str | StructType | pa.Schema,
        storage_options: Mapping[str, str] | None = None,
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
        self._full = pa.schema([*self.schema, *self.beside])
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
        # Rows that the table would refuse, such as those with a null, fail their records.
        self.schema = pa.schema([known.field(name) for name in self.schema.names])
        self._full = pa.schema([*self.schema, *self.beside])

    def close(self) -> None:
        """Does nothing; no connection stays open."""

    def _append(self, table: pa.Table) -> None:
        """Appends rows.

        Raises:
            OutputNotWritten: The write to Delta failed.
        """
        rows = table.select(self._full.names).cast(self._full)
        self._repeated(lambda: self._write(rows))

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
            write_deltalake(
                self.path, rows, mode="append", storage_options=self._storage_options or None
            )

    def _failed(self, error: Exception) -> OutputNotWritten:
        return OutputNotWritten(f"rows of the {self.what}", self.path, message_of(error))


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

    Raises:
        InvalidOption: The schema has a type that Delta lacks, or a name that is taken.
        TableUnusable: The table at the path has other columns, or the path is not a table.
    """

    what = "output table"

    def write(self, outputs: Outputs) -> None:
        """Writes rows.

        Raises:
            OutputNotWritten: The write to Delta failed.
        """
        self._append(outputs.table(self.schema))
