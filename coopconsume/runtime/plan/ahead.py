"""How many offsets beyond the end of a log a job with chunks acquires in real time. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Seconds of records that a job has acquired ahead, as far as it handles that many.
SECONDS: Final = 1.0
#: Offsets of a partition that it has acquired ahead, at most.
_MOST: Final = 1_000_000


@dataclass
class _Window:
    """Offsets that slots got of a partition since an instant, and in the window before that."""

    since: float
    count: int = 0
    before: int = 0


class AheadSizes:
    """How many offsets a job holds beyond the end of each log.

    That many come in some time, as far as this job handles them, and at least two for each handler:
    one in a slot, and one that replaces it.

    Args:
        slots: How many slots there are.
        concurrency: Handlers at once in a slot.
    """

    def __init__(self, slots: int, concurrency: int) -> None:
        self._slots = slots
        self._concurrency = concurrency
        self._windows: dict[int, _Window] = {}

    def of(self, index: int, now: float) -> int:
        """Returns how many offsets of a partition the job is to hold ahead."""
        window = self._window(index, now)
        least = 2 * self._slots * self._concurrency
        return max(least, min(_MOST, max(window.count, window.before)))

    def slice_of(self, index: int, now: float) -> int:
        """Returns how many of them one slot is to have."""
        return max(self._concurrency, self.of(index, now) // (2 * self._slots))

    def handed_out(self, index: int, count: int, now: float) -> None:
        """Notes that slots got offsets of a partition."""
        self._window(index, now).count += count

    def forget(self) -> None:
        """Forgets all partitions: the epoch has ended."""
        self._windows.clear()

    def _window(self, index: int, now: float) -> _Window:
        window = self._windows.setdefault(index, _Window(now))
        if now - window.since >= SECONDS:
            is_next = now - window.since < 2 * SECONDS
            window = self._windows[index] = _Window(now, before=window.count if is_next else 0)
        return window
