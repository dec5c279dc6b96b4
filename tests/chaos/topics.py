"""The topics of a chaos run: what is produced to them, and what becomes of them meanwhile."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from kafka import KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import TopicAlreadyExistsError, UnknownTopicOrPartitionError

from coopconsume.testing.history import History

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coopconsume.testing.local.broker import LocalKafka

Place = tuple[str, int]
Position = tuple[str, int, int]
_PATIENCE = 120.0


class Topics:
    """Topics and their records.

    A topic that is deleted and created again has records of another *incarnation*: its keys begin
    with the number of it, so that a call of a record of the deleted topic is recognised.

    Args:
        kafka: The broker.
        partitions: How many each topic has.
        recreated: Those that may be deleted and created again.
        every_has_a_key: Whether no record is without a key.
    """

    def __init__(
        self, kafka: LocalKafka, partitions: Mapping[str, int], recreated: Sequence[str] = (), *,
        every_has_a_key: bool = False,
    ) -> None:  # fmt: skip
        self.partitions = dict(partitions)
        #: Key by offset of every record there was, by topic (with its incarnation) and partition.
        self.produced: dict[Place, dict[int, bytes | None]] = {}
        self.incarnations = dict.fromkeys(recreated, 1)
        self._kafka = kafka
        self._every_has_a_key = every_has_a_key
        self._count = 0
        for topic, number in self.partitions.items():
            self._open(topic, number)

    def _open(self, topic: str, number: int, first: int = 0) -> None:
        for partition in range(first, number):
            self.produced[self.name(topic), partition] = {}

    def name(self, topic: str) -> str:
        """The name of the topic of this incarnation in the results of the run."""
        number = self.incarnations.get(topic)
        return topic if number is None else f"{topic}#{number}"

    def expected(self) -> dict[Place, dict[int, bytes | None]]:
        """The records of the topics as they are now, by topic and partition."""
        return {
            (topic, partition): self.produced[self.name(topic), partition]
            for topic, number in self.partitions.items()
            for partition in range(number)
        }

    def produce(
        self, count: int, keys: int = 12, topics: Sequence[str] = (), *, seconds: float = 0.0,
        every: int = 1,
    ) -> list[Position]:  # fmt: skip
        """Write records to every partition in turn; some without a key where there are several.

        Args:
            count: How many.
            keys: How many keys each partition has.
            topics: Which; by default all.
            seconds: How long the handler works on some of the records; 0: no record is special.
            every: How many records there are for each of those.

        Returns:
            Topic, partition and offset of each record.
        """
        producer = KafkaProducer(bootstrap_servers=self._kafka.bootstrap_servers, linger_ms=20)
        places = [
            (t, p) for t, n in self.partitions.items() if not topics or t in topics
            for p in range(n)
        ]  # fmt: skip
        sent = []
        for number in range(self._count, self._count + count):
            topic, partition = places[number % len(places)]
            key: bytes | None = b"k%d" % (number * 7919 % keys)
            if topic in self.incarnations:
                key = b"%d-k%d" % (self.incarnations[topic], number * 7919 % keys)
            elif len(places) > 1 and number % 11 == 3 and not self._every_has_a_key:
                key = None
            is_long = seconds and number % every == 0
            value = b"%g" % seconds if is_long else b""
            future = producer.send(topic, key=key, value=value, partition=partition)
            sent.append((topic, partition, key, future))
        self._count += count
        producer.flush(timeout=_PATIENCE)
        written = []
        for topic, partition, key, future in sent:
            offset = future.get(timeout=_PATIENCE).offset
            self.produced[self.name(topic), partition][offset] = key
            written.append((topic, partition, offset))
        producer.close()
        return written

    # -- what becomes of them

    def grow(self, topic: str) -> None:
        """Add a partition."""
        number = self.partitions[topic] + 1
        with closing(self._admin()) as admin:
            admin.create_partitions({topic: number})
            admin.wait_for_topics([topic], timeout_ms=int(1000 * _PATIENCE))
        self._open(topic, number, self.partitions[topic])
        self.partitions[topic] = number

    def delete_below(self, place: Place, offset: int) -> None:
        """Delete records below an offset, as retention does."""
        with closing(self._admin()) as admin:
            admin.delete_records({TopicPartition(*place): offset})

    def recreate(self, topic: str) -> None:
        """Delete a topic and create it again."""
        with closing(self._admin()) as admin:
            admin.delete_topics([topic])
        self.incarnations[topic] += 1
        self._open(topic, self.partitions[topic])
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                self._kafka.create_topic(topic, self.partitions[topic])
            except (TopicAlreadyExistsError, UnknownTopicOrPartitionError):
                # The broker is still about to delete it.
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)
            else:
                return

    def id_of(self, topic: str) -> str:
        """Kafka's id of a topic as it is now."""
        with closing(self._admin()) as admin:
            return str(admin.describe_topics([topic])[0]["topic_id"])

    def _admin(self) -> KafkaAdminClient:
        return KafkaAdminClient(bootstrap_servers=self._kafka.bootstrap_servers)

    # -- the results

    def by_incarnation(self, history: History) -> History:
        """A history in which each topic that was created again has a name for each incarnation."""
        places = list(history.partitions)
        numbers = {place: number for number, place in enumerate(places)}
        partition = history.partition.copy()
        for index in np.flatnonzero([places[p][0] in self.incarnations for p in partition]):
            topic, number = places[partition[index]]
            key = history.keys[history.key[index]] or b""
            place = f"{topic}#{key.partition(b'-')[0].decode()}", number
            if place not in numbers:
                numbers[place] = len(places)
                places.append(place)
            partition[index] = numbers[place]
        return replace(history, partitions=places, partition=partition)
