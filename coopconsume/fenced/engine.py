"""Base classes of the Kafka clients of the fenced log: `kafka_engine` and `confluent_engine`.

Every failure is an `EngineDoubt`: the request may have taken effect or not, now or later.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from coopconsume.errors.fenced import LogUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from coopconsume.fenced.deadline import Deadline
    from coopconsume.fenced.log import Consumed, Ends, Entry, LogId, Rows
    from coopconsume.fenced.stamp import Header, Stamp


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


def repeat(
    deadline: Deadline, attempt: Callable[[], bool], drop: Callable[[], None], log: LogId
) -> None:
    """Repeats an attempt to acquire until it succeeds; drops the producer after any failure."""
    for number in count(1):
        problem = "others kept writing to it"
        try:
            if attempt():
                return
        except EngineDoubt as doubt:
            drop()
            if doubt.refusal is not None:
                raise doubt.refusal from doubt
            problem = doubt.problem
        except BaseException:
            drop()
            raise
        if deadline.is_over:
            drop()
            raise LogUnavailable(*log.tp, "acquire", problem)
        deadline.pause(number)


class LogAppend(NamedTuple):
    """What is appended to one log: records of one or several batches, and their stamps.

    Attributes:
        headers: The stamp of each record, as its header.
        stamps: The stamp of the first record of each batch.
    """

    log: LogId
    entries: Sequence[Entry]
    headers: Sequence[Header]
    stamps: Sequence[Stamp] = ()


class Channel(ABC):
    """A producer of a Kafka client: after any doubt it is dropped, never used again.

    Without a transactional id it only appends. Times are seconds.
    """

    _producer: Any

    def init(self, timeout: float) -> None:
        """Fences every earlier producer of the transactional id, and decides its transaction."""
        self._within(timeout, self._producer.init_transactions)

    def begin(self) -> None:
        """Begins a transaction."""
        with self._as_doubts():
            self._producer.begin_transaction()

    @abstractmethod
    def append(self, parts: Sequence[LogAppend], timeout: float) -> list[list[int]]:
        """Appends records, acknowledged by all replicas in sync; returns the offset of each."""

    @abstractmethod
    def send_offsets(self, consumed: Consumed, timeout: float) -> None:
        """Adds offsets of a consumer group to the transaction."""

    def commit(self, timeout: float) -> None:
        """Commits the transaction."""
        self._within(timeout, self._producer.commit_transaction)

    def abort(self, timeout: float) -> None:
        """Aborts the transaction."""
        self._within(timeout, self._producer.abort_transaction)

    @abstractmethod
    def drop(self) -> None:
        """Stops using it at once; a request under way may still take effect."""

    @abstractmethod
    def _within(self, timeout: float, call: Callable[..., None]) -> None:
        """Makes a call that has to end in time."""

    @abstractmethod
    def _as_doubts(self) -> AbstractContextManager[None]:
        """Raises errors of the client as `EngineDoubt`."""


class Engine(ABC):
    """A Kafka client, for one log at a time and one thread at a time."""

    @abstractmethod
    def topic_id(self, topic: str) -> str | None:
        """Returns Kafka's id of a topic, as text; None if there is no such topic."""

    @abstractmethod
    def is_compacted(self, topic: str) -> bool:
        """Whether the topic's cleanup policy compacts; False without the right to ask."""

    @abstractmethod
    def start(self, topic: str, partition: int) -> int:
        """Returns the first offset that is kept."""

    @abstractmethod
    def ends(self, topic: str, partition: int) -> Ends:
        """Returns where the log ends; the end is looked up before the last stable offset."""

    @abstractmethod
    def open_transactions(self, topic: str, partition: int) -> Mapping[int, str | None]:
        """Returns the transactional ids of open transactions in a log, by producer id.

        An id is None if no coordinator knows it. The result is empty without the right to ask.
        """

    @abstractmethod
    def read(
        self, topic: str, partition: int, start: int, stop: int, timeout: float
    ) -> Iterator[Rows]:
        """Reads committed records from one offset to below another one, which is stable, in order.

        Raises:
            EngineDoubt: No record has come for ``timeout`` seconds.
        """

    @abstractmethod
    def channel(self, log: LogId, transactional_id: str | None, timeout: float) -> Channel:
        """Returns a new producer."""

    @abstractmethod
    def close(self) -> None:
        """Closes the connections; harmless when repeated."""
