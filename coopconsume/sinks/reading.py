"""Reads the rows of output and dead letter tables whose commits count."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

import pyarrow as pa
import pyarrow.compute as pc

from commits import CommitStore

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession


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

    A row counts if the commit that it was written with counts for the partition of its record. Rows
    of a crashed job that did not commit them do not count.

    Args:
        path: The table.
        commit_table: The commit table of the job that wrote it; one in a catalog needs ``spark``.
        group: The ``kafka.group.id`` of that job.
        spark: A session with Delta. With it the result is a DataFrame, and only commit ids are read
            before the DataFrame is evaluated. Without it the result is an Arrow table.
    """
    from deltalake import DeltaTable

    table = DeltaTable(path)
    alive, refused = _alive(table, commit_table, group, spark)
    if spark is None:
        rows = table.to_pyarrow_table()
        return _without(rows.filter(pc.is_in(rows.column("_commit"), alive)), refused)
    from pyspark.sql import functions as F  # noqa: N812

    # The same version, as a commit that was written meanwhile would be in one of the two only.
    frame = spark.read.format("delta").option("versionAsOf", table.version()).load(path)
    commits = spark.createDataFrame([(commit,) for commit in alive.to_pylist()], "_commit string")
    found = frame.join(F.broadcast(commits), "_commit", "left_semi")
    if refused:
        places = ["_commit", "_topic", "_partition"]
        gone = spark.createDataFrame(refused, "_commit string, _topic string, _partition int")
        found = found.join(F.broadcast(gone), places, "left_anti")
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


def _without(rows: pa.Table, refused: Iterable[tuple[str, str, int]]) -> pa.Table:
    """Drops the rows of refused commits and partitions."""
    for commit, topic, partition in refused:
        is_gone = pc.and_(
            pc.equal(rows.column("_commit"), commit),
            pc.and_(
                pc.equal(rows.column("_topic"), topic),
                pc.equal(rows.column("_partition"), partition),
            ),
        )
        rows = rows.filter(pc.invert(is_gone))
    return rows


def _alive(
    table: DeltaTable, commit_table: str, group: str, spark: SparkSession | None
) -> tuple[pa.Array, list[tuple[str, str, int]]]:
    """Returns the ids of a table's commits that count, and the partitions where they do not."""
    clusters = CommitStore.open(commit_table, spark=spark).clusters(group)
    stores = [CommitStore.open(commit_table, spark=spark, cluster=cluster) for cluster in clusters]
    logged = [(store.counted_commits(group), store.refused_parts(group)) for store in stores]
    written = table.to_pyarrow_table(columns=["_commit"]).column("_commit").unique().to_pylist()
    alive = [commit for commit in written if any(commit in counted for counted, _ in logged)]
    refused = [
        (commit, *place)
        for commit in alive
        for _, parts in logged
        for place in sorted(parts.get(commit, ()))
    ]
    return pa.array(alive, pa.string()), refused
