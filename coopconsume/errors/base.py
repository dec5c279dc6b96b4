"""What every error of coopconsume is, and what several are alike in."""

from __future__ import annotations

from typing import Any, ClassVar


class CoopConsumeError(Exception):
    """Base of every error that coopconsume raises by itself; secrets of URIs in it are hidden.

    Attributes:
        retriable: Whether the same call, made again unchanged, may succeed.
    """

    retriable: ClassVar[bool] = False

    def __init__(self, *args: object) -> None:
        super().__init__(*map(_shown, args))

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, _shown(value))


class ReasonError(CoopConsumeError):
    """What has one fact, and that in words."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class OffsetsError(CoopConsumeError):
    """What is about offsets of one partition, from ``first`` to ``last``, both included."""

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
        # Only now, as errors of the fenced writer must not load the commit store.
        from commits.secrets import hidden

        return hidden(value)
    return value
