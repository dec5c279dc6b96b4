"""Reads partitions from Kafka, without a group: the one place that could read from elsewhere."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from coopconsume.kafka.librdkafka import client_config

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coopconsume.worker.realtime.reader import Message, Place

log = logging.getLogger(__name__)

#: Milliseconds that a broker waits for records, if the settings do not say so. An end behind a
#: transaction's marker is known once a fetch comes back empty.
_FETCH_WAIT = "100"
#: KiB of records that are fetched ahead; and the pause once they are, in milliseconds.
_AHEAD = 16 << 10
_PAUSE = 5
_FETCH_SETTINGS = {
    "fetch.min.bytes": "fetch.min.bytes",
    "fetch.max.bytes": "fetch.max.bytes",
    "max.partition.fetch.bytes": "max.partition.fetch.bytes",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "isolation.level": "isolation.level",
    "group.id": "group.id",
}


class ReadFailed(Exception):
    """A source cannot read on: the offset is not in the log, or the brokers refuse to read it."""


@dataclass
class Fetched:
    """What one read returned.

    Attributes:
        records: Ascending in each partition.
        ends: Offsets up to which everything was returned, by partition.
    """

    records: Sequence[Message] = ()
    ends: dict[Place, int] = field(default_factory=dict)


class Source(Protocol):
    """What returns the records of some partitions."""

    def poll(self, timeout: float, most: int) -> Fetched:
        """Returns the next records, as soon as there is one.

        Args:
            timeout: Seconds to wait for the first one.
            most: Records at most.

        Raises:
            ReadFailed: It cannot read on.
        """

    def close(self) -> None:
        """Ends it."""


class KafkaSource:
    """A consumer of confluent-kafka that is assigned partitions by hand, and commits nothing.

    Args:
        kafka: Settings by Kafka's names.
        starts: The first offset to read, by partition.
    """

    def __init__(self, kafka: Mapping[str, str], starts: Mapping[Place, int]) -> None:
        from confluent_kafka import Consumer, KafkaError, TopicPartition

        self._end_of_partition = KafkaError._PARTITION_EOF  # noqa: SLF001 - confluent's name
        self._refusals = (
            KafkaError._AUTHENTICATION,  # noqa: SLF001
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            KafkaError.GROUP_AUTHORIZATION_FAILED,
        )
        self._refusal = ""
        self._consumer = Consumer(consumer_config(kafka) | {"error_cb": self._heard})
        self._consumer.assign([TopicPartition(*place, start) for place, start in starts.items()])

    def poll(self, timeout: float, most: int) -> Fetched:
        """Returns the next records, see `Source`."""
        first = self._consumer.poll(timeout)
        if self._refusal:
            raise ReadFailed(self._refusal)
        fetched = Fetched()
        if first is None:
            return fetched
        # Without a time it takes what was fetched already; with one it would wait for so many.
        found = [first, *self._consumer.consume(most - 1, 0.0)]
        records = []
        for message in found:
            error = message.error()
            if error is None:
                records.append(message)
            elif error.code() == self._end_of_partition:
                fetched.ends[message.topic(), message.partition()] = message.offset()
            elif not error.retriable():
                raise ReadFailed(f"{message.topic()}-{message.partition()}: {error.str()}")
        fetched.records = records
        return fetched

    def close(self) -> None:
        """Closes the consumer."""
        self._consumer.close()

    def _heard(self, error: Any) -> None:
        """An error that belongs to no partition; librdkafka tries again by itself."""
        if error.code() in self._refusals or error.fatal():
            self._refusal = error.str()
        else:
            log.debug("a slot's consumer: %s", error)


def consumer_config(kafka: Mapping[str, str]) -> dict[str, Any]:
    """Returns the settings of a slot's consumer in librdkafka's words.

    Raises:
        InvalidOption: A setting of security that librdkafka does not take.
    """
    config = client_config(kafka) | {
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "fetch.wait.max.ms": _FETCH_WAIT,
        "fetch.queue.backoff.ms": _PAUSE,
        "queued.max.messages.kbytes": _AHEAD,
        "log_level": 3,
    }
    return config | {new: str(kafka[old]) for old, new in _FETCH_SETTINGS.items() if old in kafka}
