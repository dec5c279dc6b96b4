"""The next batch: what is read of each partition, and what each slot may start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from assignors import MAX_KEY_HASH
from commits import OffsetRanges
from coopconsume.runtime.plan.reads import Read, covering
from coopconsume.runtime.plan.turns import in_turn

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from coopconsume.runtime.plan.partition import Partition
    from coopconsume.runtime.plan.range_limit import Limits
    from coopconsume.worker.report import PartitionWork

K = TypeVar("K")


@dataclass(frozen=True)
class BatchPlan:
    """One batch: what is read, and what each slot may start of it.

    Attributes:
        reads: Offsets that are read.
        work: For each slot, its work by index of the partition.
        wanted: Offsets that some slot may start, by index of the partition.
        fraction: The part of the records read that is for these slots, by their key ranges: above
            0, up to 1. Others are for slots that are busy, or for other members.
    """

    reads: tuple[Read, ...]
    work: Mapping[int, Mapping[int, PartitionWork]]
    wanted: Mapping[int, OffsetRanges]
    fraction: float = 1.0

    @cached_property
    def indexes(self) -> tuple[int, ...]:
        """The partitions of the batch, each by its index in the epoch, ascending.

        A *part* is an index in this tuple. Rows, slots and their reports name partitions by it.
        """
        return tuple(sorted(self.wanted))

    @cached_property
    def parts(self) -> dict[int, int]:
        """The part of each partition, by its index in the epoch."""
        return {index: part for part, index in enumerate(self.indexes)}

    @property
    def slots(self) -> tuple[int, ...]:
        """The slots that have work, ascending."""
        return tuple(sorted(self.work))

    @property
    def span(self) -> int:
        """Offsets that are read."""
        return _span(self.reads)


def deal_window(backlogs: Mapping[K, int], window: int) -> dict[K, int]:
    """Divides a window over partitions in proportion to their backlogs; each gets at least 1.

    Args:
        backlogs: Offsets that each partition has left.
        window: Offsets to divide.
    """
    total = sum(backlogs.values())
    return {of: max(1, window * left // total) for of, left in backlogs.items() if left}


def plan_batch(
    partitions: Sequence[Partition], slots: Sequence[int], now: float, limits: Limits
) -> BatchPlan | None:
    """Returns the next batch for these free slots; None if there is no work for them."""
    backlogs = {p.index: p.slots.backlog(slots, now) for p in partitions}
    left = list(partitions)
    # Those that are at a limit, or that look for a record that ends its worker, may plan nothing.
    while chosen := in_turn(left, backlogs, limits.window, limits.handlers):
        planned = _plan_of(chosen, backlogs, slots, now, limits)
        if planned is not None:
            return planned
        taken = {partition.index for partition in chosen}
        left = [partition for partition in left if partition.index not in taken]
    return None


def _plan_of(
    chosen: Sequence[Partition],
    backlogs: Mapping[int, int],
    slots: Sequence[int],
    now: float,
    limits: Limits,
) -> BatchPlan | None:
    """Returns the plan of a batch over some partitions; None if they have no work for the slots."""
    windows = deal_window({p.index: backlogs[p.index] for p in chosen}, limits.window)
    work: dict[int, dict[int, PartitionWork]] = {}
    wanted: dict[int, OffsetRanges] = {}
    reads: list[Read] = []
    hashes = 0
    for partition in chosen:
        index = partition.index
        own = replace(limits, window=windows[index])
        planned = partition.slots.plan(slots, now, own)
        union = OffsetRanges()
        for slot, offsets in planned.items():
            work.setdefault(slot, {})[index] = partition.slots.work(slot)
            union |= offsets
        if union:
            wanted[index] = union
            # Every wanted offset is read: one that is not would count as a hole.
            spans = covering(union, partition.slots.reach)
            found = [Read(index, first, last) for first, last in spans]
            hashes += _span(found) * partition.supply.hashes(planned)
            reads += found
    if not work:
        return None
    fraction = hashes / (_span(reads) * (MAX_KEY_HASH + 1))
    return BatchPlan(tuple(reads), work, wanted, fraction)


def _span(reads: Iterable[Read]) -> int:
    return sum(read.last - read.first + 1 for read in reads)
