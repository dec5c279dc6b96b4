"""The output rows of a slot: checked as handlers return them, so that none fails afterwards.

By the time a batch ends, later records of a key have run. So a row that does not fit must be found
while its record is still at work. Task-side code.
"""

from __future__ import annotations

import copy
import datetime as dt
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from coopconsume.worker.handler_answers import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Take = Callable[[Any], Any]

#: Beside a row: the index of its partition, and the record that it comes from.
_ORIGIN = pa.schema([("_part", pa.int32()), ("_offset", pa.int64()), ("_key_hash", pa.int64())])
#: Bytes or characters of a value above which Arrow itself checks it.
_LONG = 1 << 26
#: Up to here a float holds every whole number.
_EXACT = 1 << 53
#: Pieces that are kept apart, before they are put together.
_PIECES = 256


class _Unsure(Exception):
    """A value must be checked by Arrow."""


class OutputRows:
    """The rows that handlers of a slot returned, with the records that they come from.

    Args:
        schema: Of a row.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._full = pa.schema([*schema, *_ORIGIN])
        self._takes = [(field.name, field.nullable, _take_of_type(field.type)) for field in schema]
        self._width = max(1, len(self._takes))
        self._cells: list[Any] = []
        self._origins: list[tuple[int, int, int]] = []
        self._pieces: list[pa.RecordBatch] = []

    def checked(self, rows: Sequence[Any]) -> list[Any] | pa.RecordBatch:
        """Returns the rows of one record, as their cells or a batch, that surely fit the schema.

        Safe to call from several threads.

        Raises:
            TypeError: A row is no dictionary.
            ValueError: A row does not fit.
        """
        try:
            return [
                None if (value := row.get(name)) is None and nullable else take(value)
                for row in rows
                for name, nullable, take in self._takes
            ]
        except Exception:  # noqa: BLE001 - whatever it is, Arrow has the last word
            return self._checked_by_arrow(rows)

    def _checked_by_arrow(self, rows: Sequence[Any]) -> pa.RecordBatch:
        pieces = []
        for row in rows:
            get = getattr(row, "get", None)
            if get is None:
                raise TypeError(
                    f"the handler returned the row {shown(row)} of type {type(row).__name__}: a "
                    "row is a dictionary by column names"
                )
            try:
                arrays = [pa.array([get(field.name)], field.type) for field in self.schema]
            except Exception as error:
                raise self._misfit(row, error) from error
            for field, array in zip(self.schema, arrays, strict=True):
                if _has_forbidden_null(field, array):
                    raise self._misfit(row, f"column {field.name} must not be null")
            pieces.append(pa.RecordBatch.from_arrays(arrays, schema=self.schema))
        return _joined(pieces)

    def _misfit(self, row: Any, why: object) -> ValueError:
        columns = ", ".join(f"{field.name} {field.type}" for field in self.schema)
        return ValueError(
            f"the row {shown(row)} that the handler returned does not fit the output schema "
            f"({columns}): {why}"
        )

    def add(self, rows: list[Any] | pa.RecordBatch, part: int, offset: int, key_hash: int) -> None:
        """Keep what `checked` returned for a record."""
        place = (part, offset, key_hash)
        if isinstance(rows, list):
            self._cells += rows
            self._origins += [place] * (len(rows) // self._width)
            return
        self._flush()
        origin = [pa.array([value] * rows.num_rows, field.type)
                  for value, field in zip(place, _ORIGIN, strict=True)]  # fmt: skip
        self._put(pa.RecordBatch.from_arrays([*rows.columns, *origin], schema=self._full))

    def check_of(self, name: str) -> Callable[[Any], Any]:
        """Returns what copies a value of a column that surely fits, and raises for all others."""
        ((nullable, take),) = [found[1:] for found in self._takes if found[0] == name]
        return _or_null(take) if nullable else take

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
            arrays = [pa.array(values, field.type)
                      for values, field in zip(columns, self._full, strict=True)]  # fmt: skip
            self._cells, self._origins = [], []
            table = pa.Table.from_arrays(arrays, schema=self._full)
            for piece in table.to_batches():
                self._put(piece)

    def _put(self, piece: pa.RecordBatch) -> None:
        self._pieces.append(piece)
        if len(self._pieces) >= _PIECES:
            self._pieces = pa.Table.from_batches(self._pieces).combine_chunks().to_batches()


def _joined(pieces: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(pieces) == 1:
        return pieces[0]
    (joined,) = pa.Table.from_batches(pieces).combine_chunks().to_batches()
    return joined


def _has_forbidden_null(field: pa.Field, array: pa.Array) -> bool:
    if array.null_count and not field.nullable:
        return True
    kind, array = field.type, array.drop_null()
    if pa.types.is_struct(kind):
        return any(_has_forbidden_null(one, array.field(i)) for i, one in enumerate(kind))
    return pa.types.is_list(kind) and _has_forbidden_null(kind.value_field, array.flatten())


def _take_of(field: pa.Field) -> Take:
    """Returns what copies a value of a column that surely fits, and else raises."""
    take = _take_of_type(field.type)
    return _or_null(take) if field.nullable else take


def _or_null(take: Take) -> Take:
    return lambda value: None if value is None else take(value)


def _take_of_type(kind: pa.DataType) -> Take:  # noqa: PLR0911 - one for each type
    types = pa.types
    if types.is_signed_integer(kind):
        return _whole_number(1 << kind.bit_width - 1)
    if types.is_string(kind) or types.is_large_string(kind):
        return _take_text
    if types.is_binary(kind) or types.is_large_binary(kind):
        return _exact(bytes, lambda value: len(value) < _LONG)
    if types.is_boolean(kind):
        return _exact(bool)
    if types.is_float64(kind):
        return _take_float
    if types.is_date32(kind):
        return _exact(dt.date)
    if types.is_timestamp(kind) and kind.unit == "us":
        return _exact(dt.datetime, lambda value: value.tzinfo in (None, dt.UTC))
    if types.is_list(kind):
        take = _take_of(kind.value_field)
        return lambda value: [take(one) for one in _of(list, value)]
    if types.is_struct(kind):
        takes = [(field.name, _take_of(field)) for field in kind]
        return lambda value: {n: take(_of(dict, value).get(n)) for n, take in takes}
    return _unsure


def _exact(kind: type, fits: Callable[[Any], bool] | None = None) -> Take:
    def take(value: Any) -> Any:
        if type(value) is kind and (fits is None or fits(value)):
            return value
        raise _Unsure

    return take


def _whole_number(most: int) -> Take:
    def take(value: Any) -> Any:
        if type(value) is int and -most <= value < most:
            return value
        raise _Unsure

    return take


def _take_text(value: Any) -> Any:
    if type(value) is str and len(value) < _LONG:
        if not value.isascii():
            value.encode()  # UnicodeEncodeError leaves it to Arrow, which says why.
        return value
    raise _Unsure


def _take_float(value: Any) -> Any:
    if type(value) is float or (type(value) is int and -_EXACT <= value <= _EXACT):
        return value
    raise _Unsure


def _unsure(_value: Any) -> Any:
    raise _Unsure


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise _Unsure
    return value
