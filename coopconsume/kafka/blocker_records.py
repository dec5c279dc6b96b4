"""Reads the records that block stable offsets, for their keys."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from coopconsume.kafka.kafka_python_compat import connected

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commits.model import TopicPartition
    from coopconsume.options import Options

log = logging.getLogger(__name__)

#: Seconds for all records; keys of those that are not there by then are not shown.
_PATIENCE: Final = 5.0
#: Records that are read at most.
_MOST: Final = 200


@dataclass(frozen=True)
class BlockerRecord:
    """What Kafka's log has at the offset of a blocker.

    Attributes:
        is_there: Whether the log has a record at the offset. It has none if the record was
            compacted away or aborted, or if the offset is that of a transaction marker.
        key: The key of the record.
    """

    is_there: bool
    key: bytes | None = None


def read_blockers(
    options: Options, offsets: Mapping[TopicPartition, int], *, log_level: int = logging.WARNING
) -> dict[TopicPartition, BlockerRecord]:
    """Returns what the log has at one offset of each partition, as far as it can be read.

    It reads one batch of each partition, of at most 200 partitions, for at most 5 seconds. A
    failure is logged and leaves out what was not read.

    Args:
        options: The options of a consumer.
        offsets: The offsets, which are between the start and the end of the log.
        log_level: The level at which a failure is logged.
    """
    from kafka import KafkaConsumer
    from kafka.errors import KafkaError

    found: dict[TopicPartition, BlockerRecord] = {}
    if not offsets:
        return found
    config = options.client_config() | {
        "enable_auto_commit": False, "group_id": None, "auto_offset_reset": "none",
        "isolation_level": options.kafka["isolation.level"],
        # A broker sends at least one batch.
        "max_partition_fetch_bytes": 1,
    }  # fmt: skip
    try:
        consumer = connected(KafkaConsumer, **config)
        try:
            _read(consumer, dict(sorted(offsets.items())[:_MOST]), found)
        finally:
            consumer.close(autocommit=False)
    except KafkaError as error:
        log.log(log_level, "keys of blockers cannot be read: %s", error)
    return found


def _read(
    consumer: Any, offsets: Mapping[TopicPartition, int], found: dict[TopicPartition, BlockerRecord]
) -> None:
    from kafka import TopicPartition as ClientPartition

    wanted = {ClientPartition(*tp): offset for tp, offset in offsets.items()}
    consumer.assign(list(wanted))
    for place, offset in wanted.items():
        consumer.seek(place, offset)
    until = time.monotonic() + _PATIENCE
    while wanted and time.monotonic() < until:
        polled = consumer.poll(timeout_ms=200)
        for place, offset in list(wanted.items()):
            records = polled.get(place)
            if records:
                first = records[0]
                is_there = first.offset == offset
                record = BlockerRecord(is_there, first.key if is_there else None)
            elif consumer.position(place) > offset:
                record = BlockerRecord(is_there=False)
            else:
                continue
            found[place.topic, place.partition] = record
            del wanted[place]
            consumer.pause(place)
