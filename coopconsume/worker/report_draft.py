"""Collects what the next report of a slot has, and makes it. Task-side.

A report does not change once it is made: what changes until then is here.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from coopconsume.worker.handler_lines import LineBuffer
from coopconsume.worker.histogram import Histogram
from coopconsume.worker.realtime.read_progress import ReadProgress
from coopconsume.worker.report import (
    PartitionReport,
    Reads,
    SlotReport,
    SlotStats,
    pack_chunks,
    pack_done,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from coopconsume.worker.input_rows import InputRow
    from coopconsume.worker.output_rows import OutputRows
    from coopconsume.worker.report import BatchSpec, DeadLetter, Failure, SlotEnd


@dataclass
class PartitionDraft:
    """The outcomes of one partition's records that are in no report, as in `PartitionReport`.

    Attributes:
        done: Chunks of what is done: offsets in ascending order, and their timestamps.
        filtered: Chunks of offsets.
        resume: It comes with the final report.
    """

    done: list[pa.RecordBatch] = field(default_factory=list)
    filtered: list[pa.Array] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    blocked: list[tuple[int, int]] = field(default_factory=list)
    retrying: list[Failure] = field(default_factory=list)
    resume: int | None = None

    @property
    def has_settled(self) -> bool:
        """Whether a record is done, failed or filtered."""
        return any(map(len, [*self.done, *self.filtered])) or bool(self.failed)

    def take(self, *, waiting: bool) -> PartitionDraft:
        """Takes the outcomes so far, and keeps none of them.

        Args:
            waiting: Whether to take the records that wait in the slot, too.
        """
        taken = PartitionDraft(self.done, self.filtered, self.failed)
        self.done, self.filtered, self.failed = [], [], []
        if waiting:
            taken.blocked, self.blocked = self.blocked, []
            taken.retrying, self.retrying = self.retrying, []
        return taken

    def report(self, read: PartitionReport) -> PartitionReport:
        """Returns these outcomes with what a real-time slot has read."""
        done, times = pack_done(self.done)
        return replace(
            read, done=done, times=times, filtered=pack_chunks(self.filtered), failed=self.failed,
            blocked=self.blocked, retrying=self.retrying, resume=self.resume,
        )  # fmt: skip

    def offsets(self) -> Iterator[tuple[str, int]]:
        """Yields the state and the offset of each record, see `coopconsume.worker.reporter`."""
        for chunk in self.done:
            yield from (("done", offset) for offset in chunk.column(0).to_pylist())
        for offsets in self.filtered:
            yield from (("filtered", offset) for offset in offsets.to_pylist())
        yield from (("failed", failure.offset) for failure in self.failed)
        yield from (("behind", offset) for offset, _ in self.blocked)


class Taken(NamedTuple):
    """What was taken from a draft, for one report; packing it needs no lock.

    Attributes:
        of: The report, with nothing of this in it yet.
        partitions: The outcomes of records, by part.
        read: What a real-time slot has read, by part.
        outputs: Rows that handlers returned. ``changes``: those of the state.
    """

    of: SlotReport
    partitions: dict[int, PartitionDraft]
    read: dict[int, PartitionReport]
    outputs: OutputRows | None
    changes: OutputRows | None

    def report(self) -> SlotReport:
        """Returns the report."""
        filtered = [chunk for one in self.partitions.values() for chunk in one.filtered]
        return replace(
            self.of,
            partitions={
                part: one.report(self.read.get(part, _NOTHING))
                for part, one in self.partitions.items()
            },
            outputs=None if self.outputs is None else self.outputs.encode(),
            changes=None if self.changes is None else self.changes.encode(),
            stats=replace(self.of.stats, filtered=sum(map(len, filtered))),
        )


_NOTHING = PartitionReport()


class ReportDraft:
    """What no report of a slot has yet. It is used with the lock of the outcome held.

    Args:
        spec: The batch.
        slot: The slot.
        outputs: The rows that handlers return; None: they are dropped.
        changes: Changes of the state; None: there is no state.

    Attributes:
        partitions: The outcomes of records, by part.
        reading: What a real-time slot has read.
        dead: Records that were given up.
        gates: `SlotReport.gates`.
        lines: What handlers log and print; None: the driver shows none of it.
        rows: Records read. ``value_bytes``: their bytes. ``handled``: handler calls begun.
            ``ended``: those that have ended, as of the last `Runner.flush`. ``failures``: those
            that did not succeed. These count from the start of the slot.
        starts: Times until handler calls. ``calls``: those of calls. These count since the last
            report.
    """

    def __init__(
        self, spec: BatchSpec, slot: int, outputs: OutputRows | None, changes: OutputRows | None
    ) -> None:
        self._of = SlotReport(batch=spec.batch, slot=slot, pid=os.getpid())
        self._is_real_time = spec.realtime is not None
        self._outputs = outputs
        self._changes = changes
        self.partitions = {part: PartitionDraft() for part in spec.work[slot]}
        self.reading = ReadProgress(self.partitions)
        self.dead: list[DeadLetter] = []
        self.gates: dict[int | None, float] = {}
        self.lines = LineBuffer(spec.shown_lines) if spec.shown_lines else None
        self.rows = self.value_bytes = 0
        self.handled = self.ended = self.failures = 0
        self.starts = Histogram()
        self.calls = Histogram()
        self._reads = Reads()
        #: Calls and failures that progressive reports contained.
        self._reported = 0, 0

    def add_done(self, part: int, offsets: Sequence[int], times: Sequence[int]) -> None:
        """Notes offsets and timestamps of records that are done."""
        columns = [pa.array(column, pa.int64()) for column in (offsets, times)]
        done = pa.RecordBatch.from_arrays(columns, names=["offset", "timestamp"])
        self.partitions[part].done.append(done.take(pc.sort_indices(columns[0])))

    def block(self, row: InputRow) -> None:
        """Notes a row that waits behind an earlier one of its lane."""
        self.partitions[row.part].blocked.append((row.offset, row.key_hash))

    def resume_from(self, part: int, offset: int) -> None:
        """Notes that rows of a partition from an offset on were not read, except reported ones."""
        draft = self.partitions[part]
        draft.resume = offset if draft.resume is None else min(draft.resume, offset)

    def count_reads(self, reads: Reads) -> None:
        """Notes what a real-time slot has read since the last call."""
        self._reads = Reads(*map(sum, zip(self._reads, reads, strict=True)))

    def has_news(self, *, positions: bool) -> bool:
        """Whether there is something to report.

        Args:
            positions: Whether new positions of a real-time slot, or lines of handlers, alone are
                worth a report.
        """
        return (
            any(one.has_settled for one in self.partitions.values())
            or (self._is_real_time and any(map(_waits, self.partitions.values())))
            or any(any(map(len, chunks)) for chunks in self.reading.offsets.values())
            or (positions and bool(self.reading.positions or self.lines))
        )

    def take(
        self,
        seq: int,
        kept: list[tuple[int, int, int]] | None,
        leaving: tuple[int, list[tuple[int, int, int]]] | None,
    ) -> Taken:
        """Takes what has come since the last report, for a progressive one.

        Args:
            seq: Its number.
            kept: As in `SlotReport`.
            leaving: As in `SlotReport`.
        """
        follows = self._is_real_time
        read = self.reading.take() if follows else {}
        drafts = {part: one.take(waiting=follows) for part, one in self.partitions.items()}
        partitions = {
            part: one
            for part, one in drafts.items()
            if one.has_settled or part in read or _waits(one)
        }
        ended, failures = self._reported
        self._reported = self.ended, self.failures
        stats = SlotStats(handled=self.ended - ended, failures=self.failures - failures)
        of = replace(
            self._of, seq=seq, kept=kept, leaving=leaving, stats=self._take_times(stats),
            gates={} if kept is None else dict(self.gates),
        )  # fmt: skip
        return self._taken(of, partitions, read)

    def close(self, end: SlotEnd, busy: float, restored: tuple[int, float]) -> SlotReport:
        """Returns the final report: what is in no progressive report.

        Args:
            end: How the slot has ended.
            busy: As in `SlotStats`.
            restored: As in `SlotStats`.
        """
        ended, failures = self._reported
        stats = SlotStats(
            rows=self.rows, handled=self.handled - ended, failures=self.failures - failures,
            value_bytes=self.value_bytes, busy=busy, restored=restored,
        )  # fmt: skip
        of = replace(self._of, gates=self.gates, stats=self._take_times(stats), end=end)
        partitions = {
            part: replace(one.take(waiting=True), resume=one.resume)
            for part, one in self.partitions.items()
        }
        return self._taken(of, partitions, self.reading.take()).report()

    def _take_times(self, stats: SlotStats) -> SlotStats:
        """Returns counts with the times and reads since the last report."""
        stats = replace(stats, reads=self._reads, starts=self.starts, calls=self.calls)
        self._reads, self.starts, self.calls = Reads(), Histogram(), Histogram()
        return stats

    def _taken(
        self,
        of: SlotReport,
        partitions: dict[int, PartitionDraft],
        read: dict[int, PartitionReport],
    ) -> Taken:
        dead, self.dead = self.dead, []
        outputs, changes = (
            None if rows is None else rows.take() for rows in (self._outputs, self._changes)
        )
        lines = None if self.lines is None else self.lines.take()
        return Taken(replace(of, dead=dead, lines=lines), partitions, read, outputs, changes)


def _waits(draft: PartitionDraft) -> bool:
    """Whether a record waits in a slot, for a lower one or for its next attempt."""
    return bool(draft.blocked or draft.retrying)
