"""Reads the records that block stable offsets, for their keys and times."""

from __future__ import annotations

import logging
import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from coopconsume.kafka.records import RecordReader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from confluent_kafka import Message

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
        written_ms: Its timestamp, in milliseconds since 1970; None if it has none.
    """

    is_there: bool
    key: bytes | None = None
    written_ms: int | None = None


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
    from kafka.errors import KafkaError

    found: dict[TopicPartition, BlockerRecord] = {}
    if not offsets:
        return found
    try:
        # A broker sends at least one batch.
        with closing(RecordReader(options.kafka, {"max.partition.fetch.bytes": 1})) as reader:
            _read(reader, dict(sorted(offsets.items())[:_MOST]), found)
    except KafkaError as error:
        log.log(log_level, "keys of blockers cannot be read: %s", error)
    return found


def _read(
    reader: RecordReader,
    wanted: dict[TopicPartition, int],
    found: dict[TopicPartition, BlockerRecord],
) -> None:
    reader.assign(wanted)
    until = time.monotonic() + _PATIENCE
    while wanted and time.monotonic() < until:
        taken = reader.read(0.2)
        for place in taken.lost & wanted.keys():
            log.debug("%s-%d has no offset %d any more", *place, wanted.pop(place))
        for place, offset in list(wanted.items()):
            records = taken.records.get(place)
            if records:
                record = _found(records[0], offset)
            elif reader.positions[place] > offset:
                record = BlockerRecord(is_there=False)
            else:
                continue
            found[place] = record
            del wanted[place]
            reader.pause([place])


def _found(first: Message, offset: int) -> BlockerRecord:
    """Returns what the log has at an offset, from the first record at or above it."""
    if first.offset() != offset:
        return BlockerRecord(is_there=False)
    kind, written_ms = first.timestamp()
    return BlockerRecord(
        is_there=True, key=first.key(), written_ms=written_ms if kind and written_ms >= 0 else None
    )
