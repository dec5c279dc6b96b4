"""Errors of groups, their members and the sharing of topics."""

from __future__ import annotations

from coopconsume.errors.base import DeclaredError


class GroupNotFound(DeclaredError):
    """Neither the commit table nor Kafka has the group.

    Attributes:
        group: The group.
        table: The commit table.
        servers: The addresses of the brokers.
        hint: The probable cause and what to do.
    """

    message = "no group {group!r} in commit table {table} or on {servers}: {hint}"

    group: str
    table: str
    servers: str
    hint: str


class GroupActive(DeclaredError):
    """The offsets of a group with members or claims cannot be changed.

    Attributes:
        group: The group.
        holders: A description of the active members.
        remedy: What to do.
    """

    retriable = True
    message = (
        "group {group!r} is active ({holders}), so its offsets cannot be changed: {remedy}; "
        "nothing was changed"
    )

    group: str
    holders: str
    remedy: str


class GroupRefused(DeclaredError):
    """The leader of a group refuses a member.

    Attributes:
        group: The group.
        reason: Why, and what to do.
    """

    message = "group {group!r} refuses this member: {reason}"

    group: str
    reason: str


class ExternalReset(DeclaredError):
    """Another tool committed an offset for the group in Kafka.

    Attributes:
        topic: The topic.
        partition: The partition.
        primary: The group's committed offset in Kafka.
        stable: The stable offset in the commit table.
    """

    message = (
        "Kafka has offset {primary} for {topic}-{partition}, which this group did not write; the "
        "commit table has {stable}: set onExternalReset=honour to continue from Kafka's offset, or "
        "restore it by 'coopconsume offsets reset --to-log'"
    )

    topic: str
    partition: int
    primary: int
    stable: int


class TopicRangeFetchNotAllowed(DeclaredError):
    """A part of a partition was requested, but the topic is not open to sharing (KIP-X).

    Attributes:
        topic: The topic.
    """

    message = (
        "topic {topic!r} is not open to sharing: request whole partitions, or open it by "
        "coopconsume topics alter {topic} --accept-range-fetch"
    )

    topic: str


class ConsumerRangeFetchNotAccepted(DeclaredError):
    """A consumer with allowKeyShare=false requested or received part of a partition (KIP-X).

    Attributes:
        topic: The topic.
        partition: The partition.
        key_range: The part, as text.
    """

    message = (
        "this consumer has allowKeyShare=false, but it owns only the key hashes {key_range} of "
        "{topic}-{partition}: set allowKeyShare=true, or assign whole partitions"
    )

    topic: str
    partition: int
    key_range: str
