"""What runs in a Spark task: the records of one slot, in the order of their keys.

The rows of a slot arrive in ascending offsets within each partition. A *lane* is what must be
handled strictly one after another: a key, a partition or, without ordering, a single record. A
record that fails blocks its lane for the rest of the batch and no other.

Task-side code: the standard library, pyarrow and PySpark's worker, nothing else.
"""

from __future__ import annotations

import importlib
import os
import pickle
import threading
import time
import traceback
from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from coopconsume.record import Record, Reject, Retry, RetryPolicy
from coopconsume.report import (
    BatchSpec,
    DeadLetter,
    Failure,
    PartitionReport,
    PartitionWork,
    SlotReport,
    pack_offsets,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    Handler = Callable[[Record], Any]
    Send = Callable[[bytes], None]

#: Rows that a slot with several handlers at once holds ready, so that one key cannot fill it up.
LOOKAHEAD_ROWS = 20_000
LOOKAHEAD_BYTES = 64 << 20
#: Exit status of a worker that outlived its batch; the task fails, its part is planned again.
OUTLIVED = 70
REPORT_SCHEMA = "slot int, report binary"
_ERROR_CHARS = 500
_TRACE_CHARS = 8_000

_current_slot = -1


def current_slot() -> int:
    """Number of the slot that runs the calling handler, from 0; -1 outside a handler."""
    return _current_slot


def resolve_handler(handler: Handler | str) -> Handler:
    """A handler given as an object or as ``module:function``.

    Raises:
        ValueError: The text is not of that form, or names nothing callable.
        ImportError: The module cannot be imported.
    """
    if not isinstance(handler, str):
        return handler
    module, _, name = handler.partition(":")
    if not module or not name:
        raise ValueError(f"handler {handler!r}: write it as module:function")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise ValueError(f"handler {handler!r}: the module has no function of that name")
    return found  # type: ignore[no-any-return]


def as_answer(answer: Any) -> Any:
    """What a handler returned, with several rows gathered while it is still the handler's call."""
    return answer if answer is None or isinstance(answer, dict | BaseException) else list(answer)


class Row(NamedTuple):
    """A row of the batch before it becomes a `Record`."""

    part: int
    offset: int
    key_hash: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...]


