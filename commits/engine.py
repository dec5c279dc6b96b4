"""The interface of the tables that store the commit log."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa

from commits.errors import CommitLogUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from commits.entries import VersionEntry


class AppendConflict(Exception):
    """Nothing was written because of a concurrent compaction; try again."""


class TailGone(Exception):
    """Rows are no longer available although the storage answers: removed, or damaged."""


class Tail(NamedTuple):
    """The changes of a table in a range of versions.

    Attributes:
        rows: The appended rows with a column `_commit_version`, in any order.
        snapshot_of: The highest version with a snapshot of its state; -1 for none.
        disturbed_at: The last version in which another tool removed or restored rows (DELETE,
            RESTORE); -1 for none. Appended rows count nevertheless.
        repair_of: The version whose state the last repair replaced; -1 for none.
        aside: Entries by version whose rows are set aside and are not in `rows`.
    """

    rows: pa.Table = pa.table({})
    snapshot_of: int = -1
    disturbed_at: int = -1
    repair_of: int = -1
    aside: Mapping[int, VersionEntry] = {}


def tail_of(rows: pa.Table, entries: Mapping[int, VersionEntry]) -> Tail:
    """Return the changes of a table by its rows and the entries of its versions."""
    return Tail(
        rows,
        max(entry.snapshot_of for entry in entries.values()),
        max((version for version, entry in entries.items() if entry.disturbs), default=-1),
        max((entry.snapshot_of for entry in entries.values() if entry.repairs), default=-1),
    )


@contextmanager
def reading(target: str) -> Iterator[None]:
    """Report a lack of memory as an outage: it says nothing about the table.

    Args:
        target: The table.

    Raises:
        CommitLogUnavailable: If memory ends within the context.
    """
    try:
        yield
    except MemoryError as error:
        problem = "this process has no memory left to read it"
        raise CommitLogUnavailable(target, "read", problem) from error


class LogEngine(Protocol):
    """A table for appends and for reads from a version on.

    An engine is not thread-safe; only `tidy` and `vacuum` may run beside other calls. Every method
    raises `CommitLogUnavailable` while the storage does not answer. `TailGone` and
    `CorruptCommitLog` mean that the storage answers.
    """

    @property
    def target(self) -> str:
        """The table, for messages; without secrets."""

    @property
    def location(self) -> str:
        """The path or URI of the table's folder."""

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties of the table."""

    @property
    def version(self) -> int:
        """The newest known version."""

    def refresh(self, *, reopen: bool = False) -> int:
        """Look for newer versions.

        Args:
            reopen: Whether to discard all cached state of the table first.

        Returns:
            The newest version.
        """

    def append(
        self, rows: pa.Table, *, snapshot_of: int | None = None, is_synced: bool = True
    ) -> int:
        """Append rows.

        Args:
            rows: The rows.
            snapshot_of: For a snapshot, the version of its state.
            is_synced: Whether they outlast a loss of power, where the engine can choose.

        Returns:
            The version of the rows, or a later one.

        Raises:
            AppendConflict: If nothing was written; try again.
            CommitLogUnavailable: If it is not known whether they were written.
        """

    def maintain(self) -> None:
        """Do what keeps later calls fast. Errors are logged, and a later call tries again."""

    def tail(
        self, after: int, upto: int, is_aside: Callable[[Mapping[str, Any]], bool] | None = None
    ) -> Tail:
        """Return the rows appended in versions from `after` (excluded) to `upto` (included).

        Versions that also removed rows (compactions) are omitted.

        Args:
            after: The version before the first one.
            upto: The last version.
            is_aside: Whether the rows in an entry may be set aside; by default they may not. With
                it, rows of snapshots may be left out.

        Raises:
            TailGone: If rows are no longer available.
            CorruptCommitLog: If the version `after` was replaced since it was read.
        """

    def snapshots(self, version: int | None = None) -> pa.Table:
        """Return the rows of kind `snapshot` in a version, by default the newest.

        Returns:
            The rows with a column `_commit_version`.

        Raises:
            TailGone: If the rows are no longer available.
        """

    def compactions(self) -> list[int]:
        """Return the known versions that added a snapshot, newest first."""

    def replace(self, rows: pa.Table, *, at: int, closed: int | None) -> int:
        """Replace all rows of segments up to `closed` by `rows`, in one version.

        Args:
            rows: The new rows, a snapshot of version `at`.
            at: The version that contains all removed rows.
            closed: The last segment to remove; None for all segments (a repair).

        Returns:
            The new version.

        Raises:
            AppendConflict: If rows were added to or removed from those segments after `at`.
        """

    def last_append_ms(self) -> int | None:
        """Return the time of the last append by the writer's clock, in milliseconds since 1970.

        None if the last versions have no append, or if their entries cannot be read.
        """

    def tidy(self, upto: int) -> None:
        """Remove entries of the table's log that are older than its log retention.

        Args:
            upto: The version of a snapshot. Later entries are kept, whatever their age.
        """

    def vacuum(self, retention_hours: int | None = None) -> int:
        """Remove files that only old versions need; see `CommitStore.vacuum`.

        Returns:
            The number of removed files.

        Raises:
            CommitLogUnavailable: If it failed in part; no needed file is lost.
        """
