"""What the writer needs of a Kafka client; `kafka_engine` and `confluent_engine` give it.

All that can fail fails by `EngineDoubt`: what was asked for may have happened or not, now or later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from coopconsume.fenced.log import Consumed, Ends, Entry, LogId, Raw
    from coopconsume.fenced.stamp import Header


class EngineDoubt(Exception):
    """A call of the client failed, or took too long.

    Attributes:
        problem: What went wrong, in words.
        refusal: The error to raise where it turns out that nothing happened, as trying again
            would not help; else None.
        is_out_of_range: Whether the brokers do not have the offset that was to be read.
    """

    def __init__(
        self, problem: str, refusal: Exception | None = None, *, is_out_of_range: bool = False
    ) -> None:
        super().__init__(problem, refusal)
        self.problem = problem
        self.refusal = refusal
        self.is_out_of_range = is_out_of_range


class Part(NamedTuple):
    """What is appended to one log.

    Attributes:
        log: The log.
        entries: The records.
        stamps: The stamp of each record.
    """

    log: LogId
    entries: Sequence[Entry]
    stamps: Sequence[Header]


class Channel(Protocol):
    """A producer, of one life: after any doubt it is dropped, never used again.

    Without a transactional id it only appends. Times are seconds.
    """

    def init(self, timeout: float) -> None:
        """Fence every earlier producer of the same transactional id, its transaction decided."""

    def begin(self) -> None:
        """Begin a transaction."""

    def append(self, parts: Sequence[Part], timeout: float) -> list[list[int]]:
        """Appends records, acknowledged by all replicas in sync; returns the offset of each."""

    def send_offsets(self, consumed: Consumed, timeout: float) -> None:
        """Adds offsets of a consumer group to the transaction."""

    def commit(self, timeout: float) -> None:
        """Commit the transaction."""

    def abort(self, timeout: float) -> None:
        """Abort the transaction."""

    def drop(self) -> None:
        """Stops using it at once; a request under way may still take effect."""


class Engine(Protocol):
    """One Kafka client, for one log at a time; not for several threads at once."""

    def topic_id(self, topic: str) -> str | None:
        """Kafka's id of a topic, as text; None if there is no such topic."""

    def is_compacted(self, topic: str) -> bool:
        """Whether the topic's cleanup policy compacts; False where that may not be asked."""

    def start(self, topic: str, partition: int) -> int:
        """The first offset that is kept."""

    def ends(self, topic: str, partition: int) -> Ends:
        """Where the log ends; the end is looked up before the last stable offset."""

    def open_transactions(self, topic: str, partition: int) -> Mapping[int, str | None]:
        """Producers with an open transaction there, by id, and their transactional ids.

        A transactional id is None where no coordinator knows it. Nothing is returned where the
        brokers do not say.
        """

    def read(
        self, topic: str, partition: int, start: int, stop: int, timeout: float
    ) -> Iterator[list[Raw]]:
        """Committed records from one offset to below another one, that is stable, in order.

        Fails when nothing has come for ``timeout`` seconds.
        """

    def channel(self, log: LogId, transactional_id: str | None, timeout: float) -> Channel:
        """A new producer."""

    def close(self) -> None:
        """Close the connections; harmless when repeated."""