class Ledger:
    """What became of the rows of one slot, and how an answer is settled."""

    def __init__(
        self,
        spec: BatchSpec,
        slot: int,
        policy: RetryPolicy,
        output_schema: pa.Schema | None,
        *,
        dead_letters: bool,
    ) -> None:
        self.spec = spec
        self.policy = policy
        self.output_schema = output_schema
        self.dead_letters = dead_letters
        self.work: Mapping[int, PartitionWork] = spec.work[slot]
        self.report = SlotReport(batch=spec.batch, slot=slot, pid=os.getpid())
        self.parts = {p: PartitionReport() for p in self.work}
        self.blocked: dict[int, set[int]] = {p: set(w.blocked) for p, w in self.work.items()}
        self.done: dict[int, list[pa.Array]] = {p: [] for p in self.work}
        self.retried = any(w.attempts for w in self.work.values())
        self.rows: list[dict[str, Any]] = []
        self.row_origins: list[tuple[int, int]] = []

    def lane(self, row: Row) -> int:
        """What this row must wait for, as a number that is unique within its partition."""
        ordering = self.spec.ordering
        return row.key_hash if ordering == "key" else 0 if ordering == "partition" else ~row.offset

    def attempt(self, part: int, offset: int) -> int:
        """Number of the attempt that a handler call now would be."""
        return self.work[part].attempts.get(offset, 0) + 1

    def block(self, row: Row) -> None:
        """The row waits behind an earlier one of its lane."""
        self.parts[row.part].blocked.append((row.offset, row.key_hash))

    def answer(self, row: Row, record: Record, answer: Any) -> bool:
        """Settle what a handler returned or raised; False if the record is not done."""
        if isinstance(answer, BaseException):
            return self._failed(row, record, answer)
        if self.output_schema is not None:
            rows = [answer] if isinstance(answer, dict) else answer
            self.rows += rows
            self.row_origins += [(row.part, row.offset)] * len(rows)
        return True

    def _failed(self, row: Row, record: Record, error: BaseException) -> bool:
        self.report.failures += 1
        attempt = record.attempt
        text = str(error) if isinstance(error, Retry | Reject) else f"{type(error).__name__}: {error}"
        text = text[:_ERROR_CHARS]
        if isinstance(error, Reject) and not self.dead_letters:
            where = f"{record.topic}-{record.partition}@{record.offset}"
            self.report.fatal = (
                f"the handler rejected {where} ({text}) but no dead_letter table is given: "
                "give foreach(dead_letter=…), or raise Retry"
            )
        elif isinstance(error, Reject) or self.policy.gives_up(attempt):
            trace = "".join(traceback.format_exception(error))[-_TRACE_CHARS:]
            letter = DeadLetter(*record[:7], attempt, text, trace)
            self.report.dead.append(letter)
            return True
        delay = error.after if isinstance(error, Retry) else None
        wait = self.policy.delay(attempt) if delay is None else delay
        failure = Failure(row.offset, row.key_hash, attempt, wait, text)
        self.parts[row.part].failed.append(failure)
        if self.spec.ordering != "none":
            self.blocked[row.part].add(self.lane(row))
        return False

    def unlooked(self, part: int, offset: int) -> None:
        """Nothing of this partition from ``offset`` on has been looked at, unless named."""
        report = self.parts[part]
        report.resume = offset if report.resume is None else min(report.resume, offset)

    def close(self) -> SlotReport:
        """The report, ready to be sent."""
        for part, report in self.parts.items():
            chunks = self.done[part]
            if chunks:
                offsets = pa.concat_arrays(chunks)
                ascending = offsets.take(pc.sort_indices(offsets)) if len(chunks) > 1 else offsets
                report.done = pack_offsets(ascending)
        self.report.partitions = self.parts
        if self.rows:
            self.report.outputs = self._encode_rows()
        return self.report

    def _encode_rows(self) -> bytes | None:
        assert self.output_schema is not None
        try:
            table = pa.Table.from_pylist(self.rows, schema=self.output_schema)
        except (pa.ArrowException, TypeError, AttributeError, ValueError) as error:
            self.report.fatal = f"{self._misfit()} does not fit the output schema: {error}"
            return None
        parts, offsets = zip(*self.row_origins, strict=True)
        table = table.append_column("_part", pa.array(parts, pa.int32()))
        table = table.append_column("_offset", pa.array(offsets, pa.int64()))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]

    def _misfit(self) -> str:
        for (part, offset), row in zip(self.row_origins, self.rows, strict=True):
            try:
                pa.Table.from_pylist([row], schema=self.output_schema)
            except (pa.ArrowException, TypeError, AttributeError, ValueError):
                topic, number = self.spec.partitions[part]
                return f"the row {row!r} that the handler returned for {topic}-{number}@{offset}"
        return "a row that the handler returned"


def _all_wanted(parts: pa.Array, offsets: pa.Array, work: Mapping[int, PartitionWork]) -> bool:
    if len(work) != 1:
        return False
    ((part, wanted),) = work.items()
    if len(wanted.ranges) != 1:
        return False
    (first, last), span = wanted.ranges[0], pc.min_max(offsets).as_py()
    return first <= span["min"] and span["max"] <= last and pc.all(pc.equal(parts, part)).as_py()


def _columns(batch: pa.RecordBatch, work: Mapping[int, PartitionWork]) -> list[list[Any]]:
    """The columns of the rows that this slot may start, as Python lists."""
    parts, offsets = batch.column(0), batch.column(1)
    if not _all_wanted(parts, offsets, work):
        starts = {p: [first for first, _ in w.ranges] for p, w in work.items()}
        keep = []
        for p, offset in zip(parts.to_pylist(), offsets.to_pylist(), strict=True):
            at = bisect_right(starts[p], offset) - 1 if p in starts else -1
            keep.append(at >= 0 and offset <= work[p].ranges[at][1])
        if not all(keep):
            batch = batch.filter(pa.array(keep))
    return [column.to_pylist() for column in batch.columns]


def run_serial(batches: Iterable[pa.RecordBatch], handler: Handler, ledger: Ledger, life: Life) -> None:
    """Handle the rows one after another in the task's own thread; the cheapest way by far."""
    spec, report, blocked = ledger.spec, ledger.report, ledger.blocked
    topics = [topic for topic, _ in spec.partitions]
    numbers = [number for _, number in spec.partitions]
    make, clock, by_key = tuple.__new__, time.monotonic, spec.ordering == "key"
    for batch in batches:
        report.value_bytes += batch.nbytes
        columns = _columns(batch, ledger.work)
        rows = len(columns[0])
        report.rows += rows
        skipped: list[int] = []
        no_headers = [()] * rows
        deadline = life.begin()
        for i, part, offset, key_hash, key, value, stamp, headers in zip(
            range(rows), *columns[:6], columns[6] if spec.headers else no_headers, strict=True
        ):
            if clock() >= deadline and report.handled:
                report.timed_out = True
                skipped.append(i)
                ledger.unlooked(part, offset)
                continue
            if blocked[part]:
                row = Row(part, offset, key_hash, key, value, stamp, headers)
                if (key_hash if by_key else ledger.lane(row)) in blocked[part]:
                    skipped.append(i)
                    ledger.block(row)
                    continue
            attempt = ledger.attempt(part, offset) if ledger.retried else 1
            record = make(
                Record,
                (topics[part], numbers[part], offset, key, value, stamp, tuple(headers or ()), attempt),
            )
            report.handled += 1
            try:
                answer = handler(record)
                if answer is not None:
                    answer = as_answer(answer)
            except BaseException as error:  # noqa: BLE001 - SystemExit too costs its record alone
                answer = error
            if answer is not None:
                row = Row(part, offset, key_hash, key, value, stamp, headers)
                if not ledger.answer(row, record, answer):
                    skipped.append(i)
        _done(ledger, columns, skipped)


