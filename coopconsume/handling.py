"""A slot's time box, and the plain way to run its rows: one after another in the task's thread.

A record that fails blocks its lane (see `coopconsume.lanes`) for the rest of the batch, and no
other. Task-side code.
"""

from __future__ import annotations

import os
import threading
import time
from itertools import repeat
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from coopconsume.ledger import Row, as_answer, headers_of, wanted_rows
from coopconsume.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from coopconsume.blackbox import BlackBox
    from coopconsume.ledger import Ledger
    from coopconsume.report import BatchSpec

    Handler = Callable[[Record], Any]

#: Exit status of a worker that outlived its batch; the task fails, its part is planned again.
OUTLIVED = 70
_OFFSET, _HASH, _KEY, _VALUE, _STAMP = 1, 2, 3, 4, 5


class Life:
    """The time box of a slot's part of a batch, on this process's monotonic clock.

    Args:
        spec: The batch.
        box: Names what was at work, should the worker have to be ended.
        end: Ends this process at once, with an exit status.
    """

    def __init__(
        self, spec: BatchSpec, box: BlackBox, end: Callable[[int], Any] = os._exit
    ) -> None:
        self._time = spec.batch_time
        self._grace = spec.handler_timeout
        self._end_process = end
        self._deadline: float | None = None
        self._timer: threading.Timer | None = None
        self.box = box
        self.started = 0.0

    def begin(self) -> float:
        """The instant after which nothing starts; the first call, at the first record, sets it."""
        if self._deadline is None:
            self.started = time.time()
            self._deadline = time.monotonic() + self._time
            # A thread cannot be stopped; only so does the batch have an end for certain.
            self._timer = threading.Timer(self._time + self._grace, self.outlived)
            self._timer.daemon = True
            self._timer.start()
        return self._deadline

    def outlived(self, seats: Iterable[int] | None = None) -> None:
        """End the worker: handlers at some seats, or at all, had more than their time."""
        for seat in [None] if seats is None else seats:
            self.box.mark_overdue(seat)
        self._end_process(OUTLIVED)

    def end(self) -> None:
        """The slot is through."""
        if self._timer is not None:
            self._timer.cancel()


def run_serial(  # noqa: C901, PLR0915 - one loop, for the sake of each record
    batches: Iterable[pa.RecordBatch], handler: Handler, ledger: Ledger, life: Life
) -> None:
    """Handle the rows one after another in the task's own thread; the cheapest way by far."""
    spec, report, blocked = ledger.spec, ledger.report, ledger.blocked
    topics = [topic for topic, _ in spec.partitions]
    numbers = [number for _, number in spec.partitions]
    make, clock, cells = tuple.__new__, time.monotonic, life.box.cells
    code, place = life.box.FIRST, life.box.FIRST + 1
    handled = 0
    for raw in batches:
        report.value_bytes += raw.nbytes
        batch = wanted_rows(raw, ledger.work)
        rows = batch.num_rows
        report.rows += rows
        one = len(ledger.work) == 1
        parts = repeat(next(iter(ledger.work)), rows) if one else batch.column(0).to_pylist()
        columns = [batch.column(name).to_pylist() for name in (_OFFSET, _KEY, _VALUE, _STAMP)]
        hashes: list[int] = []  # Needed only where something failed.
        skipped: list[int] = []
        deadline = 0.0 if report.tripped else life.begin()
        for i, part, offset, key, value, stamp, headers in zip(
            range(rows), parts, *columns, headers_of(batch), strict=True
        ):
            if handled and clock() >= deadline:
                report.timed_out = True
                skipped.append(i)
                ledger.unlooked(part, offset)
                continue
            if blocked[part]:
                hashes = hashes or batch.column(_HASH).to_pylist()
                row = Row(part, offset, hashes[i], key, value, stamp, headers)
                if ledger.is_blocked(row):
                    skipped.append(i)
                    ledger.block(row)
                    continue
            attempt = ledger.attempt(part, offset) if ledger.retried else 1
            record = make(
                Record, (topics[part], numbers[part], offset, key, value, stamp, headers, attempt)
            )
            handled += 1
            cells[place] = offset
            cells[code] = part + 1
            try:
                answer = handler(record)
                if answer is not None:
                    answer = as_answer(answer)
            except BaseException as error:  # noqa: BLE001 - SystemExit too costs its record alone
                answer = error
            if answer is not None:
                hashes = hashes or batch.column(_HASH).to_pylist()
                row = Row(part, offset, hashes[i], key, value, stamp, headers)
                ledger.number = handled
                if not ledger.answer(row, record, answer):
                    skipped.append(i)
                    if report.tripped:
                        deadline = 0.0
        cells[code] = 0
        done_rows(ledger, batch, skipped)
        report.handled = ledger.number = handled


def done_rows(ledger: Ledger, batch: pa.RecordBatch, skipped: list[int]) -> None:
    """The rows of a batch are done, but for those at some places."""
    if skipped:
        left = set(skipped)
        keep = pa.array([i for i in range(batch.num_rows) if i not in left], pa.int64())
        batch = batch.select([0, _OFFSET]).take(keep)
    parts, offsets = batch.column(0), batch.column(_OFFSET)
    for part, chunks in ledger.done.items():
        whole = len(ledger.done) == 1
        chunks.append(offsets if whole else offsets.filter(pc.equal(parts, part)))
