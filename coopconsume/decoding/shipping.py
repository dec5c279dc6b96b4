"""Makes classes that are declared ready to be pickled. It runs on the driver.

A class that workers cannot import, as one of a program or a notebook, is pickled as a whole.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from coopconsume.errors import InvalidOption
from coopconsume.values.shown import safely

if TYPE_CHECKING:
    from collections.abc import Iterator

#: What msgspec keeps in a class that it has decoded. It cannot be pickled.
_KEPT_BY_MSGSPEC = "__msgspec_cache__"


def make_ready(name: str, label: str, declared: Any) -> None:
    """Makes a declared type, and the classes inside it, ready to be pickled.

    Args:
        name: ``key`` or ``value``.
        label: The declaration, for people.
        declared: The type.

    Raises:
        InvalidOption: A class would lose its fields.
    """
    for kind in _classes(declared, {}):
        if _KEPT_BY_MSGSPEC in vars(kind):
            delattr(kind, _KEPT_BY_MSGSPEC)
        if _is_importable(kind):
            continue
        if hasattr(kind, "__struct_fields__"):
            raise InvalidOption(
                name, label, f"workers cannot get the msgspec.Struct {kind.__qualname__}, as it is "
                "of the program itself: define it in a module, or give a dataclass",
            )  # fmt: skip
        if dataclasses.is_dataclass(kind):
            _resolve(kind)


def _classes(kind: Any, seen: dict[int, Any]) -> Iterator[type]:
    """Yields the classes in a type, and those in their fields."""
    if id(kind) in seen:
        return
    seen[id(kind)] = kind  # Some arguments of types cannot be hashed.
    inner = [get_origin(kind), *get_args(kind)]
    if isinstance(kind, type):
        yield kind
        fields = getattr(kind, "__pydantic_fields__", {}).values()
        inner += [field.annotation for field in fields]
        inner += (safely(lambda: get_type_hints(kind)) or {}).values()
    for one in inner:
        yield from _classes(one, seen)


def _is_importable(kind: type) -> bool:
    """Whether a worker gets a class by its name."""
    if kind.__module__ == "__main__":
        return False
    found: Any = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is kind


def _resolve(kind: type) -> None:
    """Replaces annotations in text by types: a worker does not have the names of the program."""
    for base in kind.__mro__:
        own = vars(base).get("__annotations__", {})
        if any(isinstance(hint, str) for hint in own.values()) and not _is_importable(base):
            hints = get_type_hints(base, include_extras=True)
            base.__annotations__ = {field: hints[field] for field in own}
