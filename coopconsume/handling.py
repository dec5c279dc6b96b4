"""The two ways to run a slot's rows through its handler: in the task's thread, or on several.

A *lane* is what must be handled strictly one after another: a key, a partition or, without
ordering, a single record. A record that fails blocks its lane for the rest of the batch, and no
other. Task-side code.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from itertools import repeat
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from coopconsume.ledger import Ledger, Row, as_answer, headers_of, wanted_rows
from coopconsume.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from coopconsume.report import BatchSpec

    Handler = Callable[[Record], Any]

#: Rows that a slot with several handlers at once holds ready, so that one key cannot fill it up.
LOOKAHEAD_ROWS = 20_000
LOOKAHEAD_BYTES = 64 << 20
#: Exit status of a worker that outlived its batch; the task fails, its part is planned again.
OUTLIVED = 70
_OFFSET, _HASH, _KEY, _VALUE, _STAMP = 1, 2, 3, 4, 5


class Life:
    """The time box of a slot's part of a batch, on this process's monotonic clock."""

    def __init__(self, spec: BatchSpec) -> None:
        self._box = spec.batch_time
        self._grace = spec.handler_timeout
        self._end: float | None = None
        self._timer: threading.Timer | None = None
        self.started = 0.0

    def begin(self) -> float:
        """The instant after which nothing starts; the first call sets it."""
        if self._end is None:
            self.started = time.time()
            self._end = time.monotonic() + self._box
            # A thread cannot be stopped; only so does the batch have an end for certain.
            self._timer = threading.Timer(self._box + self._grace, os._exit, (OUTLIVED,))
            self._timer.daemon = True
            self._timer.start()
        return self._end

    def end(self) -> None:
        """The slot is through."""
        if self._timer is not None:
            self._timer.cancel()


def run_serial(
    batches: Iterable[pa.RecordBatch], handler: Handler, ledger: Ledger, life: Life
) -> None:
    """Handle the rows one after another in the task's own thread; the cheapest way by far."""
    spec, report, blocked = ledger.spec, ledger.report, ledger.blocked
    topics = [topic for topic, _ in spec.partitions]
    numbers = [number for _, number in spec.partitions]
    make, clock = tuple.__new__, time.monotonic
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
        deadline = life.begin()
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
                if ledger.lane(row) in blocked[part]:
                    skipped.append(i)
                    ledger.block(row)
                    continue
            attempt = ledger.attempt(part, offset) if ledger.retried else 1
            record = make(
                Record, (topics[part], numbers[part], offset, key, value, stamp, headers, attempt)
            )
            handled += 1
            try:
                answer = handler(record)
                if answer is not None:
                    answer = as_answer(answer)
            except BaseException as error:  # noqa: BLE001 - SystemExit too costs its record alone
                answer = error
            if answer is not None:
                hashes = hashes or batch.column(_HASH).to_pylist()
                row = Row(part, offset, hashes[i], key, value, stamp, headers)
                if not ledger.answer(row, record, answer):
                    skipped.append(i)
        _done(ledger, batch, skipped)
        report.handled = handled


def _done(ledger: Ledger, batch: pa.RecordBatch, skipped: list[int]) -> None:
    if skipped:
        left = set(skipped)
        keep = pa.array([i for i in range(batch.num_rows) if i not in left], pa.int64())
        batch = batch.select([0, _OFFSET]).take(keep)
    parts, offsets = batch.column(0), batch.column(_OFFSET)
    for part, chunks in ledger.done.items():
        whole = len(ledger.done) == 1
        chunks.append(offsets if whole else offsets.filter(pc.equal(parts, part)))


