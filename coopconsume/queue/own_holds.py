"""The holds of one consumer. Pure: the caller passes the time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coopconsume.queue.rows import minus, union, without
from coopconsume.queue.timing import MARGIN

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from commits import OffsetRanges
    from coopconsume.queue.rows import Offsets


class OwnHolds:
    """What a consumer holds, until the whole durations of its holds are over.

    A grant adds a hold, a renewal replaces what it has renewed, an acknowledgement removes its
    offsets, and the time ends it. A hold is used for a part of its duration only (`MARGIN`).

    Args:
        seconds: The duration of a hold.

    Attributes:
        seconds: The duration of a hold.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._held: list[tuple[float, Offsets]] = []

    def usable_until(self, now: float) -> float:
        """Return until when a hold may be used whose first row is written at a time."""
        return now + self.seconds * (1 - MARGIN)

    def add(self, until: float, offsets: Offsets) -> None:
        """Add a hold that may be used until a time; it lasts for the margin longer."""
        self._held.append((until + self.seconds * MARGIN, offsets))

    def renew(self, until: float, offsets: Offsets) -> None:
        """Replace the holds of some offsets by one that may be used until a time."""
        self.remove(offsets)
        self.add(until, offsets)

    def remove(self, offsets: Offsets) -> None:
        """Remove offsets: they were acknowledged."""
        self._held = [(end, minus(held, offsets)) for end, held in self._held]

    def forget(self, partitions: Collection[int]) -> None:
        """Forget partitions whose log was replaced."""
        self._held = [(end, without(held, partitions)) for end, held in self._held]

    def of(self, partition: int, now: float) -> list[OffsetRanges]:
        """Return the offsets of a partition that are held at a time, by hold."""
        return [held[partition] for end, held in self._held if end > now and partition in held]

    def end(self, now: float, kept: Iterable[Mapping[int, OffsetRanges]]) -> Offsets:
        """End the holds whose durations are over.

        Args:
            now: The time.
            kept: Offsets that were acknowledged, and are not ended here.

        Returns:
            The offsets that are held no more.
        """
        ended: Offsets = {}
        for end, offsets in self._held:
            if end <= now:
                ended = union(ended, offsets)
        self._held = [(end, offsets) for end, offsets in self._held if end > now and offsets]
        for _, offsets in self._held:
            ended = minus(ended, offsets)
        for acknowledged in kept:
            ended = minus(ended, acknowledged)
        return ended
