"""Finds the part of a handler that cannot be pickled."""

from __future__ import annotations

from functools import partial
from inspect import getclosurevars, isfunction, isgetsetdescriptor, ismemberdescriptor, signature
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


def unpicklable_part(handler: Any) -> tuple[str, str] | None:
    """Returns the name of the first part of a handler that cannot be pickled, and why it cannot.

    Parts are attributes of an object or a class, variables that a function or a method refers to,
    and arguments of a `functools.partial`.

    Returns:
        None if no part by itself is at fault.
    """
    from pyspark import cloudpickle

    def why_not(part: Any) -> str:
        try:
            cloudpickle.dumps(part)
        except Exception as error:  # noqa: BLE001 - of the class of the part
            return f"{type(error).__name__}: {error}"
        return ""

    for name, part in _parts(handler):
        if why := why_not(part):
            return name, why
    # A class that workers import is pickled by its name, whatever it has.
    kind = handler if isinstance(handler, type) else type(handler)
    for name, part in _parts_of_class(kind) if why_not(kind) else ():
        if why := why_not(part):
            return name, why
    return None


def _parts(handler: Any) -> Iterator[tuple[str, Any]]:
    function = getattr(handler, "__func__", handler)
    if isfunction(function):
        yield from _variables(function)
        handler = getattr(handler, "__self__", None)
    if isinstance(handler, partial):
        for number, part in enumerate(handler.args, 1):
            yield f"the argument {number}", part
        for name, part in handler.keywords.items():
            yield f"the argument {name}", part
        yield from _parts(handler.func)
        return
    if isinstance(handler, type):
        return
    slots = (name for base in type(handler).__mro__ for name in vars(base).get("__slots__", ()))
    for name in (*getattr(handler, "__dict__", {}), *slots):
        if hasattr(handler, name):
            yield f"handler.{name}", getattr(handler, name)


def _parts_of_class(kind: type) -> Iterator[tuple[str, Any]]:
    """Yields the attributes of a class, and the variables that its methods refer to."""
    for base in kind.__mro__[:-1]:  # What object has is not pickled.
        for name, part in vars(base).items():
            function = getattr(part, "__func__", getattr(part, "fget", part))
            if isfunction(function):
                for label, variable in _variables(function):
                    # A method may name its class, which has all the other parts.
                    if not any(variable is one for one in kind.__mro__):
                        yield label, variable
            elif not (isgetsetdescriptor(part) or ismemberdescriptor(part) or name == "_abc_impl"):
                yield f"handler.{name}", part


def _variables(function: Any) -> Iterator[tuple[str, Any]]:
    """Yields the variables that a function refers to, and the defaults of its arguments."""
    found = getclosurevars(function)
    for name, part in {**found.globals, **found.nonlocals}.items():
        yield f"the variable {name}", part
    for name, argument in signature(function).parameters.items():
        if argument.default is not argument.empty:
            yield f"the default of {name}", argument.default
