"""Counts the records that wait behind parked records of their key, by reading them."""

from __future__ import annotations

import logging
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from assignors import key_hash
from coopconsume.kafka.records import RecordReader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commits import OffsetRanges
    from commits.model import TopicPartition
    from coopconsume.options import Options

log = logging.getLogger(__name__)

#: Seconds for all partitions.
_PATIENCE: Final = 5.0
#: Offsets of a partition that are read at most, and partitions.
_MOST: Final = 20_000
_MOST_PARTITIONS: Final = 50


@dataclass(frozen=True)
class ParkedKeys:
    """The keys of a partition that parked records hold back.

    Attributes:
        first: The lowest parked offset of each key, by the hash of the key.
        done: The committed offsets above the stable offset.
        log_start, end: The bounds of Kafka's log.
    """

    first: Mapping[int, int]
    done: OffsetRanges
    log_start: int
    end: int

    @property
    def start(self) -> int:
        """The first offset that can have a record behind a parked one."""
        return max(self.log_start, min(self.first.values(), default=self.end - 1) + 1)

    def ahead_of(self, record: Any) -> int | None:
        """Returns the hash of the key behind whose parked record a record waits, if it waits."""
        offset, found = record.offset(), key_hash(record.key()) or 0
        ahead = self.first.get(found)
        waits = ahead is not None and ahead < offset < self.end and offset not in self.done
        return found if waits else None


@dataclass(frozen=True)
class BehindParked:
    """The records that wait behind parked records of their key.

    Attributes:
        records: Their number, as far as they were counted.
        is_all: Whether all were counted.
        keys: Their number by the hash of their key; a key without any is left out.
    """

    records: int
    is_all: bool = True
    keys: Mapping[int, int] = field(default_factory=dict, compare=False)


def count_behind(
    options: Options, parked: Mapping[TopicPartition, ParkedKeys]
) -> dict[TopicPartition, BehindParked]:
    """Returns the number of records behind the parked ones of each partition.

    It reads 20,000 offsets of each partition at most, of at most 50 partitions, for at most 5
    seconds. A failure is logged and leaves out all partitions.

    Args:
        options: The options of a consumer whose records are dealt by their Kafka key.
        parked: The parked keys of each partition.
    """
    from kafka.errors import KafkaError

    wanted = dict(sorted(parked.items())[:_MOST_PARTITIONS])
    if not wanted:
        return {}
    try:
        with closing(RecordReader(options.kafka)) as reader:
            return _count(reader, wanted)
    except KafkaError as error:
        log.warning("records behind parked ones cannot be counted: %s", error)
        return {}


def _count(
    reader: RecordReader, wanted: Mapping[TopicPartition, ParkedKeys]
) -> dict[TopicPartition, BehindParked]:
    counts: dict[TopicPartition, Counter[int]] = {place: Counter() for place in wanted}
    stops = {place: min(one.end, one.start + _MOST) for place, one in wanted.items()}
    unread = {place for place, one in wanted.items() if one.start < stops[place]}
    whole = {place for place, one in wanted.items() if stops[place] >= one.end}
    reader.assign({place: wanted[place].start for place in unread})
    until = time.monotonic() + _PATIENCE
    while unread and time.monotonic() < until:
        taken = reader.read(0.2)
        for place in sorted(unread):
            ahead = map(wanted[place].ahead_of, taken.records.get(place, ()))
            counts[place].update(found for found in ahead if found is not None)
            if place in taken.lost:
                whole.discard(place)
            if place in taken.lost or reader.positions[place] >= stops[place]:
                unread.discard(place)
                reader.pause([place])
    return {
        place: BehindParked(found.total(), place in whole - unread, dict(found))
        for place, found in counts.items()
    }
