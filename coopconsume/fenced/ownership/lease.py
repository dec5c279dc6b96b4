"""Failure detection: a holder is dead if its counter did not change for its lease.

No clocks are compared. An observer measures on its own monotonic clock how long it has seen the
same counter. A holder that is only slow is then fenced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from coopconsume.fenced.ownership.model import Key, Row, Session


class Observer:
    """Remembers since when the counter of each holder has not changed."""

    def __init__(self) -> None:
        self._seen: dict[Key, dict[Session, tuple[int, float]]] = {}

    def look(self, rows: Iterable[Row], now: float) -> list[tuple[Key, Session, int]]:
        """Returns the dead holders of rows: the row, the session and its unchanged counter."""
        return [dead for row in rows for dead in self._look_at(row, now)]

    def _look_at(self, row: Row, now: float) -> Iterator[tuple[Key, Session, int]]:
        before = self._seen.get(row.key, {})
        seen = self._seen[row.key] = {}
        for held in row.holders:
            heartbeat, since = before.get(held.session, (held.heartbeat, now))
            if heartbeat != held.heartbeat:
                since = now
            seen[held.session] = held.heartbeat, since
            if held.lease_ms and 1000 * (now - since) >= held.lease_ms:
                yield row.key, held.session, held.heartbeat


def check_lease(lease: float) -> None:
    """Checks a lease before connections are opened for it.

    Raises:
        ValueError: If it is negative.
    """
    if not lease >= 0:
        raise ValueError(f"lease must be 0 or more seconds, not {lease}")
