"""A slot's time box, and the plain way to run its rows: one after another in the task's thread.

A record that fails blocks its lane (see `coopconsume.task.lanes`) for the rest of the batch, and no
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

from coopconsume.record import Record
from coopconsume.task.ledger import Row, headers_of, wanted_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from coopconsume.task.blackbox import BlackBox
    from coopconsume.task.ledger import Ledger
    from coopconsume.task.report import BatchSpec

    Handler = Callable[[Record], Any]

#: Exit status of a worker that outlived its batch; the task fails, its part is planned again.
OUTLIVED = 70
_OFFSET, _HASH, _KEY, _VALUE, _STAMP = 1, 2, 3, 4, 5


class Life:
    """The time box of a slot's part of a batch.

    Attributes:
        is_over: Nothing more may start. A flag, as every record asks; a clock costs more.

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
        self._ended = threading.Event()
        self.box = box
        self.is_over = False
        self.started = 0.0

    def begin(self) -> float:
        """The instant after which nothing starts, on this process's monotonic clock.

        The first call, at the first record, sets it.
        """
        if self._deadline is None:
            self.started = time.monotonic()
            self._deadline = time.monotonic() + self._time
            self.is_over = self._time <= 0
            threading.Thread(target=self._watch, name="coopconsume-life", daemon=True).start()
        return self._deadline

    def _watch(self) -> None:
        """In a thread of its own."""
        if not self._ended.wait(self._time):
            self.is_over = True
            # A thread cannot be stopped; only so does the batch have an end for certain.
            if not self._ended.wait(self._grace):
                self.outlived()

    def outlived(self, seats: Iterable[int] | None = None) -> None:
        """End the worker: handlers at some seats, or at all, had more than their time."""
        for seat in [None] if seats is None else seats:
            self.box.mark_overdue(seat)
        self._end_process(OUTLIVED)

    def end(self) -> None:
        """The slot is through."""
        self._ended.set()


def run_serial(
    batches: Iterable[pa.RecordBatch], handler: Handler, ledger: Ledger, life: Life
) -> None:
    """Handle the rows one after another in the task's own thread; the cheapest way by far."""
    report, blocked, cells = ledger.report, ledger.blocked, life.box.cells
    code, place = life.box.FIRST, life.box.FIRST + 1
    handled = 0
    for raw in batches:
        report.value_bytes += raw.nbytes
        batch = wanted_rows(raw, ledger.work)
        report.rows += batch.num_rows
        hashes, skipped = batch.column(_HASH), []
        at_work = None
        life.begin()
        for i, part, record in records_of(batch, ledger):
            if life.is_over and handled:
                report.timed_out = True
                skipped.append(i)
                ledger.unlooked(part, record.offset)
                continue
            if blocked[part] and ledger.is_blocked(row := _row(part, hashes[i], record)):
                skipped.append(i)
                ledger.block(row)
                continue
            handled += 1
            cells[place] = record.offset
            if part != at_work:
                at_work = part
                cells[code] = part + 1
            try:
                answer = handler(record)
                if answer is not None:
                    answer = ledger.taken(answer)
            except BaseException as error:  # noqa: BLE001 - SystemExit too costs its record alone
                answer = error
            if answer is not None:
                ledger.number = handled
                if not ledger.answer(_row(part, hashes[i], record), record, answer):
                    skipped.append(i)
                    life.is_over = life.is_over or bool(report.tripped)
        cells[code] = 0
        done_rows(ledger, batch, skipped)
        report.handled = ledger.number = handled


def _row(part: int, key_hash: pa.Int64Scalar, record: Record) -> Row:
    return Row(part, record.offset, key_hash.as_py(), *record[3:7])


def records_of(batch: pa.RecordBatch, ledger: Ledger) -> Iterator[tuple[int, int, Record]]:
    """The rows as handlers see them, each with its number and the index of its partition.

    Records are made one at a time, and without a line of Python for each.
    """
    rows, names = batch.num_rows, ledger.spec.partitions
    offsets, keys, values, stamps = (
        batch.column(n).to_pylist() for n in (_OFFSET, _KEY, _VALUE, _STAMP)
    )
    topics: Iterable[str]
    numbers: Iterable[int]
    if len(ledger.work) == 1:
        (part,) = ledger.work
        parts = [part] * rows
        topics, numbers = repeat(names[part][0], rows), repeat(names[part][1], rows)
    else:
        parts = batch.column(0).to_pylist()
        topics = map([topic for topic, _ in names].__getitem__, parts)
        numbers = map([number for _, number in names].__getitem__, parts)
    attempts: Iterable[int] = repeat(1, rows)
    if ledger.retried:
        attempts = map(ledger.attempt, parts, offsets)
    fields = zip(
        topics, numbers, offsets, keys, values, stamps, headers_of(batch), attempts, strict=True
    )
    records = map(tuple.__new__, repeat(Record), fields)  # `Record._make` is Python.
    return zip(range(rows), parts, records)  # noqa: B905


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