class Lanes:
    """Rows dealt to handler threads: side by side over lanes, one at a time within a lane."""

    def __init__(self, handler: Handler, ledger: Ledger, slot_threads: int) -> None:
        self._handler = handler
        self._ledger = ledger
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._space = threading.Condition(self._lock)
        self._lanes: dict[tuple[int, int], deque[Row]] = {}
        self._ready: deque[tuple[int, int]] = deque()
        self._held_rows = self._held_bytes = 0
        self._deadline = float("inf")
        self._closed = False
        self._done: dict[int, list[int]] = {p: [] for p in ledger.work}
        self._threads = [
            threading.Thread(target=self._run, name=f"handler-{n}", daemon=True)
            for n in range(slot_threads)
        ]
        for thread in self._threads:
            thread.start()

    def feed(self, row: Row, deadline: float) -> bool:
        """Hold a row for its lane's turn; waits while too much is held.

        Returns:
            False once the time box has closed: the row was not taken.
        """
        ledger = self._ledger
        with self._lock:
            self._deadline = deadline
            while self._held_rows >= LOOKAHEAD_ROWS or self._held_bytes >= LOOKAHEAD_BYTES:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._space.wait(left)
            if time.monotonic() >= deadline and ledger.report.handled:
                return False
            lane = ledger.lane(row)
            if lane in ledger.blocked[row.part]:
                ledger.block(row)
                return True
            self._held_rows += 1
            self._held_bytes += len(row.value or b"")
            held = self._lanes.get((row.part, lane))
            if held is None:
                self._lanes[row.part, lane] = deque((row,))
                self._ready.append((row.part, lane))
                self._work.notify()
            else:
                held.append(row)
            return True

    def finish(self) -> None:
        """Wait for what was taken, and leave what the time box left over to a later batch."""
        with self._lock:
            self._closed = True
            self._work.notify_all()
        for thread in self._threads:
            thread.join()
        for (part, _), held in self._lanes.items():
            self._ledger.unlooked(part, min(row.offset for row in held))
        for part, offsets in self._done.items():
            self._ledger.done[part].append(pa.array(sorted(offsets), pa.int64()))

    def _next(self) -> tuple[tuple[int, int], Row] | None:
        """The next row to handle; None at the end. Called with the lock held."""
        while True:
            late = time.monotonic() >= self._deadline and self._ledger.report.handled
            if self._ready and not late:
                lane = self._ready.popleft()
                return lane, self._lanes[lane][0]
            if late or (self._closed and not self._lanes):
                self._ledger.report.timed_out |= bool(late and self._lanes)
                self._work.notify_all()
                self._space.notify()
                return None
            self._work.wait(max(0.01, min(1.0, self._deadline - time.monotonic())))

    def _run(self) -> None:
        ledger, spec = self._ledger, self._ledger.spec
        while True:
            with self._lock:
                found = self._next()
                if found is None:
                    return
                ledger.report.handled += 1
            lane, row = found
            topic, number = spec.partitions[row.part]
            attempt = ledger.attempt(row.part, row.offset)
            record = Record(
                topic, number, row.offset, row.key, row.value, row.timestamp, row.headers, attempt
            )
            try:
                answer = as_answer(self._handler(record))
            except BaseException as error:  # noqa: BLE001 - SystemExit too costs its record alone
                answer = error
            with self._lock:
                self._settle(lane, row, record, answer)

    def _settle(self, lane: tuple[int, int], row: Row, record: Record, answer: Any) -> None:
        held = self._lanes[lane]
        held.popleft()
        done = answer is None or self._ledger.answer(row, record, answer)
        freed = [row]
        if done:
            self._done[row.part].append(row.offset)
        elif lane[1] in self._ledger.blocked[row.part]:
            for waiting in held:
                self._ledger.block(waiting)
            freed += held
            held.clear()
        if held:
            self._ready.append(lane)
            self._work.notify()
        else:
            del self._lanes[lane]
            if self._closed and not self._lanes:
                self._work.notify_all()
        self._held_rows -= len(freed)
        self._held_bytes -= sum(len(r.value or b"") for r in freed)
        self._space.notify()


def run_threads(
    batches: Iterable[pa.RecordBatch], handler: Handler, ledger: Ledger, life: Life
) -> None:
    """Handle the rows on ``concurrency`` threads."""
    report = ledger.report
    lanes = Lanes(handler, ledger, ledger.spec.concurrency)
    for raw in batches:
        report.value_bytes += raw.nbytes
        batch = wanted_rows(raw, ledger.work)
        report.rows += batch.num_rows
        deadline = life.begin()
        columns = [batch.column(i).to_pylist() for i in range(_STAMP + 1)]
        for row in map(Row, *columns, headers_of(batch)):
            if not lanes.feed(row, deadline):
                report.timed_out = True
                ledger.unlooked(row.part, row.offset)
    lanes.finish()
