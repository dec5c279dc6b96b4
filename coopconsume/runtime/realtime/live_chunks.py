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
    from commits.model import TopicPartition
    from coopconsume.runtime.dispatch.batch import Running
    from coopconsume.runtime.dispatch.slot_leases import SlotLeases
    from coopconsume.runtime.plan.chunk_sizes import ChunkSizes
    from coopconsume.worker.report import SlotReport


class LiveChunks:
    """The chunks of the slots of a real-time run.

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
        #: How many offsets each slot is to have; None: no slot reads by itself.
        self._wanted: dict[int, int] | None = None

    @property
    def demand(self) -> int | None:
        """How many offsets the slots are to have; None: no slot reads by itself."""
        return None if self._wanted is None else sum(self._wanted.values())

    def ahead(self, running: Running | None) -> dict[TopicPartition, int]:
        """Returns how many offsets of each partition the job is to have ahead of its slots.

        Args:
            running: The run, or None.
        """
        now = time.monotonic()
        ours = [] if running is None else [p for p in running.partitions if p.is_ours]
        return {(p.topic, p.partition): self._ahead_sizes.of(p.index, now) for p in ours}

    def hand_out(self, running: Running | None, now: float) -> None:
        """Hands acquired offsets out to the slots of a run, if one runs."""
        self._wanted = None
        if running is None:
            return
        slots = [
            slot for slot in sorted(running.active - running.stopped)
            if self._leases.has_met((running.number, slot))
        ]  # fmt: skip
        ours = [partition for partition in running.partitions if partition.is_ours]
        at_work = {
            slot: any(p.cursors[slot].reading for p in ours if slot in p.cursors) for slot in slots
        }
        wanted = {slot: self._sizes.of_live(slot, now, is_at_work=at_work[slot]) for slot in slots}
        self._wanted = wanted or None
        deal_stock(ours, slots, wanted, now)
        deal_ahead(ours, slots, self._ahead_sizes, now)
        for slot in slots:
            work = {}
            for part, partition in enumerate(running.partitions):
                one = partition.hand_out(slot, now) if partition.is_ours else None
                if one is not None:
                    work[part] = one
                    self._ahead_sizes.handed_out(
                        partition.index, len(OffsetRanges(one.ranges)), now
                    )
            if work:
                self._leases.send((running.number, slot), Frame.CHUNKS, encode_chunks(work))

    def progressed(self, running: Running, report: SlotReport, now: float) -> None:
        """Learns the speed of a slot from its progressive report."""
        is_busy = left_of(running.partitions, report.slot) > 0
        handled = report.stats.handled + report.stats.filtered
        self._sizes.progressed(report.slot, handled, now, is_busy=is_busy)

    def forget(self) -> None:
        """Forgets the sizes of partitions: the epoch has ended."""
        self._ahead_sizes.forget()
