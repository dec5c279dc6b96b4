"""Functions and objects that users name, and what kind a function is. Task-side code."""

from __future__ import annotations

from importlib import import_module
from inspect import iscoroutinefunction
from typing import Any


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


def is_async(function: Any) -> bool:
    """Whether calling a function or an object returns a coroutine."""
    call = getattr(function, "__call__", None)  # noqa: B004 - a method's kind, not its being there
    return iscoroutinefunction(function) or iscoroutinefunction(call)
