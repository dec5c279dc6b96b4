"""The registry's rows as a fold of a Kafka log: a change counts if it follows on what is there.

A change contains whole rows, each with its next revision. It counts if all rows have their next
revision at its place in the log; else it is ignored. So a claimant appends its decision, reads the
log up to it, and sees whether it counts. No locks are needed, and a change that is written twice or
late does no harm. Other records are ignored, so that no other writer to the topic stops the
registry.

A snapshot consists of as many records as its size needs. It counts once all of them are there.
"""

from __future__ import annotations

import uuid
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from coopconsume.errors.fenced import OwnershipFormat
from coopconsume.fenced.ownership import wire

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coopconsume.fenced.ownership.model import Key, OwnershipEvent, Row

_KEPT = 100
"""Entries of the history of a resource that a snapshot keeps."""
_PART_BYTES = 500_000
"""Approximate size of a record of a snapshot; one row or entry is never split."""
MOST_FINDINGS = 20
"""Ignored records that are named."""


def change(change_id: str, rows: Sequence[Row], entries: Sequence[OwnershipEvent]) -> bytes:
    """Returns a change as the value of a record."""
    found = wire.Change(change_id, tuple(rows), tuple(entries))
    return wire.dumps({"format": wire.FORMAT, "kind": "change"} | asdict(found))


class OwnershipFold:
    """Folds a log from its first record that is kept.

    Above offset 0, a snapshot must contain all records before it.

    Attributes:
        is_whole: Whether all records before the first offset are known.
        passed_over: Number of records of other writers.
        findings: Offsets of the first of them, and what is wrong with each.
    """

    def __init__(self, place: str, start: int = 0) -> None:
        self.rows: dict[Key, Row] = {}
        self.next_offset = self._start = start
        self.is_whole = start == 0
        self.history: dict[Key, list[OwnershipEvent]] = {}
        self._place = place
        self.passed_over = 0
        self.findings: list[tuple[int, str]] = []
        self._early: list[tuple[int, wire.Change]] = []
        self._parts: dict[str, dict[int, wire.Snapshot]] = {}

    def take(self, offset: int, value: bytes | None) -> str | None:
        """Folds one record; returns the id of the change, if it counts.

        A record of a newer version of this library is an `OwnershipFormat`.
        """
        self.next_offset = offset + 1
        try:
            document = wire.loads(self._place, value)
            kind = wire.Snapshot if document.pop("kind", "") == "snapshot" else wire.Change
            found = wire.parsed(kind, self._place, document)
        except OwnershipFormat as error:
            if wire.is_newer(value):
                raise
            self.passed_over += 1
            if len(self.findings) < MOST_FINDINGS:
                self.findings.append((offset, f"found {error.found}, expected {error.expected}"))
            return None
        if isinstance(found, wire.Snapshot):
            if not self.is_whole:
                self._collect(found)
        elif self.is_whole:
            return self._apply(found)
        else:
            self._early.append((offset, found))
        return None

    def salvage(self) -> None:
        """Uses the last change of each row in a log whose start is missing."""
        early, self._early, self.is_whole = self._early, [], True
        for _, later in early:
            self._put(later)

    def snapshot(self, part_bytes: int = _PART_BYTES) -> list[bytes]:
        """Returns records of a bounded size that replace the log up to here."""
        entries = [entry for some in self.history.values() for entry in some[-_KEPT:]]
        plain = [("rows", asdict(row)) for row in self.rows.values()]
        plain += [("entries", asdict(entry)) for entry in entries]
        parts: list[dict[str, list[Any]]] = [{"rows": [], "entries": []}]
        size = 0
        for kind, item in plain:
            length = len(wire.dumps(item))
            if size and size + length > part_bytes:
                parts.append({"rows": [], "entries": []})
                size = 0
            parts[-1][kind].append(item)
            size += length
        head = {
            "format": wire.FORMAT, "kind": "snapshot", "id": uuid.uuid4().hex,
            "upto": self.next_offset, "parts": len(parts),
        }  # fmt: skip
        return [wire.dumps(head | {"part": i} | part) for i, part in enumerate(parts)]

    def _collect(self, part: wire.Snapshot) -> None:
        """Uses a snapshot once it is complete, if it covers all records before the first offset."""
        parts = self._parts.setdefault(part.id, {})
        if part.part < part.parts:
            parts[part.part] = part
        if part.upto < self._start or len(parts) < part.parts:
            return
        early, self._early, self._parts, self.is_whole = self._early, [], {}, True
        for number in sorted(parts):
            self._put(parts[number])
        for offset, later in early:
            if offset >= part.upto:
                self._apply(later)

    def _apply(self, found: wire.Change) -> str | None:
        if not all(row.follows(self.rows.get(row.key)) for row in found.rows):
            return None
        self._put(found)
        return found.id

    def _put(self, found: wire.Change) -> None:
        self.rows.update((row.key, row) for row in found.rows)
        for entry in found.entries:
            self.history.setdefault((entry.group, entry.resource), []).append(entry)
