"""What of a table counts: the reader's half of the rule that the sinks keep."""

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
def counted(path: str, commit_table: str, group: str) -> pa.Table: ...


@overload
def counted(path: str, commit_table: str, group: str, *, spark: SparkSession) -> DataFrame: ...


def counted(
    path: str, commit_table: str, group: str, *, spark: SparkSession | None = None
) -> pa.Table | DataFrame:
    """The rows of an output or dead letter table that count.

    A row counts if the commit log counts the commit that it was written with, in the partition that
    it comes from; rows that a crash left behind do not.

    Args:
        path: The table.
        commit_table: Of the job that wrote it; one in a catalog needs the session, too.
        group: Its ``kafka.group.id``.
        spark: Give a session with Delta to get a DataFrame, which reads nothing but commit ids
            before it is asked; otherwise it is an Arrow table.
    """
    from deltalake import DeltaTable

    table = DeltaTable(path)
    alive, refused = _alive(table, commit_table, group, spark)
    if spark is None:
        rows = table.to_pyarrow_table()
        return _without(rows.filter(pc.is_in(rows.column("_commit"), alive)), refused)
    from pyspark.sql import functions as F  # noqa: N812

    # Of the same version: what was written since shall not come by halves.
    frame = spark.read.format("delta").option("versionAsOf", table.version()).load(path)
    commits = spark.createDataFrame([(commit,) for commit in alive.to_pylist()], "_commit string")
    found = frame.join(F.broadcast(commits), "_commit", "left_semi")
    if refused:
        places = ["_commit", "_topic", "_partition"]
        gone = spark.createDataFrame(refused, "_commit string, _topic string, _partition int")
        found = found.join(F.broadcast(gone), places, "left_anti")
    return found.select(*frame.columns)


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


def _without(rows: pa.Table, refused: Iterable[tuple[str, str, int]]) -> pa.Table:
    """The rows but those of commits and partitions that were refused."""
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
    """The ids of commits that wrote to a table, and count; and in which partitions they do not."""
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
