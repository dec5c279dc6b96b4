"""Reads the state of a group as its committed records left it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import pyarrow as pa
import pyarrow.compute as pc

from assignors import KeyRange
from commits import CommitStore
from commits.secrets import hidden
from coopconsume.errors import StateNotReadable
from coopconsume.state.changelog import Changelog
from coopconsume.state.rows import Origin, alive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from coopconsume.state.schema import StateSchema

Place: TypeAlias = int | str | datetime
"""A place in the commit log: the version of the commit table, the id of a commit (which is
included), or a time by the clocks of the committers."""

_COLUMNS = {
    "_topic": "topic",
    "_partition": "partition",
    "key": "key",
    "value": "value",
    "_offset": "offset",
    "expires_at": "expires_at",
}


@dataclass(frozen=True)
class RangeStats:
    """The keys of one key range.

    Attributes:
        first, last: The key hashes, both included.
        keys: The number of keys with a value.
        size: Bytes of the keys and their values, as Arrow has them.
    """

    first: int
    last: int
    keys: int
    size: int


@dataclass(frozen=True)
class SnapshotStats:
    """The newest snapshot of a partition.

    Attributes:
        version: The version of the changelog that it is of.
        made_at: When it was written.
        keys: The number of keys in it.
        files: The number of its files.
        size: Their bytes.
    """

    version: int
    made_at: datetime
    keys: int
    files: int
    size: int


@dataclass(frozen=True)
class StateStats:
    """The size of the state of a partition.

    Attributes:
        topic, partition: The partition.
        keys: The number of keys with a value.
        size: Bytes of the keys and their values, as Arrow has them.
        ranges: The same by key range, ascending.
        snapshot: The newest snapshot; None: no snapshot.
        tail_rows: The number of changes in the changelog, which a restore reads besides.
        tail_files: The number of their files.
    """

    topic: str
    partition: int
    keys: int
    size: int
    ranges: tuple[RangeStats, ...]
    snapshot: SnapshotStats | None
    tail_rows: int
    tail_files: int


class CommittedState:
    """The state of a group, as its committed records left it.

    Args:
        path: The path of the state.
        commit_table: The commit table of the job; one in a catalog needs ``spark``.
        group: The ``kafka.group.id`` of the job.
        spark: A session with Delta, for a commit table in a catalog.

    Attributes:
        schema: The schema of the values.

    Raises:
        TableUnusable: There is no state at the path.
        commits.CommitTableNotFound: There is no commit table.
    """

    def __init__(
        self, path: str, commit_table: str, group: str, *, spark: SparkSession | None = None
    ) -> None:
        self._changelog = Changelog(path)
        self.schema = self._changelog.schema
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

    def rows(self, topic: str | None = None, *, at: Place | None = None) -> pa.Table:
        """Returns one row a key: topic, partition, key, value, offset and expires_at.

        The offset is that of the record that set the value. Expired values are left out.

        Args:
            topic: Only the keys of this topic.
            at: The state as of this place of the commit log; None: now.

        Raises:
            StateNotReadable: The state cannot be read, or that of the place is not kept any more.
        """
        rows_of = self._reader(at)
        found = [alive(rows_of(origin)) for origin in self._origins(topic)]
        rows = pa.concat_tables([self._changelog.schema.changelog.empty_table(), *found])
        return rows.select(list(_COLUMNS)).rename_columns(list(_COLUMNS.values()))

    def diff(self, start: Place, end: Place | None = None, *, topic: str | None = None) -> pa.Table:
        """Returns the keys whose values differ between two places of the commit log.

        Args:
            start: The first place.
            end: The second place; None: now.
            topic: Only the keys of this topic.

        Returns:
            Columns: topic, partition, key, before and after (null: the key had no value), and
            offset: that of the record that left the second one; null if that is not known.

        Raises:
            StateNotReadable: The state cannot be read, or that of a place is not kept any more.
        """
        read_before, read_after = self._reader(start), self._reader(end)
        value = self._changelog.schema.type
        schema = pa.schema(
            [
                ("topic", pa.string()),
                ("partition", pa.int32()),
                ("key", pa.binary()),
                ("before", value),
                ("after", value),
                ("offset", pa.int64()),
            ]
        )
        found = []
        for origin, place in self._origins(topic).items():
            names = dict(zip(("topic", "partition"), place, strict=True))
            changed = _changed(read_before(origin), read_after(origin), self.schema)
            found += [names | one for one in changed]
        return pa.Table.from_pylist(found, schema)

    def stats(self, topic: str | None = None, *, ranges: int = 4) -> list[StateStats]:
        """Returns the sizes of the state of each partition.

        Args:
            topic: Only the partitions of this topic.
            ranges: The number of equal key ranges, from 1.

        Raises:
            StateNotReadable: The state cannot be read.
        """
        rows_of, version = self._reader(None), self._changelog.version
        found = []
        for origin, (name, number) in sorted(self._origins(topic).items(), key=lambda o: o[1]):
            rows = alive(rows_of(origin))
            parts = tuple(_range_stats(rows, one) for one in KeyRange().split(ranges))
            keys, size = (sum(getattr(p, what) for p in parts) for what in ("keys", "size"))
            snapshots = self._changelog.snapshots.of(origin)
            last = None
            if snapshots:
                one = snapshots[-1]
                made_at = datetime.fromtimestamp(one.made_at / 1000, UTC)
                last = SnapshotStats(one.version, made_at, one.keys, one.files, one.size)
            tail = self._changelog.size(origin, version)
            found.append(
                StateStats(
                    name,
                    number,
                    keys=keys,
                    size=size,
                    ranges=parts,
                    snapshot=last,
                    tail_rows=tail.rows,
                    tail_files=tail.files,
                )
            )
        return found

    def _reader(self, at: Place | None) -> Callable[[Origin], pa.Table]:
        """Returns a function that reads the newest row of each key of a partition."""
        version = self._changelog.version
        if at is None:
            counts = self._counts()
            return lambda origin: self._changelog.counted_rows(origin, version, counts)
        places = [store.commits_at(self._group, at) for store in self._stores]
        known = [one for one in places if one is not None]
        if len(known) < len(places) or not known:
            raise StateNotReadable(
                hidden(self._changelog.path),
                f"the commit table has no place {at}, or does not keep it any more",
            )
        commits = known[0][0]
        return lambda origin: self._changelog.rows_before(
            origin, version, lambda one: any(one in ids for _, ids in known), commits=commits
        )

    def _origins(self, topic: str | None) -> dict[Origin, tuple[str, int]]:
        """Returns the partitions of topics as they are now, not of deleted ones."""
        known = {
            Origin(topic_id, number): (name, number)
            for store in self._stores
            for (name, number), topic_id in store.topic_ids(self._group).items()
            if topic in (None, name)
        }
        return {one: known[one] for one in self._changelog.origins() if one in known}

    def _counts(self) -> Callable[[str], bool]:
        """Returns what says whether a commit counts now."""
        counted = [store.counted_commits(self._group) for store in self._stores]
        return lambda commit: any(commit in one for one in counted)


def _range_stats(rows: pa.Table, key_range: KeyRange) -> RangeStats:
    hashes = rows.column("_key_hash")
    inside = pc.and_(
        pc.greater_equal(hashes, key_range.first), pc.less_equal(hashes, key_range.last)
    )
    rows = rows.select(["key", "value"]).filter(inside)
    return RangeStats(key_range.first, key_range.last, rows.num_rows, rows.nbytes)


def _changed(before: pa.Table, after: pa.Table, schema: StateSchema) -> Iterator[dict[str, Any]]:
    """Yields the keys whose values differ, from the newest rows of each key at two times."""
    was, now = _by_key(before), _by_key(after)
    for key in sorted({*was, *now}):
        one, other = was.get(key), now.get(key)
        if one is not None and other is not None and one[1:] == other[1:]:
            continue  # the same change
        values = [
            None if row is None else schema.value(rows.column("value")[row[0]].as_py())
            for row, rows in ((one, before), (other, after))
        ]
        if values[0] != values[1]:
            yield {
                "key": key,
                "before": values[0],
                "after": values[1],
                "offset": None if other is None else other[1],
            }


def _by_key(rows: pa.Table) -> dict[bytes, tuple[int, int, str]]:
    """Returns of each key where its row is, and the record and the commit of that."""
    names = ("key", "_offset", "_commit")
    columns = (rows.column(name).to_pylist() for name in names)
    return {key: (i, at, by) for i, (key, at, by) in enumerate(zip(*columns, strict=True))}


@overload
def committed_state(
    path: str, commit_table: str, group: str, *, at: Place | None = None
) -> pa.Table: ...


@overload
def committed_state(
    path: str, commit_table: str, group: str, *, at: Place | None = None, spark: SparkSession
) -> DataFrame: ...


def committed_state(
    path: str,
    commit_table: str,
    group: str,
    *,
    at: Place | None = None,
    spark: SparkSession | None = None,
) -> pa.Table | DataFrame:
    """Returns the state of a group as its committed records left it, one row a key.

    Columns: topic, partition, key, value, offset (of the record that set the value), expires_at.

    Args:
        path: The path of the state.
        commit_table: The commit table of the job; one in a catalog needs ``spark``.
        group: The ``kafka.group.id`` of the job.
        at: The state as of this place of the commit log: a version of the commit table, the id of
            a commit (which is included) or a time; None: now.
        spark: A session. With it the result is a DataFrame, else an Arrow table.

    Raises:
        StateNotReadable: The state cannot be read, or that of the place is not kept any more.
        TableUnusable: There is no state at the path.
    """
    rows = CommittedState(path, commit_table, group, spark=spark).rows(at=at)
    return rows if spark is None else spark.createDataFrame(rows)
