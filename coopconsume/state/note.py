"""What the commit table notes of a group's state: its table, and whether the group has one.

The setting ``state:GROUP`` has the id of the table of changes, which stays the same however its
path is spelt, and changes if the table is made again. An empty id: the records of the group are
processed without state. No job and no poll of the group begins with another state than the noted
one. Only ``coopconsume state switch`` lets the next one begin with any, and notes that.

Notes of earlier versions have a path alone, and a table was made with the first change of the
state. A table that is not there may have been removed, so the group is refused. Groups without a
note that have committed records have processed them without state.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commits.secrets import hidden
from coopconsume.errors import CoopConsumeError, GroupRefused, ResetNotFinished
from coopconsume.state.changelog import Changelog

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commits import CommitStore

_NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True)
class StateNote:
    """The note of a group's state.

    Attributes:
        id: The id of its table; empty: the group has no state; None: it is not known.
        path: Its path, without secrets; None: it is not known.
        resetting: Topics and partitions whose reset has begun.
        any_next: Whether the next job or poll may begin with any state, or without one.
        is_started: Whether records count as processed, whatever was committed: the group goes on
            from another consumer's offsets.
    """

    id: str | None = None
    path: str | None = None
    resetting: tuple[tuple[str, int], ...] = ()
    any_next: bool = False
    is_started: bool = False

    @classmethod
    def of(cls, store: CommitStore, group: str) -> StateNote:
        """Reads the note of a group."""
        found = store.settings().get(f"state:{group}", _NOTHING)
        return cls(
            found.get("id"),
            found.get("path"),
            tuple((topic, partition) for topic, partition in found.get("resetting", ())),
            found.get("any_next", False),
            found.get("is_started", False),
        )

    def write(self, store: CommitStore, group: str) -> None:
        """Writes it."""
        value = {
            "id": self.id, "path": self.path, "resetting": [list(one) for one in self.resetting],
            "any_next": self.any_next, "is_started": self.is_started,
        }  # fmt: skip
        given = {name: one for name, one in value.items() if one not in (None, [], False)}
        store.set_setting(f"state:{group}", given)


def begin_with_state(
    store: CommitStore, group: str, cluster: str, member: str, changelog: Changelog | None
) -> None:
    """Makes sure that a job or a poll begins with the state of its group, and notes it.

    Args:
        store: The commit store.
        group: The group.
        cluster: The id of the Kafka cluster.
        member: Who begins. As long as nothing is committed, a member that is alone in its group
            may begin with another state.
        changelog: The state; it is created if it may be. None: the group keeps no state.

    Raises:
        GroupRefused: The group has another state, or none; or its state is missing.
        ResetNotFinished: A reset of the group's offsets and state was interrupted.
        OutputNotWritten: The table cannot be created.
        StateNotReadable, TableUnusable: As for `check_state`.
    """
    is_alone = not _others_at_work(store, group, member)
    note = check_state(store, group, cluster, changelog, may_change=is_alone)
    if changelog is None:
        mine = StateNote("")
        if note.id == "" or (note == StateNote() and _has_committed(store, group)):
            return
    else:
        changelog.create()
        mine = StateNote(changelog.id, hidden(changelog.path))
    if mine != note:
        mine.write(store, group)
        # Of two that note at the same time, the later one counts. Another member may also have
        # created the table meanwhile, with another schema.
        check_state(store, group, cluster, changelog, may_change=False)


def check_state(
    store: CommitStore,
    group: str,
    cluster: str,
    changelog: Changelog | None,
    *,
    may_change: bool = True,
) -> StateNote:
    """Makes sure that a state is that of its group; returns the note.

    Args:
        store: The commit store.
        group: The group.
        cluster: The id of the Kafka cluster.
        changelog: The state; None: the group keeps no state.
        may_change: Whether the state may be another one as long as nothing is committed.

    Raises:
        GroupRefused: It is not, or it is missing.
        ResetNotFinished: A reset of the group's offsets and state was interrupted.
        StateNotReadable: The state cannot be read.
        TableUnusable: It has another schema, or belongs to another group.
    """
    note = StateNote.of(store, group)
    if changelog is not None:
        if note.resetting:
            raise ResetNotFinished(group, *note.resetting[0])
        changelog.belong_to(f"{cluster}/{group}")
    path = None if changelog is None else hidden(changelog.path)
    mine = "" if changelog is None else changelog.id or None
    if note.any_next:
        return note
    noted = note.id
    if note.path is not None and noted is None:
        # A note of an earlier version: the table at its path is meant.
        noted = mine if path == note.path else _id_at(note.path)
        is_same = mine is not None and mine == noted
    elif noted is None:
        has_committed = _has_committed(store, group)
        if changelog is not None and not has_committed and changelog.origins():
            raise GroupRefused(group, _unknown_changes(group, changelog.path))
        noted = "" if has_committed else None
        is_same = mine == "" or not has_committed
    else:
        is_same = mine == noted
    if is_same or (may_change and not note.is_started and not _has_committed(store, group)):
        return note
    raise GroupRefused(group, _refusal(group, mine, path, noted, note.path))


def note_start_elsewhere(store: CommitStore, group: str) -> None:
    """Notes that a group goes on from another consumer's offsets, if no state is noted.

    The records below were processed without state.
    """
    if StateNote.of(store, group) == StateNote():
        StateNote("", is_started=True).write(store, group)


def _others_at_work(store: CommitStore, group: str, member: str) -> set[str]:
    rows = [*store.claims(group), store.assignment(group)]
    live = [row.members.keys() - row.fenced.keys() - row.heirs.keys() for row in rows if row]
    return set().union(*live) - {member}


def _has_committed(store: CommitStore, group: str) -> bool:
    return len(store.counted_commits(group)) > 0


def _id_at(path: str) -> str | None:
    with suppress(CoopConsumeError):
        return Changelog(path).id
    return None


def _unknown_changes(group: str, path: str) -> str:
    return (
        f"the state at {hidden(path)} has changes by commits that this commit table does not know, "
        "so they would not count: use the commit table that it was kept with, or give the state "
        "another path; to begin with what its last snapshot has, stop all members and run "
        f"'coopconsume state switch {group} --execute'"
    )


def _refusal(
    group: str, mine: str | None, path: str | None, noted: str | None, noted_path: str | None
) -> str:
    if path is None:
        found = "it keeps no state"
    elif mine is None:
        found = f"its state at {path} is missing"
    else:
        found = f"it keeps the state at {path} (table {mine})"
    if noted_path is None:
        known, remedy = "the records of the group were processed without state", "keep none"
    elif mine is None and noted is None and path == noted_path:
        # An earlier version made the table with the first change.
        known = "which an earlier version has noted: it was removed, or no record has changed it"
        remedy = "if it was removed or its disk is away, restore it"
    else:
        known = f"that of the group is at {noted_path} (table {noted or 'not known'})"
        remedy = "use foreach_with_state with that one"
    return (
        f"{found}, {known}: {remedy}; to begin with another state, an empty one or none, stop all "
        f"members and run 'coopconsume state switch {group} --execute'"
    )
