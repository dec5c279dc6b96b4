"""Errors of groups, their members and the sharing of topics."""

from __future__ import annotations

from coopconsume.errors.base import CoopConsumeError


class GroupNotFound(CoopConsumeError):
    """Neither the commit table nor Kafka has the group.

    Attributes:
        group: The group.
        table: The commit table.
        servers: The addresses of the brokers.
        hint: The probable cause and what to do.
    """

    def __init__(self, group: str, table: str, servers: str, hint: str) -> None:
        super().__init__(group, table, servers, hint)
        self.group = group
        self.table = table
        self.servers = servers
        self.hint = hint

    def __str__(self) -> str:
        where = f"in commit table {self.table} or on {self.servers}"
        return f"no group {self.group!r} {where}: {self.hint}"


class GroupActive(CoopConsumeError):
    """The offsets of a group with members or claims cannot be changed.

    Attributes:
        group: The group.
        holders: A description of the active members.
        remedy: What to do.
    """

    retriable = True

    def __init__(self, group: str, holders: str, remedy: str) -> None:
        super().__init__(group, holders, remedy)
        self.group = group
        self.holders = holders
        self.remedy = remedy

    def __str__(self) -> str:
        return (
            f"group {self.group!r} is active ({self.holders}), so its offsets cannot be changed: "
            f"{self.remedy}; nothing was changed"
        )


class GroupRefused(CoopConsumeError):
    """The leader of a group refuses a member.

    Attributes:
        group: The group.
        reason: Why, and what to do.
    """

    def __init__(self, group: str, reason: str) -> None:
        super().__init__(group, reason)
        self.group = group
        self.reason = reason

    def __str__(self) -> str:
        return f"group {self.group!r} refuses this member: {self.reason}"


class ExternalReset(CoopConsumeError):
    """Another tool committed an offset for the group in Kafka.

    Attributes:
        topic: The topic.
        partition: The partition.
        primary: The group's committed offset in Kafka.
        stable: The stable offset in the commit table.
    """

    def __init__(self, topic: str, partition: int, primary: int, stable: int) -> None:
        super().__init__(topic, partition, primary, stable)
        self.topic = topic
        self.partition = partition
        self.primary = primary
        self.stable = stable

    def __str__(self) -> str:
        return (
            f"Kafka has offset {self.primary} for {self.topic}-{self.partition}, which this "
            f"group did not write; the commit table has {self.stable}: set onExternalReset=honour "
            "to continue from Kafka's offset, or restore it by "
            "'coopconsume offsets reset --to-log'"
        )


class TopicRangeFetchNotAllowed(CoopConsumeError):
    """A part of a partition was requested, but the topic is not open to sharing (KIP-X).

    Attributes:
        topic: The topic.
    """

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} is not open to sharing: request whole partitions, or open it "
            f"by coopconsume topics alter {self.topic} --accept-range-fetch"
        )


class ConsumerRangeFetchNotAccepted(CoopConsumeError):
    """A consumer with allowKeyShare=false requested or received part of a partition (KIP-X).

    Attributes:
        topic: The topic.
        partition: The partition.
        key_range: The part, as text.
    """

    def __init__(self, topic: str, partition: int, key_range: str) -> None:
        super().__init__(topic, partition, key_range)
        self.topic = topic
        self.partition = partition
        self.key_range = key_range

    def __str__(self) -> str:
        return (
            f"this consumer has allowKeyShare=false, but it owns only the key hashes "
            f"{self.key_range} of {self.topic}-{self.partition}: set allowKeyShare=true, or "
            "assign whole partitions"
        )
