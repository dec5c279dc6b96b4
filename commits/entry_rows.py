"""The rows of an append in the entry of its version, so that a reader needs no other file.

They are a JSON object of columns. Columns without values are left out, and bytes are in Base64.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Bytes of rows that an entry has at most: each reader reads it, whatever group it is for.
MOST_BYTES: Final = 256 << 10


def rows_to_plain(rows: pa.Table) -> dict[str, Any] | None:
    """Return rows as an object of JSON; None if there are too many for an entry."""
    if rows.nbytes > MOST_BYTES:
        return None
    columns = {}
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if column.null_count < len(column):
            columns[field.name] = _values(column)
    return {"count": len(rows), "columns": columns}


def rows_of_plain(plain: Mapping[str, Any], schema: pa.Schema) -> pa.Table:
    """Return rows from an object of JSON.

    Raises:
        KeyError, TypeError, ValueError: It is not made by `rows_to_plain` for this schema.
    """
    count, columns = int(plain["count"]), plain["columns"]
    arrays = [
        _array(columns[field.name], field.type) if field.name in columns
        else pa.nulls(count, field.type)
        for field in schema
    ]  # fmt: skip
    rows = pa.Table.from_arrays(arrays, schema=schema)
    rows.validate()
    if len(rows) != count:
        raise ValueError(f"an entry should have {count} rows and has {len(rows)}")
    return rows


def _values(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    values: list[Any] = column.to_pylist()
    if pa.types.is_binary(column.type):
        return [None if value is None else b64encode(value).decode() for value in values]
    return values


def _array(values: list[Any], of: pa.DataType) -> pa.Array:
    if pa.types.is_binary(of):
        values = [None if value is None else b64decode(value, validate=True) for value in values]
    if pa.types.is_timestamp(of):
        return pa.array(values, pa.int64()).cast(of)
    return pa.array(values, of)
