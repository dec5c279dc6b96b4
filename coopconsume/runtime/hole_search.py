"""Searches the logs for holes at the stable offsets of partitions that other members share."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from coopconsume.runtime.dispatch.daemon_pool import DaemonPool
from coopconsume.runtime.events import HolesFound
from coopconsume.runtime.read.audit import HoleAudit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyspark.sql import SparkSession

    from commits.model import TopicPartition
    from coopconsume.group.owned import Owned
    from coopconsume.options import Options
    from coopconsume.runtime.events import JobEvent
    from coopconsume.runtime.plan import Partition
    from coopconsume.runtime.read.spans import Span

log = logging.getLogger(__name__)


class HoleSearch:
    """Looks for holes in a thread beside the loop, one look at a time.

    An offset that all our shares have passed belongs to another member, or is a hole.

    Args:
        spark: The session.
        options: Of the consumer.
        post: Puts an event into the loop's queue.
    """

    def __init__(
        self, spark: SparkSession, options: Options, post: Callable[[JobEvent], None]
    ) -> None:
        self._audit = HoleAudit(spark, options)
        self._post = post
        self._is_looking = False
        self._threads = DaemonPool(1, "coopconsume-audit")

    def look(self, partitions: Iterable[Partition], owned: Mapping[TopicPartition, Owned]) -> None:
        """Begins to look at a stable offset that may be a hole, if there is one.

        Args:
            partitions: Those with something left to do.
            owned: What of each partition is ours.
        """
        for partition in partitions:
            if self._is_looking or partition.ledger.is_whole or not partition.is_ours:
                continue
            first = partition.ledger.first_open()
            # What a real-time slot has read needs no look: it reports the holes.
            real_time_from = partition.real_time_from
            position = partition.supply.position if real_time_from is None else real_time_from
            span = self._audit.due(owned[partition.topic, partition.partition], first, position)
            if span is not None and partition.supply.may_be_hole(first):
                self._is_looking = True
                self._threads.submit(self._read, partition.index, span)

    def _read(self, index: int, span: Span) -> None:
        """Reads which offsets are in the log, in a thread of its own."""
        holes = None
        try:
            holes = self._audit.look(span)
        except Exception as error:  # noqa: BLE001 - looked at again later
            log.warning("could not look for holes in %s-%d: %s", span.topic, span.partition, error)
        self._post(HolesFound(index, holes))

    def ended(self) -> None:
        """Notes that the look has ended: the next one may begin."""
        self._is_looking = False

    def close(self) -> None:
        """Begins no look any more; waits for none."""
        self._threads.close()
