"""Runs one slot of a real-time run in a Spark task: it reads Kafka itself.

The handlers run as in a batch, over rows that end when the time of the run is over.
"""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from coopconsume.worker.input_rows import wanted_rows
from coopconsume.worker.realtime.errors import ReadFailed, opening
from coopconsume.worker.realtime.host_source import open_source
from coopconsume.worker.realtime.reader import SlotReader
from coopconsume.worker.realtime.slot_reading import SlotReading
from coopconsume.worker.realtime.wanted import NOTHING
from coopconsume.worker.report import Reads, SlotEnd
from coopconsume.worker.slot import SlotRunner

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from coopconsume.worker.channel.client import SlotChannel
    from coopconsume.worker.outcome import TaskOutcome
    from coopconsume.worker.report import SlotReport
    from coopconsume.worker.reporter import SlotReporter
    from coopconsume.worker.time_box import TimeBox

#: Seconds for which one poll waits for records; between polls the slot checks whether it is to end.
_POLL = 0.05
#: Records of one poll, at most.
_MOST = 5_000


class RealTimeRunner(SlotRunner):
    """The function of a real-time run's tasks, for ``DataFrame.mapInArrow``.

    It ignores the rows that Spark passes; they only start the tasks.
    """

    #: Opens the source of a slot; tests replace it.
    open_source = staticmethod(open_source)

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        return iter(())

    def _run(
        self, slot: int, rows: Iterator[pa.RecordBatch], channel: SlotChannel | None
    ) -> SlotReport:
        error = "the run has no channel" if channel is None else channel.wait()
        if error:
            return self._outcome(slot).close(SlotEnd(channel_error=error))
        # Handlers would stand still while all is collected that the worker has imported.
        gc.freeze()
        try:
            report = self._handle(slot, rows, channel)
        finally:
            gc.unfreeze()
        # Slots wait for records most of the time.
        report = replace(report, stats=replace(report.stats, busy=0.0))
        return report.with_end(timed_out=False)

    def _begin(
        self,
        _batches: Iterable[pa.RecordBatch],
        outcome: TaskOutcome,
        time_box: TimeBox,
        channel: SlotChannel | None,
        reporter: SlotReporter,
    ) -> Iterator[pa.RecordBatch]:
        assert channel is not None
        reading = SlotReading(reporter, channel.report_soon)
        channel.begin(reporter, time_box, reading)
        return self._read(reading, outcome, time_box)

    def _read(
        self, reading: SlotReading, outcome: TaskOutcome, time_box: TimeBox
    ) -> Iterator[pa.RecordBatch]:
        spec = self._spec
        assert spec.realtime is not None
        slot = outcome.slot
        gets_chunks = spec.realtime.ends is not None
        starts = {
            part: NOTHING if gets_chunks else work.ranges[0][0]
            for part, work in outcome.work.items()
        }
        reader = SlotReader(
            spec.partitions, starts,
            spec.realtime.key_ranges[slot], spec.realtime.finds_holes.get(slot, frozenset()),
            spec.realtime.record_filter, headers=spec.headers,
        )  # fmt: skip
        until = time.monotonic() + spec.realtime.duration
        time_box.begin()
        source, counted = None, Reads()
        try:
            with opening():
                source = self.open_source(spec, slot, reader.starts)
            while not (time_box.is_over or reading.is_draining or time.monotonic() >= until):
                if outcome.streak.tripped or outcome.fatal:
                    return
                for part, work in reading.chunks():
                    with outcome.lock:
                        outcome.history.add(part, work)
                    reader.want(part, work.ranges)
                    source.want(part, work.ranges)
                fetched = source.poll(_POLL, _MOST)
                if not fetched:
                    continue
                taken = reader.take(fetched.records, fetched.ends, fetched.portions)
                rows = wanted_rows(outcome.drop_filtered(taken.rows), outcome.work)
                with outcome.lock:
                    # What comes of key ranges that leave is read as the records of other slots are.
                    rows = outcome.lanes.without_withheld(rows)
                    reads = source.reads
                    outcome.draft.count_reads(reads.since(counted))
                    counted = reads
                    outcome.draft.reading.advance(rows, taken)
                if rows.num_rows:
                    yield rows
        except ReadFailed as error:
            outcome.read_error = str(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends the slot
            # Raised here, it would end the task while handlers run.
            outcome.fail(error)
        finally:
            if source is not None:
                with outcome.lock:
                    outcome.draft.count_reads(source.reads.since(counted))
                source.close()
