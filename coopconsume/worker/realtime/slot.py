"""What runs in a Spark task of a real-time run: a slot that reads Kafka itself.

It runs the handlers of a batch over rows that have no end until the time is over.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from coopconsume.worker.outcome import wanted_rows
from coopconsume.worker.realtime.host_source import open_source
from coopconsume.worker.realtime.reader import SlotReader
from coopconsume.worker.realtime.source import ReadFailed
from coopconsume.worker.realtime.spec import HELD_UP, POSITIONS_EVERY
from coopconsume.worker.report import Reads, SlotReport
from coopconsume.worker.slot import SlotRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import pyarrow as pa

    from coopconsume.worker.channel.client import SlotChannel
    from coopconsume.worker.handling import TimeBox
    from coopconsume.worker.outcome import TaskOutcome
    from coopconsume.worker.realtime.reader import Place
    from coopconsume.worker.realtime.source import Source
    from coopconsume.worker.report import BatchSpec

    OpenSource = Callable[[BatchSpec, int, Mapping[Place, int]], Source]

log = logging.getLogger(__name__)

#: Seconds after which a read without records looks whether it is to end.
_POLL = 0.05
#: Records that are taken at once.
_MOST = 1_000


class RealTimeRunner(SlotRunner):
    """The function of a real-time run's tasks, for ``DataFrame.mapInArrow``.

    The rows that Spark passes only start the tasks.
    """

    #: Opens what slots read from.
    open_source: OpenSource = staticmethod(open_source)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run one task; yields one row, as for a batch."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        slot = self._spec.slots[context.partitionId()]
        for _ in batches:
            pass
        if context.attemptNumber() > 0:
            # What the first attempt read is known to the driver alone.
            report = SlotReport(self._spec.batch, slot, unknown=True)
        else:
            report = self.run(slot, ())
        yield self._answer(slot, report)

    def _run(
        self, slot: int, rows: Iterator[pa.RecordBatch], channel: SlotChannel | None
    ) -> SlotReport:
        error = "the run has no channel" if channel is None else channel.wait()
        if error:
            report = self._ledger(slot).close()
            report.channel_error = error
            return report
        report = self._handle(slot, rows, channel)
        report.busy = 0.0  # Slots wait for records most of the time.
        report.timed_out = False
        return report

    def _begin(self, channel: SlotChannel, ledger: TaskOutcome, life: TimeBox) -> None:
        watch = _Watch(ledger)
        self._is_draining = False
        channel.begin(watch.cut, life.halt, ledger.want_relief, ledger.oldest_call, self._drain)

    def _drain(self) -> None:
        self._is_draining = True

    def _rows(
        self, _batches: Iterable[pa.RecordBatch], ledger: TaskOutcome, life: TimeBox
    ) -> Iterator[pa.RecordBatch]:
        spec = self._spec
        assert spec.realtime is not None
        slot = ledger.report.slot
        reader = SlotReader(
            spec.partitions, {part: work.ranges[0][0] for part, work in ledger.work.items()},
            spec.realtime.key_ranges[slot], spec.realtime.finds_holes.get(slot, frozenset()),
            spec.realtime.record_filter, headers=spec.headers,
        )  # fmt: skip
        until = time.monotonic() + spec.realtime.duration
        life.begin()
        source, counted = None, Reads()
        try:
            source = self.open_source(spec, slot, reader.starts)
            while not (life.is_over or self._is_draining or time.monotonic() >= until):
                if ledger.report.tripped or ledger.report.fatal:
                    return
                fetched = source.poll(_POLL, _MOST)
                if not fetched:
                    continue
                taken = reader.take(fetched.records, fetched.ends, fetched.portions)
                rows = wanted_rows(ledger.passed(taken.rows), ledger.work)
                with ledger.lock:
                    ledger.follow(taken.positions, taken.holes)
                    reads = source.reads
                    ledger.count_reads(reads.since(counted))
                    counted = reads
                    ledger.begin_with(rows)
                if rows.num_rows:
                    yield rows
        except ReadFailed as error:
            ledger.report.read_error = str(error)
        except Exception as error:
            # Raised here it would leave the handlers behind that run.
            log.exception("slot %d cannot read", slot)
            ledger.report.read_error = f"{type(error).__name__}: {error}"
        finally:
            if source is not None:
                with ledger.lock:
                    ledger.count_reads(source.reads.since(counted))
                source.close()


class _Watch:
    """Cuts progressive reports, and has a slot give its records back that is held up.

    Called in the channel's thread.
    """

    def __init__(self, ledger: TaskOutcome) -> None:
        self._ledger = ledger
        self._ended = -1
        self._moved_at = time.monotonic()
        self._positions_at = 0.0

    def cut(self, seq: int) -> SlotReport | None:
        """Returns what is new, see `TaskOutcome.cut`."""
        now, ledger = time.monotonic(), self._ledger
        with ledger.lock:
            ledger.flush()
            is_moving = ledger.ended != self._ended or not ledger.is_held_up()
            self._ended = ledger.ended
        if is_moving:
            self._moved_at = now
        elif now - self._moved_at > HELD_UP:
            self._moved_at = now
            ledger.want_relief()
        is_time = now - self._positions_at >= POSITIONS_EVERY
        report = ledger.cut(seq, positions=is_time)
        if report is not None:
            self._positions_at = now
        return report
