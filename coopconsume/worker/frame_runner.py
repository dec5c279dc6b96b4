"""Runs frame handlers: functions that get many records of a partition at once. Task-side code."""

from __future__ import annotations

import math
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from inspect import iscoroutine
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from coopconsume.record import Record
from coopconsume.worker.handler_answers import outcomes_of
from coopconsume.worker.input_rows import InputRow, headers_of, rows_of
from coopconsume.worker.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Iterator, Sequence

    from coopconsume.decoding.columns import FrameDecoder
    from coopconsume.worker.outcome import TaskOutcome
    from coopconsume.worker.report import Failure
    from coopconsume.worker.time_box import TimeBox

Format = Literal["arrow", "pandas"]


@dataclass(frozen=True)
class FrameHandler:
    """A function that handles a frame of records, and the form of its frames.

    Attributes:
        function: The function, or its name as ``module:function``.
        max_records: The largest number of records in a frame.
        format: ``arrow`` for a `pyarrow.RecordBatch`, ``pandas`` for a DataFrame.
        decoder: Decodes keys and values to columns; None: they are bytes.
    """

    function: Any
    max_records: int
    format: Format = "arrow"
    decoder: FrameDecoder | None = None

    def __call__(self, frame: Any) -> Any:
        """Calls the function."""
        return self.function(frame)


def waiting(handler: FrameHandler, timeout: float | None) -> FrameHandler:
    """Returns a handler whose calls end, in the thread of the slot, when their coroutine ends.

    Args:
        handler: Plain or ``async``; also a plain one may return a coroutine.
        timeout: Seconds that a coroutine may take; None: no limit.
    """
    function = handler.function

    def call(frame: Any) -> Any:
        answer = function(frame)
        if not iscoroutine(answer):
            return answer
        import asyncio

        from coopconsume.worker.async_runner import event_loop

        within = _in_time(answer, timeout)
        return asyncio.run_coroutine_threadsafe(within, event_loop()).result()

    return replace(handler, function=call)


