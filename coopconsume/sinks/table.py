"""Delta tables that a job appends to, and the rows that handlers return."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from coopconsume.errors import OutputNotWritten, TableUnusable
from coopconsume.sinks.base import ORIGIN, ROW, arrow_schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import StructType

    from coopconsume.sinks.base import Outputs


class Table:
    """A Delta table of a known schema, made when first written.

    Args:
        path: Where.
        schema: Of the rows, without `ORIGIN`.
        storage_options: As `deltalake.DeltaTable` takes them.

    Raises:
        TableUnusable: There is a table of other columns, or something else at the path.
    """

    what = "table"
    beside = ORIGIN

    def __init__(
        self, path: str, schema: pa.Schema, storage_options: Mapping[str, str] | None = None
    ) -> None:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        taken = [name for name in schema.names if name in (*ORIGIN.names, ROW.name)]
        if taken:
            raise TableUnusable(
                self.what, path, f"column {taken[0]!r} is the library's own; rename it"
            )
        self.path = path
        self.schema = schema
        self._full = pa.schema([*schema, *self.beside])
        self._storage_options = dict(storage_options or {})
        try:
            found = DeltaTable(path, storage_options=self._storage_options or None)
        except TableNotFoundError:
            return
        except (DeltaError, OSError) as error:
            raise TableUnusable(self.what, path, str(error)) from None
        names = [field.name for field in found.schema().fields]
        odd = sorted(set(names) ^ set(self._full.names))
        if odd:
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
                storage_options=self._storage_options or None,
            )
        except (DeltaError, OSError) as error:
            raise OutputNotWritten(f"rows of the {self.what}", self.path, str(error)) from error


class OutputTable(Table):
    """The rows that handlers return, appended; those of commits that count are to be read.

    Args:
        path: Of the Delta table; created when the first rows come.
        schema: Of the rows, as DDL (``"tail string, leg int"``), a Spark or an Arrow schema.

    Raises:
        TableUnusable: There is a table of other columns, or something else at the path.
    """

    what = "output table"
    topic: str | None = None
    hears_all: ClassVar[bool] = False

    def __init__(self, path: str, schema: str | StructType | pa.Schema) -> None:
        super().__init__(path, arrow_schema(schema))

    def write(self, outputs: Outputs) -> None:
        """Write rows.

        Raises:
            OutputNotWritten: Delta did not take them.
        """
        self._append(outputs.table(self.schema))

    def close(self) -> None:
        """Nothing is open."""
