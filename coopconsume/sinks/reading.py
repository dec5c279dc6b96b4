"""Reads the rows of output and dead letter tables whose commits count."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

import pyarrow as pa
import pyarrow.compute as pc

from commits import CommitStore
from commits.arrow_dataset import arrow_dataset
from commits.offsets import MAX_OFFSET

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

    #: Commit, topic, partition, and the first and last offset that do not count in it.
    _Void = tuple[str, str, int, int, int]


@overload
def committed_rows(path: str, commit_table: str, group: str) -> pa.Table: ...


@overload
def committed_rows(
    path: str, commit_table: str, group: str, *, spark: SparkSession
) -> DataFrame: ...


def committed_rows(
    path: str, commit_table: str, group: str, *, spark: SparkSession | None = None
) -> pa.Table | DataFrame:
    """Returns the rows of an output or dead letter table that count.

    A row counts if the commit that it was written with counts for its record. Rows of a crashed job
    that did not commit them do not count.

    Args:
        path: The table.
        commit_table: The commit table of the job that wrote it; one in a catalog needs ``spark``.
        group: The ``kafka.group.id`` of that job.
        spark: A session with Delta. With it the result is a DataFrame, and only commit ids are read
            before the DataFrame is evaluated. Without it the result is an Arrow table.
    """
    from deltalake import DeltaTable

    table = DeltaTable(path)
    alive, void = _alive(table, commit_table, group, spark)
    if spark is None:
        rows = arrow_dataset(table).to_table()
        return _without(rows.filter(pc.is_in(rows.column("_commit"), alive)), void)
    from pyspark.sql import functions as F  # noqa: N812

    # The same version, as a commit that was written meanwhile would be in one of the two only.
    frame = spark.read.format("delta").option("versionAsOf", table.version()).load(path)
    commits = spark.createDataFrame([(commit,) for commit in alive.to_pylist()], "_commit string")
    found = frame.join(F.broadcast(commits), "_commit", "left_semi")
    if void:
        gone = spark.createDataFrame(
            void, "void_commit string, void_topic string, void_partition int, first long, last long"
        )
        found = found.join(
            F.broadcast(gone),
            (F.col("_commit") == F.col("void_commit"))
            & (F.col("_topic") == F.col("void_topic"))
            & (F.col("_partition") == F.col("void_partition"))
            & F.col("_offset").between(F.col("first"), F.col("last")),
            "left_anti",
        )
    return found.select(*frame.columns)


def create_committed_rows_view(
    spark: SparkSession, name: str, path: str, commit_table: str, group: str
) -> DataFrame:
    """Creates or replaces a temporary view of the rows of a table that count now.

    Args:
        spark: A session with Delta.
        name: The name of the view.
        path: The table.
        commit_table: The commit table of the job that wrote it.
        group: The ``kafka.group.id`` of that job.

    Returns:
        The rows of the view.
    """
    frame = committed_rows(path, commit_table, group, spark=spark)
    frame.createOrReplaceTempView(name)
    return frame


def _without(rows: pa.Table, void: Iterable[_Void]) -> pa.Table:
    """Drops the rows of records that do not count in their commits."""
    for commit, topic, partition, first, last in void:
        is_gone = (
            (pc.field("_commit") == commit)
            & (pc.field("_topic") == topic)
            & (pc.field("_partition") == partition)
            & (pc.field("_offset") >= first)
            & (pc.field("_offset") <= last)
        )
        rows = rows.filter(~is_gone)
    return rows


def _alive(
    table: DeltaTable, commit_table: str, group: str, spark: SparkSession | None
) -> tuple[pa.Array, list[_Void]]:
    """Returns the ids of a table's commits that count, and the offsets where they do not."""
    clusters = CommitStore.open(commit_table, spark=spark).clusters(group)
    stores = [CommitStore.open(commit_table, spark=spark, cluster=cluster) for cluster in clusters]
    counted = [store.counted_commits(group) for store in stores]
    written = (
        arrow_dataset(table).to_table(columns=["_commit"]).column("_commit").unique().to_pylist()
    )
    alive = [commit for commit in written if any(commit in one for one in counted)]
    void: dict[str, list[_Void]] = {}
    for store in stores:
        for commit, parts in store.refused_parts(group).items():
            void.setdefault(commit, []).extend((commit, *at, 0, MAX_OFFSET) for at in sorted(parts))
        for commit, places in store.not_held(group).items():
            void.setdefault(commit, []).extend(
                (commit, *at, *pair) for at, offsets in places.items() for pair in offsets
            )
    return pa.array(alive, pa.string()), [one for commit in alive for one in void.get(commit, ())]
