"""What the registry needs of a place that keeps its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from coopconsume.fenced.ownership.model import Entry, Key, Row


class OwnershipStore(Protocol):
    """Rows that change only by conditional update, several at once or none; for one thread."""

    @property
    def place(self) -> str:
        """Where it is, for messages; without secrets."""

    def rows(self) -> Mapping[Key, Row]:
        """All rows, as new as anything that was written before the call.

        Raises:
            OwnershipUnavailable: If the place cannot be reached.
            OwnershipFormat: If it holds something else.
        """

    def swap(self, rows: Sequence[Row], entries: Sequence[Entry]) -> bool:
        """Puts rows in place of their earlier revisions, all or none, with lines of history.

        A row may be put if what is there is the revision before it; for the first revision, if
        there is nothing.

        Args:
            rows: The rows, of different keys.
            entries: What goes into the history with them.

        Returns:
            Whether they were put. False may also mean that it is not known: look, and decide again.

        Raises:
            OwnershipUnavailable: If the place cannot be reached; whether they were put is not
                known.
        """

    def history(self, keys: Iterable[Key] | None = None) -> Sequence[Entry]:
        """Lines of history, by group and resource, of each oldest first; of some, or of all."""

    def wait(self, seconds: float) -> None:
        """Returns when something may have changed, or after some seconds."""

    def close(self) -> None:
        """Gives connections back; harmless when repeated."""
