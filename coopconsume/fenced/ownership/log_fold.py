"""The registry's rows as a fold of a Kafka log: a change counts if it follows on what is there.

A change carries whole rows, each with its next revision. It counts if all of them are the next ones
at its place in the log, else it counts as never written. So a claimant appends what it decided,
reads the log up to there, and sees whether it was first: nothing has to be locked, and a change
that is written twice or too late does no harm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coopconsume.fenced.errors import OwnershipFormat
from coopconsume.fenced.ownership import wire

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coopconsume.fenced.ownership.model import Entry, Key, Row

__all__ = ["OwnershipFold", "change"]

_KEPT = 100
"""Lines of history of a resource that outlive a snapshot."""


def change(change_id: str, rows: Sequence[Row], entries: Sequence[Entry]) -> bytes:
    """A change as it is written."""
    return wire.dumps(
        {
            "format": wire.FORMAT,
            "kind": "change",
            "id": change_id,
            "rows": [wire.plain_row(row) for row in rows],
            "entries": [wire.plain_entry(entry) for entry in entries],
        }
    )


class OwnershipFold:
    """Takes in a log from wherever it begins now.

    Args:
        place: Where the log is, for messages.

    Attributes:
        rows: What holds after what was taken in.
        next_offset: Where to go on.
    """

    def __init__(self, place: str) -> None:
        self.rows: dict[Key, Row] = {}
        self.next_offset = 0
        self._place = place
        self._entries: dict[Key, list[Entry]] = {}
        self._early: list[tuple[int, dict[str, Any]]] = []
        self._start = 0

    def begin(self, offset: int) -> None:
        """Says where the log begins: from above 0 a snapshot must tell what was before."""
        self._start = self.next_offset = offset

    @property
    def is_whole(self) -> bool:
        """Whether what was before the log's beginning is known."""
        return self._start == 0

    def take(self, offset: int, value: bytes | None) -> str | None:
        """Takes in one record.

        Returns:
            The id of the change, if it counts.

        Raises:
            OwnershipFormat: If it is none of ours.
        """
        found = wire.loads(self._place, value)
        self.next_offset = offset + 1
        if found["kind"] == "snapshot":
            self._restore(found)
            return None
        if not self.is_whole:
            self._early.append((offset, found))
            return None
        return self._apply(found)

    def entries(self) -> list[Entry]:
        """The history, by group and resource, of each oldest first."""
        return [entry for key in sorted(self._entries) for entry in self._entries[key]]

    def snapshot(self) -> bytes:
        """All that was taken in, to stand for the log up to here."""
        entries = [entry for key in sorted(self._entries) for entry in self._entries[key][-_KEPT:]]
        return wire.dumps(
            {
                "format": wire.FORMAT,
                "kind": "snapshot",
                "upto": self.next_offset,
                "rows": [wire.plain_row(row) for row in self.rows.values()],
                "entries": [wire.plain_entry(entry) for entry in entries],
            }
        )

    def _restore(self, found: dict[str, Any]) -> None:
        """Uses a snapshot if something before the log's beginning is missing, and it tells that."""
        if self.is_whole or found["upto"] < self._start:
            return
        self._start = 0
        early, self._early = self._early, []
        for row in self._rows(found):
            self.rows[row.key] = row
        self._note(found)
        for offset, later in early:
            if offset >= found["upto"]:
                self._apply(later)

    def _apply(self, found: dict[str, Any]) -> str | None:
        rows = self._rows(found)
        for row in rows:
            known = self.rows.get(row.key)
            if row.revision != (0 if known is None else known.revision) + 1:
                return None
        self.rows.update((row.key, row) for row in rows)
        self._note(found)
        change_id: str = found["id"]
        return change_id

    def _rows(self, found: dict[str, Any]) -> list[Row]:
        try:
            return [wire.row_of(self._place, row) for row in found["rows"]]
        except (KeyError, TypeError):
            raise OwnershipFormat(self._place, "a change without rows", "rows") from None

    def _note(self, found: dict[str, Any]) -> None:
        for line in found["entries"]:
            entry = wire.entry_of(self._place, line)
            self._entries.setdefault((entry.group, entry.resource), []).append(entry)
