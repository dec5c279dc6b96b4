"""What the driver asks of a slot that reads by itself. Task-side code."""

from __future__ import annotations

import queue
import time
from typing import TYPE_CHECKING

from coopconsume.worker.realtime.spec import HELD_UP, POSITIONS_EVERY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from coopconsume.worker.report import PartitionWork, SlotReport
    from coopconsume.worker.reporter import SlotReporter


class SlotReading:
    """What the driver asks of a slot that reads by itself, and the slot's progressive reports.

    It has a slot whose handlers are stuck give back its records. All but `chunks` are called in the
    channel's thread.

    Args:
        reporter: Makes the reports.
        report_soon: Has the channel ask for a report in a moment. Called in any thread.

    Attributes:
        is_draining: Whether the slot is to read no more records.
    """

    def __init__(self, reporter: SlotReporter, report_soon: Callable[[], None]) -> None:
        self.is_draining = False
        self._chunks: queue.SimpleQueue[Mapping[int, PartitionWork]] = queue.SimpleQueue()
        self._reporter = reporter
        self._report_soon = report_soon
        self._moved_at = time.monotonic()
        self._positions_at = 0.0

    def drain(self) -> None:
        """Has the slot read no more records."""
        self.is_draining = True

    def hand_out(self, work: Mapping[int, PartitionWork]) -> None:
        """Has the slot read and handle some more offsets, by part."""
        self._chunks.put(work)

    def chunks(self) -> Iterator[tuple[int, PartitionWork]]:
        """Yields what was handed out since the last call, by part."""
        while not self._chunks.empty():
            yield from self._chunks.get().items()

    def take_report(self, seq: int) -> SlotReport | None:
        """Returns the next progressive report, see `SlotReporter.take_report`.

        If there is nothing to report yet, the next record that is settled is reported at once.
        """
        now, reporter = time.monotonic(), self._reporter
        if reporter.is_moving():
            self._moved_at = now
        elif now - self._moved_at > HELD_UP:
            self._moved_at = now
            reporter.want_relief()
        is_time = now - self._positions_at >= POSITIONS_EVERY
        report = reporter.take_report(seq, positions=is_time, otherwise=self._report_soon)
        if report is not None:
            self._positions_at = now
        return report
