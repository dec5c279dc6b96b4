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
    if not batch.num_rows:
        return batch
    is_wanted = _in_last_ranges(parts, offsets, work)
    if pc.all(is_wanted).as_py():
        return batch
    if any(len(w.ranges) > 1 for w in work.values()):
        starts = {p: [first for first, _ in w.ranges] for p, w in work.items()}
        keep = []
        for p, offset in zip(parts.to_pylist(), offsets.to_pylist(), strict=True):
            at = bisect_right(starts[p], offset) - 1 if p in starts else -1
            keep.append(at >= 0 and offset <= work[p].ranges[at][1])
        is_wanted = pa.array(keep)
    return batch.filter(is_wanted)


def _in_last_ranges(
    parts: pa.Array, offsets: pa.Array, work: Mapping[int, PartitionWork]
) -> pa.Array:
    """Returns whether each row is in the last range of its partition's work.

    Most work has no other range, and this is done for each record: without a line of Python for it.
    """
    nothing = ((0, -1),)
    count = 1 + max(pc.max(parts).as_py(), 0, *work)
    lasts = [(work[p].ranges if p in work else nothing)[-1] for p in range(count)]
    first, last = (pa.array(bounds, pa.int64()).take(parts) for bounds in zip(*lasts, strict=True))
    return pc.and_(pc.less_equal(first, offsets), pc.less_equal(offsets, last))


def headers_of(batch: pa.RecordBatch) -> Iterable[Headers]:
    """Returns the headers of each row; no headers if the batch does not carry them."""
    if batch.num_columns <= HEADERS:
        return repeat((), batch.num_rows)
    lists = batch.column(HEADERS).to_pylist()
    return [tuple((h["key"], h["value"]) for h in headers or ()) for headers in lists]
