"""The consumer of a real-time slot."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from coopconsume.kafka.librdkafka import record_consumer
from coopconsume.worker.realtime.confirmed_reads import ConfirmedReads, Fetched
from coopconsume.worker.realtime.errors import ReadFailed
from coopconsume.worker.realtime.topic_check import TopicCheck
from coopconsume.worker.report import Reads

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commits.model import TopicPartition
    from coopconsume.kafka.identity import LogIdentity
    from coopconsume.worker.realtime.log_reach import Start

log = logging.getLogger(__name__)

#: Milliseconds that a broker waits for records, unless the settings say otherwise. An end behind a
#: transaction's marker is known once a fetch returns nothing.
_FETCH_WAIT = "100"
#: Bytes of records that are fetched ahead.
AHEAD = 16 << 20
#: Milliseconds between two counts of the brokers' bytes.
_COUNT_EVERY = 1_000
#: Of a position that is not checked.
_NO_EPOCH = -1


class KafkaSource:
    """A confluent-kafka consumer with assigned partitions; it has no group and commits nothing.

    It reads each partition from its offset on, and returns records of the known logs only.

    Args:
        kafka: Settings by Kafka's names.
        logs: The logs of the run, by partition.
        starts: Where to read from, by partition. A log that was cut since the leader epoch of its
            start is not read from an offset above the cut.
        ahead: Bytes of records that are fetched ahead.
    """

    def __init__(
        self,
        kafka: Mapping[str, str],
        logs: Mapping[TopicPartition, LogIdentity],
        starts: Mapping[TopicPartition, Start],
        ahead: int = AHEAD,
    ) -> None:
        from confluent_kafka import KafkaError
        from confluent_kafka import TopicPartition as ClientPartition

        self._partition = ClientPartition
        self._end_of_partition = KafkaError._PARTITION_EOF  # noqa: SLF001 - confluent's name
        self._refusals = (
            KafkaError._AUTHENTICATION,  # noqa: SLF001
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            KafkaError.GROUP_AUTHORIZATION_FAILED,
        )
        self._refusal = ""
        self._paused: frozenset[TopicPartition] = frozenset()
        self._topics = TopicCheck(kafka, {tp[0]: one.topic_id for tp, one in logs.items()})
        self._reads = ConfirmedReads(self._consume, self._topics)
        #: Bytes that the brokers have sent since the start.
        self.broker_bytes = 0
        # What the user says about the wait counts.
        wait = {} if "fetch.max.wait.ms" in kafka else {"fetch.wait.max.ms": _FETCH_WAIT}
        self._consumer = record_consumer(
            kafka,
            {
                **wait,
                "queued.min.messages": 1,
                "queued.max.messages.kbytes": max(1, ahead >> 10),
                "error_cb": self._heard,
                "log_level": 3,
                "stats_cb": self._counted,
                "statistics.interval.ms": _COUNT_EVERY,
            },
        )
        self.assign(starts)

    @property
    def reads(self) -> Reads:
        """Counts of what it has read since it was opened."""
        return Reads(broker_bytes=self.broker_bytes)

    def assign(self, starts: Mapping[TopicPartition, Start]) -> None:
        """Reads these partitions from now on instead of the earlier ones."""
        self.pause(frozenset())  # A paused partition that is assigned again stays paused.
        self._reads.forget()
        self._consumer.assign([self._at(place, start) for place, start in starts.items()])

    def add(self, place: TopicPartition, start: Start) -> None:
        """Reads one more partition."""
        self._consumer.incremental_assign([self._at(place, start)])

    def _at(self, place: TopicPartition, start: Start) -> Any:
        """Returns a position; librdkafka checks that the log reached it in its leader epoch."""
        epoch = _NO_EPOCH if start.leader_epoch is None else start.leader_epoch
        return self._partition(*place, start.offset, leader_epoch=epoch)

    def pause(self, places: frozenset[TopicPartition]) -> None:
        """Pauses these partitions, and resumes all others."""
        if places == self._paused:
            return
        for call, these in (
            (self._consumer.pause, places - self._paused),
            (self._consumer.resume, self._paused - places),
        ):
            if these:
                call([self._partition(*place) for place in these])
        self._paused = places

    def poll(self, timeout: float, most: int) -> Fetched:
        """Returns the next records, as soon as there is one.

        Args:
            timeout: Seconds to wait for the first one.
            most: Records at most.

        Raises:
            ReadFailed: It cannot continue.
        """
        return self._reads.poll(timeout, most)

    def _consume(self, timeout: float, most: int) -> Fetched:
        """Returns the next records, of whatever topic has the name."""
        first = self._consumer.poll(timeout)
        if self._refusal:
            raise ReadFailed(self._refusal)
        fetched = Fetched()
        if first is None:
            return fetched
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
        self._topics.close()

    def _counted(self, statistics: str) -> None:
        self.broker_bytes = json.loads(statistics)["rx_bytes"]

    def _heard(self, error: Any) -> None:
        """Takes an error of no partition; librdkafka retries by itself unless it is final."""
        if error.code() in self._refusals or error.fatal():
            self._refusal = error.str()
        else:
            log.debug("a slot's consumer: %s", error)
