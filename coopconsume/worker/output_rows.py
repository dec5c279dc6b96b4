"""The output rows of a slot: checked as handlers return them, so that none fails afterwards.

By the time a batch ends, later records of a key have run. So a row that does not fit must be found
while its record is still at work. Task-side code.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from coopconsume.values.conversion import DoesNotFit, converter, fields_of, misfit, of_type
from coopconsume.values.shown import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coopconsume.values.conversion import Convert

#: Beside a row: the index of its partition, and the record that it comes from.
ORIGIN_OF_ROW = pa.schema(
    [("_part", pa.int32()), ("_offset", pa.int64()), ("_key_hash", pa.int64())]
)
#: Pieces that are kept apart, before they are put together.
_PIECES = 256


class OutputRows:
    """The rows that handlers of a slot returned, with the records that they come from.

    Args:
        schema: Of a row.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._full = pa.schema([*schema, *ORIGIN_OF_ROW])
        self._names = frozenset(schema.names)
        self._convert: list[tuple[str, Convert]] = [
            (field.name, converter(field.type, nullable=field.nullable)) for field in schema
        ]
        #: The same without null, which is looked for without a call for each value.
        self._quick = [(field.name, field.nullable, of_type(field.type)) for field in schema]
        self._width = max(1, len(self._convert))
        self._cells: list[Any] = []
        self._origins: list[tuple[int, int, int]] = []
        self._pieces: list[pa.RecordBatch] = []

    def checked(self, rows: Sequence[Any]) -> list[Any]:
        """Returns the cells of the rows of one record, which surely fit the schema.

        Safe to call from several threads.

        Raises:
            TypeError: A row is no dictionary.
            ValueError: A row does not fit.
        """
        names = self._names
        try:
            if all(type(row) is dict and names.issuperset(row) for row in rows):
                return [
                    None if (value := row.get(name)) is None and nullable else convert(value)
                    for row in rows
                    for name, nullable, convert in self._quick
                ]
        except Exception:  # noqa: BLE001, S110 - the row and the column are found below
            pass
        return [cell for row in rows for cell in self._cells_of(row)]

    def _cells_of(self, row: Any) -> list[Any]:
        """Returns the cells of a row, or raises an error that names the row and the column."""
        try:
            fields = fields_of(row, self.schema.names)
        except TypeError as error:
            raise TypeError(
                f"the handler returned the row {shown(row)} of type {type(row).__name__}: a "
                "row is a dictionary by column names"
            ) from error
        except DoesNotFit as error:
            raise self._misfit(row, error) from error
        cells = []
        for name, convert in self._convert:
            try:
                cells.append(convert(fields.get(name)))
            except DoesNotFit as error:
                within = DoesNotFit(error.why, (f"column {name}", *error.path))
                raise self._misfit(row, within) from error
            except Exception as error:
                raise self._misfit(row, error) from error
        return cells

    def _misfit(self, row: Any, error: BaseException) -> ValueError:
        columns = ", ".join(f"{field.name} {field.type}" for field in self.schema)
        what = f"the row {shown(row)} that the handler returned"
        return misfit(what, f"the output schema ({columns})", error)

    def add(self, cells: list[Any], part: int, offset: int, key_hash: int) -> None:
        """Keeps what `checked` returned for a record."""
        self._cells += cells
        self._origins += [(part, offset, key_hash)] * (len(cells) // self._width)

    def check_of(self, name: str) -> Convert:
        """Returns the conversion of a column's values, as `converter` does."""
        return dict(self._convert)[name]

    def add_columns(self, columns: Sequence[pa.Array]) -> None:
        """Keeps checked rows by their columns, with those of the records that they come from."""
        self._put(pa.RecordBatch.from_arrays(columns, schema=self._full))

    def take(self) -> OutputRows:
        """Returns all rows so far as an object of their own, and keeps none of them."""
        taken = copy.copy(self)
        self._cells, self._origins, self._pieces = [], [], []
        return taken

    def encode(self) -> bytes | None:
        """Returns all rows as an Arrow IPC stream; None without any."""
        self._flush()
        if not self._pieces:
            return None
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._full) as writer:
            for piece in self._pieces:
                writer.write_batch(piece)
        return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]

    def _flush(self) -> None:
        if self._origins:
            columns: list[Sequence[Any]]
            columns = [self._cells[i :: self._width] for i in range(self._width)]
            columns += zip(*self._origins, strict=True)
            arrays = [
                pa.array(values, field.type)
                for values, field in zip(columns, self._full, strict=True)
            ]
            self._cells, self._origins = [], []
            table = pa.Table.from_arrays(arrays, schema=self._full)
            for piece in table.to_batches():
                self._put(piece)

    def _put(self, piece: pa.RecordBatch) -> None:
        self._pieces.append(piece)
        if len(self._pieces) >= _PIECES:
            self._pieces = pa.Table.from_batches(self._pieces).combine_chunks().to_batches()
