"""How far a group is, as DataFrames: what is committed, what is open below it, and the lag."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from commits import PartitionCommits
    from coopconsume.group.owned import TopicPartition

    State = Mapping[TopicPartition, PartitionCommits]

_COMMITTED_DDL = (
    "topic string, partition int, stable_offset bigint, committed_above bigint, "
    "ranges array<struct<first: bigint, last: bigint>>"
)
_GAPS_DDL = "topic string, partition int, first bigint, last bigint, offsets bigint"
_LAG_DDL = (
    "topic string, partition int, stable_offset bigint, end_offset bigint, "
    "committed_above bigint, lag bigint"
)


def committed_frame(spark: SparkSession, state: State) -> DataFrame:
    """One row a partition: its stable offset and the ranges committed above it."""
    rows = [
        (t, p, c.stable_offset, len(c.ranges), c.ranges.pairs())
        for (t, p), c in sorted(state.items())
    ]
    return spark.createDataFrame(rows, _COMMITTED_DDL)


def gaps_frame(spark: SparkSession, state: State) -> DataFrame:
    """One row a gap: offsets not done although something above them is."""
    rows = []
    for (t, p), c in sorted(state.items()):
        top = c.ranges.last
        if top is not None:
            open_ranges = c.ranges.complement(c.stable_offset, top)
            rows += [(t, p, first, last, last - first + 1) for first, last in open_ranges]
    return spark.createDataFrame(rows, _GAPS_DDL)


def lag_frame(spark: SparkSession, state: State, ends: Mapping[TopicPartition, int]) -> DataFrame:
    """One row a partition: how many offsets are not done yet, gaps counted."""
    rows = []
    for tp, end in sorted(ends.items()):
        c = state[tp]
        lag = end - c.stable_offset - len(c.ranges)
        rows.append((*tp, c.stable_offset, end, len(c.ranges), lag))
    return spark.createDataFrame(rows, _LAG_DDL)
