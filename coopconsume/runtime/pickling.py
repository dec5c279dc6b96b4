"""Finds the part of a handler that cannot be pickled."""

from __future__ import annotations

from functools import partial
from inspect import getclosurevars, isfunction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


def unpicklable_part(handler: Any) -> tuple[str, str] | None:
    """Returns the name of the first part of a handler that cannot be pickled, and why it cannot.

    Parts are attributes of an object or a class, variables that a function refers to, and arguments
    of a `functools.partial`.

    Returns:
        None if no part by itself is at fault.
    """
    from pyspark import cloudpickle

    for name, part in _parts(handler):
        try:
            cloudpickle.dumps(part)
        except Exception as error:  # noqa: BLE001 - of the class of the part
            return name, f"{type(error).__name__}: {error}"
    return None


def _parts(handler: Any) -> Iterator[tuple[str, Any]]:
    function = getattr(handler, "__func__", handler)
    if isfunction(function):
        found = getclosurevars(function)
        for name, part in {**found.globals, **found.nonlocals}.items():
            yield f"the variable {name}", part
        handler = getattr(handler, "__self__", None)
    if isinstance(handler, partial):
        for number, part in enumerate(handler.args, 1):
            yield f"the argument {number}", part
        for name, part in handler.keywords.items():
            yield f"the argument {name}", part
        yield from _parts(handler.func)
        return
    slots = (name for base in type(handler).__mro__ for name in vars(base).get("__slots__", ()))
    for name in (*getattr(handler, "__dict__", {}), *slots):
        if hasattr(handler, name):
            yield f"handler.{name}", getattr(handler, name)
