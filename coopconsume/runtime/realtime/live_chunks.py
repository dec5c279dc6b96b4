"""Hands chunks out to slots of a job with chunks that read by themselves. The loop calls it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from commits import OffsetRanges
from coopconsume.runtime.plan.ahead import AheadSizes
from coopconsume.runtime.plan.slices import deal_ahead, deal_stock, left_of
from coopconsume.worker.channel.messages import encode_chunks
from coopconsume.worker.channel.wire import Frame

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from commits.model import TopicPartition
    from coopconsume.runtime.dispatch.run import Run
    from coopconsume.runtime.dispatch.slot_leases import SlotLeases
    from coopconsume.runtime.plan import Partition
    from coopconsume.runtime.plan.chunk_sizes import ChunkSizes
    from coopconsume.worker.report import SlotReport


class LiveChunks:
    """The chunks of slots that read by themselves.

    Args:
        sizes: How many offsets each slot is to have.
        slots: How many slots there are.
        concurrency: Handlers at once in a slot.
        leases: The channel to the slots.
    """

    def __init__(self, sizes: ChunkSizes, slots: int, concurrency: int, leases: SlotLeases) -> None:
        self._sizes = sizes
        self._leases = leases
        self._ahead_sizes = AheadSizes(slots, concurrency)
        #: How many offsets each slot that reads by itself is to have.
        self._wanted: dict[int, int] = {}

    def demand(self, window: int) -> int:
        """Returns how many offsets the job is to have for its slots.

        Args:
            window: As for `ChunkSizes.of`, for slots that do not read by themselves.
        """
        return sum(self._wanted.values()) + self._sizes.total(window, self._wanted)

    def ahead(self, partitions: Iterable[Partition]) -> dict[TopicPartition, int]:
        """Returns how many offsets of partitions the job is to have ahead of its slots."""
        now = time.monotonic()
        return {(p.topic, p.partition): self._ahead_sizes.of(p.index, now) for p in partitions}

    def hand_out(self, live: Mapping[int, Run], now: float) -> None:
        """Hands acquired offsets out to slots that read by themselves, each given with its run."""
        slots = [slot for slot in sorted(live) if self._leases.has_met((live[slot].number, slot))]
        self._wanted = {}
        if not slots:
            return
        known = [live[slot].plan.wanted for slot in slots]
        ours = [
            partition
            for partition in live[slots[0]].partitions
            if partition.is_ours and all(partition.index in one for one in known)
        ]
        at_work = {
            slot: any(p.cursors[slot].reading for p in ours if slot in p.cursors) for slot in slots
        }
        wanted = {slot: self._sizes.of_live(slot, now, is_at_work=at_work[slot]) for slot in slots}
        self._wanted = wanted
        deal_stock(ours, slots, wanted, now)
        deal_ahead(ours, slots, self._ahead_sizes, now)
        for slot in slots:
            work = {}
            run = live[slot]
            for part, partition in enumerate(run.partitions):
                one = partition.slots.hand_out(slot, now) if partition.is_ours else None
                if one is not None:
                    work[part] = one
                    self._ahead_sizes.handed_out(
                        partition.index, len(OffsetRanges(one.ranges)), now
                    )
            if work:
                self._leases.send((run.number, slot), Frame.CHUNKS, encode_chunks(work))

    def progressed(self, run: Run, report: SlotReport, now: float) -> None:
        """Learns the speed of a slot from its progressive report."""
        is_busy = left_of(run.partitions, report.slot) > 0
        handled = report.stats.handled + report.stats.filtered
        self._sizes.progressed(report.slot, handled, now, is_busy=is_busy)

    def forget(self) -> None:
        """Forgets the sizes of partitions: the epoch has ended."""
        self._ahead_sizes.forget()
