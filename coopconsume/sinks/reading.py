"""What of a table counts: the reader's half of the rule that the sinks keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

import pyarrow as pa
import pyarrow.compute as pc

from commits import CommitStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def _spark_schema(table: pa.Table) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(table.schema)


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
        commit_table: Of the job that wrote it.
        group: Its ``kafka.group.id``.
        spark: Give a session to get a DataFrame; otherwise it is an Arrow table.
    """
    from deltalake import DeltaTable

    clusters = CommitStore.open(commit_table).clusters(group)
    stores = [CommitStore.open(commit_table, cluster=cluster) for cluster in clusters]
    logged = [store.counted_commits(group) for store in stores]
    table = DeltaTable(path).to_pyarrow_table()
    written = table.column("_commit").unique().to_pylist()
    alive = [commit_id for commit_id in written if any(commit_id in ids for ids in logged)]
    kept = table.filter(pc.is_in(table.column("_commit"), pa.array(alive, pa.string())))
    if spark is None:
        return kept
    # PySpark cannot take Arrow columns without any chunk.
    return spark.createDataFrame(kept if kept.num_rows else kept.to_pandas(), _spark_schema(kept))
