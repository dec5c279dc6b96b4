"""What of a table counts: the reader's half of the rule that the sinks keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

import pyarrow as pa
import pyarrow.compute as pc

from commits import CommitStore

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession


@overload
def counted(path: str, commit_table: str, group: str) -> pa.Table: ...


@overload
def counted(path: str, commit_table: str, group: str, *, spark: SparkSession) -> DataFrame: ...


def counted(
    path: str, commit_table: str, group: str, *, spark: SparkSession | None = None
) -> pa.Table | DataFrame:
    """The rows of an output or dead letter table that count.

    A row counts if the commit log counts the commit that it was written with; rows that a crash
    left behind do not.

    Args:
        path: The table.
        commit_table: Of the job that wrote it; one in a catalog needs the session, too.
        group: Its ``kafka.group.id``.
        spark: Give a session with Delta to get a DataFrame, which reads nothing but commit ids
            before it is asked; otherwise it is an Arrow table.
    """
    from deltalake import DeltaTable

    table = DeltaTable(path)
    alive = _alive(table, commit_table, group, spark)
    if spark is None:
        rows = table.to_pyarrow_table()
        return rows.filter(pc.is_in(rows.column("_commit"), alive))
    from pyspark.sql import functions as F  # noqa: N812

    # Of the same version: what was written since shall not come by halves.
    frame = spark.read.format("delta").option("versionAsOf", table.version()).load(path)
    commits = spark.createDataFrame([(commit,) for commit in alive.to_pylist()], "_commit string")
    return frame.join(F.broadcast(commits), "_commit", "left_semi").select(*frame.columns)


def create_counted_view(
    spark: SparkSession, name: str, path: str, commit_table: str, group: str
) -> DataFrame:
    """Make a temporary view of what of a table counts now, for SQL; it replaces one of that name.

    Args:
        spark: A session with Delta.
        name: Of the view.
        path: The table.
        commit_table: Of the job that wrote it.
        group: Its ``kafka.group.id``.

    Returns:
        The rows of the view.
    """
    frame = counted(path, commit_table, group, spark=spark)
    frame.createOrReplaceTempView(name)
    return frame


def _alive(
    table: DeltaTable, commit_table: str, group: str, spark: SparkSession | None
) -> pa.Array:
    """The ids of commits that wrote to a table, and count."""
    clusters = CommitStore.open(commit_table, spark=spark).clusters(group)
    stores = [CommitStore.open(commit_table, spark=spark, cluster=cluster) for cluster in clusters]
    logged = [store.counted_commits(group) for store in stores]
    written = table.to_pyarrow_table(columns=["_commit"]).column("_commit").unique().to_pylist()
    return pa.array([w for w in written if any(w in ids for ids in logged)], pa.string())
