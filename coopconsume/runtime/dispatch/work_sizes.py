"""How many offsets batches, slots that read by themselves, and the whole job are to have."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from coopconsume.runtime.plan import Limits
from coopconsume.runtime.plan.chunk_sizes import ChunkSizes
from coopconsume.runtime.plan.reads import MAX_READS, MERGE_GAP
from coopconsume.runtime.plan.slices import deal_stock, undealt_of
from coopconsume.runtime.plan.window import Window
from coopconsume.runtime.realtime.live_chunks import LiveChunks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from commits.model import TopicPartition
    from coopconsume.runtime.dispatch.circuit_breaker import JobCircuitBreaker
    from coopconsume.runtime.dispatch.run import Run
    from coopconsume.runtime.dispatch.slot_leases import SlotLeases
    from coopconsume.runtime.epoch_state import EpochState
    from coopconsume.runtime.job_context import JobContext
    from coopconsume.worker.report import SlotReport

#: Sizes of all slices: one is at work, one is ahead of it, and slots may have become slower.
_MOST_HELD: Final = 3


class WorkSizes:
    """Decides how many offsets are handed out at a time, by what slots report of their speed.

    Jobs with chunks also acquire by it.

    Args:
        context: The job.
        breaker: While it is not closed, the job acquires no chunks.
        leases: The channel to slots that read by themselves.

    Attributes:
        window: How many offsets a batch spans.
    """

    def __init__(self, context: JobContext, breaker: JobCircuitBreaker, leases: SlotLeases) -> None:
        options, job_spec, slots = context.options, context.job_spec, context.slots
        self.window = Window(options, slots)
        self._max_pending = options.max_pending
        self._handlers = slots * job_spec.concurrency
        self._breaker = breaker
        self._chunk_sizes: ChunkSizes | None = None
        self._live: LiveChunks | None = None
        if options.uses_chunks:
            self._chunk_sizes = ChunkSizes(
                slots, job_spec.concurrency, options.batch_time, options.max_offsets_per_trigger
            )
            if job_spec.real_time is not None:
                self._live = LiveChunks(self._chunk_sizes, slots, job_spec.concurrency, leases)

    def demand(self, epoch_state: EpochState) -> int:
        """Returns how many offsets a job with chunks is to have for its slots; 0 if it pauses."""
        if self._chunk_sizes is None or self._breaker.state != "closed":
            return 0
        window = self._window_of(epoch_state)
        return self._chunk_sizes.total(window) if self._live is None else self._live.demand(window)

    def _window_of(self, epoch_state: EpochState) -> int:
        """Returns how many offsets a batch may span while no other member needs any, else 0."""
        return self.window.offsets if epoch_state.committer.chunks.is_only_member else 0

    def holds_too_much(self, epoch_state: EpochState) -> bool:
        """Whether a job with chunks holds more than its slots are about to handle.

        While it was the only member, that kept nothing from others.
        """
        most = 0 if self._chunk_sizes is None else _MOST_HELD * self._chunk_sizes.total()
        return 0 < most < epoch_state.committer.chunks.acquired

    def ahead(self, epoch_state: EpochState) -> dict[TopicPartition, int]:
        """Offsets of partitions that slots are to have ahead that read chunks by themselves."""
        return {} if self._live is None else self._live.ahead(epoch_state.ours)

    def hand_out(self, live: Mapping[int, Run], now: float) -> None:
        """Hands chunks out to slots that read by themselves, each given with its run."""
        if self._live is not None:
            self._live.hand_out(live, now)

    @property
    def limits(self) -> Limits:
        """The limits of the next batch of a job without chunks."""
        return Limits(self.window.offsets, self._max_pending, self._handlers)

    def deal(
        self, epoch_state: EpochState, free: Sequence[int], now: float, limits: Limits
    ) -> Limits:
        """Deals chunks to free slots, if the job has any; returns the limits of their batch."""
        if self._chunk_sizes is None:
            return limits
        most = self._window_of(epoch_state)
        sizes = self._chunk_sizes.of_batch(free, undealt_of(epoch_state.busy), most)
        deal_stock(epoch_state.busy, free, sizes, now)
        # Slices are as large as is good; reads may have to pass over what lies between.
        window = 2 * self._chunk_sizes.total(most) + MAX_READS * MERGE_GAP
        return replace(limits, window=window)

    def progressed(self, run: Run, report: SlotReport, now: float) -> None:
        """Learns the speed of a slot that reads chunks by itself from its progressive report."""
        if self._live is not None and run.is_real_time:
            self._live.progressed(run, report, now)

    def reported(self, report: SlotReport, handled: int) -> None:
        """Learns the speed of a slot from its final report, and all its handler calls."""
        if self._chunk_sizes is not None:
            self._chunk_sizes.reported(report, handled)

    def forget(self) -> None:
        """Forgets the sizes of partitions: the epoch has ended."""
        if self._live is not None:
            self._live.forget()
