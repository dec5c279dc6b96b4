"""The next batch: what is read of which partition, and what each slot may start of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from commits import OffsetRanges
from commits.offsets import MAX_OFFSET
from coopconsume.plan.reads import Read, covering

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coopconsume.plan.partition import Partition
    from coopconsume.report import PartitionWork


@dataclass(frozen=True)
class BatchPlan:
    """One batch: what is read, and what each slot may start of it."""

    reads: tuple[Read, ...]
    work: Mapping[int, Mapping[int, PartitionWork]]
    wanted: Mapping[int, OffsetRanges]

    @property
    def slots(self) -> tuple[int, ...]:
        """The slots that have work, ascending."""
        return tuple(sorted(self.work))

    @property
    def span(self) -> int:
        """Offsets that are read."""
        return sum(read.last - read.first + 1 for read in self.reads)


@dataclass(frozen=True)
class Limits:
    """Bounds of a plan: offsets in a batch, pending records and ranges of a partition.

    A partition's own limit on ranges counts beside them.
    """

    window: int
    max_pending: int
    max_ranges: int = MAX_OFFSET


def plan_batch(
    partitions: Sequence[Partition], slots: Sequence[int], now: float, limits: Limits
) -> BatchPlan | None:
    """The next batch for these free slots; None if there is nothing to do for them.

    The window is dealt over the partitions by what they have left.
    """
    backlogs = {p.part: p.backlog(slots, now) for p in partitions}
    total = sum(backlogs.values())
    if not total:
        return None
    work: dict[int, dict[int, PartitionWork]] = {}
    wanted: dict[int, OffsetRanges] = {}
    reads: list[Read] = []
    for partition in partitions:
        part = partition.part
        if not backlogs[part]:
            continue
        window = max(1, limits.window * backlogs[part] // total)
        planned = partition.plan(slots, now, Limits(window, limits.max_pending, limits.max_ranges))
        union = OffsetRanges()
        for slot, offsets in planned.items():
            work.setdefault(slot, {})[part] = partition.work(slot)
            union |= offsets
        if union:
            wanted[part] = union
            # Every wanted offset is read: one that were not would be taken for a hole.
            spans = covering(union, partition.reach)
            reads += [Read(part, first, last) for first, last in spans]
    return BatchPlan(tuple(reads), work, wanted) if work else None
