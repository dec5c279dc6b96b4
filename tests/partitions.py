"""Partitions as the loop of a job knows them, for tests of its pure core."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commits import OffsetRanges
from coopconsume.runtime.plan import Partition
from coopconsume.runtime.plan.ledger import OffsetLedger

if TYPE_CHECKING:
    from collections.abc import Iterable

    from assignors import KeyRange
    from coopconsume.worker.report import Ordering


def make_partition(
    index: int = 0,
    topic: str = "t",
    partition: int = 0,
    *,
    slots: Iterable[tuple[int, tuple[KeyRange, ...]]],
    stable: int = 0,
    committed: OffsetRanges | None = None,
    end: int | None = None,
    ordering: Ordering = "key",
    whole: bool = True,
    max_ranges: int = 1_000_000,
    max_outputs_waiting: int | None = None,
    leads: bool | None = None,
) -> Partition:
    """Returns a partition; its arguments are those of `Partition` and `OffsetLedger`."""
    ledger = OffsetLedger(
        stable,
        OffsetRanges() if committed is None else committed,
        is_whole=whole,
        max_ranges=max_ranges,
        max_outputs_waiting=max_outputs_waiting,
    )
    if end is not None:
        ledger.end = end
    return Partition(index, topic, partition, ledger, slots=slots, ordering=ordering, leads=leads)
