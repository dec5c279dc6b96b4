"""Functions and objects that users name, and what kind a function is. Task-side code."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from inspect import Signature, iscoroutinefunction, signature
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from coopconsume.values.shown import clean, safely

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

FunctionT = TypeVar("FunctionT")

#: The attribute of functions that take the fields of a record.
_TAKES_FIELDS = "_coopconsume_takes_fields"
#: The attribute of functions of a record that has their `HandlerParts`.
_PARTS = "_coopconsume_parts"


class NameNotFound(ValueError):
    """A text is not of the form ``module:name``, or the module has nothing usable of that name."""


def object_named(text: str) -> Any:
    """Returns the object that is given as ``module:name``; None if the module has no such name.

    Raises:
        ImportError: The module cannot be imported.
        NameNotFound: The text is not of that form.
    """
    module, _, name = text.partition(":")
    if not module or not name:
        raise NameNotFound("it is not of the form module:function")
    if "/" in module or module.endswith(".py"):
        raise NameNotFound("it names a file, not a module")
    found: Any = import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def name_of(function: Any) -> str:
    """Returns the name of a function or a class, or that of an object's class.

    It has no arguments of a `functools.partial` and no attributes, as they may be secrets.
    """
    while isinstance(function, partial):
        function = function.func
    name = clean(safely(lambda: function.__qualname__))
    return name or clean(safely(lambda: type(function).__qualname__)) or "an object"


def refused_call(function: Any, arguments: tuple[str, ...], name: str) -> str:
    """Returns why a function cannot be called with some arguments; empty if it can.

    Args:
        function: The function.
        arguments: Names of the arguments, which are passed by their places.
        name: What the call is named.
    """
    try:
        found = signature(function)
    except (TypeError, ValueError):
        return ""  # Some functions of C have no signature.
    try:
        found.bind(*arguments)
    except TypeError as error:
        call = f"{name}({', '.join(arguments)})"
        return f"it is called as {call}, and its parameters are {_without_defaults(found)}: {error}"
    return ""


class _Hidden:
    """A default in a signature: that of a `functools.partial` may be a secret."""

    def __repr__(self) -> str:
        return "…"


def _without_defaults(found: Signature) -> Signature:
    hidden = _Hidden()
    return found.replace(
        parameters=[
            one if one.default is one.empty else one.replace(default=hidden)
            for one in found.parameters.values()
        ]
    )


def is_async(function: Any) -> bool:
    """Whether calling a function or an object returns a coroutine."""
    if isinstance(function, partial):
        return is_async(function.func)
    call = getattr(function, "__call__", None)  # noqa: B004 - a method's kind, not its being there
    return iscoroutinefunction(function) or iscoroutinefunction(call)


def taking_fields(function: FunctionT) -> FunctionT:
    """Returns a function of a record, marked as one that may get a plain tuple of its fields."""
    setattr(function, _TAKES_FIELDS, True)
    return function


def takes_fields(function: Any) -> bool:
    """Whether a function of a record may get a plain tuple of its fields."""
    return getattr(function, _TAKES_FIELDS, False) is True


class HandlerParts(NamedTuple):
    """A typed handler without its decoders, and those.

    A runner that uses them has no call between a record and its handler.

    Attributes:
        handler: A function of a decoded record.
        decode: Functions of bytes that are not null, by ``key`` and ``value``; of each field that
            is declared.
        with_context: The fields whose functions also take the topic of the record and its headers.
        reads_ahead: Whether there is one function, and it may be called for a record before the
            handlers of those before it.
    """

    handler: Callable[[Any], Any]
    decode: Mapping[str, Callable[..., Any]]
    with_context: Collection[str] = ()
    reads_ahead: bool = False


def with_parts(function: FunctionT, parts: HandlerParts) -> FunctionT:
    """Returns a typed handler that a runner may replace by its parts."""
    setattr(function, _PARTS, parts)
    return function


def parts_of(function: Any) -> HandlerParts | None:
    """Returns the parts of a typed handler; None if it has to be called itself."""
    found = getattr(function, _PARTS, None)
    return found if isinstance(found, HandlerParts) else None  # Proxies have every attribute.
