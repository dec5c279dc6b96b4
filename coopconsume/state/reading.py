"""Reads the state of a group as its committed records left it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa

from commits import CommitStore
from coopconsume.state.changelog import Changelog, Origin, alive

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

_COLUMNS = {
    "_topic": "topic", "_partition": "partition", "key": "key", "value": "value",
    "_offset": "offset", "expires_at": "expires_at",
}  # fmt: skip


class CommittedState:
    """The state of a group, as its committed records left it.

    Args:
        path: The path of the state.
        commit_table: The commit table of the job; one in a catalog needs ``spark``.
        group: The ``kafka.group.id`` of the job.
        spark: A session with Delta, for a commit table in a catalog.

    Raises:
        TableUnusable: There is no state at the path.
        commits.CommitTableNotFound: There is no commit table.
    """

    def __init__(
        self, path: str, commit_table: str, group: str, *, spark: SparkSession | None = None
    ) -> None:
        self._changelog = Changelog(path)
        self._group = group
        clusters = CommitStore.open(commit_table, spark=spark, create=False).clusters(group)
        self._stores = [
            CommitStore.open(commit_table, spark=spark, cluster=cluster, create=False)
            for cluster in clusters
        ]

    def get(self, topic: str, key: bytes) -> Any:
        """Returns the value of a key; None if it has none.

        Raises:
            StateNotReadable: The state cannot be read.
        """
        for origin in self._origins(topic):
            value = self._changelog.value(origin, key, self._counts())
            if value is not None:
                return value
        return None

    def rows(self, topic: str | None = None) -> pa.Table:
        """Returns one row a key: topic, partition, key, value, offset and expires_at.

        The offset is that of the record that set the value. Expired values are left out.

        Args:
            topic: Only the keys of this topic.

        Raises:
            StateNotReadable: The state cannot be read.
        """
        version = self._changelog.version
        counts = self._counts()
        found = [
            alive(self._changelog.counted_rows(origin, version, counts))
            for origin in self._origins(topic)
        ]
        rows = pa.concat_tables([self._changelog.schema.changelog.empty_table(), *found])
        return rows.select(list(_COLUMNS)).rename_columns(list(_COLUMNS.values()))

    def _origins(self, topic: str | None) -> list[Origin]:
        """Returns the partitions of topics as they are now, not of deleted ones."""
        known = {
            Origin(topic_id, number)
            for store in self._stores
            for (name, number), topic_id in store.topic_ids(self._group).items()
            if topic in (None, name)
        }
        return [one for one in self._changelog.origins() if one in known]

    def _counts(self) -> Callable[[str], bool]:
        """Returns what says whether a commit counts now."""
        counted = [store.counted_commits(self._group) for store in self._stores]
        return lambda commit: any(commit in one for one in counted)


@overload
def committed_state(path: str, commit_table: str, group: str) -> pa.Table: ...


@overload
def committed_state(
    path: str, commit_table: str, group: str, *, spark: SparkSession
) -> DataFrame: ...


def committed_state(
    path: str, commit_table: str, group: str, *, spark: SparkSession | None = None
) -> pa.Table | DataFrame:
    """Returns the state of a group as its committed records left it, one row a key.

    Columns: topic, partition, key, value, offset (of the record that set the value), expires_at.

    Args:
        path: The path of the state.
        commit_table: The commit table of the job; one in a catalog needs ``spark``.
        group: The ``kafka.group.id`` of the job.
        spark: A session. With it the result is a DataFrame, else an Arrow table.

    Raises:
        StateNotReadable: The state cannot be read.
        TableUnusable: There is no state at the path.
    """
    rows = CommittedState(path, commit_table, group, spark=spark).rows()
    return rows if spark is None else spark.createDataFrame(rows)
