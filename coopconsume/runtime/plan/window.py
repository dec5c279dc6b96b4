"""How many offsets the next batch of a job spans."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coopconsume.options import Options
    from coopconsume.runtime.dispatch.run import Run
    from coopconsume.worker.report import SlotReport

#: Offsets in the first batch where the size of records is not known, and where it is.
FIRST_WINDOW = 20_000
FIRST_WINDOW_OF_KNOWN = 1_000_000
LARGEST_WINDOW = 2_000_000
#: Bytes of keys and values in a batch.
LARGEST_BYTES = 256 << 20
#: How much smaller records may be on the brokers' disks than they are, by compression.
_COMPRESSED = 2.0


class Window:
    """As many offsets as the slots handle in half a time box, and as fit in memory.

    Args:
        options: Of the consumer.
        slots: How many slots there are.
    """

    def __init__(self, options: Options, slots: int) -> None:
        self._slots = slots
        self._most = options.max_offsets_per_trigger
        self._batch_time = options.batch_time
        self._window = FIRST_WINDOW
        self._record_bytes = 0.0
        self._widest = 0.0  # of the fractions of batches
        self.has_begun = False

    @property
    def offsets(self) -> int:
        """Offsets that the next batch may span."""
        window = self._window
        if self._record_bytes:
            window = min(window, max(1, int(LARGEST_BYTES / self._record_bytes)))
        return min(window, self._most or window)

    def begin(self, stored_bytes: float | None) -> None:
        """Starts from what a record takes on the brokers' disks, if that is known."""
        self.has_begun = True
        if stored_bytes is not None:
            self._record_bytes = stored_bytes * _COMPRESSED
            self._window = FIRST_WINDOW_OF_KNOWN

    def reported(self, report: SlotReport) -> None:
        """Takes in the size of a slot's records."""
        if report.stats.rows:
            self._record_bytes = report.stats.value_bytes / report.stats.rows

    def completed(self, run: Run) -> None:
        """Takes in the speed of a batch that all slots have reported.

        A batch spans more offsets than its slots have: the others belong to busy slots or to other
        members. A few slots, which one key may slow down, say little.
        """
        fraction = _fraction(run)
        is_most = run.plan.fraction >= self._widest / 2
        self._widest = max(self._widest, run.plan.fraction)
        if run.timed_out:
            least = self._slots if is_most else self._window // 4
            self._window = min(self._window, max(least, int(2 * run.handled / fraction), 1))
        elif run.plan.span >= self._window // 2:
            fits = int(run.rate * self._batch_time / 2 / fraction)
            if run.filtered and not run.handled:
                fits = LARGEST_WINDOW  # The speed of handlers is unknown.
            self._window = min(LARGEST_WINDOW, max(self._window, min(fits, self._window * 64)))

    def stopped(self, run: Run) -> None:
        """Takes in the speed of a batch that has given back records.

        The next one is not to read far more than slots can handle: they are idle meanwhile. What
        made the slots stop may also have made them slow, so the window stays large enough.
        """
        if run.handled:
            fits = int(run.rate * self._batch_time / _fraction(run))
            self._window = min(self._window, max(FIRST_WINDOW, fits))


def _fraction(run: Run) -> float:
    """Returns the part of the offsets of a batch that its handlers have to do with."""
    # Records that the filter drops take no time of a handler, and part of the window.
    handled = max(1, run.handled)
    return run.plan.fraction * handled / (handled + run.filtered)
