"""Appends as requests, and the groups in which they are written."""

from __future__ import annotations

import asyncio
import base64
import os
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from coopconsume.errors.fenced import AppendOutcomeUnknown, LogUnavailable
from coopconsume.fenced.log import Appended, Consumed, Entry, Expectation, LogId

if TYPE_CHECKING:
    from collections.abc import Callable

    from coopconsume.fenced.stamp import Kind

#: Key of records without data: a compacted topic takes no record without a key.
MARK_KEY: Final = b"coopconsume-log"
#: Records of a group at most, unless one append alone has more.
_MOST_RECORDS: Final = 10_000
#: Batch ids made in advance: a system call for each would let other threads run in between.
_ids: Final[list[str]] = []
os.register_at_fork(after_in_child=_ids.clear)
_Lock: Final = type(threading.Lock())


def new_batch_id() -> str:
    """A batch id of 12 characters that no other batch has."""
    while True:
        try:
            return _ids.pop()
        except IndexError:
            text = base64.urlsafe_b64encode(os.urandom(9 * 256)).decode()
            _ids.extend(text[at : at + 12] for at in range(0, len(text), 12))


@dataclass(eq=False)
class Request:
    """One append, and its answer or error: see `FencedWriter.append`.

    Attributes:
        is_given: Whether the caller gave the id.
        size: Bytes that the records take at most.
        waiter: What its caller waits for: a lock in a thread, a future in a coroutine.
        wakes_next: Whether its caller, once woken, wakes the next thread.
    """

    rows: list[Entry]
    wanted: Expectation = field(default_factory=Expectation)
    batch_id: str = field(default_factory=new_batch_id)
    is_given: bool = False
    is_new: bool = False
    kind: Kind = "data"
    timeout: float = 30.0
    consumed: Consumed | None = None
    size: int = 0
    waiter: threading.Lock | asyncio.Future[None] | None = field(default=None, init=False)
    wakes_next: bool = field(default=False, init=False)
    _outcomes: list[Appended | BaseException] = field(default_factory=list, init=False)

    @classmethod
    def mark(cls, kind: Kind, value: bytes = b"", timeout: float = 30.0) -> Request:
        """Returns the append of a record without data."""
        return cls([Entry(value, MARK_KEY)], kind=kind, timeout=timeout)

    @property
    def may_repeat(self) -> bool:
        """Whether the log may have a batch of this id, of this append or of another one."""
        return self.is_given and not self.is_new

    def settle(self, outcome: Appended | BaseException) -> None:
        """Notes the answer or the error; the first one stays."""
        self._outcomes.append(outcome)

    @property
    def outcome(self) -> Appended | BaseException | None:
        """Its answer or its error; None until it is settled."""
        return self._outcomes[0] if self._outcomes else None

    def result(self) -> Appended:
        """Returns its answer, or raises its error; it must be settled."""
        outcome = self._outcomes[0]
        if isinstance(outcome, Appended):
            return outcome
        raise outcome


