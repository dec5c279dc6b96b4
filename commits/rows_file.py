"""The files of the rows of a table: those that an append adds or a compaction removes; reads."""

from __future__ import annotations

import json
import re
import uuid
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from commits.delta_log import now_ms
from commits.entries import ROWS, words_of
from commits.entry_rows import rows_to_plain, with_versions
from commits.rows import SCHEMA
from commits.secrets import message_of
from commits.table_files import side_by_side

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from commits.table_files import TableFiles

#: The partition column.
SEGMENT: Final = "segment"
#: The columns in a file.
IN_FILES: Final = SCHEMA.remove(SCHEMA.get_field_index(SEGMENT))
# Statistics and dictionaries of bitmaps and single values cost space and time without a benefit.
# The statistics of the kind allow snapshots to be found without reading the rest.
_FILES: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 1,
    "use_dictionary": False,
    "write_statistics": ["kind"],
    "store_schema": False,
}
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
        "path": name,
        "partitionValues": {SEGMENT: str(segment)},
        "size": len(content),
        "modificationTime": now_ms(),
        "dataChange": True,
        "stats": json.dumps(
            {
                "numRecords": len(rows),
                "minValues": {"kind": min(kinds)},
                "maxValues": {"kind": max(kinds)},
                "nullCount": {"kind": 0},
            }
        ),
    }
    if snapshot_of is not None:
        return {name: content}, [{"add": add}], dict(words_of(snapshot_of))
    return {name: content}, [{"add": add}], {} if plain is None else {ROWS: plain}


def removed_files(
    files: Mapping[str, Mapping[str, Any]], closed: int | None
) -> Iterator[dict[str, Any]]:
    """Yield the actions that remove the files of all segments up to one, or of all."""
    now = now_ms()
    for path, add in files.items():
        segment = int(add["partitionValues"][SEGMENT])
        if closed is None or segment <= closed:
            yield {
                "remove": {
                    "path": path,
                    "deletionTimestamp": now,
                    "dataChange": True,
                    "extendedFileMetadata": True,
                    "partitionValues": {SEGMENT: str(segment)},
                    "size": add["size"],
                }
            }


def segment_of(file: str) -> int:
    """Return the segment of a data file; the lowest one for a name of another tool."""
    found = re.match(rf"{SEGMENT}=(\d+)/", file)
    return int(found[1]) if found else 0


class RowFiles:
    """Reads the files of rows of a table; that of a snapshot is read once.

    Args:
        files: The files of the table.
        is_far: Whether they are in an object store, where many are read at a time.
    """

    def __init__(self, files: TableFiles, *, is_far: bool) -> None:
        self._files = files
        self._is_far = is_far
        #: By file: `read` comes to those just read.
        self._snapshot: dict[str, pa.Table] = {}

    def read_snapshot(self, files: Sequence[str]) -> list[pa.Table]:
        """Return the rows of the files of a snapshot, as of version 0."""
        found = self._side_by_side([(0, file) for file in files])
        self._snapshot = dict(zip(files, found, strict=True))
        return found

    def read(self, appends: Sequence[tuple[int, str]]) -> list[pa.Table]:
        """Return the rows of files, each with the version that added it."""
        found = self._side_by_side(appends)
        self._snapshot = {}
        return found

    def _side_by_side(self, appends: Sequence[tuple[int, str]]) -> list[pa.Table]:
        return side_by_side(self._read, appends, is_far=self._is_far, oldest_alone=True)

    def _read(self, append: tuple[int, str]) -> pa.Table:
        version, file = append
        if file in self._snapshot:
            return in_version(self._snapshot[file].select(IN_FILES.names), version)
        data = pa.BufferReader(self._files.read(file))
        try:
            rows = pq.ParquetFile(data).read(columns=IN_FILES.names).cast(IN_FILES)
        except OSError as error:  # of the content: the bytes are here
            raise ValueError(f"{file} is no Parquet file: {message_of(error)}") from error
        if not rows.num_rows:
            raise ValueError(f"{file} should contain rows and is empty")
        return in_version(rows, version)


def in_version(rows: pa.Table, version: int) -> pa.Table:
    """Return rows with the column of the version that added them."""
    return with_versions(rows, {version: len(rows)})
