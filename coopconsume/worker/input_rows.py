"""The rows that a slot gets from Spark, in Arrow batches. Task-side code.

Columns, by index: part (see `BatchSpec.partitions`), offset, key hash, key, value, timestamp
and, where a batch carries them, headers.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from coopconsume.record import Headers
    from coopconsume.worker.report import PartitionWork

OFFSET, HASH, KEY, VALUE, STAMP, HEADERS = 1, 2, 3, 4, 5, 6


class InputRow(NamedTuple):
    """A row of the batch before it becomes a `Record`."""

    part: int
    offset: int
    key_hash: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers


def rows_of(batch: pa.RecordBatch) -> Iterator[InputRow]:
    """Returns the rows of a batch, each as one object."""
    columns = [batch.column(i).to_pylist() for i in range(len(InputRow._fields) - 1)]
    return map(InputRow, *columns, headers_of(batch))


def wanted_rows(batch: pa.RecordBatch, work: Mapping[int, PartitionWork]) -> pa.RecordBatch:
    """Returns the rows that a slot may start: those in the offset ranges of its work."""
    parts, offsets = batch.column(0), batch.column(1)
    if not batch.num_rows or _all_wanted(parts, offsets, work):
        return batch
    starts = {p: [first for first, _ in w.ranges] for p, w in work.items()}
    keep = []
    for p, offset in zip(parts.to_pylist(), offsets.to_pylist(), strict=True):
        at = bisect_right(starts[p], offset) - 1 if p in starts else -1
        keep.append(at >= 0 and offset <= work[p].ranges[at][1])
    return batch if all(keep) else batch.filter(pa.array(keep))


def _all_wanted(parts: pa.Array, offsets: pa.Array, work: Mapping[int, PartitionWork]) -> bool:
    if len(work) != 1:
        return False
    ((part, wanted),) = work.items()
    first, last = wanted.ranges[-1]
    inside: bool = first <= offsets[0].as_py() and offsets[-1].as_py() <= last
    return inside and bool(pc.all(pc.equal(parts, part)).as_py())


def headers_of(batch: pa.RecordBatch) -> Iterable[Headers]:
    """Returns the headers of each row; no headers if the batch does not carry them."""
    if batch.num_columns <= HEADERS:
        return repeat((), batch.num_rows)
    lists = batch.column(HEADERS).to_pylist()
    return [tuple((h["key"], h["value"]) for h in headers or ()) for headers in lists]
