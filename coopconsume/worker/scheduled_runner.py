"""What the runners have in common that run several handlers at once. Task-side code."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from itertools import islice
from typing import TYPE_CHECKING, Any

from coopconsume.values.callables import takes_fields
from coopconsume.worker.input_rows import rows_of
from coopconsume.worker.key_scheduler import KeyScheduler
from coopconsume.worker.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

    from coopconsume.worker.input_rows import InputRow
    from coopconsume.worker.outcome import TaskOutcome
    from coopconsume.worker.time_box import TimeBox

#: Rows that are admitted each time the lock is taken.
_CHUNK = 256


class ScheduledRunner(Runner):
    """Queues rows in a `KeyScheduler`, from which its handlers take them.

    Args:
        handler: Called with a `Record`.
        outcome: The outcome of the slot.
        time_box: Its time box.
    """

    def __init__(
        self, handler: Callable[[Any], Any], outcome: TaskOutcome, time_box: TimeBox
    ) -> None:
        self._handler = handler
        self._outcome = outcome
        self._time_box = time_box
        self._most = outcome.spec.concurrency
        self._timeout = outcome.policy.timeout
        self._lock = outcome.lock
        self._space = threading.Condition(self._lock)
        self._scheduler = KeyScheduler(
            outcome, time.monotonic(), time_box.may_start, are_plain=takes_fields(handler)
        )

    @abstractmethod
    def _start_handlers(self) -> None:
        """Has handlers take the rows that may start. Called with the lock held."""

    @abstractmethod
    def _wake_all(self) -> None:
        """Has all idle handlers look at the scheduler. Called with the lock held, in any thread."""

    def feed(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Queues the rows in their order; leaves those to a later batch that come too late."""
        outcome = self._outcome
        for raw in batches:
            batch = outcome.wanted(raw)
            deadline = self._time_box.begin()
            rows = rows_of(batch)
            while chunk := list(islice(rows, _CHUNK)):
                for row in chunk[self._admit(chunk, deadline) :]:
                    outcome.leave(row.part, row.offset)

    def _admit(self, rows: list[InputRow], deadline: float) -> int:
        """Queues rows; waits while the queue is full.

        Args:
            rows: The rows.
            deadline: The end of the time box.

        Returns:
            How many were queued; the others come too late for this batch.
        """
        scheduler = self._scheduler
        with self._lock:
            scheduler.deadline = deadline
            is_late = scheduler.is_late(time.monotonic())
            for i, row in enumerate(rows):
                while not (is_late or scheduler.has_space()):
                    self._start_handlers()
                    self._space.wait(max(0.001, min(1.0, deadline - time.monotonic())))
                    is_late = scheduler.is_late(time.monotonic())
                if is_late:
                    return i
                scheduler.admit(row)
            self._start_handlers()
        return len(rows)

    def flush(self) -> None:
        """See `Runner.flush`."""
        self._scheduler.flush()

    def at_work(self) -> list[tuple[int, int, int]]:
        """See `Runner.at_work`."""
        return self._scheduler.at_work()

    def queued(self) -> Iterator[tuple[int, int]]:
        """See `Runner.queued`."""
        return self._scheduler.queued()

    def leave_withheld(self, now: float) -> None:
        """See `Runner.leave_withheld`."""
        self._scheduler.leave_withheld(now)

    @property
    def is_held_up(self) -> bool:
        """See `Runner.is_held_up`."""
        return self._scheduler.is_held_up

    def give_back(self) -> None:
        """See `Runner.give_back`."""
        self._time_box.give_back()
        self._scheduler.give_back(time.monotonic())
        self._space.notify()
        self._wake_all()

    def _halt(self) -> None:
        """Starts nothing more. Called from any thread."""
        with self._lock:
            self._scheduler.halt()
            self._space.notify()
            self._wake_all()
