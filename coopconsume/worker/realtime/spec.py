"""What a real-time slot needs in addition to its `BatchSpec`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from coopconsume.filters import RecordFilter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commits import OffsetAndEpoch
    from coopconsume.kafka.identity import LogIdentity

    #: First and last hash of each key range.
    Ranges = tuple[tuple[int, int], ...]

#: Seconds between two reports if nothing but positions has changed.
POSITIONS_EVERY = 0.2
#: Seconds without a finished handler call after which a slot gives back the records that it has
#: not started, if these wait only for a free handler.
HELD_UP = 10.0


@dataclass(frozen=True)
class RealTimeSpec:
    """What the slots of a real-time run read.

    Attributes:
        duration: Seconds for which they read.
        kafka: Settings by Kafka's names.
        logs: The logs by index of the partition: what is read of others does not count.
        key_ranges: Of each slot its key ranges, by index of the partition.
        finds_holes: Of each slot the indexes of the partitions whose holes it reports.
        record_filter: Which records reach a handler.
        cache_bytes: Bytes of records that the fetch server of a host keeps; 0: no server,
            each slot reads whole partitions.
        cache_content: ``record``, or ``key`` if that server keeps no values and headers.
        ends: Slots read chunks that the driver hands out; up to this offset, by index of the
            partition, the logs are known to reach. None: each slot reads on from its start.
        reached: How far the logs are known to reach in which leader epoch, by the same.
    """

    duration: float
    kafka: Mapping[str, str] = field(repr=False)
    logs: tuple[LogIdentity, ...]
    key_ranges: Mapping[int, Mapping[int, Ranges]]
    finds_holes: Mapping[int, frozenset[int]]
    record_filter: RecordFilter = field(default_factory=RecordFilter)
    cache_bytes: int = 0
    cache_content: str = "record"
    ends: Mapping[int, int] | None = None
    reached: Mapping[int, OffsetAndEpoch] = field(default_factory=dict)
