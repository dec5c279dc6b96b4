"""The changelog of a state: a Delta table of all changes, and a table of snapshots beside it.

A row of the changelog is a change of one key by one record: the new value, or null. It counts if
its commit counts. The state of a key is the value of the counted row with the highest offset.

A snapshot of a partition has the newest counted row of each key, sorted by key hash, so that a
restore of some key ranges reads only parts of the files. Rows of the changelog below the stable
offset that a snapshot was made at are all in it, so they are removed after the next one. The last
two snapshots are kept: each of them and the changelog give the state from its time on.
"""

from __future__ import annotations

import datetime as dt
import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from assignors import MAX_KEY_HASH, key_hash
from commits.secrets import hidden
from coopconsume.errors import OutputNotWritten, StateNotReadable, TableUnusable
from coopconsume.state.schema import ORIGIN, StateSchema

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from deltalake import DeltaTable

    Range = tuple[int, int]

log = logging.getLogger(__name__)

_PARTITION: Final = ["_topic_id", "_partition"]
_SNAPSHOT: Final = pa.field("_snapshot", pa.int64())
#: Of a snapshot, the same in each row: see `Snapshot`.
_FACTS: Final = pa.schema([(name, pa.int64()) for name in ("_keys", "_commits", "_top", "_first")])
#: How long removed files stay: a slot may be reading them.
_RETENTION: Final = {"delta.deletedFileRetentionDuration": "interval 1 hours"}
#: In the metadata of a version that removes rows: the version that a reader must have seen.
_COMPLETE: Final = "coopconsume.complete."
#: Rows of a row group of a snapshot: a restore reads those that its key ranges fall into.
_ROW_GROUP: Final = 20_000


class Origin(NamedTuple):
    """The partition that rows belong to, by Kafka's id of its topic."""

    topic_id: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id}-{self.partition}"

    @property
    def filters(self) -> list[tuple[str, str, str]]:
        """As deltalake's methods take it."""
        return [("_topic_id", "=", self.topic_id), ("_partition", "=", str(self.partition))]


class Snapshot(NamedTuple):
    """What is known of a snapshot of a partition without reading its rows.

    Attributes:
        version: The version of the changelog that it is of.
        keys: The number of keys.
        files, size: Its files and their bytes.
        made_at: When it was written, in milliseconds since 1970.
        commits: All commits in it had counted at this version of the commit table; None: unknown.
        top: The highest offset of a change in it, or of a removed key; None: unknown.
        is_first: Whether no change was removed from the changelog before it was made.
    """

    version: int
    keys: int
    files: int
    size: int
    made_at: int
    commits: int | None
    top: int | None
    is_first: bool


