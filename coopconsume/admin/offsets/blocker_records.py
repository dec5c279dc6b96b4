"""Reads the records that block stable offsets, for their keys."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from coopconsume.admin.offsets.status import BlockerRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from coopconsume.admin.offsets.status import PartitionStatus, TopicPartition
    from coopconsume.options import Options

log = logging.getLogger(__name__)

#: Seconds for all records; keys of those that are not there by then are not shown.
_PATIENCE: Final = 5.0
#: Records that are read at most.
_MOST: Final = 200


def read_blockers(
    options: Options, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, BlockerRecord]:
    """Returns what the log has at one offset of each partition, as far as it can be read.

    It reads one batch of each partition, of at most 200 partitions, for at most 5 seconds. A
    failure is logged and leaves out what was not read.

    Args:
        options: The options of a consumer.
        offsets: The offsets, which are between the start and the end of the log.
    """
    from kafka import KafkaConsumer, TopicPartition
    from kafka.errors import KafkaError

    wanted = {TopicPartition(*tp): offset for tp, offset in sorted(offsets.items())[:_MOST]}
    found: dict[TopicPartition, BlockerRecord] = {}
    if not wanted:
        return found
    level = "read_committed" if options.read_committed else "read_uncommitted"
    config = options.client_config() | {
        "enable_auto_commit": False, "group_id": None, "isolation_level": level,
        "auto_offset_reset": "none",
        # A broker sends at least one batch.
        "max_partition_fetch_bytes": 1,
    }  # fmt: skip
    consumer = KafkaConsumer(**config)
    try:
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
                    found[place] = BlockerRecord(is_there, first.key if is_there else None)
                elif consumer.position(place) > offset:
                    found[place] = BlockerRecord(is_there=False)
                else:
                    continue
                del wanted[place]
                consumer.pause(place)
    except KafkaError as error:
        log.warning("keys of blockers cannot be read: %s", error)
    finally:
        consumer.close(autocommit=False)
    return {(place.topic, place.partition): record for place, record in found.items()}


def with_keys(options: Options, statuses: Iterable[PartitionStatus]) -> list[PartitionStatus]:
    """Returns the status of partitions with the records that block them, see `read_blockers`."""
    chosen = {(one.topic, one.partition): one for one in statuses}
    offsets = {tp: at for tp, one in chosen.items() if (at := one.blocker_offset) is not None}
    records = read_blockers(options, offsets)
    return [one.with_record(records.get(tp)) for tp, one in chosen.items()]