class Groups:
    """Settles requests in groups, in the order of their calls; safe for several threads.

    A caller that finds nobody else at work settles its own request; a thread settles all others.
    The writer's lock is held while ``settle`` settles a group, of some bytes at most unless one
    append alone has more.
    """

    def __init__(
        self, most_bytes: int, lock: threading.RLock, settle: Callable[[list[Request]], None]
    ) -> None:
        self._most_bytes = most_bytes
        self._lock = lock
        self._settle = settle
        self._waiting: deque[Request] = deque()
        self._queue_lock = threading.Lock()
        self._is_scheduled = False  # a call of `settle_waiting` in the thread
        #: Settled requests of threads to wake. Each thread wakes the next one: all at once, they
        #: would compete for Python's lock.
        self._settled: deque[Request] = deque()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="coopconsume-append")

    def run(self, request: Request, log: LogId, timeout: float | None) -> Appended:
        """Settles a request, with others that wait, and returns its answer."""
        if not self._waiting and self._lock.acquire(blocking=False):
            # Only this request: the time limits of others do not apply to this call.
            try:
                self._settle([request])
            finally:
                self._lock.release()
            return request.result()
        # Callers that waited for the lock would get it, and append, one after another.
        request.waiter = waiter = threading.Lock()
        waiter.acquire()
        # A signal may interrupt the main thread anywhere: no other thread depends on it.
        request.wakes_next = threading.current_thread() is not threading.main_thread()
        try:
            self._waiting.append(request)
            self._settle_soon()
            if not waiter.acquire(timeout=-1 if timeout is None else timeout):
                self.give_up(request, log)
        except BaseException:
            self._withdraw(request)
            raise
        finally:
            request.waiter = None
            if request.wakes_next:  # also without an answer, as it may be this one's turn
                self._wake_next()
        return request.result()

    async def run_async(self, request: Request, log: LogId, seconds: float | None) -> Appended:
        """Settles a request in the thread, with others that wait, and returns its answer."""
        request.waiter = waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(request)
        self._settle_soon()
        try:
            async with asyncio.timeout(seconds):
                await waiter
        except TimeoutError:
            self.give_up(request, log)
        except asyncio.CancelledError:
            self._withdraw(request)
            raise
        return request.result()

    def settle_waiting(self) -> None:
        """Settles all requests of the queue."""
        with self._lock:
            with self._queue_lock:
                self._is_scheduled = False
            while group := self._take():
                try:
                    self._settle(group)
                finally:
                    self._wake(group)

    def give_up(self, request: Request, log: LogId) -> None:
        """Settles a request whose time is over."""
        problem = f"no answer within {request.timeout:g} s, as other appends are under way"
        if self._withdraw(request):
            request.settle(LogUnavailable(*log.tp, "append", problem))
        request.settle(AppendOutcomeUnknown(*log.tp, request.batch_id, 0, problem))

    def close(self) -> None:
        """Ends the thread; a later request is settled by its caller."""
        self._pool.shutdown(wait=False)

    def _wake(self, group: list[Request]) -> None:
        """Wakes the callers of a group."""
        futures: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        for request in group:
            waiter = request.waiter
            if isinstance(waiter, asyncio.Future):
                futures.setdefault(waiter.get_loop(), []).append(waiter)
            elif request.wakes_next:
                self._settled.append(request)
            elif isinstance(waiter, _Lock):
                waiter.release()
        self._wake_next()
        # Each loop is woken once, as that is a system call.
        for loop, waiting in futures.items():
            with suppress(RuntimeError):  # The loop may be closed by now.
                loop.call_soon_threadsafe(_end_all, waiting)

    def _wake_next(self) -> None:
        """Wakes the next thread that still waits."""
        with suppress(IndexError):
            while True:
                waiter = self._settled.popleft().waiter
                if isinstance(waiter, _Lock):
                    return waiter.release()

    def _settle_soon(self) -> None:
        with self._queue_lock:
            if self._is_scheduled:
                return
            with suppress(RuntimeError):  # The writer is closed; the answer says so.
                self._pool.submit(self.settle_waiting)
                self._is_scheduled = True  # not before, as a signal may interrupt this
                return
        self.settle_waiting()

    def _take(self) -> list[Request]:
        group: list[Request] = []
        ids: set[str] = set()
        records = size = 0
        with self._queue_lock:
            while self._waiting:
                first = self._waiting[0]
                records += len(first.rows)
                size += first.size
                is_full = records > _MOST_RECORDS or size > self._most_bytes
                # The second batch of an id is looked up once the first one is decided.
                if group and (is_full or first.batch_id in ids):
                    break
                group.append(self._waiting.popleft())
                ids.add(first.batch_id)
        return group

    def _withdraw(self, request: Request) -> bool:
        """Removes a request; returns False if it was taken already."""
        with self._queue_lock, suppress(ValueError):
            self._waiting.remove(request)
            return True
        return False


def _end_all(waiting: list[asyncio.Future[None]]) -> None:
    for future in waiting:
        if not future.done():  # It may be cancelled.
            future.set_result(None)
