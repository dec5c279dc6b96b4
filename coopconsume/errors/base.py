"""Base classes of errors."""

from __future__ import annotations

from typing import Any, ClassVar

from commits.secrets import hidden


class CoopConsumeError(Exception):
    """Base of every error that this library raises; passwords and keys of URIs in it are hidden.

    Attributes:
        retriable: Whether the same call, made again unchanged, may succeed.
    """

    # The layout of Exception, so that it can become the base of the errors of other packages.
    __slots__ = ()

    retriable: ClassVar[bool] = False

    def __init__(self, *args: object) -> None:
        super().__init__(*map(_shown, args))

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, _shown(value))


class ReasonError(CoopConsumeError):
    """Base of errors that are one sentence."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class OffsetsError(CoopConsumeError):
    """Base of errors about offsets of one partition, from ``first`` to ``last``, both included."""

    def __init__(self, topic: str, partition: int, first: int, last: int) -> None:
        super().__init__(topic, partition, first, last)
        self.topic = topic
        self.partition = partition
        self.first = first
        self.last = last

    @property
    def _offsets(self) -> str:
        return f"offsets {self.first} to {self.last} of {self.topic}-{self.partition}"


def _shown(value: Any) -> Any:
    if isinstance(value, str) and "://" in value:
        return hidden(value)
    return value
