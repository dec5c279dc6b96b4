"""Runs the handlers of a slot one after another, in the task's own thread. Task-side code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from coopconsume.state.value import State
from coopconsume.values.callables import HandlerParts, parts_of
from coopconsume.worker.input_rows import KEY, VALUE
from coopconsume.worker.row_progress import RowProgress
from coopconsume.worker.row_records import RowRecords
from coopconsume.worker.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa

    from coopconsume.worker.outcome import TaskOutcome
    from coopconsume.worker.time_box import TimeBox

    Handler = Callable[[Any], Any]

#: The columns of what may be decoded.
_COLUMNS = {"key": KEY, "value": VALUE}
#: Bytes of a cell: where one has more, none is decoded before its turn. It would have handlers
#: before it wait, and if it ended the worker for want of memory, another record would be charged.
_SMALL = 16_384


class SerialRunner(Runner):
    """One handler call after another; by far the cheapest runner."""

    def __init__(self, handler: Handler, outcome: TaskOutcome, time_box: TimeBox) -> None:
        self._handler = handler
        self._outcome = outcome
        self._time_box = time_box
        self._progress = RowProgress(outcome, time_box.check_lease)

    def run(self, batches: Iterable[pa.RecordBatch]) -> None:  # noqa: C901 - for each record
        """Handles the rows in their order."""
        outcome, time_box = self._outcome, self._time_box
        lanes, progress, lock = outcome.lanes, self._progress, outcome.lock
        blocked, keeps, cells = lanes.blocked, progress.keep, time_box.journal.cells
        handled, code, place = 0, time_box.journal.FIRST, time_box.journal.FIRST + 1
        for raw in batches:
            batch = outcome.wanted(raw)
            numbers, reads = progress.begin(batch)
            time_box.begin()
            parts = _parts(self._handler, batch)
            handler = parts.handler
            records, at_work = RowRecords(batch, outcome, parts), None
            made = records.made
            for i, part, offset, _ in zip(numbers, records.parts, records.offsets, reads):  # noqa: B905
                if time_box.is_over and (handled or time_box.stopped):
                    at_work, cells[code] = None, 0  # No handler runs from now on.
                    progress.skip(i)
                    outcome.leave(part, offset)
                    continue
                if blocked[part] and lanes.is_blocked(row := records.row(i)):
                    progress.skip(i)
                    made = records.skip(i)
                    outcome.draft.block(row)
                    continue
                handled += 1
                cells[place] = offset
                if part != at_work:
                    at_work, cells[code] = part, part + 1
                    if time_box.is_closed:
                        time_box.refuse()
                try:
                    answer = handler(next(made))
                    if answer is not None:
                        is_kept = type(answer) is State and keeps(i, answer)
                        answer = None if is_kept else outcome.checked(answer)
                except BaseException as error:  # noqa: BLE001 - SystemExit too costs its record alone
                    answer, made = records.error_of(i, error), records.made
                if answer is not None:
                    outcome.streak.number = handled
                    at_work, cells[code] = None, 0
                    row = records.row(i)
                    with lock:
                        failure = outcome.settle(row, records.fields(i), answer)
                        if failure is not None:
                            outcome.postpone(row, failure)
                            progress.failed(i)
                            time_box.is_over = time_box.is_over or bool(outcome.streak.tripped)
                        progress.settled = i + 1
            cells[code] = 0
            del records, made  # They have the whole batch, and the next one may come late.
            progress.end()
            outcome.draft.handled = outcome.streak.number = handled

    def flush(self) -> None:
        """See `Runner.flush`."""
        self._progress.flush()

    def at_work(self) -> list[tuple[int, int, int]]:
        """See `Runner.at_work`."""
        return self._progress.at_work()

    def queued(self) -> list[tuple[int, int]]:
        """See `Runner.queued`."""
        return self._progress.queued()

    def give_back(self) -> None:
        """See `Runner.give_back`."""
        self._time_box.give_back()

    def leave_withheld(self, now: float) -> None:
        """See `Runner.leave_withheld`: it retries nothing."""


def _parts(handler: Handler, batch: pa.RecordBatch) -> HandlerParts:
    """Returns what handles the rows of a batch: of nulls a typed handler itself decides."""
    parts = parts_of(handler)
    if parts is None or any(batch.column(_COLUMNS[name]).null_count for name in parts.decode):
        return HandlerParts(handler, {})
    reads_ahead = parts.reads_ahead and all(
        _is_small(batch.column(_COLUMNS[name])) for name in parts.decode
    )
    return parts._replace(reads_ahead=reads_ahead)


def _is_small(cells: pa.Array) -> bool:
    # To look at each cell of few would take longer than they do.
    if cells.nbytes <= _SMALL:
        return True
    return bool(pc.max(pc.binary_length(cells)).as_py() <= _SMALL)
