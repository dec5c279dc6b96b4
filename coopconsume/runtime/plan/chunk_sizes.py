"""How many offsets a slot of a job with chunks gets at once. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from coopconsume.runtime.plan.chunk_supply import with_tail
from coopconsume.runtime.plan.window import LARGEST_BYTES

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from coopconsume.worker.report import SlotReport

#: Offsets of a slot's first slice, per handler that it runs at once.
FIRST: Final = 100
#: Offsets of a slot that reads by itself, per handler, until it has shown its speed.
_FIRST_LIVE: Final = 2
#: Seconds of work in a slice, at most; less if ``batchTime`` is shorter.
SECONDS: Final = 4.0
#: How many times larger than the last slice the next one may be.
_GROWTH: Final = 100
_LARGEST: Final = 1_000_000
#: Seconds over which the speed of a slot that reads by itself is measured. One that is at work and
#: has handled nothing for so long is stuck.
_WINDOW: Final = 1.0


class ChunkSizes:
    """The sizes of slices: what a slot handles in some seconds, and what fits in memory.

    Args:
        slots: How many slots there are.
        concurrency: Handlers at once in a slot.
        batch_time: Seconds after which a batch starts no further handler.
        most: Offsets that a batch may span, over all slots; None: any number.
    """

    def __init__(self, slots: int, concurrency: int, batch_time: float, most: int | None) -> None:
        self._seconds = min(SECONDS, batch_time / 2)
        self._most = _LARGEST if most is None else max(1, most // slots)
        self._is_limited = most is not None
        self._slots = slots
        #: Since when slots that read by themselves are busy, and how much they have handled.
        self._windows: dict[int, tuple[float, int]] = {}
        #: When such slots last had nothing at work, or reported handled records.
        self._moved_at: dict[int, float] = {}
        #: The size of a slot that reads by itself until it has shown its speed.
        self._first = _FIRST_LIVE * concurrency
        self._measured: set[int] = set()
        self._sizes = dict.fromkeys(range(slots), min(self._most, FIRST * concurrency))

    def of(self, slot: int, window: int = 0) -> int:
        """Returns how many offsets a slot is to have at once.

        Args:
            slot: The slot.
            window: Offsets that a batch may span if no other member needs any of them, else 0. A
                slot that has not shown its speed gets its part of that.
        """
        size = self._sizes[slot]
        if slot in self._measured:
            return size
        return max(size, min(self._most, window // self._slots))

    def of_batch(self, slots: Sequence[int], there: int, window: int = 0) -> dict[int, int]:
        """Returns how many offsets each slot of a batch is to have: a tail is not left.

        Args:
            slots: The slots.
            there: How many acquired offsets there are for them.
            window: As for `of`.
        """
        sizes = {slot: self.of(slot, window) for slot in slots}
        total = max(1, sum(sizes.values()))
        if self._is_limited or there <= total or with_tail(total, there) == total:
            return sizes
        return {slot: -(-size * there // total) for slot, size in sizes.items()}

    def of_live(self, slot: int, now: float, *, is_at_work: bool) -> int:
        """Returns how many offsets a slot is to have that reads by itself.

        One that is stuck gets no more of what others could handle.

        Args:
            slot: The slot.
            now: The time, on the monotonic clock.
            is_at_work: Whether it has read records that are not done.
        """
        if not is_at_work:
            self._moved_at[slot] = now
        if now - self._moved_at.setdefault(slot, now) > _WINDOW:
            return 0
        return self._live(slot)

    def total(self, window: int = 0, without: Collection[int] = ()) -> int:
        """Returns how many offsets all slots but some are to have at once.

        Args:
            window: As for `of`.
            without: Slots that do not count.
        """
        return sum(self.of(slot, window) for slot in self._sizes if slot not in without)

    def progressed(self, slot: int, handled: int, now: float, *, is_busy: bool) -> None:
        """Takes a progressive report of a slot that reads by itself.

        Args:
            slot: The slot.
            handled: Records in the report.
            now: The time, on the monotonic clock.
            is_busy: Whether it has records left.
        """
        if handled:
            self._moved_at[slot] = now
        size, window = self._live(slot), self._windows.pop(slot, None)
        if window is None:
            # Of the first report it is not known how long it took.
            if is_busy:
                self._windows[slot] = now, 0
            fits = 2 * size if 2 * handled >= size and not is_busy else 0
        else:
            since, count = window[0], window[1] + handled
            took = max(now - since, 0.001)
            if is_busy and took < _WINDOW:
                self._windows[slot] = since, count
                return
            fits = int(self._seconds * count / took)
            if is_busy:
                self._windows[slot] = now, 0
        if fits > size or (window is not None and is_busy):
            self._sizes[slot] = max(1, min(fits, size * _GROWTH, self._most))
            self._measured.add(slot)

    def _live(self, slot: int) -> int:
        size = self._sizes[slot]
        return size if slot in self._measured else min(size, self._first)

    def reported(self, report: SlotReport, handled: int) -> None:
        """Takes the final report of a slot.

        Args:
            report: The report.
            handled: Handler calls in all reports of the slot in its batch.
        """
        looked = handled + report.stats.filtered
        if not looked or report.stats.busy <= 0:
            return
        most = self._most
        if report.stats.rows and report.stats.value_bytes:
            bytes_each = report.stats.value_bytes / report.stats.rows
            most = min(most, max(1, int(LARGEST_BYTES / self._slots / bytes_each)))
        fits = int(self._seconds * looked / report.stats.busy)
        slot = report.slot
        self._sizes[slot] = max(1, min(fits, max(self._sizes[slot], looked) * _GROWTH, most))
        self._measured.add(slot)
