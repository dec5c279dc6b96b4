"""The changelog of a state: a Delta table of all changes, and a table of snapshots beside it.

A row of the changelog is a change of one key by one record: the new value, or null. It counts if
its commit counts. The state of a key is the value of the counted row with the highest offset.

Rows of the changelog below the stable offset that a snapshot was made at are all in it, so they are
removed after the next one, and the last two snapshots are kept: each of them and the changelog give
the state from its time on. A job that keeps no history removes them, and the snapshot before, at
once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from assignors import MAX_KEY_HASH, key_hash
from commits.conflicts import create_if_not_exists, repeated_write
from commits.program_end import table_calls
from commits.secrets import hidden
from coopconsume.errors import TableUnusable
from coopconsume.state.rows import Origin, alive, counted, newest
from coopconsume.state.schema import ORIGIN, StateSchema
from coopconsume.state.snapshots import Snapshots
from coopconsume.state.table import CHANGELOG, PARTITION, RETENTION, StateTable, file_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from deltalake import DeltaTable

    from coopconsume.state.rows import Range

#: In the metadata of a version that removes rows: the version that a reader must have seen.
_COMPLETE: Final = "coopconsume.complete."


class Size(NamedTuple):
    """The rows, the files and their bytes that a partition has in a version of the changelog."""

    rows: int
    files: int
    size: int


@table_calls
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
        self._table = StateTable(self.path, CHANGELOG)
        found = self._table.newest()
        if found is not None:
            schema = self._schema_of(found, schema)
        if schema is None:
            raise TableUnusable("state", hidden(self.path), "there is no state here")
        self.schema: StateSchema = schema
        self.snapshots = Snapshots(self.path, self.schema.changelog)
        #: The id of the table, which changes if it is made again; empty: no table yet.
        self.id = "" if found is None else str(found.metadata().id)
        self._owner = ""

    def _schema_of(self, table: DeltaTable, wanted: StateSchema | None) -> StateSchema:
        known = pa.schema(table.schema().to_arrow())
        if "value" not in known.names or set(ORIGIN.names) - set(known.names):
            raise TableUnusable("state", hidden(self.path), "its columns are not of a state")
        kind = known.field("value").type
        if wanted is not None and kind != wanted.type:
            raise TableUnusable(
                "state",
                hidden(self.path),
                f"its values are {kind}, not {wanted.type}; give the same state_schema, or "
                "another path",
            )
        return wanted or StateSchema(kind)

    def belong_to(self, group: str) -> None:
        """Looks at the table again, and notes the group that the state belongs to.

        Raises:
            StateNotReadable: The table cannot be read.
            TableUnusable: It belongs to another group, or has another schema.
        """
        self._owner = group
        found = self._table.newest()
        self.id = "" if found is None else self._checked_id(found)

    def _checked_id(self, table: DeltaTable) -> str:
        self._schema_of(table, self.schema)
        about = table.metadata()
        if about.description != self._owner:
            owner = f"it belongs to the group {about.description}"
            raise TableUnusable("state", hidden(self.path), owner)
        return str(about.id)

    def create(self) -> DeltaTable:
        """Opens the changelog, which is created if it does not exist.

        Raises:
            OutputNotWritten: It cannot be created, or the table that there was is gone.
        """
        table = self._table.open()
        if table is None and not self.id:
            with self._table.writing():
                table = create_if_not_exists(
                    self._table.path, self.schema.changelog, partition_by=PARTITION,
                    configuration=RETENTION, description=self._owner,
                )  # fmt: skip
        if table is None:
            raise self._table.removed(self.id, "no table")
        if not self.id:  # Somebody else may have created it meanwhile.
            self.id = self._checked_id(table)
        self._keep(str(table.metadata().id))
        return table

    def _keep(self, found: str) -> None:
        """Notes the id of the table, and refuses another one."""
        if self.id and found != self.id:
            raise self._table.removed(self.id, found)
        self.id = found

    # -- writing

    def append(self, rows: pa.Table) -> tuple[int, int]:
        """Appends rows; returns a version that does not have them, and one that does.

        Raises:
            OutputNotWritten: Delta did not take them.
        """
        from deltalake import write_deltalake

        full = self.schema.changelog
        rows = rows.select(full.names).cast(full)

        def write() -> tuple[int, int]:
            version = self._table.appender.append(rows, self._keep)
            if version is not None:
                return version - 1, version
            table = self.create()
            before = int(table.version())
            write_deltalake(table, rows, mode="append")
            return before, int(table.version())

        with self._table.writing():
            return repeated_write(write)

    def write_snapshot(
        self,
        origin: Origin,
        version: int,
        counts: Callable[[str], bool],
        *,
        commits: int | None = None,
        keeps_last: bool = True,
        check: Callable[[], object] = lambda: None,
    ) -> int | None:
        """Writes a snapshot of all changes of a partition that count.

        Args:
            origin: The partition.
            version: The version of the changelog that is read.
            counts: Whether a commit counts.
            commits: A version of the commit table at which all commits had counted that count.
            keeps_last: Whether the snapshot before it is kept. If not, the rows that are in the
                new one may be removed at once, and what is read as of an earlier time is refused.
            check: Is called before it is written, and raises if it must not be.

        Returns:
            The number of keys in it. None: there is one of this version or a newer one, which may
            lack changes that count by now.

        Raises:
            StateNotReadable: The state cannot be read.
            OutputNotWritten: Delta did not take it; the old one remains.
        """
        before = self.snapshots.of(origin)
        last = before[-1] if before else None
        # The number is the version that it is of, so an older one never takes the place of a newer.
        if last is not None and version <= last.version:
            return None
        all_rows = self.counted_rows(origin, version, counts)
        rows = alive(all_rows)
        tops = [pc.max(all_rows.column("_offset")).as_py(), last.top if last else -1]
        top = None if last and last.top is None else max(t for t in tops if t is not None)
        check()
        is_first = last is None and keeps_last
        self.snapshots.add(origin, version, rows, commits=commits, top=top, is_first=is_first)
        if last is not None:
            # Before rows are removed that a reader of an older snapshot needs.
            self.snapshots.remove_before(origin, last.version if keeps_last else version)
        return int(rows.num_rows)

    def version_for_snapshot(self, origin: Origin, check: Callable[[], object]) -> int:
        """Returns the newest version, or a new one if a snapshot of the partition is of that.

        Such a snapshot may lack changes that were not decided when it was made.

        Args:
            origin: The partition.
            check: Is called before a version is written, and raises if it must not be.

        Raises:
            OutputNotWritten: Delta did not take a new version.
            StateNotReadable: The state cannot be read.
        """
        version = self.version
        if version > max(self.snapshots.versions(origin), default=-1):
            return version
        check()
        _, version = self.append(self.schema.changelog.empty_table())
        return version

    def trim(
        self,
        origin: Origin,
        below: int,
        complete: int,
        *,
        check: Callable[[], object] = lambda: None,
    ) -> tuple[int, int]:
        """Removes rows of a partition that its snapshot has.

        Args:
            origin: The partition.
            below: Rows of lower offsets are removed.
            complete: A version that has all these rows. A local store of this version misses none
                of them; an older one is restored.
            check: Is called before rows are removed, and raises if they must not be. Rows that are
                written after it are not removed.

        Returns:
            How many rows it has removed, and how many files there are less.

        Raises:
            OutputNotWritten: Delta did not do it; nothing is removed.
        """
        from deltalake import CommitProperties

        table = self.create()
        check()
        words = {_COMPLETE + str(origin): str(complete)}
        with self._table.writing():
            done = table.delete(
                f"{origin.predicate} AND _offset < {below}",
                commit_properties=CommitProperties(custom_metadata=words),
            )
            for one in (table, self.snapshots.table.open()):
                if one is not None:
                    one.vacuum(dry_run=False)
        fewer = done["num_removed_files"] - done["num_added_files"]
        return done["num_deleted_rows"] or 0, fewer

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
        rows = self.rows_before(origin, int(table.version()), counts, offset=below)
        top = pc.max(rows.column("_offset")).as_py()
        last = max(self.snapshots.versions(origin), default=-1)
        number = max(int(table.version()), last + 1)
        # First the snapshot: it has what the next steps remove, and a repeat reads it.
        self.snapshots.add(
            origin, number, alive(rows), commits=commits, top=-1 if top is None else top,
            is_first=False,
        )  # fmt: skip
        self.snapshots.remove_before(origin, number)
        with self._table.writing():
            table.delete(f"{origin.predicate} AND _offset >= {below}")
            words = {_COMPLETE + str(origin): str(table.version())}
            write_deltalake(
                table,
                self.schema.changelog.empty_table(),
                mode="append",
                commit_properties=CommitProperties(custom_metadata=words),
            )

    # -- reading

    @property
    def version(self) -> int:
        """The newest version of the changelog; -1 if it does not exist."""
        return self._table.version

    def commits(self, version: int) -> set[str]:
        """Returns the ids of all commits that have rows in a version of the changelog."""
        if version < 0:
            return set()
        ids = self._table.rows(self._at(version), pa.schema([ORIGIN.field("_commit")]))
        return set(ids.column("_commit").unique().to_pylist())

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
        # Versions after the one that is to be read may have removed rows of it as well.
        notes = self._table.notes(have)
        key = _COMPLETE + str(origin)
        removed = [int(words[key]) for words in notes.values() if key in words]
        is_known = len(notes) == max(notes, default=have) - have > 0
        return is_known and max(removed, default=-1) <= have

    def size(
        self, origin: Origin, version: int, *, below: int | None = None, since: int = 0
    ) -> Size:
        """Returns what a version of the changelog has of a partition.

        Args:
            origin: The partition.
            version: The version.
            below: Only files are counted all of whose rows have lower offsets, and files without
                statistics of offsets; None: all files.
            since: Only files are counted that were written after this time, in milliseconds since
                1970 by the clocks of their writers.

        Raises:
            StateNotReadable: The version cannot be read.
        """
        table = None if version < 0 else self._table.at(version)
        if table is None:
            return Size(0, 0, 0)
        files = pa.table(self._table.read(table.get_add_actions, flatten=True)).to_pylist()
        names = {file_name(file) for file in self.files(origin, version)}
        found = [
            file
            for file in files
            if file["modification_time"] > since and file_name(file["path"]) in names
        ]
        if below is not None:
            tops = [file.get("max._offset") for file in found]
            found = [f for f, top in zip(found, tops, strict=True) if top is None or top < below]
        rows = sum(file["num_records"] or 0 for file in found)
        return Size(rows, len(found), sum(file["size_bytes"] for file in found))

    def files(self, origin: Origin, version: int) -> frozenset[str]:
        """Returns the files of a partition in a version of the changelog.

        Raises:
            StateNotReadable: The version cannot be read.
        """
        table = None if version < 0 else self._table.at(version)
        if table is None:
            return frozenset()
        return frozenset(self._table.read(table.file_uris, file_pruning_predicate=origin.filters))

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
        return self._table.rows(
            self._at(version), self.schema.changelog, origin.filters, ranges=ranges, files=unseen,
            above=above,
        )  # fmt: skip

    def _at(self, version: int) -> DeltaTable:
        table = self._table.at(version)
        if table is None:
            raise self._table.unreadable("the changelog does not exist any more")
        return table

    def rows_before(
        self,
        origin: Origin,
        version: int,
        counts: Callable[[str], bool],
        *,
        commits: int | None = None,
        offset: int | None = None,
    ) -> pa.Table:
        """Returns the newest counted row of each key at an earlier time, or below an offset.

        Removed keys are included.

        Args:
            origin: The partition.
            version: The version of the changelog that is read.
            counts: Whether a commit counts, or counted at that time.
            commits: The version of the commit table of that time; None: now.
            offset: The offset; None: all changes.

        Raises:
            StateNotReadable: The state cannot be read, or changes of that time or below the offset
                are removed.
        """
        if offset is not None and offset <= 0:
            return self.schema.changelog.empty_table()
        base = self.snapshots.before(origin, commits=commits, offset=offset)
        whole = [(0, MAX_KEY_HASH)]
        rows = [counted(self.changes(origin, version, whole), counts)]
        if base is not None:
            rows.append(self.snapshots.rows(origin, whole, number=base.version))
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
        return newest([self.snapshots.rows(origin, ranges), changes])

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
        both = (self._table, self.snapshots.table)
        places = [place for one in both for place in one.places(one.newest())]
        return sorted({Origin(p["_topic_id"], int(p["_partition"])) for p in places})
