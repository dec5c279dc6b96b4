"""How far the commit log has grown since its last snapshot, and what that has made removable."""

from __future__ import annotations

from typing import NamedTuple


class Since(NamedTuple):
    """The number and size in bytes of appends since the last snapshot."""

    commits: int
    size: int


class LogGrowth(NamedTuple):
    """How far the log has grown since the last snapshot.

    Attributes:
        appends: The number of appends of all writers.
        size: Their bytes, of uncompressed rows.
        due: How much of the limit at which a snapshot is due; above 1 it is late.
    """

    appends: int
    size: int
    due: float


class Removable(NamedTuple):
    """What a snapshot has made removable.

    Attributes:
        upto: The version up to which entries of the table's log may go.
        has_files: Whether files of removed rows are removed as well.
    """

    upto: int
    has_files: bool
