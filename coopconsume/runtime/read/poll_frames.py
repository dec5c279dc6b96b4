"""DataFrames over explicit offsets of Kafka: what ``poll`` returns."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from commits import OffsetRanges
from coopconsume.record import SHOWN_KEY_BYTES
from coopconsume.runtime.read.by_partition import by_part_sql
from coopconsume.runtime.read.expressions import KAFKA_COLUMNS, ORDERING_COLUMN, key_column
from coopconsume.runtime.read.hashing import deal_hash_sql, in_ranges_sql, key_hash_sql
from coopconsume.runtime.read.offset_frames import (
    part_of_sql,
    read_spans,
    task_of_sql,
    wanted_frame,
)
from coopconsume.runtime.read.session_settings import check_session_settings
from coopconsume.runtime.read.timestamp_overflow import retried

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from commits.offsets import Int64s
    from coopconsume.options import Options
    from coopconsume.record import Headers
    from coopconsume.runtime.read.offset_frames import WantedRows
    from coopconsume.runtime.read.spans import Span


@dataclass(frozen=True)
class PolledRows:
    """Rows of one partition, in any order; the arrays have equal lengths.

    Attributes:
        offsets: Their offsets.
        hashes: The hashes they are dealt by.
        passed: Whether the record passes the filter.
        keys: The keys that they are dealt by, as much as is shown; None: they were not asked for.
    """

    offsets: Int64s
    hashes: Int64s
    passed: npt.NDArray[np.bool_]
    keys: npt.NDArray[np.object_] | None = None

    @property
    def present(self) -> OffsetRanges:
        """The offsets of the records that pass."""
        return OffsetRanges.from_offsets(self.offsets[self.passed])

    @property
    def filtered(self) -> OffsetRanges:
        """The offsets of the records that do not pass."""
        return OffsetRanges.from_offsets(self.offsets[~self.passed])


def poll_frame(
    spark: SparkSession,
    options: Options,
    spans: Sequence[Span],
    wanted: Sequence[WantedRows],
    tasks: Sequence[int],
    slices: int,
    choose: Mapping[tuple[str, int], Callable[[str], str]],
    added: Mapping[tuple[str, int], Mapping[Headers, OffsetRanges]],
) -> DataFrame:
    """Returns a frame for ``poll``: the columns of Spark's Kafka source and ``key_hash``.

    Only records that pass the filter are in it. The offsets are fixed, so every action sees the
    same rows. Rows of a key are in one Spark partition, in the order of their offsets.
    """
    from pyspark.sql import functions as F  # noqa: N812

    check_session_settings(spark, options)
    record_filter, key = options.record_filter, key_column(options)
    headers = options.include_headers or record_filter.needs_headers
    read = read_spans(spark, options, spans, slices, headers=headers)
    left_out = {ORDERING_COLUMN} if options.include_headers else {ORDERING_COLUMN, "headers"}
    names = [name for name in read.columns if name not in left_out]
    if record_filter:
        read = read.where(record_filter.sql())
    if added and options.include_headers:
        read = read.withColumn("headers", F.expr(added_headers_sql(added)))
    return (
        _polled_rows(
            read,
            spans,
            wanted=wanted,
            tasks=tasks,
            choose=choose,
            key=key,
            column=f"{key_hash_sql(key)} AS key_hash",
        )
        .repartition(len(tasks), F.col("_task"))
        .sortWithinPartitions("topic", "partition", "offset")
        .select(*names, "key_hash")
    )


def added_headers_sql(added: Mapping[tuple[str, int], Mapping[Headers, OffsetRanges]]) -> str:
    """Returns SQL of a row's headers, with those that were added to its record.

    Args:
        added: By partition, the added headers, with the offsets of their records.
    """
    cases = []
    for (topic, number), records in added.items():
        for headers, offsets in records.items():
            names = ", ".join(f"CAST(X'{name.encode().hex()}' AS STRING)" for name, _ in headers)
            pairs = ", ".join(
                f"struct(CAST(X'{name.encode().hex()}' AS STRING) AS key, "
                + ("CAST(NULL AS BINARY)" if value is None else f"X'{value.hex()}'")
                + " AS value)"
                for name, value in headers
            )
            own = f"filter(headers, one -> NOT array_contains(array({names}), one.key))"
            none = "CAST(array() AS ARRAY<STRUCT<key: STRING, value: BINARY>>)"
            cases.append(
                f"WHEN topic = '{topic}' AND partition = {number} AND {in_ranges_sql(offsets)} "
                f"THEN concat(coalesce({own}, {none}), array({pairs}))"
            )
    return f"CASE {' '.join(cases)} ELSE headers END"


def poll_offsets(
    spark: SparkSession,
    options: Options,
    spans: Sequence[Span],
    wanted: Sequence[WantedRows],
    slices: int,
    choose: Mapping[tuple[str, int], Callable[[str], str]],
    *,
    keys: bool = False,
) -> list[PolledRows]:
    """Returns the rows of `poll_frame`, with those that do not pass the filter.

    Args:
        spark: The session.
        options: Of the consumer.
        spans: What is read.
        wanted: Which rows of it, by partition.
        slices: Spark partitions that the read is cut in, at least.
        choose: By partition, SQL that chooses the wanted rows; without it all are wanted.
        keys: Whether to read the keys that records are dealt by.

    Returns:
        One for each of ``wanted``.
    """
    check_session_settings(spark, options)
    record_filter = options.record_filter
    tasks = range(1 + max(slot for one in wanted for _, slot in one.slots))
    part = part_of_sql(wanted)
    key = key_column(options)
    dealt = f"{deal_hash_sql(key)} AS _dealt"
    passes = f"{record_filter.sql()} AS _passes"
    columns = [f"{part} AS part", "`offset`", "_dealt", passes]
    if keys:
        columns.append(f"substring({key}, 1, {SHOWN_KEY_BYTES}) AS _shown")

    def look() -> pa.Table:
        read = read_spans(spark, options, spans, slices, headers=record_filter.needs_headers)
        rows = _polled_rows(
            read, spans, wanted=wanted, tasks=tasks, choose=choose, key=key, column=dealt
        )
        return rows.selectExpr(*columns).toArrow()

    table = retried(options, spans, look)
    parts, offsets, hashes, passed, *more = (column.to_numpy() for column in table.columns)
    every = [offsets, hashes, passed.astype(bool), *more]
    if len(wanted) == 1:
        return [PolledRows(*every)]
    order = np.argsort(parts, kind="stable")
    bounds = np.searchsorted(parts[order], np.arange(len(wanted) + 1))
    each = [order[first:end] for first, end in itertools.pairwise(bounds)]
    return [PolledRows(*(values[rows] for values in every)) for rows in each]


def _polled_rows(
    frame: DataFrame,
    spans: Sequence[Span],
    wanted: Sequence[WantedRows],
    tasks: Sequence[int],
    choose: Mapping[tuple[str, int], Callable[[str], str]],
    key: str,
    column: str,
) -> DataFrame:
    """Returns the rows of a frame for ``poll``, with one more column and their task."""
    part = part_of_sql(wanted)
    if choose:
        chosen = [
            choose[at](deal_hash_sql(key)) if at in choose else "true"
            for at in [(w.topic, w.partition) for w in wanted]
        ]
        frame = frame.where(by_part_sql(part, chosen))
    task = task_of_sql(wanted, tasks, deal_hash_sql(key), part)
    rows = wanted_frame(frame, spans, wanted).selectExpr("*", column, f"{task} AS _task")
    return rows.where("_task IS NOT NULL")


def empty_poll_frame(spark: SparkSession, options: Options) -> DataFrame:
    """Returns a frame without rows, with the columns of `poll_frame`."""
    frame = spark.createDataFrame([], f"{KAFKA_COLUMNS}, key_hash bigint")
    return frame if options.include_headers else frame.drop("headers")
