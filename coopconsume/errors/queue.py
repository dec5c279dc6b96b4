"""Errors of work queues."""

from __future__ import annotations

from coopconsume.errors.base import CoopConsumeError, OffsetsError


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


class QueueNotFound(CoopConsumeError):
    """A queue has no log: no consumer of it was ever started, or another one is meant.

    Attributes:
        queue: The group and the topic.
        place: The log that does not exist.
    """

    def __init__(self, queue: str, place: str) -> None:
        super().__init__(queue, place)
        self.queue = queue
        self.place = place

    def __str__(self) -> str:
        return (
            f"no queue {self.queue}: {self.place} does not exist; check the group, the topic and "
            "the replicas; the first consumer creates it"
        )


class QueueUnavailable(CoopConsumeError):
    """Too few replicas of a queue answered in time.

    Attributes:
        queue: The topic and the group.
        waiting_for: What was asked for.
        seconds: How long it was waited for.
        silent: The replicas that did not answer.
    """

    retriable = True

    def __init__(self, queue: str, waiting_for: str, seconds: float, silent: str) -> None:
        super().__init__(queue, waiting_for, seconds, silent)
        self.queue = queue
        self.waiting_for = waiting_for
        self.seconds = seconds
        self.silent = silent

    def __str__(self) -> str:
        return (
            f"queue {self.queue}: no majority of the replicas answered {self.waiting_for} within "
            f"{self.seconds} s; no answer from: {self.silent}. Check their brokers, topics and "
            "tables, and call again: what was acknowledged is kept"
        )


class NotHeld(OffsetsError, ValueError):
    """A record is acknowledged that this consumer does not hold.

    Attributes:
        topic: The topic.
        partition: The partition.
        first: The offset.
        last: The offset.
    """

    def __str__(self) -> str:
        return (
            f"{self._offsets} are not held by this queue consumer: they were not returned by its "
            "poll(), or are acknowledged already; acknowledge each record once, after RENEW again"
        )
