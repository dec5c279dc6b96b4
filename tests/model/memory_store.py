"""An ownership store in memory that several registries share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from coopconsume.fenced.ownership.model import Key, OwnershipEvent, Row


@dataclass
class Memory:
    """The rows, as all stores on them see them."""

    rows: dict[Key, Row] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class MemoryStore:
    """An `OwnershipStore` on shared rows.

    Args:
        memory: The rows.
        before_swap: Called before each change, as where a request takes long.
    """

    memory: Memory
    before_swap: Callable[[], None] = lambda: None
    place: str = "memory"

    def rows(self) -> Mapping[Key, Row]:
        """All rows."""
        with self.memory.lock:
            return dict(self.memory.rows)

    def swap(self, rows: Sequence[Row], entries: Sequence[OwnershipEvent]) -> bool:
        """Puts rows in place of the revisions before them, all or none."""
        self.before_swap()
        with self.memory.lock:
            if not all(row.follows(self.memory.rows.get(row.key)) for row in rows):
                return False
            self.memory.rows |= {row.key: row for row in rows}
            return True

    def history(self, key: Key) -> Sequence[OwnershipEvent]:
        """Nothing is kept."""
        return []

    def wait(self, seconds: float) -> None:
        """Returns at once."""

    def close(self) -> None:
        """Nothing to close."""
