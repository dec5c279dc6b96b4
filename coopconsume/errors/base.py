"""Base classes of errors."""

from __future__ import annotations

from typing import Any, ClassVar

from commits.declared import Declared
from commits.secrets import hidden_in


class CoopConsumeError(Exception):
    """Base class of every error that this library raises. Secrets in URIs are hidden.

    Attributes:
        retriable: Whether the same call may succeed if it is repeated unchanged.
    """

    # The layout of Exception, so that it can become the base of the errors of other packages.
    __slots__ = ()

    retriable: ClassVar[bool] = False

    def __init__(self, *args: object) -> None:
        super().__init__(*map(hidden_in, args))

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, hidden_in(value))


class DeclaredError(Declared, CoopConsumeError):
    """An error of this library that is declared."""


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


def sentence_of(error: BaseException) -> str:
    """Returns an error as one sentence for people."""
    if isinstance(error, CoopConsumeError):
        return str(error)
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}"
