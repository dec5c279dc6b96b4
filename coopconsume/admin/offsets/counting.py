"""Counts the records at given offsets by reading them."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING

from coopconsume.errors import BrokerUnreachable
from coopconsume.kafka.records import RecordReader

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
    if not offsets:
        return 0
    count, name = 0, f"{partition[0]}-{partition[1]}"
    with closing(RecordReader(options.kafka)) as reader:
        for first, last in offsets:
            reader.assign({partition: first})
            known, until = first, time.monotonic() + PATIENCE
            while (position := reader.positions[partition]) <= last:
                taken = reader.read(0.5, 10_000)
                count += sum(one.offset() <= last for one in taken.records.get(partition, ()))
                if position > known:
                    known, until = position, time.monotonic() + PATIENCE
                if taken.lost or time.monotonic() > until:
                    servers = options.kafka["bootstrap.servers"]
                    where = f"records of {name} from offset {position} on"
                    raise BrokerUnreachable(servers, f"{where} cannot be read")
    return count
