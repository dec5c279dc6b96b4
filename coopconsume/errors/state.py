"""Errors of the state per key."""

from __future__ import annotations

from coopconsume.errors.base import DeclaredError


class StateNotReadable(DeclaredError):
    """The state, or a local store of it, cannot be read.

    Attributes:
        where: The path of the state, or of the local store.
        cause: Why not.
    """

    retriable = True
    message = "the state at {where} cannot be read ({cause}): check the path and the storage"

    where: str
    cause: str


class StateNeedsKey(DeclaredError):
    """A record without a key was given to a handler with state.

    Attributes:
        topic: The topic of the record.
        partition: Its partition.
        offset: Its offset.
    """

    message = (
        "{topic}-{partition}@{offset} has no key, so it has no state: give every record a key, or "
        "use foreach()"
    )

    topic: str
    partition: int
    offset: int


class StateAhead(DeclaredError):
    """The state has changes of records that are not committed any more.

    Somebody has set the offsets of the group back.

    Attributes:
        path: The path of the state.
        topic: The topic of such a record.
        partition: Its partition.
        offset: Its offset.
    """

    message = (
        "the state at {path} has a change by {topic}-{partition}@{offset}, which the group has not "
        "committed: its offsets were set back. Set the state back, too, with 'coopconsume offsets "
        "reset' and --restore-state or --clear-state"
    )

    path: str
    topic: str
    partition: int
    offset: int


class StateNotChosen(DeclaredError):
    """A reset of the offsets of a group with state does not say what becomes of the state.

    Attributes:
        group: The group.
        path: The path of the state.
    """

    message = (
        "group {group} has state at {path}, which does not follow its offsets: choose "
        "--restore-state (the state of the records below the new offset), --clear-state (no state) "
        "or --keep-state (no change; a job refuses a state that is ahead of its offsets), with "
        "--state PATH for another place"
    )

    group: str
    path: str


class ResetNotFinished(DeclaredError):
    """A reset of the offsets and the state of a group was interrupted.

    Attributes:
        group: The group.
        topic: The topic of a partition that is not finished.
        partition: Its partition.
    """

    message = (
        "a reset of the offsets and the state of group {group} was interrupted at "
        "{topic}-{partition}: repeat 'coopconsume offsets reset' with the same options; until then "
        "no job of the group with state begins"
    )

    group: str
    topic: str
    partition: int
