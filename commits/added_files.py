"""The files that an append adds to a Delta table: one for each value of its partition columns."""

from __future__ import annotations

import json
import math
import uuid
from contextlib import suppress
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

#: The folder of rows whose value of a partition column is null.
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
#: The longest text in statistics, and what is above all texts that begin with the same.
_LONGEST, _ABOVE = 64, "\U0010ffff"
_NUMBER: Final = "_number"


class AddedFile(NamedTuple):
    """A file to write, and what its `add` action has of it.

    Attributes:
        name: Its name within the table, as a store has it.
        content: Its bytes.
        action: The `add` action.
    """

    name: str
    content: bytes
    action: Mapping[str, Any]


def added_files(
    rows: pa.Table,
    partitioned_by: Sequence[str],
    *,
    indexed: int,
    now_ms: int,
    row_group_size: int | None = None,
) -> Iterator[AddedFile]:
    """Yield the files of some rows.

    Args:
        rows: The rows, with the columns of the table.
        partitioned_by: The partition columns, of types that `can_partition`.
        indexed: How many columns have statistics, from the first one on; -1: all.
        now_ms: The time of writing.
        row_group_size: The rows of a row group at most.
    """
    for values, part in _partitions(rows, partitioned_by):
        data = pa.BufferOutputStream()
        pq.write_table(part, data, row_group_size=row_group_size, store_schema=False)
        content = data.getvalue().to_pybytes()
        folders = [
            f"{name}={_NULL if v is None else quote(v, safe='')}/" for name, v in values.items()
        ]
        name = f"{''.join(folders)}part-{uuid.uuid4()}.parquet"
        yield AddedFile(name, content, {
            "path": quote(name, safe="/=-_.~"), "partitionValues": values, "size": len(content),
            "modificationTime": now_ms, "dataChange": True, "stats": statistics(part, indexed),
        })  # fmt: skip


def can_partition(kind: pa.DataType) -> bool:
    """Return whether Delta's text of a value of the type is plain."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_string(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_boolean(kind)
    )


def statistics(rows: pa.Table, indexed: int) -> str:
    """Return the statistics of a file, as JSON. A bound that is not certain is left out.

    Args:
        rows: The rows of the file.
        indexed: How many columns have statistics, from the first one on; -1: all.
    """
    found: dict[str, dict[str, Any]] = {"minValues": {}, "maxValues": {}, "nullCount": {}}
    names = rows.column_names if indexed < 0 else rows.column_names[:indexed]
    first = rows.select(names)
    for path, column in _leaves([], list(first.schema), first.columns):
        _put(found["nullCount"], path, column.null_count)
        for name, bound in zip(("minValues", "maxValues"), _bounds(column), strict=True):
            if bound is not None:
                _put(found[name], path, bound)
    return json.dumps({"numRecords": rows.num_rows, **found}, separators=(",", ":"))


def _partitions(
    rows: pa.Table, by: Sequence[str]
) -> Iterator[tuple[dict[str, str | None], pa.Table]]:
    if not rows.num_rows:
        return
    if not by:
        yield {}, rows
        return
    numbered = rows.select(by).append_column(_NUMBER, pa.array(range(rows.num_rows), pa.int64()))
    # One thread keeps the order of rows.
    groups = numbered.group_by(by, use_threads=False).aggregate([(_NUMBER, "list")])
    plain = rows.drop_columns(by)
    texts = [[_text(value) for value in groups.column(name).to_pylist()] for name in by]
    for *values, numbers in zip(*texts, groups.column(f"{_NUMBER}_list"), strict=True):
        yield dict(zip(by, values, strict=True)), plain.take(numbers.values)


def _text(value: Any) -> str | None:
    """Return Delta's text of a value of a partition column."""
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def _leaves(
    path: list[str], fields: Sequence[pa.Field], columns: Sequence[pa.ChunkedArray]
) -> Iterator[tuple[list[str], pa.ChunkedArray]]:
    """Yield what is no struct, with the names on the way to it."""
    for field, column in zip(fields, columns, strict=True):
        here = [*path, field.name]
        if pa.types.is_struct(field.type):
            yield from _leaves(here, list(field.type), column.flatten())
        elif not pa.types.is_nested(field.type):
            yield here, column


def _put(into: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for name in path[:-1]:
        into = into.setdefault(name, {})
    into[path[-1]] = value


def _bounds(column: pa.ChunkedArray) -> tuple[Any, Any]:
    """Return the bounds of a column for statistics; None for one that is not certain."""
    kind = column.type
    if pa.types.is_binary(kind) or column.null_count == len(column):
        return None, None
    # Every value is compared with NaN by other rules in each engine.
    if pa.types.is_floating(kind) and pc.any(pc.is_nan(column)).as_py():
        return None, None
    with suppress(ValueError, OverflowError, pa.ArrowException):  # a date that Python cannot hold
        if pa.types.is_timestamp(kind):
            return _times(column)
        found = pc.min_max(column).as_py()
        least, most = found["min"], found["max"]
        if isinstance(least, str):
            return least[:_LONGEST], _upper(most)
        return _plain(least), _plain(most)
    return None, None


def _upper(text: str) -> str | None:
    bound = text if len(text) <= _LONGEST else text[:_LONGEST] + _ABOVE
    return bound if bound >= text else None


def _times(column: pa.ChunkedArray) -> tuple[str, str]:
    """Return the bounds of times in whole milliseconds, around the values."""
    least, most = (pc.min_max(column)[name].cast(pa.int64()).as_py() for name in ("min", "max"))
    zone = column.type.tz
    bounds = (least // 1000 * 1000, -(-most // 1000) * 1000)
    times: list[datetime] = [pa.scalar(bound, pa.timestamp("us")).as_py() for bound in bounds]
    texts = [time.isoformat("T" if zone else " ", "milliseconds") for time in times]
    first, last = (f"{text}Z" if zone else text for text in texts)
    return first, last


def _plain(value: Any) -> Any:
    """Return a bound as JSON has it; None if it would be another value."""
    if isinstance(value, Decimal):
        return float(value) if Decimal(float(value)) == value else None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, bool | int) else str(value)
