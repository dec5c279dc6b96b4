"""The file that an append to a commit table adds, and what the entry of the append says of it."""

from __future__ import annotations

import json
import uuid
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from commits.delta_log import now_ms
from commits.entries import ROWS, words_of
from commits.entry_rows import rows_to_plain

#: The partition column.
SEGMENT: Final = "segment"
# Statistics and dictionaries of bitmaps and single values cost space and time without a benefit.
# The statistics of the kind allow snapshots to be found without reading the rest.
_FILES: dict[str, Any] = {
    "compression": "zstd", "compression_level": 1, "use_dictionary": False,
    "write_statistics": ["kind"], "store_schema": False,
}  # fmt: skip
_SMALL_FILES = _FILES | {"compression": "none", "compression_level": None}


def added_rows(
    rows: pa.Table, snapshot_of: int | None
) -> tuple[dict[str, bytes], list[dict[str, Any]], dict[str, Any]]:
    """Return the file of rows by its name, its action, and more fields of the entry.

    Args:
        rows: The rows, of one segment.
        snapshot_of: The version of the state in the snapshot that they are; None for other rows.
    """
    (segment,) = set(rows.column(SEGMENT).to_pylist())
    rows = rows.drop_columns([SEGMENT])
    plain = None if snapshot_of is not None else rows_to_plain(rows)
    data = pa.BufferOutputStream()
    # A few rows take as much space compressed, and more time.
    pq.write_table(rows, data, **(_FILES if plain is None else _SMALL_FILES))
    content = data.getvalue().to_pybytes()
    name = f"{SEGMENT}={segment}/part-{uuid.uuid4()}.parquet"
    kinds = rows.column("kind").to_pylist()
    add: dict[str, Any] = {
        "path": name, "partitionValues": {SEGMENT: str(segment)}, "size": len(content),
        "modificationTime": now_ms(), "dataChange": True,
        "stats": json.dumps({
            "numRecords": len(rows), "minValues": {"kind": min(kinds)},
            "maxValues": {"kind": max(kinds)}, "nullCount": {"kind": 0},
        }),
    }  # fmt: skip
    if snapshot_of is not None:
        return {name: content}, [{"add": add}], dict(words_of(snapshot_of))
    return {name: content}, [{"add": add}], {} if plain is None else {ROWS: plain}
