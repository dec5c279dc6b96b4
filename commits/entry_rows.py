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
    if rows.get_total_buffer_size() > MOST_BYTES:  # Much faster than nbytes.
        return None
    columns = {}
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if column.null_count < len(column):
            columns[field.name] = _values(column)
    return {"count": len(rows), "columns": columns}


def rows_of_plain(plains: Mapping[int, Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Return the rows of some versions, from their objects of JSON.

    Args:
        plains: The objects, by version.
        schema: The columns of the rows.

    Returns:
        The rows with a column `_commit_version`.

    Raises:
        KeyError, TypeError, ValueError: One is not made by `rows_to_plain` for this schema.
    """
    counts = {version: int(plain["count"]) for version, plain in plains.items()}
    columns = [plain["columns"] for plain in plains.values()]
    arrays = []
    for field in schema:
        if any(field.name in one for one in columns):
            values: list[Any] = []
            for one, count in zip(columns, counts.values(), strict=True):
                found = one.get(field.name, [None] * count)
                if len(found) != count:
                    raise ValueError(f"an entry should have {count} rows and has {len(found)}")
                values += found
            arrays.append(_array(values, field.type))
        else:
            arrays.append(pa.nulls(sum(counts.values()), field.type))
    rows = pa.Table.from_arrays(arrays, schema=schema)
    rows.validate()
    return with_versions(rows, counts)


def with_versions(rows: pa.Table, counts: Mapping[int, int]) -> pa.Table:
    """Return rows with the column `_commit_version`, by how many rows each version has."""
    versions = [version for version, count in counts.items() for _ in range(count)]
    return rows.append_column("_commit_version", pa.array(versions, pa.int64()))


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
