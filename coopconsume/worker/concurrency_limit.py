"""Limits the calls to a service that run at once, over all slots of a job. Task-side code."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coopconsume.worker.handler_life import SlotContext


class _Turn(Future[None]):
    """The turn of a call that waits for it.

    Attributes:
        loop: The event loop that the call runs on; None: a thread waits.
        is_given: Whether the call may begin.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        super().__init__()
        self.loop = loop
        self.is_given = False
        self.set_running_or_notify_cancel()  # Else a cancelled coroutine cancels it, too.


class ConcurrencyLimit:
    """Limits how many calls to a service run at once, over all slots of a job.

    A handler makes it in `open`, and each call in ``with limit:`` or ``async with limit:``. Calls
    wait for their turn in the order in which they came. Each worker process has the same part of
    the limit, ``limit // slots``. As never more tasks than slots run handlers, never more than
    ``limit`` calls run at once. What the division leaves is not used. Each member of a group has a
    limit of its own.

    Args:
        limit: Calls at once over all slots, at least as many as there are slots.
        slot: What `open` got.

    Attributes:
        share: Calls at once in this process.

    Raises:
        RuntimeError: As it is entered: a coroutine does it by ``with``, without ``async``.
        ValueError: The limit is no whole number, or is less than the number of slots.
    """

    def __init__(self, limit: int, slot: SlotContext) -> None:
        if not isinstance(limit, int) or limit < slot.slots:
            raise ValueError(
                f"ConcurrencyLimit({limit!r}): the job has {slot.slots} slots, and each needs a "
                f"call of its own: give a whole number from {slot.slots} on, or set the option "
                "slots to the limit or less"
            )
        self.share = limit // slot.slots
        self._free = self.share
        self._lock = threading.Lock()
        #: One for each call that waits for its turn.
        self._turns: deque[_Turn] = deque()

    def __enter__(self) -> None:
        # A call that waits here would keep those from going on that it waits for.
        if _is_on_loop():
            raise RuntimeError("write `async with limit:` in a coroutine, not `with limit:`")
        if (turn := self._begin(None)) is not None:
            try:
                turn.result()
            except BaseException:
                self._give_up(turn)
                raise

    async def __aenter__(self) -> None:
        if (turn := self._begin(asyncio.get_running_loop())) is not None:
            try:
                await asyncio.wrap_future(turn)
            except BaseException:  # The call is cancelled at its time limit.
                self._give_up(turn)
                raise

    def __exit__(self, *_: object) -> None:
        self._end()

    async def __aexit__(self, *_: object) -> None:
        self._end()

    def _begin(self, loop: asyncio.AbstractEventLoop | None) -> _Turn | None:
        """Begins a call; returns its turn if it has to wait for it."""
        with self._lock:
            if self._free:
                self._free -= 1
                return None
            turn = _Turn(loop)
            self._turns.append(turn)
            return turn

    def _end(self) -> None:
        """Ends a call, so that the next one may begin."""
        with self._lock:
            turn = self._next()
            if turn is None:
                self._free += 1
            else:
                turn.is_given = True
        if turn is not None:
            turn.set_result(None)

    def _next(self) -> _Turn | None:
        """Removes and returns the first turn; calls of a loop that was closed go on no more."""
        while self._turns:
            turn = self._turns.popleft()
            if turn.loop is None or not turn.loop.is_closed():
                return turn
        return None

    def _give_up(self, turn: _Turn) -> None:
        """Gives up waiting for a turn, which may have come meanwhile."""
        with self._lock:
            if turn in self._turns:
                self._turns.remove(turn)
            is_given = turn.is_given
        if is_given:
            self._end()


def _is_on_loop() -> bool:
    """Whether an event loop calls."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
