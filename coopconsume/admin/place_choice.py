"""A filter of records by their position (pure)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PlaceChoice:
    """A filter of records by their position; a condition that is None matches all.

    Attributes:
        topic, partition: The topic and partition.
        first, last: The offsets, both included.
    """

    topic: str | None = None
    partition: int | None = None
    first: int | None = None
    last: int | None = None

    def takes_place(self, topic: str, partition: int, offset: int) -> bool:
        """Returns whether a position matches."""
        return (
            self.topic in (None, topic)
            and self.partition in (None, partition)
            and (self.first is None or offset >= self.first)
            and (self.last is None or offset <= self.last)
        )
