"""Delta tables that a job writes beside its commits: what handlers returned, and dead letters.

Both are written before the commit log, so a crash between the two leaves rows of a commit that
never counted. Every row therefore carries its commit's id, and `counted` keeps the rows of commits
that the log counts: each record's rows appear there at most once, whatever crashed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa
import pyarrow.compute as pc

from commits import CommitStore
from coopconsume.errors import TableUnusable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from coopconsume.report import DeadLetter

#: Where a row comes from, and the commit that it stands or falls with.
ORIGIN = pa.schema(
    [
        ("_topic", pa.string()), ("_topic_id", pa.string()), ("_partition", pa.int32()),
        ("_offset", pa.int64()), ("_commit", pa.string()),
    ]
)  # fmt: skip
DEAD_LETTERS = pa.schema(
    [
        ("key", pa.binary()), ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("timestamp", pa.timestamp("us", "UTC")), ("attempts", pa.int32()),
        ("reason", pa.string()), ("trace", pa.string()), ("rejected_at", pa.timestamp("us", "UTC")),
    ]
)  # fmt: skip


class _Table:
    """An append-only Delta table of a known schema, made when first written."""

    what = "table"

    def __init__(
        self, path: str, schema: pa.Schema, storage_options: Mapping[str, str] | None = None
    ) -> None:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        taken = [name for name in schema.names if name in ORIGIN.names]
        if taken:
            raise TableUnusable(
                self.what, path, f"column {taken[0]!r} is the library's own; rename it"
            )
        self.path = path
        self.schema = schema
        self._full = pa.schema([*schema, *ORIGIN])
        self._storage_options = dict(storage_options or {})
        try:
            found = DeltaTable(path, storage_options=self._storage_options or None)
        except TableNotFoundError:
            return
        except (DeltaError, OSError) as error:
            raise TableUnusable(self.what, path, str(error)) from None
        names = [field.name for field in found.schema().fields]
        if set(names) != set(self._full.names):
            odd = sorted(set(names) ^ set(self._full.names))
            raise TableUnusable(
                self.what, path, f"its columns differ from what is to be written in {odd}"
            )

    def _append(self, table: pa.Table) -> None:
        from deltalake import write_deltalake

        write_deltalake(
            self.path,
            table.select(self._full.names).cast(self._full),
            mode="append",
            storage_options=self._storage_options or None,
        )


class OutputTable(_Table):
    """The rows that handlers return.

    Args:
        path: Of the Delta table; created when the first rows come.
        schema: Of the rows, as DDL (``"tail string, leg int"``), a Spark or an Arrow schema.

    Raises:
        TableUnusable: There is a table of other columns, or something else at the path.
    """

    what = "output table"

    def __init__(self, path: str, schema: str | StructType | pa.Schema) -> None:
        super().__init__(path, arrow_schema(schema))

    def append(
        self,
        parts: Sequence[tuple[Sequence[tuple[str, int]], bytes]],
        topic_ids: Mapping[str, str],
        commit_id: str,
    ) -> None:
        """Write rows as slots reported them, with the partitions their ``_part`` counts."""
        tables = []
        for partitions, data in parts:
            table = pa.ipc.open_stream(data).read_all()
            topics = pa.array([topic for topic, _ in partitions], pa.string())
            ids = pa.array([topic_ids.get(topic, "") for topic, _ in partitions], pa.string())
            numbers = pa.array([number for _, number in partitions], pa.int32())
            part = table.column("_part")
            table = table.drop_columns(["_part"])
            table = table.append_column("_topic", topics.take(part.combine_chunks()))
            table = table.append_column("_topic_id", ids.take(part.combine_chunks()))
            table = table.append_column("_partition", numbers.take(part.combine_chunks()))
            commit = pa.repeat(pa.scalar(commit_id, pa.string()), table.num_rows)
            tables.append(table.append_column("_commit", commit))
        self._append(pa.concat_tables(tables))


class DeadLetterTable(_Table):
    """Records that were given up, untouched, with why.

    Columns: ``key``, ``value``, ``headers``, ``timestamp`` as Kafka had them; ``attempts``,
    ``reason``, ``trace``, ``rejected_at``; and where the record lies.

    Args:
        path: Of the Delta table; created with the first dead letter.

    Raises:
        TableUnusable: There is a table of other columns, or something else at the path.
    """

    what = "dead letter table"

    def __init__(self, path: str) -> None:
        super().__init__(path, DEAD_LETTERS)

    def append(
        self, letters: Sequence[DeadLetter], topic_ids: Mapping[str, str], commit_id: str
    ) -> None:
        """Write dead letters."""
        now = int(time.time() * 1_000_000)
        rows: list[dict[str, Any]] = [
            {
                "key": letter.key,
                "value": letter.value,
                "headers": [{"key": name, "value": value} for name, value in letter.headers],
                "timestamp": letter.timestamp * 1000,
                "attempts": letter.attempts,
                "reason": letter.reason,
                "trace": letter.trace,
                "rejected_at": now,
                "_topic": letter.topic,
                "_topic_id": topic_ids.get(letter.topic, ""),
                "_partition": letter.partition,
                "_offset": letter.offset,
                "_commit": commit_id,
            }
            for letter in letters
        ]
        self._append(pa.Table.from_pylist(rows, schema=self._full))


def arrow_schema(schema: str | StructType | pa.Schema) -> pa.Schema:
    """An Arrow schema from DDL, a Spark schema or an Arrow schema.

    Raises:
        TypeError: It is none of them.
    """
    if isinstance(schema, pa.Schema):
        return schema
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType, _parse_datatype_string

    parsed = _parse_datatype_string(schema) if isinstance(schema, str) else schema
    if not isinstance(parsed, StructType):
        raise TypeError(f"output schema {schema!r}: give DDL such as 'name string, count int'")
    return to_arrow_schema(parsed)


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
