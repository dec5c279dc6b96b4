"""What the store needs of a place that keeps its log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

__all__ = ["AppendConflict", "LogEngine", "TailGone"]


class AppendConflict(Exception):
    """Nothing was written, as a compaction landed since the engine last looked; try again."""


class TailGone(Exception):
    """Rows are not to be had any more: cleaned away after a compaction, or damaged."""


class LogEngine(Protocol):
    """A table that is appended to, and read from a version on.

    One thread at a time may use an engine.
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

    def append(self, rows: pa.Table) -> int:
        """Appends rows.

        Returns:
            The version they became, or a later one.

        Raises:
            AppendConflict: If nothing was written and it should be tried again.
            CommitLogUnavailable: If it is not known whether they were written.
        """

    def tail(self, after: int, upto: int) -> pa.Table:
        """The rows that were appended after a version, up to and with another one.

        Returns:
            The rows with a column `_commit_version`, in any order. Rows of versions that also
            removed rows (compactions) are not among them.

        Raises:
            TailGone: If some of them are not to be had any more.
        """

    def snapshots(self) -> pa.Table:
        """The rows of kind `snapshot` in the newest version, with a column `_commit_version`."""

    def replace(self, rows: pa.Table, *, at: int, closed: int) -> int:
        """Removes all rows of segments up to `closed` and adds `rows`, in one version.

        Args:
            rows: What takes their place, in segment `closed`.
            at: The version all removed rows must be part of.
            closed: The last segment to remove.

        Returns:
            The version it became.

        Raises:
            AppendConflict: If rows were added to or removed from those segments after `at`.
        """

    def tidy(self) -> None:
        """Removes what only old versions needed, as the table's retention allows."""
