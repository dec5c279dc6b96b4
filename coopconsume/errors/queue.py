"""Errors of work queues."""

from __future__ import annotations

from coopconsume.errors.base import CoopConsumeError


class QueueLogFormat(CoopConsumeError):
    """The log of a queue's replica was written by a newer version, or has lost its start.

    Attributes:
        place: The log.
        found: What it contains.
        expected: What this version reads.
    """

    def __init__(self, place: str, found: str, expected: str) -> None:
        super().__init__(place, found, expected)
        self.place = place
        self.found = found
        self.expected = expected

    def __str__(self) -> str:
        return (
            f"{self.place} has {self.found}, expected {self.expected}: upgrade coopconsume here, "
            "or give a replica that is intact"
        )
