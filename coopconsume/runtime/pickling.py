"""Finds the part of a handler that cannot be pickled."""

from __future__ import annotations

from inspect import getclosurevars, isfunction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


def unpicklable_part(handler: Any) -> tuple[str, str] | None:
    """Returns the name of the first part of a handler that cannot be pickled, and why it cannot.

    Parts are attributes of an object or a class, and variables that a function refers to.

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
    for name, part in getattr(handler, "__dict__", {}).items():
        yield f"handler.{name}", part
