"""Words of a fenced log: which one it is, what is appended to it, and what an append gives back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Visibility = Literal["read_committed", "filter"]
VISIBILITIES: Final = ("read_committed", "filter")
UNCHECKED: Final = -1
"""An expected offset or sequence number that says: wherever the log goes on (KIP-27)."""

Headers = tuple[tuple[str, bytes], ...]
_PREFIX: Final = "coopconsume-log"
MULTI: Final = f"{_PREFIX}.multi."
"""What transactional ids of writers of several logs begin with."""


@dataclass(frozen=True)
class LogId:
    """One log: a partition of a topic, and by the topic's id not of another one of that name.

    Attributes:
        topic: Name of the topic.
        topic_id: Kafka's id of it (KIP-516), as text.
        partition: The partition.
    """

    topic: str
    topic_id: str
    partition: int

    @property
    def tp(self) -> tuple[str, int]:
        """The topic and the partition."""
        return self.topic, self.partition

    def transactional_id(self, writer: str | None = None) -> str:
        """Kafka's transactional id of the log's owner, or of one of several writers that share it.

        Each part has its length before it, so that no two logs have the same.

        Args:
            writer: The writer, where several share the log.
        """
        parts = [self.topic_id, str(self.partition), *([] if writer is None else [writer])]
        return ".".join([_PREFIX, *(f"{len(part)}:{part}" for part in parts)])

    def is_of_shared_writer(self, transactional_id: str) -> bool:
        """Whether a transactional id belongs to a writer that shares this log, or several logs."""
        return transactional_id.startswith((f"{self.transactional_id()}.", MULTI))

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Entry(NamedTuple):
    """A record to be appended.

    Attributes:
        value: Its value; None deletes its key from a compacted topic.
        key: Its key.
        headers: Names and values; the name ``fw`` is reserved for the writer.
        timestamp: Milliseconds since 1970; None for the client's clock.
    """

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes]] = ()
    timestamp: int | None = None


@dataclass(frozen=True)
class Consumed:
    """Input that an append has consumed: offsets that a group commits in its transaction.

    Attributes:
        group: Id of the consumer group.
        offsets: By topic and partition, the offset of the next record to consume.
    """

    group: str
    offsets: Mapping[tuple[str, int], int]


class Raw(NamedTuple):
    """A record as a client reads it; a record of kafka-python has the same attributes.

    Attributes:
        offset: Kafka's offset.
        timestamp: Milliseconds since 1970.
        key: The key.
        value: The value.
        headers: Names and values.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


class LogRecord(NamedTuple):
    """A record of a fenced log that counts.

    Attributes:
        seq: Its sequence number: how many records of data count before it.
        offset: Kafka's offset.
        epoch: Fence epoch of the owner that wrote it.
        batch_id: Id of the batch that it was appended with.
        key: Its key.
        value: Its value.
        headers: The user's headers.
        timestamp: Milliseconds since 1970.
    """

    seq: int
    offset: int
    epoch: int
    batch_id: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int


@dataclass(frozen=True, slots=True)
class Appended:
    """A batch that is in the log, whole.

    Attributes:
        batch_id: Its id.
        first_offset: Offset of its first record.
        first_seq: Sequence number of its first record.
        count: How many records it has; their offsets and numbers follow each other.
        epoch: Fence epoch that it was written under.
    """

    batch_id: str
    first_offset: int
    first_seq: int
    count: int
    epoch: int

    @property
    def last_offset(self) -> int:
        """Offset of its last record."""
        return self.first_offset + self.count - 1

    @property
    def last_seq(self) -> int:
        """Sequence number of its last record."""
        return self.first_seq + self.count - 1


@dataclass(frozen=True)
class Ends:
    """Where a log ends.

    Attributes:
        stable: The last stable offset: all below it is decided.
        end: The high watermark, where the next record goes.
    """

    stable: int
    end: int


def json_object(text: bytes | str | None) -> dict[str, Any]:
    """Parses a JSON object from an untrusted writer.

    Raises:
        ValueError: The text is not a JSON object, or is nested too deeply.
    """
    try:
        found = json.loads(text or b"")
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("not an object")  # noqa: TRY004 - the text is malformed
    return found
