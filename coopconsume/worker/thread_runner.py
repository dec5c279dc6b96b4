"""Runs the handlers of a slot on threads, at most one for each key at a time. Task-side code."""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Any

from coopconsume.worker.scheduled_runner import ScheduledRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa

    from coopconsume.record import Fields
    from coopconsume.worker.input_rows import InputRow
    from coopconsume.worker.outcome import TaskOutcome
    from coopconsume.worker.rate_limit import Lane
    from coopconsume.worker.time_box import TimeBox

    Handler = Callable[[Any], Any]

#: While handler calls end within this time, in seconds, one thread takes record after record: to
#: wake another thread takes longer than the call. If a call lasts longer, another thread goes on.
QUICK = 0.001


class ThreadRunner(ScheduledRunner):
    """Up to ``concurrency`` threads; each is started when there is work for it."""

    def __init__(self, handler: Handler, outcome: TaskOutcome, time_box: TimeBox) -> None:
        super().__init__(handler, outcome, time_box)
        self._work = threading.Condition(self._lock)
        self._idle = 0
        #: When one of the waiting threads wakes up to check the scheduler for all of them.
        self._alarm = math.inf
        #: When a thread took a record last, and how long the last call took.
        self._taken_at = 0.0
        self._took = math.inf
        self._threads: list[threading.Thread] = []
        self._began: dict[int, float] = {}
        self._over = threading.Event()
        if self._timeout is not None:
            threading.Thread(target=self._watch, args=(self._timeout,), daemon=True).start()
        time_box.on_halt(self._halt)

    def run(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Handles the rows; what the time box leaves over goes to a later batch."""
        self.feed(batches)
        with self._lock:
            self._scheduler.is_closed = True
            self._work.notify_all()
        for thread in self._threads:
            thread.join()
        self._over.set()
        with self._lock:
            self._scheduler.close(time.monotonic())

    def _wake_all(self) -> None:
        self._work.notify_all()

    def _start_handlers(self) -> None:
        """Wakes or starts threads for the rows that may start."""
        ready = self._scheduler.ready
        if self._is_quick:
            ready = min(ready, 1)
        self._work.notify(min(ready, self._idle))
        missing = min(ready - self._idle, self._most - len(self._threads))
        for _ in range(missing):
            self._start_worker()

    def _start_worker(self) -> None:
        seat = len(self._threads)
        thread = threading.Thread(
            target=self._run, args=(seat,), name=f"handler-{seat}", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    @property
    def _is_quick(self) -> bool:
        """Whether handler calls take less time than to wake another thread."""
        return self._took < QUICK

    def _next(self, *, is_at_work: bool) -> tuple[Lane, InputRow, Fields] | None:
        """Waits for the next record and returns it; None at the end. Called with the lock held.

        Args:
            is_at_work: Whether the thread has just handled a record.
        """
        scheduler = self._scheduler
        while True:
            now = time.monotonic()
            alarm = self._taken_at + QUICK
            # A thread at work is about to take the next record; this one watches it.
            is_watch = not is_at_work and self._is_quick and now < alarm and scheduler.running > 0
            if not is_watch:
                found = scheduler.take(now)
                if scheduler.wants_rows:
                    self._space.notify()
                if found is not None:
                    self._taken_at = now
                    self._wake_another(now)
                    return found
                if scheduler.is_finished(now):
                    self._work.notify_all()
                    self._space.notify()
                    return None
                alarm = now + scheduler.next_start_in(now)
            is_at_work = False
            # One of the waiting threads wakes up by the clock, for all of them.
            self._idle += 1
            if alarm < self._alarm:
                self._alarm = alarm
                self._work.wait(alarm - now)
                if self._alarm == alarm:
                    self._alarm = math.inf
            else:
                self._work.wait()
            self._idle -= 1

    def _wake_another(self, now: float) -> None:
        """Wakes or starts a thread to work, to watch this one, or to look at the clock for all."""
        is_watched = self._is_quick and self._alarm <= now + QUICK
        if self._idle:
            if not is_watched and (self._scheduler.ready or self._alarm == math.inf):
                self._work.notify()
        elif self._scheduler.ready and len(self._threads) < self._most:
            self._start_worker()  # This call may last long, and no other thread would go on.

    def _run(self, seat: int) -> None:
        try:
            self._work_on(seat)
        except BaseException as error:  # noqa: BLE001 - it does not come from a handler
            self._outcome.fail(error)
            self._time_box.halt("error", time.monotonic())

    def _work_on(self, seat: int) -> None:
        scheduler, time_box, handler, taken = (
            self._scheduler,
            self._time_box,
            self._handler,
            self._outcome.checked,
        )
        leave = time_box.journal.leave
        began = self._began if self._timeout is not None else None
        settled: tuple[Lane, InputRow, Fields, Any, float] | None = None
        while True:
            with self._lock:
                if settled is not None:
                    self._took = settled[-1]
                    scheduler.settle(*settled, time.monotonic())
                found = self._next(is_at_work=settled is not None)
            if found is None:
                return
            lane, row, record = found
            time_box.enter(seat, row.part, row.offset)
            start = time.monotonic()
            if began is not None:
                began[seat] = start
            try:
                answer = handler(record)
                if answer is not None:
                    answer = taken(answer)
            except BaseException as error:  # noqa: BLE001 - SystemExit too costs its record alone
                answer = error
            took = time.monotonic() - start
            leave(seat)
            if began is not None:
                began.pop(seat, None)
            settled = (lane, row, record, answer, took)

    def _watch(self, timeout: float) -> None:
        """Ends the worker if a handler runs for twice its time limit."""
        while True:
            now = time.monotonic()
            began = list(self._began.items())
            # A call may begin at any moment until the next look.
            oldest = min((at for _, at in began), default=now)
            self._time_box.limit_calls(oldest + 2 * timeout)
            late = [seat for seat, at in began if now - at > 2 * timeout]
            if late:
                self._time_box.end_worker(late)
            if self._over.wait(min(0.5, timeout / 4)):
                self._time_box.limit_calls(math.inf)
                return
