"""Has others see the beginning and the end of each handler call. Task-side code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from coopconsume.record import exhausted
from coopconsume.values.callables import is_async
from coopconsume.worker.frame_runner import FrameHandler

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Sees the end of a call, in the thread or task of the call: its answer, or the error that it has
#: raised.
End = Callable[[Any], None]
#: Sees the beginning of a call, with the record or the frame that the handler gets.
Watcher = Callable[[Any], End]


def watched(handler: Any, watchers: Sequence[Watcher]) -> Any:
    """Returns a handler whose calls are seen; the same one if nobody wants to see them.

    Args:
        handler: Plain, ``async`` or of frames.
        watchers: See the calls; the first one sees their beginning first and their end last.
    """
    if not watchers:
        return handler
    if isinstance(handler, FrameHandler):
        return replace(handler, function=_watched(handler.function, watchers, _of_frame))
    return _watched(handler, watchers, lambda answer, _: exhausted(answer))


def _of_frame(answer: Any, frame: Any) -> Any:
    """Returns a frame handler's answer; the outcomes that a generator yields as a list."""
    # One more than there are rows is enough: it may have no end.
    is_lazy = type(answer) is GeneratorType
    return list(islice(answer, len(frame) + 1)) if is_lazy else answer


def _watched(
    handler: Any, watchers: Sequence[Watcher], answered: Callable[[Any, Any], Any]
) -> Callable[[Any], Any]:
    def begin(given: Any) -> list[End]:
        return [watcher(given) for watcher in watchers][::-1]

    if is_async(handler):

        async def call_async(given: Any) -> Any:
            ends = begin(given)
            try:
                answer = answered(await handler(given), given)
            except BaseException as error:
                _end(ends, error)
                raise
            _end(ends, answer)
            return answer

        return call_async

    def call_plain(given: Any) -> Any:
        ends = begin(given)
        try:
            answer = answered(handler(given), given)
        except BaseException as error:
            _end(ends, error)
            raise
        _end(ends, answer)
        return answer

    return call_plain


def _end(ends: list[End], answer: Any) -> None:
    for end in ends:
        end(answer)
