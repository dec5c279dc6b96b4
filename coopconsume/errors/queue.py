"""Errors of work queues."""

from __future__ import annotations

from coopconsume.errors.base import DeclaredError, OffsetsError


class QueueLogFormat(DeclaredError):
    """The log of a queue's replica was written by a newer version, or has lost its start.

    Attributes:
        place: The log.
        found: What it contains.
        expected: What this version reads.
    """

    message = (
        "{place} has {found}, expected {expected}: upgrade coopconsume here, or give a replica "
        "that is intact"
    )

    place: str
    found: str
    expected: str


class QueueNotFound(DeclaredError):
    """A queue has no log: no consumer of it was ever started, or another one is meant.

    Attributes:
        queue: The group and the topic.
        place: The log that does not exist.
    """

    message = (
        "no queue {queue}: {place} does not exist; check the group, the topic and the replicas; "
        "the first consumer creates it"
    )

    queue: str
    place: str


class QueueUnavailable(DeclaredError):
    """Too few replicas of a queue answered in time.

    Attributes:
        queue: The topic and the group.
        waiting_for: What was asked for.
        seconds: How long it was waited for.
        silent: The replicas that did not answer.
    """

    retriable = True
    message = (
        "queue {queue}: no majority of the replicas answered {waiting_for} within {seconds} s; no "
        "answer from: {silent}. Check their brokers, topics and tables, and call again: what was "
        "acknowledged is kept"
    )

    queue: str
    waiting_for: str
    seconds: float
    silent: str


class NotHeld(OffsetsError, ValueError):
    """This consumer does not hold the record that it was asked to acknowledge.

    Attributes:
        topic: The topic.
        partition: The partition.
        first: The offset.
        last: The offset.
    """

    message = (
        "{_offsets} are not held by this queue consumer: they were not returned by its poll(), or "
        "are acknowledged already; acknowledge each record once, after RENEW again"
    )
