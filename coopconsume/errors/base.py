"""Base classes of errors."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, dataclass_transform

from commits.secrets import hidden


class CoopConsumeError(Exception):
    """Base class of every error that this library raises. Secrets in URIs are hidden.

    Attributes:
        retriable: Whether the same call may succeed if it is repeated unchanged.
    """

    # The layout of Exception, so that it can become the base of the errors of other packages.
    __slots__ = ()

    retriable: ClassVar[bool] = False

    def __init__(self, *args: object) -> None:
        super().__init__(*map(_shown, args))

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, _shown(value))


@dataclass_transform(eq_default=False)
class DeclaredError(CoopConsumeError):
    """An error whose facts are declared as annotated attributes, and are its arguments, too.

    Attributes:
        message: The text, with names of attributes in braces; None is shown as "not known".
    """

    message: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(eq=False, repr=False)(cls)

    def __post_init__(self) -> None:
        self.args = tuple(getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]

    def __str__(self) -> str:
        return self.message.format_map(_Facts(self)) if self.message else super().__str__()


class _Facts(dict[str, Any]):
    """Attributes of an error by their names."""

    def __init__(self, error: DeclaredError) -> None:
        super().__init__()
        self._error = error

    def __missing__(self, name: str) -> Any:
        value = getattr(self._error, name)
        return "not known" if value is None else value


class ReasonError(DeclaredError):
    """Base class of errors whose message is one text."""

    message = "{reason}"

    reason: str


class OffsetsError(DeclaredError):
    """Base class of errors about the offsets ``first`` to ``last`` (included) of a partition."""

    topic: str
    partition: int
    first: int
    last: int

    @property
    def _offsets(self) -> str:
        return f"offsets {self.first} to {self.last} of {self.topic}-{self.partition}"


def _shown(value: Any) -> Any:
    if isinstance(value, str) and "://" in value:
        return hidden(value)
    return value
