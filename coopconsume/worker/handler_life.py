"""Finds out whether a handler is opened and closed, and by what method. Task-side code."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from coopconsume.values.callables import name_of
from coopconsume.worker.frame_runner import FrameHandler

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The methods that open and close a handler; of several, the first one counts.
OPENING = ("open", "__aenter__", "__enter__")
CLOSING = ("close", "__aexit__", "__exit__")


@dataclass(frozen=True)
class SlotContext:
    """What `open` of a handler gets.

    A handler stays open for all slots that its worker process runs later: `current_slot` returns
    the slot of a call.

    Attributes:
        slot: The number of the slot that opens the handler, from 0.
        group_id: The group of the consumer.
        query_id: `CooperativeQuery.id`: the same after a restart of the job.
        run_id: `CooperativeQuery.runId`: of this run alone.
        slots: The slots of the query: never more of its tasks run handlers at once.
    """

    slot: int
    group_id: str
    query_id: str
    run_id: str
    slots: int = 1


class OpenFailed(Exception):
    """A handler could not be opened; the text says why."""


def function_of(handler: Any) -> Any:
    """Returns what a user has given as a handler, without the form of its frames."""
    return handler.function if isinstance(handler, FrameHandler) else handler


def shown_handler(handler: Any) -> str:
    """Returns a handler as text for people, without what it has: that may be a secret."""
    function = function_of(handler)
    return function if isinstance(function, str) else name_of(function)


def has_life(handler: Any) -> bool:
    """Whether a handler is opened and closed: it is a class, or has methods for that."""
    function = function_of(handler)
    return isinstance(function, type) or bool(first_method(type(function), (*OPENING, *CLOSING)))


def enters(handler: Any) -> bool:
    """Whether a handler or a class is a context manager: entering it may return what is called."""
    kind = handler if isinstance(handler, type) else type(handler)
    return first_method(kind, OPENING) not in ("", "open")


def first_method(kind: type, names: Iterable[str]) -> str:
    """Returns the first of some methods that a class has; empty if it has none."""
    return next((name for name in names if callable(getattr(kind, name, None))), "")


def lives_on_loop(kind: type) -> bool:
    """Whether handlers of a class live on the event loop, since one of their methods is async."""
    methods = [getattr(kind, name, None) for name in ("__call__", "open", "close")]
    return callable(getattr(kind, "__aenter__", None)) or any(map(iscoroutinefunction, methods))
