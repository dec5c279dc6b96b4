"""What the store needs of a place that keeps its log."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["AppendConflict", "LogEngine", "Tail", "TailGone"]


class AppendConflict(Exception):
    """Nothing was written, as a compaction landed since the engine last looked; try again."""


class TailGone(Exception):
    """Rows are no longer available although the storage answers: removed, or damaged."""


class Tail(NamedTuple):
    """What happened to a table in some of its versions.

    Attributes:
        rows: The rows that were appended, with a column `_commit_version`, in any order.
        snapshot_of: The highest version of which a snapshot was written; -1 for none.
        disturbed_at: The last version in which others took rows out of the table, or put them back
            in (DELETE, RESTORE); -1 for none. What was appended counts all the same.
        repair_of: The version that the last repair put another state in the place of; -1 for none.
    """

    rows: pa.Table = pa.table({})
    snapshot_of: int = -1
    disturbed_at: int = -1
    repair_of: int = -1


class LogEngine(Protocol):
    """A table that is appended to, and read from a version on.

    One thread at a time may use an engine. Every method raises `CommitLogUnavailable` while the
    storage does not answer; `TailGone` and `CorruptCommitLog` mean that it answers.
    """

    @property
    def target(self) -> str:
        """The table, for messages; without secrets."""

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties of the table."""

    @property
    def version(self) -> int:
        """The newest version the engine knows of."""

    def refresh(self, *, reopen: bool = False) -> int:
        """Looks for newer versions.

        Args:
            reopen: Whether to forget everything that is known about the table first.

        Returns:
            The newest version.
        """

    def append(self, rows: pa.Table, *, snapshot_of: int | None = None) -> int:
        """Appends rows.

        Args:
            rows: The rows.
            snapshot_of: The version they are a snapshot of, if they are one.

        Returns:
            The version they became, or a later one.

        Raises:
            AppendConflict: If nothing was written and it should be tried again.
            CommitLogUnavailable: If it is not known whether they were written.
        """

    def tail(self, after: int, upto: int) -> Tail:
        """What was appended after a version, up to and with another one.

        Rows of versions that also removed rows (compactions) are not among it.

        Raises:
            TailGone: If some of it is not to be had any more.
            CorruptCommitLog: If the version `after` is not the one that was read before.
        """

    def snapshots(self, version: int | None = None) -> pa.Table:
        """The rows of kind `snapshot` in a version, by default the newest.

        Returns:
            The rows with a column `_commit_version`.

        Raises:
            TailGone: If they are not to be had any more.
        """

    def compactions(self) -> list[int]:
        """The versions that brought a snapshot, as far as they are known; the newest first."""

    def replace(self, rows: pa.Table, *, at: int, closed: int | None) -> int:
        """Removes all rows of segments up to `closed` and adds `rows`, in one version.

        Args:
            rows: What takes their place, a snapshot of version `at`.
            at: The version all removed rows must be part of.
            closed: The last segment to remove; None for all of them, as a repair.

        Returns:
            The version it became.

        Raises:
            AppendConflict: If rows were added to or removed from those segments after `at`.
        """

    def last_append_ms(self) -> int | None:
        """When something was last appended, by the writer's clock, in milliseconds since 1970.

        None if nothing was in the last versions, or if their entries cannot be read.
        """

    def tidy(self, upto: int) -> None:
        """Removes entries of the table's own log that are older than its log retention.

        Args:
            upto: The version that a snapshot holds: later entries stay, however old they are.
        """

    def vacuum(self, retention_hours: int | None = None) -> int:
        """Removes files that only old versions need; see `CommitStore.vacuum`.

        Returns:
            How many.

        Raises:
            CommitLogUnavailable: If it failed half-way; nothing that counts is lost by that.
        """
