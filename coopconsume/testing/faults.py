"""Handlers that record their calls and suffer faults. Task-side: no more than workers have."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coopconsume.errors import HandlerNotUsable
from coopconsume.record import exhausted
from coopconsume.testing.history import Recorder
from coopconsume.testing.history.recorder import outcome_of
from coopconsume.values.callables import is_async
from coopconsume.worker.frame_runner import FrameHandler
from coopconsume.worker.handler_answers import as_rows, error_text
from coopconsume.worker.handler_life import SlotContext, enters, has_life, lives_on_loop
from coopconsume.worker.open_handlers import called, closed, closed_async, opened, opened_async
from coopconsume.worker.slot import current_slot

if TYPE_CHECKING:
    from collections.abc import Callable

    from coopconsume.record import Record
    from coopconsume.testing.history import RecordedCall


#: Context managers get no slot.
_NO_SLOT = SlotContext(0, "", "", "")


@dataclass(frozen=True)
class Fault:
    """What goes wrong in one handler call.

    Attributes:
        delay: Seconds to wait before anything else, at least 0.
        end_worker: Whether the Python worker is then killed, with all handlers that it runs.
        error: What is then raised instead of calling the handler.
    """

    delay: float = 0.0
    end_worker: bool = False
    error: Exception | None = None


class _Faulty:
    """A handler that records its calls and suffers faults."""

    def __init__(self, handler: Any, recorder: Recorder, faults: Any) -> None:
        self._handler = self._called = handler
        self._recorder = recorder
        self._faults = faults

    def __call__(self, record: Record) -> Any:
        with self._recorder.call(record, current_slot()) as call:
            fault = self._fault(record)
            time.sleep(fault.delay)
            _strike(fault)
            return _settled(call, self._called(record))

    def _fault(self, record: Record) -> Fault:
        return (self._faults and self._faults(record)) or Fault()


class _FaultyCoroutine(_Faulty):
    async def __call__(self, record: Record) -> Any:
        with self._recorder.call(record, current_slot()) as call:
            fault = self._fault(record)
            await asyncio.sleep(fault.delay)
            _strike(fault)
            return _settled(call, await self._called(record))


class _PlainLife(_Faulty):
    """Opens and closes the handler as a slot does."""

    def open(self, slot: SlotContext) -> None:
        self._made, entered = opened(self._handler, slot)
        self._called = called(self._made, entered)

    def close(self, error: BaseException | None) -> None:
        closed(self._made, error)


class _LoopLife(_Faulty):
    async def open(self, slot: SlotContext) -> None:
        self._made, entered = await opened_async(self._handler, slot)
        self._called = called(self._made, entered)

    async def close(self, error: BaseException | None) -> None:
        await closed_async(self._made, error)


class _CoroutineLife(_LoopLife, _FaultyCoroutine):
    pass


class _Manager:
    """Enters a context manager as a slot does: only what that returns is known to be async."""

    def __init__(self, manager: Any, recorder: Recorder, faults: Any) -> None:
        self._manager = manager
        self._recorder = recorder
        self._faults = faults

    def __enter__(self) -> _Faulty:
        self._made, entered = opened(self._manager, _NO_SLOT)
        return self._entered(entered)

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        closed(self._made, error)

    def _entered(self, entered: Any) -> _Faulty:
        handler = called(self._made, entered)
        kind = _FaultyCoroutine if is_async(handler) else _Faulty
        return kind(handler, self._recorder, self._faults)


class _AsyncManager(_Manager):
    async def __aenter__(self) -> _Faulty:
        self._made, entered = await opened_async(self._manager, _NO_SLOT)
        return self._entered(entered)

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        await closed_async(self._made, error)


def _strike(fault: Fault) -> None:
    if fault.end_worker:
        os.kill(os.getpid(), signal.SIGKILL)
    if fault.error is not None:
        raise fault.error


def _settled(call: RecordedCall, answer: Any) -> Any:
    answer = exhausted(answer)
    error = as_rows(answer, wanted=False)
    if isinstance(error, BaseException):
        call.settle(outcome_of(error), error_text(error))
    return answer


def recorded(
    handler: Callable[[Record], Any],
    directory: str | os.PathLike[str],
    faults: Callable[[Record], Fault | None] | None = None,
) -> Callable[[Record], Any]:
    """Returns a handler that writes a history of its calls, and suffers faults.

    Args:
        handler: Plain or ``async``, perhaps with `open` and `close`, or a context manager; not a
            frame handler.
        directory: For the history, see `read_history`; it is created if it is missing.
        faults: Gives the fault of a call, None for none. It sees the record with its ``attempt``:
            ``lambda r: Fault(error=OSError()) if r.attempt == 1 else None`` fails each record once.

    Raises:
        HandlerNotUsable: It is a frame handler.
    """
    if isinstance(handler, FrameHandler):
        raise HandlerNotUsable("a frame handler", "give a handler of single records")
    made: Callable[[Record], Any] = _kind_of(handler)(handler, Recorder(directory), faults)
    return made


def _kind_of(handler: Any) -> Any:
    if not has_life(handler):
        return _FaultyCoroutine if is_async(handler) else _Faulty
    kind = handler if isinstance(handler, type) else type(handler)
    if enters(kind):
        return _AsyncManager if lives_on_loop(kind) else _Manager
    if is_async(handler):
        return _CoroutineLife
    return _LoopLife if lives_on_loop(kind) else _PlainLife
