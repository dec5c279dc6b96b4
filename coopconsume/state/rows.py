"""Rows of the Delta tables of outputs and state: their partition, and which of them count."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    #: (first, last) key hash.
    Range = tuple[int, int]


class Origin(NamedTuple):
    """The partition that rows belong to, by Kafka's id of its topic."""

    topic_id: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id}-{self.partition}"

    @property
    def filters(self) -> list[tuple[str, str, str]]:
        """Its rows, in the form that deltalake prunes files by."""
        return [("_topic_id", "=", self.topic_id), ("_partition", "=", str(self.partition))]

    @property
    def predicate(self) -> str:
        """Its rows, in SQL."""
        # Ids are Kafka's own, of letters, digits, "-" and "_".
        return f"_topic_id = '{self.topic_id}' AND _partition = {self.partition}"


def counted(rows: pa.Table, counts: Callable[[str], bool]) -> pa.Table:
    """Returns the rows whose commits count."""
    ids = rows.column("_commit")
    those = [one for one in ids.unique().to_pylist() if counts(one)]
    return rows.filter(pc.is_in(ids, pa.array(those, pa.string())))


def newest(tables: Iterable[pa.Table]) -> pa.Table:
    """Returns the row of the highest offset of each key, from rows that all count."""
    rows = pa.concat_tables(tables)
    keys = rows.append_column("_at", pa.array(range(rows.num_rows), pa.int64()))
    # Keys are compared, not hashes: two keys may have the same hash.
    order = keys.select(["key", "_offset", "_at"]).sort_by(
        [("key", "ascending"), ("_offset", "ascending")]
    )
    last = order.group_by("key", use_threads=False).aggregate([("_at", "last")])
    return rows.take(last.column("_at_last").combine_chunks())


def alive(rows: pa.Table) -> pa.Table:
    """Returns the rows with a value whose time to live has not passed."""
    now = pa.scalar(dt.datetime.now(dt.UTC), rows.schema.field("expires_at").type)
    gone = pc.fill_null(pc.less_equal(rows.column("expires_at"), now), False)
    return rows.filter(pc.and_not(pc.is_valid(rows.column("value")), gone))
