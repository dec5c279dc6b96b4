"""The protocol of a store of the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coopconsume.fenced.ownership.model import Entry, Key, Row


class OwnershipStore(Protocol):
    """Rows that change by conditional updates only, all rows of an update or none; one thread."""

    @property
    def place(self) -> str:
        """Where it is, for messages; without secrets."""

    def rows(self) -> Mapping[Key, Row]:
        """Returns all rows, with all changes that were written before the call.

        Raises:
            OwnershipUnavailable: The store cannot be reached.
            OwnershipFormat: It contains something else.
        """

    def swap(self, rows: Sequence[Row], entries: Sequence[Entry]) -> bool:
        """Replaces rows by their next revisions, all or none, and adds to the history.

        A row is replaced only if the store has the revision before it; for revision 1, only if it
        has no row.

        Args:
            rows: The rows, of different keys.
            entries: The entries of the history.

        Returns:
            Whether they were replaced. False may also mean that this is not known: read again.

        Raises:
            OwnershipUnavailable: The store cannot be reached; the outcome is not known.
        """

    def history(self, key: Key) -> Sequence[Entry]:
        """Returns the history of a resource, oldest first."""

    def wait(self, seconds: float) -> None:
        """Returns when something may have changed, or after some seconds."""

    def close(self) -> None:
        """Closes the connections; harmless when repeated."""
