"""Runs the ``async`` handlers of a slot, many at once on one event loop. Task-side code."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from coopconsume.worker.input_rows import rows_of
from coopconsume.worker.key_scheduler import KeyScheduler

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    import pyarrow as pa

    from coopconsume.record import Record
    from coopconsume.worker.outcome import TaskOutcome
    from coopconsume.worker.time_box import TimeBox

    AsyncHandler = Callable[[Record], Awaitable[Any]]

log = logging.getLogger(__name__)

#: Records after which a coroutine yields to the event loop if its handlers never wait.
_AT_A_STRETCH = 64

_loop: asyncio.AbstractEventLoop | None = None


def event_loop() -> asyncio.AbstractEventLoop:
    """Returns the event loop of this process, which runs in a thread of its own.

    It is the same for all batches, so that a handler can keep connections that belong to it.
    """
    global _loop  # noqa: PLW0603 - one a process, as handlers' connections are
    if _loop is None or _loop.is_closed():
        _loop = asyncio.new_event_loop()
        threading.Thread(target=_keep_running, args=(_loop,), name="handlers", daemon=True).start()
    return _loop


def _keep_running(loop: asyncio.AbstractEventLoop) -> None:
    """Runs an event loop until it is closed.

    A task that a handler created stops the loop if it raises SystemExit or KeyboardInterrupt. Then
    the loop is started again, since all other handlers would wait forever.
    """
    while not loop.is_closed():
        try:
            loop.run_forever()
        except BaseException:
            log.warning("a task of a handler stopped the event loop: it goes on", exc_info=True)
        else:
            return


def run_coroutines(
    batches: Iterable[pa.RecordBatch],
    handler: AsyncHandler,
    outcome: TaskOutcome,
    time_box: TimeBox,
) -> None:
    """Handles the rows with up to ``concurrency`` coroutines at once."""
    # Reading rows blocks on a socket, which must not stop the loop.
    with ThreadPoolExecutor(1, thread_name_prefix="rows") as reader:
        runner = AsyncRunner(handler, outcome, time_box, reader)
        asyncio.run_coroutine_threadsafe(runner.run(iter(batches)), event_loop()).result()


class AsyncRunner:
    """Coroutines that take rows from a scheduler; everything happens in the event loop's thread."""

    def __init__(
        self,
        handler: AsyncHandler,
        outcome: TaskOutcome,
        time_box: TimeBox,
        reader: ThreadPoolExecutor,
    ) -> None:
        self._handler = handler
        self._outcome = outcome
        self._most = outcome.spec.concurrency
        self._timeout = outcome.policy.timeout
        self._time_box = time_box
        self._lock = outcome.lock
        self._reader = reader
        self._scheduler = KeyScheduler(outcome, time.monotonic())
        self._scheduler.may_start = time_box.may_start
        outcome.give_back = self._give_back
        self._workers: list[asyncio.Task[None]] = []
        self._idle: list[asyncio.Future[None]] = []
        #: Coroutines that were woken and have not run yet.
        self._called = 0
        self._alarm: asyncio.TimerHandle | None = None
        self._space = asyncio.Event()
        #: When the handler of a seat started, the earliest first; only with a time limit.
        self._began: dict[int, float] = {}
        self._cancelled: set[int] = set()
        self._is_given_up = False

    async def run(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Handles all rows."""
        clock = asyncio.create_task(self._keep_time())
        self._time_box.on_halt(lambda: self._halt(event_loop()))
        try:
            loop = asyncio.get_running_loop()
            while (
                raw := await loop.run_in_executor(self._reader, next, batches, None)
            ) is not None:
                await self._feed(raw)
            self._scheduler.is_closed = True
            self._wake(len(self._idle))
            await asyncio.gather(*self._workers)
            with self._lock:
                self._scheduler.close(time.monotonic())
        finally:
            self._is_given_up = True
            if self._alarm is not None:
                self._alarm.cancel()
            for task in (clock, *self._workers):
                task.cancel()

    def _give_back(self) -> None:
        """Starts nothing more. Called in the channel's thread, with the lock held."""
        self._time_box.give_back()
        self._scheduler.give_back(time.monotonic())
        with suppress(RuntimeError):  # The loop is closed.
            event_loop().call_soon_threadsafe(self._wake_all)

    def _halt(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts nothing more. Called from any thread; a handler may keep the event loop busy."""
        with self._lock:
            self._scheduler.halt()
        with suppress(RuntimeError):  # The loop is closed.
            loop.call_soon_threadsafe(self._wake_all)

    def _wake_all(self) -> None:
        self._wake(len(self._idle))
        self._space.set()

    async def _feed(self, raw: pa.RecordBatch) -> None:
        outcome, scheduler, report = self._outcome, self._scheduler, self._outcome.report
        batch = outcome.wanted(raw)
        scheduler.deadline = self._time_box.begin()
        # It yields only after as many rows as can finish meanwhile, so that workers stay busy.
        stretch = max(_AT_A_STRETCH, self._most)
        for i, row in enumerate(rows_of(batch)):
            while not self._has_space() and not scheduler.is_late(time.monotonic()):
                self._start_workers()
                self._space.clear()
                await self._space.wait()
            if scheduler.is_late(time.monotonic()):
                report.end.timed_out = True
                outcome.resume_from(row.part, row.offset)
            else:
                with self._lock:  # The channel's thread may have it leave what is withheld.
                    scheduler.admit(row)
                if i % stretch == 0:
                    self._start_workers()
                    await asyncio.sleep(0)
        self._start_workers()

    def _has_space(self) -> bool:
        with self._lock:
            return self._scheduler.has_space()

    def _start_workers(self) -> None:
        """Wakes or creates coroutines for the rows that may start."""
        wanted = self._scheduler.ready - self._called
        missing = min(wanted - len(self._idle), self._most - len(self._workers))
        self._wake(wanted)
        for _ in range(missing):
            self._workers.append(asyncio.create_task(self._work(len(self._workers))))
            self._called += 1

    def _wake(self, count: int) -> None:
        for _ in range(min(count, len(self._idle))):
            waiter = self._idle.pop()
            if not waiter.done():
                waiter.set_result(None)
                self._called += 1

    async def _work(self, seat: int) -> None:  # noqa: C901, PLR0912 - one loop, called for each record
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
                    self._space.set()
            if found is None:
                if self._is_over(now):
                    return
                await self._wait(now)
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
                await asyncio.sleep(0)

    def _is_over(self, now: float) -> bool:
        """Whether nothing will start any more; if so, wakes all waiting coroutines."""
        through = self._scheduler.is_finished(now)
        if through:
            self._wake_all()
        return through

    def _was_cancelled(self, seat: int, answer: Any) -> Any:
        """Returns the answer of a call that was cancelled by its time limit, as a timeout."""
        self._cancelled.discard(seat)
        if isinstance(answer, asyncio.CancelledError):
            return TimeoutError(f"the handler took longer than {self._timeout:g} s")
        return answer

    async def _wait(self, now: float) -> None:
        """Waits until a record may start."""
        loop = asyncio.get_running_loop()
        at = loop.time() + self._scheduler.next_start_in(now)
        if self._alarm is None or at < self._alarm.when():
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm = loop.call_at(at, self._on_alarm)
        waiter = loop.create_future()
        self._idle.append(waiter)
        await waiter
        self._called -= 1

    def _on_alarm(self) -> None:
        self._alarm = None
        self._wake(1)

    async def _keep_time(self) -> None:
        """Wakes all at the end of the time box, and cancels handlers at their time limit."""
        scheduler, timeout = self._scheduler, self._timeout
        while True:
            now = time.monotonic()
            if scheduler.is_late(now):
                self._wake_all()
            wait = max(0.005, min(0.5, scheduler.deadline - now))
            if timeout is not None:
                self._cancel_late(now, timeout)
                wait = min(wait, timeout / 4)
            await asyncio.sleep(wait)

    def _cancel_late(self, now: float, timeout: float) -> None:
        stuck = []
        for seat, at in self._began.items():
            if now - at <= timeout:
                break
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
