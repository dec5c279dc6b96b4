"""Sets the state of a group back together with its offsets.

The commit table notes the state of the group, and the partitions whose reset has begun. As long as
one is noted, no job of the group begins, so a reset that was interrupted is repeated first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from commits.secrets import hidden
from coopconsume.errors import ResetNotFinished, StateNotChosen
from coopconsume.state.changelog import Changelog
from coopconsume.state.note import StateNote
from coopconsume.state.rows import Origin, alive

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from commits import CommitStore
    from commits.model import TopicPartition

StateAction: TypeAlias = Literal["restore", "clear", "keep"]
"""What a reset of offsets does to the state: it sets it back, removes it, or leaves it."""


class StateMove(NamedTuple):
    """What a reset does to the state of a partition.

    Attributes:
        below: The changes of records from this offset on are removed.
        keys: The number of keys with a value.
        keys_after: The same after the reset.
    """

    below: int
    keys: int
    keys_after: int


class StateReset:
    """A planned change of a group's state, beside a reset of its offsets.

    Args:
        path: The path of the state; None: the one that the commit table notes.
        store: The commit table.
        cluster: The id of the Kafka cluster.
        group: The group.
        below: Of each partition, the offset from which on changes are removed; 0 removes all.

    Raises:
        ResetNotFinished: A reset of the group with another state was interrupted.
        StateNotChosen: The commit table notes no path, and none is given.
        StateNotReadable: The state cannot be read, or the changelog does not have the changes
            below an offset any more.
        TableUnusable: There is no state at the path, or it belongs to another group.
    """

    def __init__(
        self,
        path: str | None,
        store: CommitStore,
        cluster: str,
        group: str,
        below: Mapping[TopicPartition, int],
    ) -> None:
        self._store, self._group = store, group
        note = StateNote.of(store, group)
        path = path or note.path
        if path is None:
            raise StateNotChosen(group, "a path that its commit table does not note")
        if note.resetting and hidden(path) != note.path:
            raise ResetNotFinished(group, *note.resetting[0])
        self._path = path
        self._changelog = Changelog(path)
        self._changelog.belong_to(f"{cluster}/{group}")
        ids = store.topic_ids(group)
        self._origins = {tp: Origin(ids[tp], tp[1]) for tp in below if ids.get(tp)}
        #: By partition; those without state are left out.
        self.moves = {tp: self._planned(at, below[tp]) for tp, at in self._origins.items()}

    def _planned(self, origin: Origin, below: int) -> StateMove:
        version = self._changelog.version
        counts = self._store.counted_commits(self._group).__contains__
        now = alive(self._changelog.counted_rows(origin, version, counts)).num_rows
        after = alive(self._changelog.rows_before(origin, version, counts, offset=below)).num_rows
        return StateMove(below, now, after)

    def execute(self, change_offsets: Callable[[], None]) -> None:
        """Changes offsets and state. If it is interrupted, no job begins before a repeat.

        Args:
            change_offsets: Changes the offsets in the commit table, and ends the group's epoch.

        Raises:
            OutputNotWritten: The state is not set back in all partitions; repeat it.
            StateNotReadable: The same.
        """
        before = set(StateNote.of(self._store, self._group).resetting)
        self._note(left := before | set(self._origins))
        change_offsets()
        for tp, origin in self._origins.items():
            counted = self._store.counted_commits(self._group)
            self._changelog.set_back(
                origin, self.moves[tp].below, counted.__contains__, self._store.version()
            )
            left.discard(tp)
        self._note(left)

    def _note(self, left: set[TopicPartition]) -> None:
        note = StateNote(self._changelog.id, hidden(self._path), tuple(sorted(left)))
        note.write(self._store, self._group)
