"""Which of the offsets that hold a stable offset back are not in the log at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commits import OffsetRanges
from coopconsume.runtime.read.offset_frames import present_offsets
from coopconsume.runtime.read.spans import Span

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from commits.model import TopicPartition
    from coopconsume.group.owned import Owned
    from coopconsume.options import Options

#: Offsets that are looked at for holes at a time.
AUDIT_SPAN = 50_000


class HoleAudit:
    """Reads the log to find holes, each offset once.

    An offset below the read position that is not done belongs to another member, waits, or is a
    hole: a transaction's marker, an aborted or a compacted record. Only a read of the log shows
    which. The owner of hash 0 does it.

    Args:
        spark: The session.
        options: Of the consumer.
    """

    def __init__(self, spark: SparkSession, options: Options) -> None:
        self._spark = spark
        self._options = options
        self._looked: dict[TopicPartition, OffsetRanges] = {}

    def due(self, owned: Owned, first: int, position: int) -> Span | None:
        """Returns what to look at next in a partition; None if nothing.

        Above an offset that stays open it is worth a read only where ranges get scarce: each hole
        may cost one. That is once half of those are used that the partition may have.

        Args:
            owned: The partition.
            first: The first offset that is not done.
            position: Offsets from here on were not read yet.
        """
        looked = self._looked.get((owned.topic, owned.partition), OffsetRanges())
        end = looked.range_end(first)
        if end is not None:
            if 2 * owned.range_count < owned.max_ranges:
                return None
            first = end + 1
        if not owned.owns_first or first >= position:
            return None
        last = min(position, first + AUDIT_SPAN) - 1
        return Span(owned.topic, owned.partition, first, last)

    def look(self, span: Span) -> OffsetRanges:
        """Returns the offsets of a span without a record of any member."""
        looked = OffsetRanges([(span.first, span.last)])
        holes = looked - present_offsets(self._spark, self._options, span, 1)
        before = self._looked.get((span.topic, span.partition), OffsetRanges())
        goes_on = span.first - 1 in before
        self._looked[span.topic, span.partition] = before | looked if goes_on else looked
        return holes

    def forget(self, tp: TopicPartition) -> None:
        """Forgets the offsets of a partition: they are read again."""
        self._looked.pop(tp, None)
