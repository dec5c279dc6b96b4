"""DataFrames of `CooperativeConsumer.committed`, `gaps` and `lag`, made from partition statuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame, SparkSession

    from coopconsume.admin.offsets import PartitionStatus

_COMMITTED_DDL = (
    "topic string, partition int, stable_offset bigint, committed_above bigint, "
    "ranges array<struct<first: bigint, last: bigint>>"
)
_GAPS_DDL = "topic string, partition int, first bigint, last bigint, offsets bigint"
_LAG_DDL = (
    "topic string, partition int, stable_offset bigint, end_offset bigint, "
    "committed_above bigint, lag bigint"
)


def committed_frame(spark: SparkSession, statuses: Iterable[PartitionStatus]) -> DataFrame:
    """Returns one row per partition: its stable offset and the ranges committed above it."""
    rows = [
        (one.topic, one.partition, one.stable_offset, len(one.done), one.done.pairs())
        for one in statuses
    ]
    return spark.createDataFrame(rows, _COMMITTED_DDL)


def gap_ranges_frame(spark: SparkSession, statuses: Iterable[PartitionStatus]) -> DataFrame:
    """Returns one row per gap: uncommitted offsets below a committed one."""
    rows = [
        (one.topic, one.partition, gap.first, gap.last, gap.offsets)
        for one in statuses
        for gap in one.gaps()
    ]
    return spark.createDataFrame(rows, _GAPS_DDL)


def lag_frame(spark: SparkSession, statuses: Iterable[PartitionStatus]) -> DataFrame:
    """Returns one row per partition: the number of uncommitted offsets, gaps included."""
    rows = [
        (one.topic, one.partition, one.stable_offset, one.end_offset, len(one.done), one.lag)
        for one in statuses
    ]
    return spark.createDataFrame(rows, _LAG_DDL)