class FrameRunner(Runner):
    """Handles the rows in frames of one partition each, one frame after another.

    It gathers rows into frames, calls the handler and settles its answers row by row.
    """

    def __init__(self, handler: FrameHandler, outcome: TaskOutcome, time_box: TimeBox) -> None:
        self._handler = handler
        self._outcome = outcome
        self._time_box = time_box
        self._deadline = 0.0
        self._settled = 0
        self._gathered: dict[int, list[pa.RecordBatch]] = {part: [] for part in outcome.work}
        #: The rows of the running handler call.
        self._running: pa.RecordBatch | None = None

    def run(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Handles all rows."""
        most = self._handler.max_records
        for raw in batches:
            batch = self._outcome.wanted(raw)
            self._deadline = self._time_box.begin()
            for part, gathered in self._gathered.items():
                one = len(self._gathered) == 1
                rows = batch if one else batch.filter(pc.equal(batch.column(0), part))
                if rows.num_rows:
                    gathered.append(rows)
                # A real-time slot does not wait for a full frame.
                least = most if self._outcome.spec.realtime is None else 1
                while sum(piece.num_rows for piece in gathered) >= least:
                    self._handle(_taken(gathered, most))
        for gathered in self._gathered.values():
            while gathered:
                self._handle(_taken(gathered, most))
        self._outcome.streak.number = self._settled

    def flush(self) -> None:
        """See `Runner.flush`: each frame is settled at once."""

    def at_work(self) -> list[tuple[int, int, int]]:
        """See `Runner.at_work`."""
        batch = self._running
        if batch is None:
            return []
        return list(zip(*(batch.column(n).to_pylist() for n in range(3)), strict=True))

    def queued(self) -> list[tuple[int, int]]:
        """See `Runner.queued`."""
        pieces = [piece for gathered in self._gathered.values() for piece in gathered]
        return [at for one in pieces for at in zip(*_places_of(one), strict=True)]

    def give_back(self) -> None:
        """See `Runner.give_back`."""
        self._time_box.give_back()

    def leave_withheld(self, now: float) -> None:
        """See `Runner.leave_withheld`: it retries nothing."""

    def calls(self) -> list[tuple[int, int]]:
        """See `Runner.calls`."""
        batch = self._running
        return [] if batch is None else [tuple(batch.column(n)[0].as_py() for n in range(2))]

    @property
    def is_held_up(self) -> bool:
        """See `Runner.is_held_up`."""
        # A real-time slot may not have read all records that wait for it.
        return self._running is not None

    def _handle(self, batch: pa.RecordBatch) -> None:
        outcome = self._outcome
        part = batch.column(0)[0].as_py()
        now = time.monotonic()
        late = outcome.streak.tripped or now >= self._deadline
        with outcome.lock:
            is_stopped = self._time_box.stopped or not self._time_box.may_start(now)
            if is_stopped or (outcome.draft.handled and late):
                outcome.leave(part, batch.column(1)[0].as_py())
                return
            batch = self._startable(part, batch)
            if not batch.num_rows:
                return
            self._running = batch
            outcome.count_starts(batch, pa.repeat(time.time(), batch.num_rows))
        outcome.draft.handled += batch.num_rows
        offsets = batch.column(1)
        self._time_box.enter_all([(part, offset) for offset in offsets.to_pylist()])
        decoded: dict[str, Any] = {}
        if self._handler.decoder is not None:
            batch, decoded = self._decoded(self._handler.decoder, part, batch)
            if not batch.num_rows:
                return
        frame, start = self._frame(part, batch, decoded), time.monotonic()
        answers = self._call(frame, batch.num_rows)
        took = time.monotonic() - start
        self._time_box.journal.leave_all()
        with outcome.lock:
            outcome.draft.calls.add(took)
            outcome.draft.ended = outcome.draft.handled
            if answers is None:
                self._settled += batch.num_rows
                outcome.draft.partitions[part].done.append(batch.select([1, 5]))
            else:
                self._settle(part, batch, answers)
            self._running = None
            outcome.say_settled()

    def _decoded(
        self, decoder: FrameDecoder, part: int, batch: pa.RecordBatch
    ) -> tuple[pa.RecordBatch, dict[str, Any]]:
        """Returns the rows of a frame that decode, and their columns; settles all other rows."""
        outcome = self._outcome
        topic, _ = outcome.spec.partitions[part]
        keys, values = (batch.column(n).to_pylist() for n in (3, 4))
        of, offsets = outcome.history.headers, batch.column(1).to_pylist()
        headers = map(of, repeat(part), offsets, headers_of(batch))
        with _time_limit(outcome.policy.timeout, self._time_box):
            found = decoder.rows(keys, values, topic, headers)
        keep = []
        with outcome.lock:
            for row, cells in zip(rows_of(batch), found, strict=True):
                is_blocked = outcome.lanes.is_behind(row)
                keep.append(not (is_blocked or isinstance(cells, BaseException)))
                if is_blocked:
                    outcome.draft.block(row)
                elif isinstance(cells, BaseException):
                    self._settle_undecoded(part, row, cells)
            batch = batch.filter(pa.array(keep, pa.bool_()))
            self._running = batch if batch.num_rows else None
            outcome.draft.ended = outcome.draft.handled - batch.num_rows
        self._time_box.journal.leave_all()
        self._time_box.enter_all([(part, offset) for offset in batch.column(1).to_pylist()])
        kept: list[Any] = [cells for cells, is_kept in zip(found, keep, strict=True) if is_kept]
        columns = {
            name: decoder.columns(name, [row[name] for row in kept]) for name in decoder.names
        }
        return batch, columns

    def _settle_undecoded(self, part: int, row: InputRow, error: BaseException) -> None:
        outcome = self._outcome
        self._settled += 1
        outcome.streak.number = self._settled
        record = self._record(row, outcome.history.attempt(part, row.offset))
        if self._is_done(row, outcome.settle(row, record, error)):
            outcome.draft.add_done(part, [row.offset], [row.timestamp])

    def _is_done(self, row: InputRow, failure: Failure | None) -> bool:
        """Whether a row is done; if it has failed, it is left to a later batch."""
        if failure is not None:
            self._outcome.postpone(row, failure)
        return failure is None

    def _startable(self, part: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the rows that may start; notes the others as blocked, or gives them up."""
        outcome, history = self._outcome, self._outcome.history
        if not outcome.lanes.blocked[part] and not history.has_uncalled:
            return batch
        keep = []
        for row in rows_of(batch):
            attempt = history.attempt(part, row.offset)
            if outcome.lanes.is_blocked(row):
                outcome.draft.block(row)
            elif history.is_uncalled(row, attempt):
                outcome.streak.number = self._settled
                record = self._record(row, attempt)
                if self._is_done(row, outcome.settle_uncalled(row, record)):
                    outcome.draft.add_done(part, [row.offset], [row.timestamp])
            else:
                keep.append(True)
                continue
            keep.append(False)
        return batch.filter(pa.array(keep, pa.bool_()))

    def _frame(self, part: int, batch: pa.RecordBatch, decoded: dict[str, Any]) -> Any:
        outcome, count = self._outcome, batch.num_rows
        topic, number = outcome.spec.partitions[part]
        history, offsets = outcome.history, batch.column(1)
        attempts = (
            pa.array([history.attempt(part, o) for o in offsets.to_pylist()], pa.int32())
            if history.is_known
            else pa.repeat(pa.scalar(1, pa.int32()), count)
        )
        columns = {
            "topic": pa.repeat(pa.scalar(topic, pa.string()), count),
            "partition": pa.repeat(pa.scalar(number, pa.int32()), count),
            "offset": offsets,
            **decoded.get("key", {"key": batch.column(3)}),
            **decoded.get("value", {"value": batch.column(4)}),
            "timestamp": batch.column(5).cast(pa.timestamp("ms", "UTC")),
            "attempt": attempts,
        }
        if outcome.spec.headers:
            columns["headers"] = self._headers(part, batch)
        if self._handler.format == "arrow":
            return pa.RecordBatch.from_pydict(columns)
        objects = {name: column for name, column in columns.items() if isinstance(column, list)}
        # In their places, as a column of Arrow cannot hold them.
        columns |= dict.fromkeys(objects, pa.nulls(count))
        frame = pa.RecordBatch.from_pydict(columns).to_pandas()
        for name, values in objects.items():
            frame[name] = _of_objects(values)
        return frame

    def _headers(self, part: int, batch: pa.RecordBatch) -> pa.Array:
        """The column of headers, with those that handlers have added."""
        own, history = batch.column(6), self._outcome.history
        if not history.added[part]:
            return own
        each = map(history.headers, repeat(part), batch.column(1).to_pylist(), headers_of(batch))
        rows = [[{"key": name, "value": value} for name, value in one] for one in each]
        return pa.array(rows, own.type)

    def _call(self, frame: Any, count: int) -> Sequence[Any] | None:
        """Returns the outcome of each row, as in `TaskOutcome.checked`; None: all are done."""
        timeout, outcome = self._outcome.policy.timeout, self._outcome
        with _time_limit(timeout, self._time_box):
            try:
                answers = outcomes_of(self._handler(frame), count)
                if isinstance(answers, BaseException):
                    return [answers] * count
                return answers and [_taken_of(outcome, answer) for answer in answers]
            except BaseException as error:  # noqa: BLE001 - SystemExit too costs its records alone
                return [error] * count

    def _settle(self, part: int, batch: pa.RecordBatch, answers: Sequence[Any]) -> None:
        """Settles the answers row by row; a row behind a failed one of its key is blocked."""
        outcome, before = self._outcome, None
        done: list[tuple[int, int]] = []
        for row, answer in zip(rows_of(batch), answers, strict=True):
            if outcome.lanes.is_behind(row):
                outcome.draft.block(row)
                continue
            record = self._record(row, outcome.history.attempt(part, row.offset))
            if answer is None or answer is not before:
                self._settled += 1  # One error for many rows is one failure.
            before = answer
            outcome.streak.number = self._settled
            if answer is None or self._is_done(row, outcome.settle(row, record, answer)):
                done.append((row.offset, row.timestamp))
        if done:
            outcome.draft.add_done(part, *zip(*done, strict=True))

    def _record(self, row: InputRow, attempt: int) -> Record:
        topic, number = self._outcome.spec.partitions[row.part]
        headers = self._outcome.history.headers(row.part, row.offset, row.headers)
        return Record(
            topic, number, row.offset, row.key, row.value, row.timestamp, headers, attempt
        )


async def _in_time(coroutine: Coroutine[Any, Any, Any], seconds: float | None) -> Any:
    """Returns what a coroutine returns, or the error that it raises.

    If it raised SystemExit or KeyboardInterrupt into the event loop, the loop would stop.

    Raises:
        TimeoutError: It took longer than some seconds.
    """
    import asyncio

    async def caught() -> Any:
        try:
            return await coroutine
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - of the handler
            return error

    try:
        return await asyncio.wait_for(caught(), seconds)
    except TimeoutError:
        raise TimeoutError(f"the handler took longer than {seconds:g} s") from None


def _places_of(batch: pa.RecordBatch) -> tuple[list[int], list[int]]:
    """Returns part and offset of each row."""
    return batch.column(0).to_pylist(), batch.column(1).to_pylist()


def _of_objects(values: list[Any]) -> Any:
    """Returns a column of pandas with objects as they are."""
    import pandas as pd

    return pd.Series(values, dtype=object)


def _taken_of(outcome: TaskOutcome, answer: Any) -> Any:
    try:
        return outcome.checked(answer)
    except BaseException as error:  # noqa: BLE001 - costs its record alone
        return error


def _taken(gathered: list[pa.RecordBatch], most: int) -> pa.RecordBatch:
    """Removes the first rows from the gathered ones; returns them as one batch."""
    table = pa.Table.from_batches(gathered)
    gathered[:] = table.slice(most).combine_chunks().to_batches()
    (batch,) = table.slice(0, most).combine_chunks().to_batches()
    return batch


@contextmanager
def _time_limit(timeout: float | None, time_box: TimeBox) -> Iterator[None]:
    """Ends the worker if the code within it runs for twice its time limit."""
    timer = None if timeout is None else threading.Timer(2 * timeout, time_box.end_worker)
    if timer is not None:
        timer.daemon = True
        timer.start()
        time_box.limit_calls(time.monotonic() + timer.interval)
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()
            time_box.limit_calls(math.inf)
