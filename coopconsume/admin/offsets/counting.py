"""Counts the records at given offsets by reading them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from coopconsume.errors import BrokerUnreachable

if TYPE_CHECKING:
    from commits import OffsetRanges
    from commits.model import TopicPartition
    from coopconsume.options import Options

#: Seconds without progress after which the count fails.
PATIENCE = 30.0


def count_records(options: Options, partition: TopicPartition, offsets: OffsetRanges) -> int:
    """Returns the number of records at given offsets of a partition, below its end.

    Compacted and aborted records and transaction markers do not count.

    Args:
        options: The options of a consumer.
        partition: The partition.
        offsets: The offsets.

    Raises:
        BrokerUnreachable: The broker sent no records for 30 seconds.
    """
    from kafka import KafkaConsumer
    from kafka import TopicPartition as ClientPartition

    if not offsets:
        return 0
    tp, count = ClientPartition(*partition), 0
    consumer = KafkaConsumer(
        **options.client_config(), enable_auto_commit=False, auto_offset_reset="none",
        isolation_level=options.kafka["isolation.level"], max_poll_records=10_000,
    )  # fmt: skip
    try:
        consumer.assign([tp])
        for first, last in offsets:
            consumer.seek(tp, first)
            known, until = first, time.monotonic() + PATIENCE
            while (position := consumer.position(tp)) <= last:
                found = consumer.poll(timeout_ms=500).get(tp, [])
                count += sum(record.offset <= last for record in found)
                if position > known:
                    known, until = position, time.monotonic() + PATIENCE
                elif time.monotonic() > until:
                    where = f"records of {tp.topic}-{tp.partition} from offset {position} on"
                    servers = options.kafka["bootstrap.servers"]
                    raise BrokerUnreachable(servers, f"{where} cannot be read")
    finally:
        consumer.close(autocommit=False)
    return count