def _done(ledger: Ledger, columns: list[list[Any]], skipped: list[int]) -> None:
    parts, offsets = pa.array(columns[0], pa.int32()), pa.array(columns[1], pa.int64())
    if skipped:
        left = set(skipped)
        keep = pa.array([i for i in range(len(offsets)) if i not in left], pa.int64())
        parts, offsets = parts.take(keep), offsets.take(keep)
    if len(ledger.done) == 1:
        next(iter(ledger.done.values())).append(offsets)
        return
    for part, chunks in ledger.done.items():
        chunks.append(offsets.filter(pc.equal(parts, part)))


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


def run_threads(batches: Iterable[pa.RecordBatch], handler: Handler, ledger: Ledger, life: Life) -> None:
    """Handle the rows on ``concurrency`` threads."""
    spec, report = ledger.spec, ledger.report
    lanes = Lanes(handler, ledger, spec.concurrency)
    for batch in batches:
        report.value_bytes += batch.nbytes
        columns = _columns(batch, ledger.work)
        rows = len(columns[0])
        report.rows += rows
        deadline = life.begin()
        headers = columns[6] if spec.headers else [()] * rows
        for values in zip(*columns[:6], headers, strict=True):
            row = Row(*values[:6], tuple(values[6] or ()))
            if not lanes.feed(row, deadline):
                report.timed_out = True
                ledger.unlooked(row.part, row.offset)
    lanes.finish()


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


class SlotRunner:
    """The function of a batch's tasks, for ``DataFrame.mapInArrow``.

    Args:
        spec: The batch.
        handler: A function of a `Record`, or ``module:function``.
        policy: When failed records are tried again.
        output_schema: Of the rows that handlers return; None: what they return is dropped.
        dead_letters: Whether records may be given up.
        send: Takes the pickled report as the task ends; None: the report travels as a row.
    """

    def __init__(
        self,
        spec: BatchSpec,
        handler: Handler | str,
        policy: RetryPolicy,
        output_schema: pa.Schema | None,
        *,
        dead_letters: bool,
        send: Send | None,
    ) -> None:
        self._spec = spec
        self._handler = handler
        self._policy = policy
        self._output_schema = output_schema
        self._dead_letters = dead_letters
        self._send = send

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run one task; yields one row with the slot's number, and its report if nothing sends it."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        slot = self._spec.slots[context.partitionId()]
        if context.attemptNumber() > 0:
            for _ in batches:
                pass
            report = SlotReport(batch=self._spec.batch, slot=slot, unknown=True, pid=os.getpid())
        else:
            report = self.run(slot, (batch for batch in batches if batch.num_rows))
        payload = pickle.dumps(report)
        if self._send is not None:
            self._send(payload)
        sent = [None if self._send else payload]
        yield pa.RecordBatch.from_arrays(
            [pa.array([slot], pa.int32()), pa.array(sent, pa.binary())], names=["slot", "report"]
        )

    def run(self, slot: int, batches: Iterable[pa.RecordBatch]) -> SlotReport:
        """Handle a slot's rows and tell what became of them."""
        global _current_slot  # noqa: PLW0603 - a worker process runs one task at a time
        spec = self._spec
        ledger = Ledger(
            spec, slot, self._policy, self._output_schema, dead_letters=self._dead_letters
        )
        life = Life(spec)
        run = run_serial if spec.concurrency == 1 else run_threads
        _current_slot = slot
        try:
            run(batches, resolve_handler(self._handler), ledger, life)
        finally:
            _current_slot = -1
            life.end()
        report = ledger.close()
        if life.started:
            report.started, report.ended = life.started, time.time()
            report.busy = report.ended - report.started
        return report


