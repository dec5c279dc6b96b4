"""The rows of groups that nobody has asked for: kept as they are in entries, up to a limit.

A commit table has the rows of all groups, and a job needs those of its own. To decode and fold the
rows of the others costs several times what it costs to read them, and only a snapshot needs it.
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from commits.entry_rows import rows_of_plain
from commits.recovery import folding
from commits.rows import FORMAT, KINDS, SCHEMA, decode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from commits.entries import VersionEntry
    from commits.fold import GroupKey, LogState
    from commits.rows import Event

log = logging.getLogger(__name__)

#: Entries that are kept, twice what a snapshot replaces by default, and their bytes of JSON, which
#: take several times as much memory. Above it the oldest are folded as others come.
MOST_ENTRIES: Final = 1_000
MOST_BYTES: Final = 8 << 20
_IN_ENTRIES: Final = SCHEMA.remove(SCHEMA.get_field_index("segment"))
#: Kinds of rows that change the state of their group alone.
_OF_GROUPS: Final = KINDS - {"setting", "snapshot"}


class OtherGroups:
    """The groups whose state is not folded up to the newest version, and their rows.

    Attributes:
        is_behind: Whether rows were dropped: the state of these groups is to be read again.
    """

    def __init__(self) -> None:
        self._followed: set[GroupKey] = set()
        self._groups: set[GroupKey] = set()
        self._entries: dict[int, VersionEntry] = {}  # by version
        self._size = 0
        self.is_behind = False

    def follow(self, group: GroupKey) -> None:
        """Do not set rows of a group aside from now on."""
        self._followed.add(group)

    def is_aside(self, rows: Mapping[str, Any]) -> bool:
        """Whether the rows of an entry are those of one group that is not followed.

        Rows of an unknown format or kind are not set aside: they stop each reader.
        """
        try:
            columns, count = rows["columns"], rows["count"]
            is_known = {*columns["format"]} == {FORMAT} and _OF_GROUPS.issuperset(columns["kind"])
            is_whole = {*map(len, columns.values())} == {count}
            clusters, groups = {*columns["cluster_id"]}, {*columns["group_id"]}
        except (AttributeError, KeyError, TypeError):
            return False
        is_of_one = len(clusters) == len(groups) == 1
        return is_known and is_whole and is_of_one and (*clusters, *groups) not in self._followed

    def keep(self, entries: Mapping[int, VersionEntry]) -> None:
        """Keep the rows of entries, which are later than those that are kept."""
        # They are not in order where the table was opened again, and rows fold by portions.
        for version, entry in sorted(entries.items()):
            assert entry.rows is not None
            self._groups.add(_group_of(entry.rows))
            if not self.is_behind:
                self._entries[version] = entry
                self._size += entry.size

    @property
    def are_too_many(self) -> bool:
        """Whether more rows are kept than may be."""
        return len(self._entries) > MOST_ENTRIES or self._size > MOST_BYTES

    def are_in_snapshot(self, at: int) -> bool:
        """Whether the oldest rows that are kept are in a snapshot of a version.

        Args:
            at: The version of its state; -1: there is no snapshot.
        """
        return next(iter(self._entries), at + 1) <= at

    def has(self, group: GroupKey) -> bool:
        """Whether rows of a group are not folded."""
        return group in self._groups

    def concern(self, events: Iterable[Event], entries: Mapping[int, VersionEntry]) -> bool:
        """Whether events are of groups with rows that are not folded, here or in some entries."""
        groups = self._groups.union(_group_of(one.rows) for one in entries.values() if one.rows)
        return any((event.cluster, event.group) in groups for event in events)

    def __bool__(self) -> bool:
        """Whether there are rows that are not folded."""
        return bool(self._groups) or self.is_behind

    def fold_oldest(self, state: LogState, most: int, target: str) -> bool:
        """Fold the rows of the oldest entries into a state.

        Args:
            state: The state.
            most: Of how many entries.
            target: The table, for messages.

        Returns:
            False: nothing was folded, as rows were dropped or are damaged: who reads the table
            again says what is damaged.

        Raises:
            CorruptCommitLog: A row is not valid. Rows of all groups are to be read again.
        """
        if self.is_behind:
            return False
        oldest = dict(islice(self._entries.items(), most))
        rows = {version: one.rows for version, one in oldest.items() if one.rows is not None}
        try:
            events = list(decode(rows_of_plain(rows, _IN_ENTRIES), target))
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - rows of nonsense can raise anything
            log.warning("rows of other groups in %s are damaged: %s", target, error)
            return False
        self.is_behind = True  # If it ends before its end.
        try:
            with folding(target, state.version):
                for _ in state.fold(event for _, event in events):
                    pass
        except BaseException:
            self.drop()
            raise
        for version, entry in oldest.items():
            del self._entries[version]
            self._size -= entry.size
        if not self._entries:
            self._groups.clear()
        self.is_behind = False
        return True

    def drop(self) -> None:
        """Forget the rows: the state of their groups is to be read again."""
        self.is_behind = True
        self._entries, self._size = {}, 0

    def clear(self) -> None:
        """Forget all rows, because they are folded; groups are still followed."""
        self.drop()  # A signal may end it at any step: then all is read again.
        self._groups.clear()
        self.is_behind = False


def _group_of(rows: Mapping[str, Any]) -> GroupKey:
    columns = rows["columns"]
    return columns["cluster_id"][0], columns["group_id"][0]
