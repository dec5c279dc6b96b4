"""`GroupReader`: reads the status of a group again and again, over open connections."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from coopconsume.admin.overview.blocked import BlockedKeys
from coopconsume.admin.overview.collect import LogReaders, read_overview
from coopconsume.kafka.blocker_records import read_blockers
from coopconsume.kafka.connection import Connection
from coopconsume.kafka.parked_keys import count_behind
from coopconsume.kafka.retention import find_expiring
from coopconsume.options import Options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from commits.growth import LogGrowth
    from commits.model import TopicPartition
    from coopconsume.admin.offsets.status import PartitionStatus
    from coopconsume.admin.overview.data import GroupOverview
    from coopconsume.kafka.blocker_records import BlockerRecord
    from coopconsume.kafka.parked_keys import BehindParked, ParkedKeys
    from coopconsume.kafka.retention import ExpiringOffsets, OpenOffsets

#: The history, which is the whole commit log, the records of blockers, those behind parked ones
#: and what retention deletes next are each read for at most one part in so many of the time.
_SLOW_PART: Final = 10


@dataclass(frozen=True)
class GroupReading:
    """The status of a group at one moment.

    Attributes:
        overview: Members, claims, events, and the status and the owners of each partition.
        growth: How far the commit table has grown since its last snapshot; None: not known.
    """

    overview: GroupOverview
    growth: LogGrowth | None = None

    @property
    def statuses(self) -> tuple[PartitionStatus, ...]:
        """The status of each of its partitions."""
        return self.overview.partitions

    @cached_property
    def blocked(self) -> BlockedKeys:
        """The keys that failed records block; found once, as pages ask for them again and again."""
        return BlockedKeys.of(self.overview.partitions)


class GroupReader(Connection):
    """Reads the status of one group repeatedly, and keeps what need not be read again.

    Times of commits, and the number of records behind parked ones, may be some seconds older than
    the rest. The record of a blocker is read once its offset has blocked for two calls of `read`. A
    reader is used by one thread at a time.

    Args:
        options: As for `CooperativeConsumer`; no subscription is needed.
        group: The group id.
        spark: The session, needed for a commit table in a catalog.

    Raises:
        commits.CommitTableNotFound: There is no commit table.
        OptionError, BrokerUnreachable, NotAuthorized, commits.CommitStoreError: As for a consumer.
    """

    def __init__(
        self, options: Mapping[str, Any], group: str, *, spark: SparkSession | None = None
    ) -> None:
        super().__init__(Options.parse({**options, "kafka.group.id": group}), spark=spark)
        self._history: Sequence[Mapping[str, Any]] = ()
        self._history_due = 0.0
        self._blocking: dict[TopicPartition, int] = {}
        self._records: dict[TopicPartition, tuple[int, BlockerRecord]] = {}
        self._records_due = 0.0
        self._parked: dict[TopicPartition, ParkedKeys] = {}
        self._behind: dict[TopicPartition, BehindParked] = {}
        self._behind_due = 0.0
        self._expiring: ExpiringOffsets | None = None
        self._expiring_due = 0.0

    def read(self) -> GroupReading:
        """Returns the status of the group now.

        Raises:
            GroupNotFound: Neither Kafka nor the commit table knows the group.
            BrokerUnreachable, NotAuthorized, commits.CommitStoreError: As for a consumer.
        """
        began = time.monotonic()
        if began >= self._history_due:
            self._history = self.store.history(self.options.group_id)
            self._history_due = _next_after(began)
        readers = LogReaders(self._records_at, self._behind_parked, self._expiring_of)
        with self.store.one_look():
            overview = read_overview(self.options, self.cluster, self.store, self._history, readers)
            return GroupReading(overview, self.store.growth())

    def _records_at(
        self, offsets: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, BlockerRecord]:
        """Returns the known records of blockers, and reads those that stay for longer."""
        before, self._blocking = self._blocking, dict(offsets)
        self._records = {
            tp: known for tp, known in self._records.items() if offsets.get(tp) == known[0]
        }
        stays = {
            tp: offset
            for tp, offset in offsets.items()
            if before.get(tp) == offset and tp not in self._records
        }
        began = time.monotonic()
        if stays and began >= self._records_due:
            found = read_blockers(self.options, stays)
            self._records |= {tp: (stays[tp], record) for tp, record in found.items()}
            self._records_due = _next_after(began)
        return {tp: record for tp, (_, record) in self._records.items()}

    def _behind_parked(
        self, parked: Mapping[TopicPartition, ParkedKeys]
    ) -> Mapping[TopicPartition, BehindParked]:
        """Returns the records behind parked ones; counts them again where something has changed."""
        began = time.monotonic()
        if began >= self._behind_due:
            known = self._behind
            changed = {
                tp: one for tp, one in parked.items()
                if tp not in known or self._parked.get(tp) != one
            }  # fmt: skip
            kept = {tp: known[tp] for tp in parked.keys() - changed.keys()}
            self._parked, self._behind = dict(parked), kept | count_behind(self.options, changed)
            self._behind_due = _next_after(began)
        return self._behind

    def _expiring_of(
        self, partitions: Mapping[TopicPartition, OpenOffsets]
    ) -> ExpiringOffsets | None:
        """Returns what retention deletes next, as it was found a short time ago."""
        began = time.monotonic()
        if began >= self._expiring_due:
            self._expiring = find_expiring(self.cluster, partitions)
            self._expiring_due = _next_after(began)
        return self._expiring


def _next_after(began: float) -> float:
    """Returns when something may be done again that began at a time and has just ended."""
    now = time.monotonic()
    return now + _SLOW_PART * (now - began)