class Changelog:
    """The changelog and the snapshots of a state.

    Args:
        path: The folder or URI of both tables.
        schema: The schema of the values; None: that of the table.

    Raises:
        TableUnusable: There is a table of another schema, or something else at the path; or there
            is no table, and no schema is given.
    """

    def __init__(
        self,
        path: str,
        schema: StateSchema | None = None,
    ) -> None:
        self.path = path.rstrip("/")
        found = self._table("changelog")
        if found is None and schema is None:
            raise TableUnusable("state", hidden(self.path), "there is no state here")
        if found is not None:
            known = pa.schema(found.schema().to_arrow())
            if "value" not in known.names or set(ORIGIN.names) - set(known.names):
                raise TableUnusable("state", hidden(self.path), "its columns are not of a state")
            kind = known.field("value").type
            if schema is not None and kind != schema.type:
                raise TableUnusable(
                    "state", hidden(self.path),
                    f"its values are {kind}, not {schema.type}; give the same state_schema, or "
                    "another path",
                )  # fmt: skip
            schema = schema or StateSchema(kind)
        assert schema is not None
        self.schema = schema
        #: The id of the table, which changes if it is made again; empty: no table yet.
        self.id = "" if found is None else str(found.metadata().id)
        self._owner = ""

    def belong_to(self, group: str) -> None:
        """Notes the group that the state belongs to, before anything is written.

        Raises:
            StateNotReadable: The table cannot be read.
            TableUnusable: It belongs to another group.
        """
        self._owner = group
        found = self._table("changelog")
        owner = group if found is None else found.metadata().description
        if owner != group:
            raise TableUnusable("state", hidden(self.path), f"it belongs to the group {owner}")

    # -- the tables

    def _table(self, name: str, version: int | None = None) -> DeltaTable | None:
        """Opens a table; None if it does not exist.

        Raises:
            StateNotReadable: It cannot be read.
        """
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            return DeltaTable(f"{self.path}/{name}", version=version)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise StateNotReadable(hidden(self.path), hidden(str(error))) from error

    def create(self) -> DeltaTable:
        """Opens the changelog, which is created if it does not exist.

        Raises:
            OutputNotWritten: It cannot be created.
        """
        from deltalake import DeltaTable

        table = self._table("changelog")
        if table is not None:
            return table
        try:
            return DeltaTable.create(
                f"{self.path}/changelog", self.schema.changelog, mode="ignore",
                partition_by=_PARTITION, configuration=_RETENTION, description=self._owner,
            )  # fmt: skip
        except Exception as error:  # deltalake raises more than its own errors
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> OutputNotWritten:
        return OutputNotWritten("changes of the state", hidden(self.path), hidden(str(error)))

    # -- writing

    def append(self, rows: pa.Table) -> tuple[int, int]:
        """Appends rows; returns a version that does not have them, and one that does.

        Raises:
            OutputNotWritten: Delta did not take them.
        """
        from deltalake import write_deltalake

        table = self.create()
        before = int(table.version())
        full = self.schema.changelog
        try:
            write_deltalake(table, rows.select(full.names).cast(full), mode="append")
        except Exception as error:  # deltalake raises more than its own errors
            raise self._failed(error) from error
        return before, int(table.version())

    def write_snapshot(
        self,
        origin: Origin,
        version: int,
        counts: Callable[[str], bool],
        *,
        commits: int | None = None,
        check: Callable[[], object] = lambda: None,
    ) -> int:
        """Writes a snapshot of all changes of a partition that count; the one before it is kept.

        Args:
            origin: The partition.
            version: The version of the changelog that is read.
            counts: Whether a commit counts.
            commits: A version of the commit table at which all commits had counted that count.
            check: Is called before it is written, and raises if it must not be.

        Returns:
            The number of keys in it.

        Raises:
            StateNotReadable: The state cannot be read.
            OutputNotWritten: Delta did not take it; the old one remains.
        """
        all_rows = self.counted_rows(origin, version, counts)
        rows = alive(all_rows)
        before = self.snapshots(origin)
        last = before[-1] if before else None
        # The number is the version that it is of, so an older one never takes the place of a newer.
        if last is not None and version <= last.version:
            return int(rows.num_rows)
        tops = [pc.max(all_rows.column("_offset")).as_py(), last.top if last else -1]
        top = None if last and last.top is None else max(t for t in tops if t is not None)
        check()
        self._add_snapshot(origin, version, rows, (rows.num_rows, commits, top, int(last is None)))
        table = self._table("snapshots")
        if table is not None and last is not None:
            try:
                table.delete(f"{_where(origin)} AND _snapshot < {last.version}")
            except Exception as error:  # deltalake raises more than its own errors
                raise self._failed(error) from error
        return int(rows.num_rows)

    def _add_snapshot(
        self, origin: Origin, version: int, rows: pa.Table, facts: Sequence[int | None]
    ) -> None:
        from deltalake import WriterProperties, write_deltalake

        if not rows.num_rows:
            # One row without a key, so that the snapshot is there.
            nothing = {
                "_topic_id": origin.topic_id, "_partition": origin.partition, "_key_hash": 0
            }  # fmt: skip
            rows = pa.Table.from_pylist([nothing], self.schema.changelog)
        rows = rows.sort_by([("_key_hash", "ascending")])
        given = zip([_SNAPSHOT, *_FACTS], [version, *facts], strict=True)
        for field, value in given:
            same = pa.repeat(pa.scalar(value, field.type), rows.num_rows)
            rows = rows.append_column(field, same)
        # Delta has statistics of the first columns only.
        full = pa.schema([*_FACTS, *self.schema.changelog, _SNAPSHOT])
        try:
            write_deltalake(
                f"{self.path}/snapshots", rows.select(full.names).cast(full), mode="append",
                partition_by=[*_PARTITION, _SNAPSHOT.name], configuration=_RETENTION,
                writer_properties=WriterProperties(max_row_group_size=_ROW_GROUP),
                schema_mode="merge",
            )  # fmt: skip
        except Exception as error:  # deltalake raises more than its own errors
            raise self._failed(error) from error

    def trim(
        self,
        origin: Origin,
        below: int,
        complete: int,
        *,
        check: Callable[[], object] = lambda: None,
    ) -> None:
        """Removes rows of a partition that its snapshot has.

        Args:
            origin: The partition.
            below: Rows of lower offsets are removed.
            complete: A version that has all these rows. A local store of this version misses none
                of them; an older one is restored.
            check: Is called before rows are removed, and raises if they must not be. Rows that are
                written after it are not removed.

        Raises:
            OutputNotWritten: Delta did not do it; nothing is removed.
        """
        from deltalake import CommitProperties

        table = self.create()
        check()
        words = {_COMPLETE + str(origin): str(complete)}
        try:
            table.delete(
                f"{_where(origin)} AND _offset < {below}",
                commit_properties=CommitProperties(custom_metadata=words),
            )
            for one in (table, self._table("snapshots")):
                if one is not None:
                    one.vacuum(dry_run=False)
        except Exception as error:  # deltalake raises more than its own errors
            raise self._failed(error) from error

    def set_back(
        self, origin: Origin, below: int, counts: Callable[[str], bool], commits: int
    ) -> None:
        """Removes the changes of a partition by all records from an offset on. May be repeated.

        Nobody may write to the partition meanwhile. All local stores of it are restored afterwards.

        Args:
            origin: The partition.
            below: The offset; 0 removes all.
            counts: Whether a commit counts.
            commits: The version of the commit table.

        Raises:
            OutputNotWritten: Delta did not do it, or a part of it.
            StateNotReadable: The changelog does not have the changes below the offset any more.
        """
        from deltalake import CommitProperties, write_deltalake

        table = self.create()
        rows = self.rows_below(origin, int(table.version()), counts, below)
        top = pc.max(rows.column("_offset")).as_py()
        last = max(self._snapshots(self._table("snapshots"), origin), default=-1)
        number = max(int(table.version()), last + 1)
        rows = alive(rows)
        # First the snapshot: it has what the next steps remove, and a repeat reads it.
        self._add_snapshot(
            origin, number, rows, (rows.num_rows, commits, -1 if top is None else top, 0)
        )
        snapshots = self._table("snapshots")
        assert snapshots is not None
        try:
            snapshots.delete(f"{_where(origin)} AND _snapshot < {number}")
            table.delete(f"{_where(origin)} AND _offset >= {below}")
            words = {_COMPLETE + str(origin): str(table.version())}
            write_deltalake(
                table, self.schema.changelog.empty_table(), mode="append",
                commit_properties=CommitProperties(custom_metadata=words),
            )  # fmt: skip
        except Exception as error:  # deltalake raises more than its own errors
            raise self._failed(error) from error

    # -- reading

    @property
    def version(self) -> int:
        """The newest version of the changelog; -1 if it does not exist."""
        table = self._table("changelog")
        return -1 if table is None else int(table.version())

    def commits(self, version: int) -> set[str]:
        """Returns the ids of all commits that have rows in a version of the changelog."""
        if version < 0:
            return set()
        rows = self._rows(self._at(version), [], columns=["_commit"])
        return set(rows.column("_commit").unique().to_pylist())

    def is_complete(self, origin: Origin, have: int, version: int) -> bool:
        """Whether a reader of all rows up to a version can find all later ones in another one.

        Args:
            origin: The partition.
            have: The version that was read; from 0.
            version: The version that is to be read, at least ``have``.

        Raises:
            StateNotReadable: The table cannot be read.
        """
        if have == version:
            return True
        # History is that of the newest version, whatever version a handle is at.
        table = self._table("changelog")
        later = 0 if table is None else int(table.version()) - have
        entries = [] if table is None or later < 0 else self._read(table.history, limit=later)
        key = _COMPLETE + str(origin)
        removed = [int(entry[key]) for entry in entries if key in entry]
        return len(entries) == later and max(removed, default=-1) <= have

    def size(self, origin: Origin, version: int) -> tuple[int, int]:
        """Returns how many rows and files of a partition a version of the changelog has."""
        table = None if version < 0 else self._table("changelog", version)
        if table is None:
            return 0, 0
        files = pa.table(self._read(table.get_add_actions, flatten=True)).to_pylist()
        names = {_name(file) for file in self.files(origin, version)}
        rows = [file["num_records"] or 0 for file in files if _name(file["path"]) in names]
        return sum(rows), len(rows)

    def _read(self, call: Callable[..., Any], **what: Any) -> Any:
        """Calls a method of deltalake.

        Raises:
            StateNotReadable: The table cannot be read.
        """
        try:
            return call(**what)
        except Exception as error:
            raise StateNotReadable(hidden(self.path), hidden(str(error))) from error

    def files(self, origin: Origin, version: int) -> frozenset[str]:
        """Returns the files of a partition in a version of the changelog.

        Raises:
            StateNotReadable: The version cannot be read.
        """
        table = None if version < 0 else self._table("changelog", version)
        if table is None:
            return frozenset()
        return frozenset(self._read(table.file_uris, file_pruning_predicate=origin.filters))

    def changes(
        self,
        origin: Origin,
        version: int,
        ranges: Sequence[Range],
        *,
        unseen: Collection[str] | None = None,
        above: int = 0,
    ) -> pa.Table:
        """Returns rows of the changelog of some key ranges, whether they count or not.

        Args:
            origin: The partition.
            version: The version that is read.
            ranges: Key hashes, first and last.
            unseen: Only the rows of these files; None: of all.
            above: Only the rows of this offset and higher ones.
        """
        if version < 0 or (unseen is not None and not unseen):
            return self.schema.changelog.empty_table()
        return self._rows(
            self._at(version), origin.filters, ranges=ranges, files=unseen, above=above
        )

    def _at(self, version: int) -> DeltaTable:
        table = self._table("changelog", version)
        if table is None:
            raise StateNotReadable(hidden(self.path), "the changelog does not exist any more")
        return table

    def snapshot(
        self, origin: Origin, ranges: Sequence[Range], *, number: int | None = None
    ) -> pa.Table:
        """Returns the rows of some key ranges in a snapshot of a partition.

        Args:
            origin: The partition.
            ranges: Key hashes, first and last.
            number: The version that the snapshot is of; None: the newest.
        """
        table = self._table("snapshots")
        known = self._snapshots(table, origin)
        if number is not None and number not in known:
            raise StateNotReadable(hidden(self.path), "a newer snapshot has taken its place; retry")
        number = max(known, default=None) if number is None else number
        if table is None or number is None:
            return self.schema.changelog.empty_table()
        filters = [*origin.filters, (_SNAPSHOT.name, "=", str(number))]
        rows = self._rows(table, filters, ranges=ranges)
        return rows.filter(pc.is_valid(rows.column("key")))

    def snapshots(self, origin: Origin) -> list[Snapshot]:
        """Returns what is known of the snapshots of a partition, the oldest first.

        Raises:
            StateNotReadable: The state cannot be read.
        """
        table = self._table("snapshots")
        found: dict[int, list[dict[str, Any]]] = {}
        if table is not None:
            for file in pa.table(self._read(table.get_add_actions, flatten=True)).to_pylist():
                place = (file["partition._topic_id"], int(file["partition._partition"]))
                if place == origin:
                    found.setdefault(int(file["partition._snapshot"]), []).append(file)
        return [_snapshot_of(version, files) for version, files in sorted(found.items())]

    def rows_at(
        self, origin: Origin, version: int, counts: Callable[[str], bool], commits: int
    ) -> pa.Table:
        """Returns the newest counted row of each key at an earlier time, removed keys included.

        Args:
            origin: The partition.
            version: The version of the changelog that is read.
            counts: Whether a commit counted then.
            commits: The version of the commit table of that time.

        Raises:
            StateNotReadable: The state cannot be read, or changes of that time are removed.
        """
        return self._rows_before(origin, version, counts, commits=commits)

    def rows_below(
        self, origin: Origin, version: int, counts: Callable[[str], bool], offset: int
    ) -> pa.Table:
        """Returns the newest counted row of each key below an offset, removed keys included.

        Args:
            origin: The partition.
            version: The version of the changelog that is read.
            counts: Whether a commit counts.
            offset: The offset.

        Raises:
            StateNotReadable: The state cannot be read, or changes below the offset are removed.
        """
        if offset <= 0:
            return self.schema.changelog.empty_table()
        return self._rows_before(origin, version, counts, offset=offset)

    def _rows_before(
        self,
        origin: Origin,
        version: int,
        counts: Callable[[str], bool],
        *,
        commits: int | None = None,
        offset: int | None = None,
    ) -> pa.Table:
        found = self.snapshots(origin)
        base = next(
            (
                one
                for one in reversed(found)
                if (commits is None or (one.commits is not None and one.commits <= commits))
                and (offset is None or (one.top is not None and one.top < offset))
            ),
            None,
        )
        if base is None and found and not (len(found) == 1 and found[0].is_first):
            oldest = found[0]
            kept = (
                f"as of version {oldest.commits} of the commit table" if offset is None
                else f"below offset {None if oldest.top is None else oldest.top + 1}"
            )  # fmt: skip
            raise StateNotReadable(
                hidden(self.path),
                f"changes of partition {origin.partition} of that time were removed; the oldest "
                f"state that is kept is that {kept}",
            )
        whole = [(0, MAX_KEY_HASH)]
        rows = [counted(self.changes(origin, version, whole), counts)]
        if base is not None:
            rows.append(self.snapshot(origin, whole, number=base.version))
        if offset is not None:
            rows = [one.filter(pc.less(one.column("_offset"), offset)) for one in rows]
        return newest(rows)

    def counted_rows(
        self,
        origin: Origin,
        version: int,
        counts: Callable[[str], bool],
        ranges: Sequence[Range] = ((0, MAX_KEY_HASH),),
    ) -> pa.Table:
        """Returns the newest counted row of each key of a partition, removed keys included.

        Args:
            origin: The partition.
            version: The version of the changelog that is read.
            counts: Whether a commit counts.
            ranges: Key hashes, first and last.
        """
        changes = counted(self.changes(origin, version, ranges), counts)
        return newest([self.snapshot(origin, ranges), changes])

    def value(self, origin: Origin, key: bytes, counts: Callable[[str], bool]) -> Any:
        """Returns the value of a key as it counts now; None if it has none.

        Args:
            origin: The partition.
            key: The key.
            counts: Whether a commit counts.

        Raises:
            StateNotReadable: The state cannot be read.
        """
        key_hash_of = key_hash(key)
        assert key_hash_of is not None
        rows = self.counted_rows(origin, self.version, counts, [(key_hash_of, key_hash_of)])
        rows = alive(rows.filter(pc.equal(rows.column("key"), pa.scalar(key, pa.binary()))))
        return self.schema.values(rows.column("value"))[0] if rows.num_rows else None

    def origins(self) -> list[Origin]:
        """Returns the partitions that have rows.

        Raises:
            StateNotReadable: The state cannot be read.
        """
        tables = [self._table(name) for name in ("changelog", "snapshots")]
        places = [p for table in tables if table is not None for p in self._read(table.partitions)]
        return sorted({Origin(p["_topic_id"], int(p["_partition"])) for p in places})

    def _snapshots(self, table: DeltaTable | None, origin: Origin) -> list[int]:
        if table is None:
            return []
        places = self._read(table.partitions, file_pruning_predicate=origin.filters)
        return [int(place[_SNAPSHOT.name]) for place in places]

    def _rows(
        self,
        table: DeltaTable,
        filters: Sequence[tuple[str, str, str]],
        *,
        ranges: Sequence[Range] = (),
        files: Collection[str] | None = None,
        above: int = 0,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Reads rows of a table; the statistics of files and row groups are used.

        Raises:
            StateNotReadable: They cannot be read.
        """
        from deltalake.exceptions import DeltaError

        full = self.schema.changelog
        names = list(columns or full.names)
        try:
            found = table.to_pyarrow_dataset(file_pruning_predicate=list(filters) or None)
            wanted = None
            for first, last in ranges:
                inside = (pc.field("_key_hash") >= first) & (pc.field("_key_hash") <= last)
                wanted = inside if wanted is None else wanted | inside
            if above and wanted is not None:
                wanted &= pc.field("_offset") >= above
            if files is None:
                rows = found.to_table(columns=names, filter=wanted)
            else:
                ends = {_name(file) for file in files}
                pieces = [
                    fragment.to_table(schema=found.schema, columns=names, filter=wanted)
                    for fragment in found.get_fragments(filter=wanted)
                    if _name(fragment.path) in ends
                ]
                rows = pa.concat_tables(pieces) if pieces else full.empty_table().select(names)
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise StateNotReadable(hidden(self.path), hidden(str(error))) from error
        return rows.cast(pa.schema([full.field(name) for name in names]))


def counted(rows: pa.Table, counts: Callable[[str], bool]) -> pa.Table:
    """Returns the rows whose commits count."""
    ids = rows.column("_commit")
    those = [one for one in ids.unique().to_pylist() if counts(one)]
    return rows.filter(pc.is_in(ids, pa.array(those, pa.string())))


def newest(tables: Iterable[pa.Table]) -> pa.Table:
    """Returns the row of the highest offset of each key, from rows that all count."""
    rows = pa.concat_tables(tables)
    keys = rows.append_column("_at", pa.array(range(rows.num_rows), pa.int64()))
    # Keys are compared, not hashes: two keys may have the same hash.
    order = keys.select(["key", "_offset", "_at"]).sort_by(
        [("key", "ascending"), ("_offset", "ascending")]
    )
    last = order.group_by("key", use_threads=False).aggregate([("_at", "last")])
    return rows.take(last.column("_at_last").combine_chunks())


def alive(rows: pa.Table) -> pa.Table:
    """Returns the rows with a value whose time is not over."""
    now = pa.scalar(dt.datetime.now(dt.UTC), rows.schema.field("expires_at").type)
    gone = pc.fill_null(pc.less_equal(rows.column("expires_at"), now), False)
    return rows.filter(pc.and_not(pc.is_valid(rows.column("value")), gone))


def _snapshot_of(version: int, files: Sequence[Mapping[str, Any]]) -> Snapshot:
    keys, commits, top, first = (files[0].get(f"min.{name}") for name in _FACTS.names)
    return Snapshot(
        version=version,
        keys=sum(file["num_records"] for file in files) if keys is None else keys,
        files=len(files),
        size=sum(file["size_bytes"] for file in files),
        made_at=max(file["modification_time"] for file in files),
        commits=commits,
        top=top,
        is_first=first == 1,
    )


def _name(file: str) -> str:
    """Returns the last part of a path; deltalake's names of files are unique."""
    return file.rsplit("/", 1)[-1]


def _where(origin: Origin) -> str:
    # Ids are Kafka's own, of letters, digits, "-" and "_".
    return f"_topic_id = '{origin.topic_id}' AND _partition = {origin.partition}"
