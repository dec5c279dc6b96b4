"""Opens handlers once in a worker process, keeps them over batches, and closes them.

A plain handler is opened and closed in the thread that runs the tasks, an async one on the event
loop. Task-side code, for that thread alone.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from inspect import isawaitable, iscoroutine
from typing import TYPE_CHECKING, Any

from coopconsume.worker.channel.watch import watch_driver
from coopconsume.worker.frame_runner import FrameHandler
from coopconsume.worker.handler_answers import error_text
from coopconsume.worker.handler_life import (
    CLOSING,
    OPENING,
    OpenFailed,
    SlotContext,
    first_method,
    function_of,
    lives_on_loop,
)
from coopconsume.worker.time_box import OUTLIVED

if TYPE_CHECKING:
    import socket
    from asyncio import AbstractEventLoop
    from collections.abc import Awaitable, Callable, Iterator

    from coopconsume.worker.report import BatchSpec

log = logging.getLogger(__name__)

#: Seconds without a slot after which a handler is closed: Spark kills the workers of an executor
#: that has run no Python task for 60 s, and `close` needs time before that.
UNUSED = 40.0
#: Seconds that `close` may take; then its worker is ended.
CLOSE_TIME = 10.0
#: Seconds that a blocked event loop, or a call that ends just in time, has beyond a time limit.
_SPARE = 2.0


class OpenHandler:
    """A handler that is open, and what closes it.

    Args:
        given: The handler, or its class.
        context: What `open` gets.
        limit: Seconds that an async `open` may take.

    Attributes:
        call: What is called with records.
        used_at: When the last slot that has used it ended, on the monotonic clock.
        driver: A connection to the driver that ends with the query; None without a channel.

    Raises:
        OpenFailed: It cannot be made or opened.
    """

    def __init__(self, given: Any, context: SlotContext, limit: float) -> None:
        self.context = context
        self.used_at = time.monotonic()
        self.driver: socket.socket | None = None
        kind = given if isinstance(given, type) else type(given)
        self._kind = kind
        self._loop = _event_loop() if lives_on_loop(kind) else None
        try:
            if self._loop is None:
                self._made, entered = opened(given, context)
            else:
                self._made, entered = self._on_loop(opened_async(given, context), limit)
            try:
                self.call = called(self._made, entered)
            except TypeError as error:
                if not iscoroutine(entered):
                    self.close(error)  # What was opened is not left open by each try.
                raise
        except BaseException as error:  # SystemExit, too, is its own
            log.warning("handler %s cannot be opened", kind.__qualname__, exc_info=error)
            raise OpenFailed(error_text(error)) from None

    @property
    def is_usable(self) -> bool:
        """Whether it can be called: the event loop that it belongs to still runs."""
        return self._loop is None or self._loop is _event_loop()

    @property
    def has_query_ended(self) -> bool:
        """Whether the driver has closed its connection: the query or its process has ended."""
        return self.driver is not None and bool(select.select([self.driver], [], [], 0)[0])

    def close(self, error: BaseException | None) -> None:
        """Closes the handler; an error of it is logged.

        Args:
            error: Why its worker ends; None: nothing has failed.
        """
        name = first_method(self._kind, CLOSING)
        try:
            if name:
                self._close(name, error)
        finally:
            if self.driver is not None:
                self.driver.close()

    def _close(self, name: str, error: BaseException | None) -> None:
        try:
            if not self.is_usable:
                raise RuntimeError("the event loop that it was opened on has ended")  # noqa: TRY301
            with _limited(CLOSE_TIME, lambda: os._exit(OUTLIVED)):
                if self._loop is None:
                    closed(self._made, error)
                else:
                    self._on_loop(closed_async(self._made, error), CLOSE_TIME)
        except BaseException as failure:
            log.warning(
                "%s of handler %s has failed", name, self._kind.__qualname__, exc_info=failure
            )

    def _on_loop(self, made: Awaitable[Any], limit: float) -> Any:
        """Returns what an awaitable returns on the event loop, within a time limit."""
        import asyncio

        async def caught() -> Any:
            try:
                return await made, None
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # noqa: BLE001 - SystemExit would stop the loop
                return None, error

        async def in_time() -> Any:
            try:
                return await asyncio.wait_for(caught(), limit)
            except TimeoutError:
                return None, TimeoutError(f"it took longer than {limit:g} s")

        assert self._loop is not None
        answer, error = asyncio.run_coroutine_threadsafe(in_time(), self._loop).result()
        if error is not None:
            raise error
        return answer


def opened(given: Any, context: SlotContext) -> tuple[Any, Any]:
    """Returns the handler, and what opening it has returned."""
    made = given() if isinstance(given, type) else given
    name = first_method(type(made), OPENING)
    if not name:
        return made, None
    return made, made.open(context) if name == "open" else getattr(made, name)()


async def opened_async(given: Any, context: SlotContext) -> tuple[Any, Any]:
    """Returns the handler, and what opening it on the event loop has returned."""
    made, entered = opened(given, context)
    return made, await entered if isawaitable(entered) else entered


def called(made: Any, entered: Any) -> Any:
    """Returns what is called with records: of a context manager, what entering it returns.

    Raises:
        TypeError: It is nothing that can be called.
    """
    name = first_method(type(made), OPENING)
    if iscoroutine(entered):
        entered.close()
        raise TypeError(f"{name} returned a coroutine: define it by async def")
    found = made if name == "open" or entered is None else entered
    if not callable(found):
        kind = type(entered).__name__
        instead = "return the handler" if found is made else "return the handler, or nothing"
        raise TypeError(f"{name} returned {kind}: {instead}")
    return found


def closed(made: Any, error: BaseException | None) -> Any:
    """Calls what closes a handler, if it has that; returns its answer."""
    name = first_method(type(made), CLOSING)
    if not name:
        return None
    if name == "close":
        return made.close(error)
    trace = None if error is None else error.__traceback__
    return getattr(made, name)(None if error is None else type(error), error, trace)


async def closed_async(made: Any, error: BaseException | None) -> None:
    """Closes a handler on the event loop."""
    answer = closed(made, error)
    if isawaitable(answer):
        await answer


@contextmanager
def _limited(seconds: float, late: Callable[[], object]) -> Iterator[None]:
    """Calls a function in another thread if the code within takes much longer than a time."""
    timer = threading.Timer(seconds + _SPARE, late)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class OpenHandlers:
    """The handlers that are open in this process, one for each run of a job."""

    def __init__(self) -> None:
        self._open: dict[str, OpenHandler] = {}

    def __bool__(self) -> bool:
        """Whether a handler is open."""
        return bool(self._open)

    def get(self, handler: Any, spec: BatchSpec, slot: int, late: Callable[[str], object]) -> Any:
        """Returns the handler of a run, as it is called with records; opens it the first time.

        Handlers of other runs that have ended are closed before.

        Args:
            handler: With a life, see `has_life`.
            spec: The batch.
            slot: The number of the slot.
            late: Ends this process with a reason, since `open` does not end; called in another
                thread.

        Raises:
            OpenFailed: It cannot be opened.
        """
        self.close_ended(of=spec)
        found = self._open.get(spec.run)
        if found is None:
            found = self._opened(handler, spec, slot, late)
        found.used_at = time.monotonic()
        if isinstance(handler, FrameHandler):
            return replace(handler, function=found.call)
        return found.call

    def _opened(
        self, handler: Any, spec: BatchSpec, slot: int, late: Callable[[str], object]
    ) -> OpenHandler:
        query, limit = spec.query, spec.handler_timeout
        context = SlotContext(slot, query.group_id, query.query_id, query.run_id, query.slots)
        with _limited(limit, lambda: late(f"TimeoutError: it took longer than {limit:g} s")):
            found = OpenHandler(function_of(handler), context, limit)
        if spec.channel is not None:
            try:
                found.driver = watch_driver(spec.channel, spec.run, slot)
            except BaseException as error:
                found.close(error)
                raise
        self._open[spec.run] = found
        return found

    def used(self, run: str) -> None:
        """Notes that a slot of a run has ended."""
        if run in self._open:
            self._open[run].used_at = time.monotonic()

    @property
    def drivers(self) -> list[socket.socket]:
        """The connections to drivers; one that can be read has ended."""
        return [one.driver for one in self._open.values() if one.driver is not None]

    @property
    def unused_in(self) -> float:
        """Seconds until a handler has been unused for so long that it is closed."""
        times = [one.used_at for one in self._open.values()]
        return max(0.0, min(times, default=0.0) + UNUSED - time.monotonic())

    def close_ended(self, of: BatchSpec | None = None) -> None:
        """Closes the handlers of runs that have ended, and those that are not used any more.

        Args:
            of: The batch that is about to begin. Without a channel nothing else says that an
                earlier run of its query has ended.
        """
        now, run = time.monotonic(), None if of is None else of.run
        for name, one in list(self._open.items()):
            is_over = one.has_query_ended or not one.is_usable
            if name != run:
                is_over = is_over or now - one.used_at >= UNUSED
                is_over = is_over or (one.driver is None and _is_same_query(one, of))
            if is_over:
                self._close(name, None)

    def close_all(self, error: BaseException | None = None) -> None:
        """Closes all handlers.

        Args:
            error: Why this process ends; None: nothing has failed.
        """
        for name in list(self._open):
            self._close(name, error)

    def _close(self, name: str, error: BaseException | None) -> None:
        self._open.pop(name).close(error)


def _is_same_query(one: OpenHandler, of: BatchSpec | None) -> bool:
    return of is not None and of.query.query_id == one.context.query_id


#: Of this process.
HANDLERS = OpenHandlers()


def _event_loop() -> AbstractEventLoop:
    # Workers without coroutines load no asyncio.
    from coopconsume.worker.async_runner import event_loop

    return event_loop()
