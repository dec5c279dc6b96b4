"""Failure detection: a holder is dead if its counter stood still for its lease, as one saw it.

No clocks are compared: an observer measures on its own monotonic clock for how long it has seen the
same counter. It may be wrong, as the holder may only be slow; then the holder is fenced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from coopconsume.fenced.ownership.model import Key, Row, Session


class Observer:
    """Remembers since when each holder's counter has stood still."""

    def __init__(self) -> None:
        self._seen: dict[Key, dict[Session, tuple[int, float]]] = {}

    def look(self, rows: Iterable[Row], now: float) -> list[tuple[Key, Session, int]]:
        """Looks at rows.

        Returns:
            The dead holders: the row, the session, and the counter that stood still.
        """
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
    """Makes sure that a lease is one, before connections are opened for it.

    Raises:
        ValueError: If it is negative.
    """
    if not lease >= 0:
        raise ValueError(f"lease must be 0 or more seconds, not {lease}")
