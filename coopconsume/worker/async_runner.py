"""Runs the ``async`` handlers of a slot, many at once on one event loop. Task-side code.

The rows come from the task's thread, and what the library does in the loop by the clock it does in
callbacks. So a coroutine that cancels all tasks of its loop reaches handlers alone.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from coopconsume.worker.scheduled_runner import ScheduledRunner

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    import pyarrow as pa

    from coopconsume.worker.outcome import TaskOutcome
    from coopconsume.worker.time_box import TimeBox

    AsyncHandler = Callable[[Any], Awaitable[Any]]

log = logging.getLogger(__name__)

#: Records after which a coroutine yields to the event loop if its handlers never wait.
_AT_A_STRETCH = 64
#: Seconds between two looks at the clock in the event loop, at most.
_TICK = 0.5
#: Seconds that a look may come late; then a handler has blocked the loop.
_LATE = 0.25

_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None
#: Takes the error with which the loop has ended.
_take_error: Callable[[BaseException], None] | None = None


def event_loop() -> asyncio.AbstractEventLoop:
    """Returns the event loop of this process, which runs in a thread of its own.

    It is the same for all batches, so that a handler can keep connections that belong to it.
    """
    global _loop, _thread  # noqa: PLW0603 - one a process, as handlers' connections are
    if _loop is None or _loop.is_closed() or _thread is None or not _thread.is_alive():
        loop = asyncio.new_event_loop()
        _thread = threading.Thread(target=_keep_running, args=(loop,), name="handlers", daemon=True)
        _thread.start()
        _loop = loop
    return _loop


def _keep_running(loop: asyncio.AbstractEventLoop) -> None:
    """Runs an event loop until it is closed.

    A handler may stop it, and a task that a handler created does if it raises SystemExit or
    KeyboardInterrupt. Then the loop is started again, since all other handlers would wait forever.
    """
    while not loop.is_closed():
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt):
            log.warning("a task of a handler stopped the event loop: it goes on", exc_info=True)
        except BaseException as error:  # noqa: BLE001 - a handler has closed its files, or the like
            if _take_error is not None:
                _take_error(error)
            return


class AsyncRunner(ScheduledRunner):
    """Up to ``concurrency`` coroutines at once.

    All but `run` and what is said otherwise happens in the event loop's thread.
    """

    def __init__(self, handler: AsyncHandler, outcome: TaskOutcome, time_box: TimeBox) -> None:
        global _take_error  # noqa: PLW0603 - a worker runs one slot at a time
        super().__init__(handler, outcome, time_box)
        self._loop = event_loop()
        #: By seat. A *seat* is a coroutine that handles one record after another.
        self._workers: list[asyncio.Task[None]] = []
        self._idle: list[asyncio.Future[None]] = []
        #: Coroutines that were woken and have not run yet.
        self._called = 0
        self._alarm: asyncio.TimerHandle | None = None
        #: Coroutines that have not ended.
        self._alive = 0
        self._ended = threading.Condition(self._lock)
        #: When the handler of a seat started; only with a time limit. Time in which another one
        #: blocked the loop does not count.
        self._began: dict[int, float] = {}
        self._cancelled: set[int] = set()
        self._is_given_up = self._is_loop_over = False
        self._period = _TICK if self._timeout is None else min(_TICK, self._timeout / 4)
        #: When the next look at the clock is due, and the seat that was seen to block the loop.
        self._tick_at = time.monotonic() + self._period
        self._blocker: int | None = None
        self._over = threading.Event()
        _take_error = self._loop_has_ended
        time_box.culprits = self._culprits
        time_box.on_halt(self._halt)
        self._loop.call_soon_threadsafe(self._tick)
        if self._timeout is not None:
            threading.Thread(target=self._watch, args=(self._timeout,), daemon=True).start()

    # -- in the task's thread

    def run(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Handles the rows; what the time box leaves over goes to a later batch."""
        try:
            self.feed(batches)
            self._finish()
        finally:
            self._close()

    def _finish(self) -> None:
        """Waits for the queued rows."""
        scheduler = self._scheduler
        with self._lock:
            scheduler.is_closed = True
            self._loop.call_soon_threadsafe(self._wake_idle)
            while self._alive or not scheduler.is_finished(time.monotonic()):
                if self._is_loop_over:
                    return
                self._ended.wait(1.0)
            scheduler.close(time.monotonic())

    def _close(self) -> None:
        """Ends all coroutines."""
        self._is_given_up = True
        self._over.set()
        if self._timeout is not None:
            self._time_box.limit_calls(math.inf)
        with suppress(RuntimeError):  # The loop is closed.
            self._loop.call_soon_threadsafe(self._end)

    # -- in any thread

    def _start_handlers(self) -> None:
        self._loop.call_soon_threadsafe(self._start_workers)

    def _wake_all(self) -> None:
        # A handler may keep the event loop busy.
        with suppress(RuntimeError):  # The loop is closed.
            self._loop.call_soon_threadsafe(self._wake_idle)

    def _culprits(self) -> list[int] | None:
        """Returns the seat whose handler blocks the loop; none if it is not known which one does.

        Returns:
            None if the loop is not blocked: whatever runs too long does so by itself.
        """
        if time.monotonic() <= self._tick_at + _LATE:
            return None
        seat = self._seat_at_work()
        return [] if seat is None else [seat]

    def _seat_at_work(self) -> int | None:
        """Returns the seat whose coroutine the loop runs at this moment, see its stack."""
        of_thread = None if _thread is None else _thread.ident
        frame = sys._current_frames().get(of_thread or 0)  # noqa: SLF001 - the documented way
        while frame is not None:
            if frame.f_code is AsyncRunner._work.__code__ and frame.f_locals["self"] is self:
                seat: int = frame.f_locals["seat"]
                return seat
            frame = frame.f_back
        return None

    def _watch(self, timeout: float) -> None:
        """Ends the worker if a handler blocks the loop for twice its time limit."""
        while not self._over.wait(self._period):
            blocked = time.monotonic() - self._tick_at
            if blocked > _LATE:
                self._blocker = self._seat_at_work()
            if blocked > 2 * timeout and self._time_box.journal.is_at_work:
                self._time_box.end_worker(self._culprits())

    # -- in the event loop's thread

    def _end(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        for task in self._workers:
            task.cancel()

    def _wake_idle(self) -> None:
        self._wake(len(self._idle))
        with self._lock:
            self._ended.notify()

    def _start_workers(self) -> None:
        """Wakes or creates coroutines for the rows that may start."""
        with self._lock:
            wanted = self._scheduler.ready - self._called
        missing = min(wanted - len(self._idle), self._most - len(self._workers))
        self._wake(wanted)
        for _ in range(missing):
            self._called += 1
            with self._lock:
                self._alive += 1
            self._workers.append(self._started(len(self._workers)))

    def _started(self, seat: int) -> asyncio.Task[None]:
        task = self._loop.create_task(self._work(seat))
        task.add_done_callback(partial(self._has_ended, seat))
        return task

    def _has_ended(self, seat: int, task: asyncio.Task[None]) -> None:
        if task.cancelled() and not self._is_given_up:
            # A handler has cancelled it before it ran: later it stays, see `_work`.
            self._workers[seat] = self._started(seat)
            return
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failed(error)
        with self._lock:
            self._alive -= 1
            self._ended.notify()

    def _loop_has_ended(self, error: BaseException) -> None:
        self._is_loop_over = True
        self._failed(error)

    def _failed(self, error: BaseException) -> None:
        """Takes an error that does not come from a handler."""
        self._outcome.fail(error)
        self._time_box.halt("error", time.monotonic())

    def _wake(self, count: int) -> None:
        for _ in range(min(count, len(self._idle))):
            waiter = self._idle.pop()
            if not waiter.done():
                waiter.set_result(None)
                self._called += 1

    async def _work(self, seat: int) -> None:  # noqa: C901, PLR0912, PLR0915 - one loop
        """Handles one record after another."""
        scheduler, handler, taken, lock = (
            self._scheduler,
            self._handler,
            self._outcome.checked,
            self._lock,
        )
        enter, leave = self._time_box.enter, self._time_box.journal.leave
        began = self._began if self._timeout is not None else None
        stretch = 0
        task = asyncio.current_task()
        assert task is not None
        self._called -= 1
        while True:
            now = time.monotonic()
            with lock:
                found = scheduler.take(now)
                if scheduler.wants_rows:
                    self._space.notify()
            if found is None:
                if self._is_over(now):
                    return
                try:
                    await self._wait(now)
                except asyncio.CancelledError:
                    if self._is_given_up:
                        return
                    await _stay(task)
                continue
            unwatched = self._alarm is None and not self._called
            if self._idle and (scheduler.ready > self._called or unwatched):
                self._wake(1)  # to work, or to set the alarm for all
            lane, row, record = found
            enter(seat, row.part, row.offset)
            if began is not None:
                began[seat] = now
            try:
                answer = await handler(record)
                if answer is not None:
                    answer = taken(answer)
            except BaseException as error:  # noqa: BLE001 - SystemExit too costs its record alone
                answer = error
            took = time.monotonic() - now
            leave(seat)
            if began is not None:
                began.pop(seat, None)
                if seat in self._cancelled:
                    answer = self._was_cancelled(seat, answer)
            if task.cancelling():
                if self._is_given_up:
                    return
                await _stay(task)
            with lock:
                scheduler.settle(lane, row, record, answer, took, time.monotonic())
            stretch += 1
            if stretch >= _AT_A_STRETCH:
                stretch = 0
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)

    def _is_over(self, now: float) -> bool:
        """Whether nothing will start any more; if so, wakes all waiting coroutines."""
        through = self._scheduler.is_finished(now)
        if through:
            self._wake_idle()
        return through

    def _was_cancelled(self, seat: int, answer: Any) -> Any:
        """Returns the answer of a call that was cancelled by its time limit, as a timeout."""
        self._cancelled.discard(seat)
        if isinstance(answer, asyncio.CancelledError):
            return TimeoutError(f"the handler took longer than {self._timeout:g} s")
        return answer

    async def _wait(self, now: float) -> None:
        """Waits until a record may start."""
        loop = self._loop
        at = loop.time() + self._scheduler.next_start_in(now)
        if self._alarm is None or at < self._alarm.when():
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm = loop.call_at(at, self._on_alarm)
        waiter = loop.create_future()
        self._idle.append(waiter)
        try:
            await waiter
        finally:
            if not waiter.cancelled():
                self._called -= 1

    def _on_alarm(self) -> None:
        self._alarm = None
        self._wake(1)

    def _tick(self) -> None:
        """Wakes all at the end of the time box, and cancels handlers at their time limit."""
        if self._over.is_set():
            return
        now = time.monotonic()
        try:
            if self._scheduler.is_late(now):
                self._wake_idle()
            if self._timeout is not None:
                self._look_at_limits(now, self._timeout)
        except Exception as error:  # noqa: BLE001 - it does not come from a handler
            self._failed(error)
            return
        wait = max(0.005, min(self._period, self._scheduler.deadline - now))
        self._tick_at, self._blocker = now + wait, None
        if self._timeout is not None:  # A call may keep the interpreter lock from the next tick.
            self._time_box.limit_calls(self._tick_at + 2 * self._timeout)
        self._loop.call_later(wait, self._tick)

    def _look_at_limits(self, now: float, timeout: float) -> None:
        blocked, stuck = now - self._tick_at, []
        for seat, at in self._began.items():
            if blocked > _LATE and seat != self._blocker:
                at += blocked  # noqa: PLW2901 - another handler took this time from it
                self._began[seat] = at
            if now - at <= timeout:
                continue
            if seat not in self._cancelled:
                self._cancelled.add(seat)
                self._workers[seat].cancel()
            elif now - at > 2 * timeout:
                stuck.append(seat)
        if stuck:
            self._time_box.end_worker(stuck)


async def _stay(task: asyncio.Task[Any]) -> None:
    """Clears the cancellation of a task, by its time limit or by a handler that ran in it."""
    while task.cancelling():
        task.uncancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)  # A cancellation that no handler has seen yet is raised here.
