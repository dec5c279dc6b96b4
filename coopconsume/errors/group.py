"""Groups, who may be in them, and what is shared of a topic."""

from __future__ import annotations

from coopconsume.errors.base import CoopConsumeError


class GroupNotFound(CoopConsumeError):
    """A group of which neither the commit table nor Kafka knows.

    Attributes:
        group: The group.
        table: The commit table.
        servers: The cluster asked.
        hint: What may be the matter, and what to do.
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
        holders: Who, in words.
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
    """A member cannot be in its group.

    Attributes:
        group: The group.
        reason: Why not, and what to do.
    """

    def __init__(self, group: str, reason: str) -> None:
        super().__init__(group, reason)
        self.group = group
        self.reason = reason

    def __str__(self) -> str:
        return f"group {self.group!r} does not take this member: {self.reason}"


class ExternalReset(CoopConsumeError):
    """Somebody else moved the group's offset in Kafka.

    Attributes:
        topic: The topic.
        partition: The partition.
        primary: The offset Kafka holds for the group.
        stable: The stable offset of the commit table.
    """

    def __init__(self, topic: str, partition: int, primary: int, stable: int) -> None:
        super().__init__(topic, partition, primary, stable)
        self.topic = topic
        self.partition = partition
        self.primary = primary
        self.stable = stable

    def __str__(self) -> str:
        return (
            f"Kafka holds offset {self.primary} for {self.topic}-{self.partition}, which this "
            f"group did not write; the commit table says {self.stable}: set onExternalReset=honour "
            "to go on from Kafka's offset, or put it back by 'coopconsume offsets reset --to-log'"
        )


class TopicRangeFetchNotAllowed(CoopConsumeError):
    """A part of a partition was asked for, and the topic is not open to sharing (KIP-X).

    Attributes:
        topic: The topic.
    """

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} is not open to sharing: ask for whole partitions, or open it "
            f"by coopconsume topics alter {self.topic} --accept-range-fetch"
        )


class ConsumerRangeFetchNotAccepted(CoopConsumeError):
    """A consumer with allowKeyShare=false was given, or asked for, part of a partition (KIP-X).

    Attributes:
        topic: The topic.
        partition: The partition.
        key_range: The part, in words.
    """

    def __init__(self, topic: str, partition: int, key_range: str) -> None:
        super().__init__(topic, partition, key_range)
        self.topic = topic
        self.partition = partition
        self.key_range = key_range

    def __str__(self) -> str:
        return (
            f"this consumer has allowKeyShare=false, but {self.topic}-{self.partition} is only its "
            f"for the key hashes {self.key_range}: set allowKeyShare=true, or take whole partitions"
        )
