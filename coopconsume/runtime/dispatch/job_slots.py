"""The slots of a job over all of its batches and runs: which get none for some time, and why."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from coopconsume.errors import HandlerNotOpened
from coopconsume.runtime.settle.batch_failures import MOST_FAILURES
from coopconsume.runtime.settle.carryover import SlotCarryover
from coopconsume.runtime.settle.crashes import Crashes
from coopconsume.worker.handler_life import shown_handler

if TYPE_CHECKING:
    from collections.abc import Collection

    from coopconsume.runtime.dispatch.run import Run
    from coopconsume.runtime.job_context import JobContext
    from coopconsume.runtime.settle.batch_failures import BatchFailures
    from coopconsume.worker.report import SlotReport

log = logging.getLogger(__name__)

_WARN_EVERY: Final = 10.0
#: Seconds until a slot that has failed gets the next batch; for each failed batch in a row so many
#: times longer: what makes it fail may take time to go away.
_PAUSE, _LONGER = 2.0, 4.0


@dataclass
class JobSlot:
    """A slot between its batches and runs.

    Attributes:
        barred_until: Until when, on the monotonic clock, it may be at work on what is lost; None:
            nothing of it is lost.
        failing_until: It has failed, and leaves nothing in doubt: until when it gets no batch;
            None: it has not failed, or that is over.
        failure: Why it has failed.
        unopened: How often in a row it could not open its handler.
    """

    barred_until: float | None = None
    failing_until: float | None = None
    failure: str = ""
    unopened: int = 0


class JobSlots:
    """The slots of a job. Only the loop calls the methods.

    Args:
        context: The job.
        failures: Counts how often batches failed in a row.

    Attributes:
        failures: Counts how often batches failed in a row.
        crashes: The crashes of their workers.
        carryover: Their failures in a row, and their rate limits.
    """

    def __init__(self, context: JobContext, failures: BatchFailures) -> None:
        self.failures = failures
        self.crashes = Crashes(context.job_spec.policy.max_attempts)
        self.carryover = SlotCarryover()
        self._handler = context.job_spec.handler
        self._meter = context.meter
        self._slots = [JobSlot() for _ in range(context.slots)]
        #: When it was last logged why slots fail, by the reason.
        self._warned: dict[str, float] = {}

    @property
    def barred(self) -> dict[int, float]:
        """Until when, on the monotonic clock, slots may be at work on what is lost."""
        return {
            number: slot.barred_until
            for number, slot in enumerate(self._slots)
            if slot.barred_until is not None
        }

    @property
    def failing(self) -> dict[int, tuple[float, str]]:
        """Until when, on the monotonic clock, slots that have failed get no batch, and why."""
        return {
            number: (slot.failing_until, slot.failure)
            for number, slot in enumerate(self._slots)
            if slot.failing_until is not None
        }

    @property
    def unopened(self) -> dict[int, int]:
        """How often in a row slots could not open their handlers."""
        return {number: slot.unopened for number, slot in enumerate(self._slots) if slot.unopened}

    def free(self, busy: Collection[int]) -> list[int]:
        """Returns the slots that may get a batch: they are in none, not lost and do not fail."""
        return [
            number
            for number, slot in enumerate(self._slots)
            if number not in busy and slot.barred_until is None and slot.failing_until is None
        ]

    def end_pauses(self, now: float) -> None:
        """Lets slots go on whose time is over."""
        for slot in self._slots:
            if slot.barred_until is not None and slot.barred_until <= now:
                slot.barred_until = None
            if slot.failing_until is not None and slot.failing_until <= now:
                slot.failing_until = None

    def bar(self, slot: int, until: float) -> None:
        """Gives a slot no batch while handlers of it may work on what is lost."""
        self._slots[slot].barred_until = until

    def failed(self, run: Run, slot: int, why: str) -> None:
        """Notes that a slot has failed, and that nothing of it runs any more."""
        self._pause(run, slot, why, self.failures.count)

    def opened(self, run: Run, report: SlotReport) -> None:
        """Counts how often in a row a slot could not open its handler.

        Raises:
            HandlerNotOpened: It is as often as batches may fail.
        """
        slot, end = self._slots[report.slot], report.end
        if not end.open_error:
            if not (end.unknown or end.crashed or end.channel_error):
                slot.unopened = 0
            return
        slot.unopened += 1
        if slot.unopened >= MOST_FAILURES:
            raise HandlerNotOpened(shown_handler(self._handler), end.open_error)
        why = f"its handler cannot be opened: {end.open_error}"
        self._pause(run, report.slot, why, slot.unopened - 1)

    def _pause(self, run: Run, number: int, why: str, earlier: int) -> None:
        """Gives a slot no batch for some time, the longer the more failures came before."""
        now, place = time.monotonic(), f"slot {number}"
        if self._warned.get(why, -math.inf) + _WARN_EVERY < now:
            self._warned = {one: at for one, at in self._warned.items() if at + _WARN_EVERY > now}
            self._warned[why] = now
            log.warning("%s of batch %d has failed: %s", place, run.number, why)
        self._meter.message = f"{place} has failed: {why}"
        slot = self._slots[number]
        slot.failing_until, slot.failure = now + _PAUSE * _LONGER**earlier, why
