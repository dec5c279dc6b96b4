"""Errors that are declared: annotated attributes and a message."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, dataclass_transform


@dataclass_transform(eq_default=False)
class Declared:
    """Makes an error of its annotated attributes, which are its arguments, too.

    It stands before the base class of the error.

    Attributes:
        message: The text, with names of attributes in braces; None is shown as "not known".
    """

    # Without a layout of its own, so that the bases of errors can be exchanged.
    __slots__ = ()

    message: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(eq=False, repr=False)(cls)

    def __post_init__(self) -> None:
        self.args = tuple(getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type, misc]

    def __str__(self) -> str:
        return self.message.format_map(_Facts(self)) if self.message else super().__str__()


class _Facts(dict[str, Any]):
    """Attributes of an error by their names."""

    def __init__(self, error: Declared) -> None:
        super().__init__()
        self._error = error

    def __missing__(self, name: str) -> Any:
        value = getattr(self._error, name)
        return "not known" if value is None else value
