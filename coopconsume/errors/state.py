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
        "committed: its offsets were set back. Set the offsets forward again, or give another path "
        "for a new state"
    )

    path: str
    topic: str
    partition: int
    offset: int
