"""Delta tables that a job appends to, and the rows that handlers return."""

from __future__ import annotations

import itertools
import random
import time
from typing import TYPE_CHECKING, ClassVar, Final

import pyarrow as pa

from coopconsume.errors import OutputNotWritten, TableUnusable
from coopconsume.sinks.base import ORIGIN, ROW, arrow_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql.types import StructType

    from coopconsume.sinks.base import Outputs

#: How often a write is attempted that conflicts with other writers' commits.
MOST_TRIES: Final = 20
#: Longest pause after the first conflict, in seconds; it grows with each one.
_PAUSE: Final = 0.05


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
        """Appends rows.

        Raises:
            OutputNotWritten: Delta did not take them.
        """
        rows = table.select(self._full.names).cast(self._full)
        self._repeated(lambda: self._write(rows))

    def _repeated(self, write: Callable[[], None]) -> None:
        """Opens the table and writes to it; repeats that if other writers' commits conflict.

        Nothing is written then: what was read has changed since the table was opened, for example
        by a member that deletes published rows.

        Raises:
            OutputNotWritten: Delta did not take it.
        """
        from deltalake.exceptions import CommitFailedError, DeltaError

        for tries in itertools.count(1):
            try:
                write()
            except CommitFailedError as error:
                if tries == MOST_TRIES:
                    raise self._failed(error) from error
                time.sleep(random.uniform(0, _PAUSE * tries))  # noqa: S311 - no secret
            except (DeltaError, OSError) as error:
                raise self._failed(error) from error
            else:
                return

    def _write(self, rows: pa.Table) -> None:
        from deltalake import write_deltalake

        write_deltalake(
            self.path, rows, mode="append", storage_options=self._storage_options or None
        )

    def _failed(self, error: Exception) -> OutputNotWritten:
        return OutputNotWritten(f"rows of the {self.what}", self.path, str(error))


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
