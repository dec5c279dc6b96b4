"""The writer's engine on confluent-kafka (librdkafka): faster, and its commits can be resumed.

It reads and writes with librdkafka, and asks about topics, offsets and transactions with
kafka-python: librdkafka has no requests for open transactions, and of a refused login it reports
only a time-out.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

from coopconsume.errors.fenced import EngineNotUsable
from coopconsume.fenced.confluent_channel import ConfluentChannel, as_doubts
from coopconsume.fenced.engine import Channel, EngineDoubt
from coopconsume.fenced.kafka_channel import CONNECT
from coopconsume.fenced.kafka_engine import KafkaPythonEngine
from coopconsume.fenced.log import Raw
from coopconsume.kafka.librdkafka import client_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from coopconsume.fenced.log import LogId
    from coopconsume.fenced.settings import Settings

logger = logging.getLogger(__name__)

NAME: Final = "confluent-kafka"
#: Records taken at once: with their headers few enough not to wake Python's garbage collector.
_MANY: Final = 64
_row: Final = Raw._make


class ConfluentEngine(KafkaPythonEngine):
    """The engine on confluent-kafka's consumer and producers, and kafka-python's admin client.

    Raises:
        EngineNotUsable: It is not installed.
        InvalidOption: A setting of security that this engine does not take.
    """

    def __init__(self, settings: Settings, timeout: float = CONNECT) -> None:
        try:
            import confluent_kafka  # noqa: F401
        except ImportError:
            raise EngineNotUsable(NAME, "install coopconsume[confluent]") from None
        super().__init__(settings, timeout)
        self._librdkafka = client_config(settings.kafka)

    def read(
        self, topic: str, partition: int, start: int, stop: int, timeout: float
    ) -> Iterator[list[Raw]]:
        """Committed records from one offset to below another one, that is stable, in order."""
        if start >= stop:
            return
        consumer = self._assigned(topic, partition, start)
        until = time.monotonic() + timeout
        done = False
        while not done:
            with as_doubts(self._settings, topic):
                messages = consumer.consume(_MANY, 0.05)
                rows, done = _rows(messages, stop)
            if messages:
                until = time.monotonic() + timeout
            elif time.monotonic() > until:
                raise EngineDoubt(f"no records of {topic}-{partition} in time")
            if rows:
                yield rows

    def _assigned(self, topic: str, partition: int, start: int) -> Any:
        from confluent_kafka import Consumer, TopicPartition

        with as_doubts(self._settings, topic):
            if self._consumer is None:
                self._consumer = Consumer(
                    self._librdkafka
                    | {
                        "group.id": "none", "enable.auto.commit": False,
                        "enable.partition.eof": True, "isolation.level": "read_committed",
                        "auto.offset.reset": "error", "fetch.wait.max.ms": 20,
                        "fetch.message.max.bytes": 8 << 20,
                    },
                    logger=logger,
                )  # fmt: skip
            self._consumer.assign([TopicPartition(topic, partition, start)])
        return self._consumer

    def channel(self, log: LogId, transactional_id: str | None, timeout: float) -> Channel:
        """A new producer."""
        return ConfluentChannel(self._settings, log, transactional_id, timeout)


def _rows(messages: Sequence[Any], stop: int) -> tuple[list[Raw], bool]:
    """Records below an offset, and whether it is reached."""
    from confluent_kafka import KafkaError, KafkaException

    rows: list[Raw] = []
    for message in messages:
        error = message.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                # All that is stable was seen, and that is as far as was asked for.
                return rows, True
            if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                # librdkafka looks for the group's coordinator, which a reader without a group
                # that counts has no use for.
                continue
            raise KafkaException(error)
        offset = message.offset()
        if offset >= stop:
            return rows, True
        _, timestamp = message.timestamp()
        headers = message.headers() or []
        rows.append(_row((offset, timestamp, message.key(), message.value(), headers)))
    return rows, bool(rows) and rows[-1].offset == stop - 1
