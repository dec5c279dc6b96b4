"""How many offsets a slot of a cooperative job gets at once. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from coopconsume.runtime.window import LARGEST_BYTES

if TYPE_CHECKING:
    from coopconsume.worker.report import SlotReport

#: Offsets of a slot's first slice, per handler that it runs at once.
FIRST: Final = 100
#: Seconds of work in a slice, at most; less if ``batchTime`` is shorter.
SECONDS: Final = 4.0
#: How many times larger than the last slice the next one may be.
_GROWTH: Final = 100
_LARGEST: Final = 1_000_000


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
        self._slots = slots
        self._sizes = dict.fromkeys(range(slots), min(self._most, FIRST * concurrency))

    def of(self, slot: int) -> int:
        """Returns how many offsets a slot is to have at once."""
        return self._sizes[slot]

    @property
    def total(self) -> int:
        """Returns how many offsets all slots are to have at once."""
        return sum(self._sizes.values())

    def reported(self, report: SlotReport, handled: int) -> None:
        """Takes the final report of a slot.

        Args:
            report: The report.
            handled: Handler calls in all reports of the slot in its batch.
        """
        looked = handled + report.filtered
        if not looked or report.busy <= 0:
            return
        most = self._most
        if report.rows and report.value_bytes:
            bytes_each = report.value_bytes / report.rows
            most = min(most, max(1, int(LARGEST_BYTES / self._slots / bytes_each)))
        fits = int(self._seconds * looked / report.busy)
        slot = report.slot
        self._sizes[slot] = max(1, min(fits, self._sizes[slot] * _GROWTH, most))
