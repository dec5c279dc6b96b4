"""Runs the handlers of a slot on threads, at most one for each key at a time. Task-side code."""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Any

from coopconsume.worker.key_scheduler import KeyScheduler, feed_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa

    from coopconsume.record import Record
    from coopconsume.worker.input_rows import InputRow
    from coopconsume.worker.outcome import TaskOutcome
    from coopconsume.worker.rate_limit import Lane
    from coopconsume.worker.time_box import TimeBox

    Handler = Callable[[Record], Any]

#: While handler calls end within this time, in seconds, one thread takes record after record: to
#: wake another thread takes longer than the call. If a call lasts longer, another thread goes on.
QUICK = 0.001


def run_threads(
    batches: Iterable[pa.RecordBatch], handler: Handler, outcome: TaskOutcome, time_box: TimeBox
) -> None:
    """Handles the rows on up to ``concurrency`` threads."""
    runner = ThreadRunner(handler, outcome, time_box)
    feed_rows(batches, runner.feed, outcome, time_box)
    runner.finish()


class ThreadRunner:
    """Threads that take rows from a scheduler; each is started when there is work for it."""

    def __init__(self, handler: Handler, outcome: TaskOutcome, time_box: TimeBox) -> None:
        self._handler = handler
        self._outcome = outcome
        self._taken = outcome.checked
        self._most = outcome.spec.concurrency
        self._timeout = outcome.policy.timeout
        self._time_box = time_box
        self._scheduler = KeyScheduler(outcome, time.monotonic())
        self._lock = outcome.lock
        self._work = threading.Condition(self._lock)
        self._space = threading.Condition(self._lock)
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
        self._scheduler.may_start = time_box.may_start
        time_box.on_halt(self._halt)
        outcome.give_back = self._give_back

    def _give_back(self) -> None:
        """Starts nothing more. Called with the lock held."""
        self._time_box.give_back()
        self._scheduler.give_back(time.monotonic())
        self._work.notify_all()
        self._space.notify()

    def _halt(self) -> None:
        """Starts nothing more. Called from any thread."""
        with self._lock:
            self._scheduler.halt()
            self._work.notify_all()
            self._space.notify()

    def feed(self, rows: list[InputRow], deadline: float) -> int:
        """Queues rows in their order; waits while the queue is full.

        Returns:
            How many were queued; the others come too late for this batch.
        """
        scheduler = self._scheduler
        with self._lock:
            scheduler.deadline = deadline
            is_late = scheduler.is_late(time.monotonic())
            for i, row in enumerate(rows):
                while not (is_late or scheduler.has_space()):
                    self._start_workers()
                    self._space.wait(max(0.001, min(1.0, deadline - time.monotonic())))
                    is_late = scheduler.is_late(time.monotonic())
                if is_late:
                    return i
                scheduler.admit(row)
            self._start_workers()
        return len(rows)

    def finish(self) -> None:
        """Waits for the queued rows; what the time box leaves over goes to a later batch."""
        with self._lock:
            self._scheduler.is_closed = True
            self._work.notify_all()
        for thread in self._threads:
            thread.join()
        self._over.set()
        with self._lock:
            self._scheduler.close(time.monotonic())

    def _start_workers(self) -> None:
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

    def _next(self, *, is_at_work: bool) -> tuple[Lane, InputRow, Record] | None:
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
            self._taken,
        )
        leave = time_box.journal.leave
        began = self._began if self._timeout is not None else None
        settled: tuple[Lane, InputRow, Record, Any, float] | None = None
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
