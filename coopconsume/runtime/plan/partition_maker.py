"""Makes the partitions of a job from what its member owns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from assignors.ranges import difference, intersection
from coopconsume.runtime.plan import Partition, deal
from coopconsume.runtime.plan.gain import Gain
from coopconsume.runtime.plan.ledger import OffsetLedger

if TYPE_CHECKING:
    from assignors import KeyRange
    from coopconsume.group.epoch_assignment import EpochAssignment
    from coopconsume.group.owned import Owned
    from coopconsume.worker.report import Ordering

#: A key range, and until when an earlier owner may be at work on it, on the monotonic clock.
InDoubt: TypeAlias = "tuple[KeyRange, float]"


@dataclass(frozen=True)
class PartitionMaker:
    """Makes partitions, and gains of key ranges that come later.

    Key ranges on which an earlier owner may be at work start once it has ended; the others of
    their partition do not wait for them.

    Attributes:
        assignment: Knows on what an earlier owner may be at work.
        ordering: What is handled strictly one after another.
        slots: Spark tasks side by side.
        max_outputs_waiting: How many outputs of a partition may wait; None: any number.
    """

    assignment: EpochAssignment
    ordering: Ordering
    slots: int
    max_outputs_waiting: int | None

    def make(self, index: int, owned: Owned) -> Partition:
        """Returns a partition with this index; key ranges in doubt are gains of it."""
        ranges, later = owned.ranges, []
        in_doubt = self.assignment.in_doubt.ranges((owned.topic, owned.partition))
        if not (owned.uses_chunks or self.ordering == "partition"):
            later = [gain for gain in self.gains(owned) if gain.until]
            ranges = difference(ranges, [one for gain in later for one in gain.ranges])
            in_doubt = self._in_doubt(owned)[0]
        ledger = OffsetLedger(
            owned.stable,
            owned.committed,
            is_whole=owned.is_whole and not later,
            max_ranges=owned.max_ranges,
            max_outputs_waiting=self.max_outputs_waiting,
        )
        slots = deal(ranges, self.slots, index, self.ordering)
        if owned.uses_chunks:
            slots = [(slot, ranges) for slot in range(self.slots)]
        partition = Partition(
            index,
            owned.topic,
            owned.partition,
            ledger,
            slots=slots,
            ordering=self.ordering,
            leads=owned.leads if owned.uses_chunks else None,
        )
        for key_range, until in in_doubt:
            partition.mark_in_doubt(key_range, until)
        if not owned.uses_chunks:
            partition.restore(owned.pending)
        for gain in later:
            partition.extend(gain)
        partition.ledger.log_has(owned.range_count, owned.last_committed)
        return partition

    def extend(self, partition: Partition, owned: Owned) -> None:
        """Adds gained key ranges to a partition."""
        for gain in self.gains(owned):
            partition.extend(gain)
        partition.ledger.log_has(owned.range_count, owned.last_committed)

    def gains(self, owned: Owned) -> list[Gain]:
        """Returns the gained key ranges of a partition, by when they may start.

        Key ranges on which an earlier owner may be at work are gains of their own, so that the
        others do not wait for them.
        """
        keys, wide = self._in_doubt(owned)
        parts, left = [], owned.ranges
        for key_range, until in sorted(wide, key=lambda one: one[1], reverse=True):
            parts.append((intersection(left, [key_range]), until))
            left = difference(left, [key_range])
        return [
            Gain(
                ranges,
                owned.stable,
                committed=owned.committed,
                pending=owned.pending,
                in_doubt=keys,
                until=until,
            )
            for ranges, until in [(left, 0.0), *parts]
            if ranges
        ]

    def _in_doubt(self, owned: Owned) -> tuple[list[InDoubt], list[InDoubt]]:
        """Returns the keys, and the wider key ranges, on which an earlier owner may be at work."""
        in_doubt = [
            (part, until)
            for key_range, until in self.assignment.in_doubt.ranges((owned.topic, owned.partition))
            for part in intersection(owned.ranges, [key_range])
        ]
        keys = [one for one in in_doubt if self.ordering == "key" and one[0].size == 1]
        return keys, [one for one in in_doubt if one not in keys]
