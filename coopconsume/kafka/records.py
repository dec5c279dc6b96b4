"""Reads records of assigned partitions by confluent-kafka: every codec, every header's name.

`RecordReader` is for what the driver reads: dead letters, blockers, counts, queues and logs.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from coopconsume.kafka.librdkafka import kafka_error, record_consumer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from kafka.errors import KafkaError

    from commits.model import TopicPartition

log = logging.getLogger(__name__)

#: Seconds for one answer of a broker.
_ANSWER: Final = 10.0
#: Records of one call.
_MOST: Final = 10_000


@dataclass(slots=True)
class Taken:
    """What a call of `RecordReader.read` has found.

    Attributes:
        records: The next records of each partition, in their order.
        lost: Partitions whose next offset is not in their log: it was deleted, or cut away. They
            are not read until `RecordReader.seek`.
    """

    records: dict[TopicPartition, list[Any]] = field(default_factory=dict)
    lost: set[TopicPartition] = field(default_factory=set)


class RecordReader:
    """Reads partitions from given offsets on. One thread uses it at a time.

    All methods but `close` raise errors of kafka-python, as its clients do, so that both are
    explained to users in one place. After an error, or an interrupt such as that of Ctrl-C, it
    reads on at `positions`, whatever the client has taken meanwhile.

    Args:
        kafka: Settings by Kafka's names.
        more: Settings by librdkafka's names; they count.
        patience: Seconds for an answer to a question about a topic or a partition.

    Attributes:
        positions: The next offset of each partition: behind its last record that was returned, or
            where its log ends, also behind the marker of a transaction.
        lost: Partitions whose next offset is not in their log. They are not read until `seek`.

    Raises:
        InvalidOption: A setting that librdkafka does not take.
    """

    def __init__(
        self,
        kafka: Mapping[str, str],
        more: Mapping[str, Any] | None = None,
        *,
        patience: float = _ANSWER,
    ) -> None:
        from confluent_kafka import TopicPartition as ClientPartition

        self._partition = ClientPartition
        self._patience = patience
        self._refusal: KafkaError | None = None
        self._consumer = record_consumer(kafka, {"error_cb": self._heard, **(more or {})})
        self._paused: set[TopicPartition] = set()
        #: Whether the client may be elsewhere than `positions`.
        self._is_torn = False
        self.positions: dict[TopicPartition, int] = {}
        self.lost: set[TopicPartition] = set()

    def partitions(self, topic: str) -> Collection[int]:
        """Returns the numbers of a topic's partitions; empty if there is no such topic."""
        from kafka.errors import UnknownTopicOrPartitionError

        found = self._answer(lambda: self._consumer.list_topics(topic, self._patience))
        described = found.topics[topic]
        if described.error is None:
            return sorted(described.partitions)
        error = kafka_error(described.error)
        if isinstance(error, UnknownTopicOrPartitionError):
            return ()
        raise error

    def bounds(self, place: TopicPartition) -> tuple[int, int]:
        """Returns the first offset of a partition, and its end as far as it is read."""
        from kafka.errors import UnknownTopicOrPartitionError

        at = self._partition(*place)
        try:
            first, end = self._answer(
                lambda: self._consumer.get_watermark_offsets(at, self._patience, cached=False)
            )
        except UnknownTopicOrPartitionError:
            self.partitions(place[0])  # It says so if the topic may not be described.
            raise
        return first, end

    def assign(self, starts: Mapping[TopicPartition, int]) -> None:
        """Reads these partitions from now on, each from an offset on, instead of earlier ones."""
        self.positions, self.lost, self._paused = dict(starts), set(), set()
        self._assign()

    def _assign(self) -> None:
        self._is_torn = True
        places = [self._partition(*place, at) for place, at in self.positions.items()]
        # A paused partition that is assigned again stays paused.
        self._consumer.resume(self._consumer.assignment())
        self._consumer.assign(places)
        self._consumer.pause([self._partition(*place) for place in self._paused])
        self._is_torn = False

    def seek(self, place: TopicPartition, offset: int) -> None:
        """Reads a partition from another offset on."""
        self.positions[place] = offset
        self.lost.discard(place)
        if self._is_torn:
            return
        # librdkafka refuses to seek before the first fetch of a partition.
        self._is_torn = True
        self._consumer.incremental_unassign([self._partition(*place)])
        self._consumer.incremental_assign([self._partition(*place, offset)])
        self._is_torn = False

    def pause(self, places: Collection[TopicPartition]) -> None:
        """Reads some partitions no further until `resume`."""
        self._paused.update(places)
        self._consumer.pause([self._partition(*place) for place in places])

    def resume(self, places: Collection[TopicPartition]) -> None:
        """Reads paused partitions on."""
        self._paused.difference_update(places)
        self._consumer.resume([self._partition(*place) for place in places])

    def read(self, timeout: float, most: int = _MOST) -> Taken:
        """Waits for the next records.

        Args:
            timeout: Seconds to wait for the first one.
            most: Records at most; never above 10,000.
        """
        if self._is_torn:
            self._assign()
        most = min(most, _MOST)
        self._is_torn = True
        # With a time to wait, it would wait until there are as many as it may return.
        found = self._consumer.consume(most, 0)
        if not found:
            found = self._consumer.consume(1, timeout)
            if found and most > 1:
                found += self._consumer.consume(most - 1, 0)
        self._raise_refusal()
        taken, positions = Taken(), dict(self.positions)
        for message in found:
            place, error = (message.topic(), message.partition()), message.error()
            if error is not None:
                self._take_error(taken, positions, message)
            elif place in positions:
                taken.records.setdefault(place, []).append(message)
                positions[place] = message.offset() + 1
        self.positions.update(positions)
        self.lost |= taken.lost
        self._is_torn = False
        return taken

    def close(self) -> None:
        """Closes the connections; harmless when repeated."""
        self._consumer.close()

    def _take_error(self, taken: Taken, positions: dict[TopicPartition, int], message: Any) -> None:
        from confluent_kafka import KafkaError as Code

        place, error = (message.topic(), message.partition()), message.error()
        code, offset = error.code(), message.offset()
        if code == Code._PARTITION_EOF:  # noqa: SLF001 - confluent's name
            if place in positions:
                positions[place] = max(positions[place], offset)
        elif code in (Code._AUTO_OFFSET_RESET, Code.OFFSET_OUT_OF_RANGE):  # noqa: SLF001
            # One of an earlier position may still come.
            if offset == positions.get(place):
                taken.lost.add(place)
        elif code == Code.TOPIC_AUTHORIZATION_FAILED:
            raise kafka_error(error)
        else:  # The client goes on by itself, as after a lost connection.
            log.debug("%s-%s: %s", *place, error.str())

    def _answer(self, ask: Callable[[], Any]) -> Any:
        from confluent_kafka import KafkaException

        try:
            return ask()
        except KafkaException as error:
            # The client says in a poll alone that a login was refused.
            self._is_torn = True
            self._consumer.consume(1, 0)
            self._raise_refusal()
            raise kafka_error(error.args[0]) from None

    def _raise_refusal(self) -> None:
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise refusal

    def _heard(self, error: Any) -> None:
        """Takes an error of no partition; librdkafka retries by itself unless it is final."""
        from kafka.errors import SaslAuthenticationFailedError

        found = kafka_error(error)
        if isinstance(found, SaslAuthenticationFailedError) or error.fatal():
            self._refusal = found
        else:
            log.debug("a consumer: %s", error.str())
