"""How far a slot is in the rows that it handles one after another. Task-side code."""

from __future__ import annotations

import math
import time
from array import array
from bisect import bisect_left
from itertools import chain, repeat, starmap
from operator import length_hint
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from coopconsume.worker.input_rows import HASH, KEY, OFFSET, STAMP

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterator

    from coopconsume.state.value import State
    from coopconsume.worker.outcome import TaskOutcome
    from coopconsume.worker.report_draft import ReportDraft

#: Where a call takes less than this on average, in seconds, the clock is read once for a block of
#: so many rows.
_FAST = 5e-6
_BLOCK = 16
#: Seconds between two reads of the clock after which the process may have been frozen.
_LONG = 0.1


class RowProgress:
    """How far a slot is in the Arrow batch that it handles row by row.

    Another thread may ask for it at any time, at no cost for the loop over the rows: the length
    hint of the iterator of row numbers shows which row was drawn last, and all rows before it are
    finished.

    Attributes:
        settled: At least so many rows, from the first one on, have their answers in the outcome.
        started: When the first row of each block was drawn for its handler call, in seconds since
            the epoch; NaN: it was not called. A block is one row, or `_BLOCK` rows of a handler
            that takes so little time that to read the clock for each call would cost as much.

    Args:
        outcome: Takes what is done.
        stood_still: Called at a read of the clock that comes long after the one before.
    """

    def __init__(self, outcome: TaskOutcome, stood_still: Callable[[], None]) -> None:
        self._outcome = outcome
        self._stood_still = stood_still
        self._read_at = 0.0
        self._batch: pa.RecordBatch | None = None
        self._numbers: Iterator[int] = iter(())
        self._skipped: list[int] = []
        self.started = array("d")
        #: Changes of the state that are kept by columns: rows in ascending order, values, and when
        #: these are gone.
        self._changed: list[int] = []
        self._values: list[Any] = []
        self._expiry: list[dt.datetime | None] = []
        changes = outcome.changes
        by_key = changes is not None and not outcome.spec.has_ordering_keys
        self._check = changes.check_of("value") if changes is not None and by_key else None
        self._first = 0
        self._block = 1
        self._is_fast = False
        self.settled = 0

    def begin(self, batch: pa.RecordBatch) -> tuple[Iterator[int], Iterator[None]]:
        """Begins with an Arrow batch.

        Returns:
            The numbers of its rows, and an iterator with an item for each row that reads the clock
            at the first row of each block.
        """
        with self._outcome.lock:
            self._batch, self._numbers, self._skipped = batch, iter(range(batch.num_rows)), []
            self._first = self.settled = 0
            self._block = _BLOCK if self._is_fast and batch.num_rows % _BLOCK == 0 else 1
            self.started = array("d")
        reads = starmap(self._read_clock, repeat(()))
        if self._block > 1:
            others = [repeat(None)] * (self._block - 1)
            return self._numbers, chain.from_iterable(zip(reads, *others))  # noqa: B905
        return self._numbers, reads

    def _read_clock(self) -> None:
        now = time.time()
        self.started.append(now)
        # The clock may have been set back meanwhile.
        if not 0.0 <= now - self._read_at < _LONG:
            self._stood_still()
        self._read_at = now

    def skip(self, number: int) -> None:
        """Notes a row whose handler is not called."""
        if number % self._block == 0:
            self.started[number // self._block] = math.nan
        self._skipped.append(number)

    def keep(self, number: int, state: State) -> bool:
        """Keeps the change of the state that the handler of a row has made.

        Returns:
            False: `TaskOutcome.settle` has to do it, as there are output rows, or as the value does
            not fit.
        """
        if self._check is None or state.answer is not None:
            return False
        value, expires = state.left()
        try:
            value = self._check(value)
        except Exception:  # noqa: BLE001 - `TaskOutcome.checked` says why
            return False
        state.pass_on(value, expires)
        self._values.append(value)
        self._expiry.append(expires)
        self._changed.append(number)
        return True

    def failed(self, number: int) -> None:
        """Notes a row that was handled and is not done. Called with the outcome's lock held."""
        self._skipped.append(number)
        self._outcome.draft.ended += 1

    def flush(self) -> None:
        """Notes the rows that are done so far. Called with the outcome's lock held."""
        if self._batch is not None:
            # Looked at before the list of skipped rows, to which a row is added before the next
            # one is drawn.
            self._done(max(self._first, self.settled, self._drawn - 1))

    @property
    def _drawn(self) -> int:
        """Rows of the Arrow batch that were drawn; the handler may be at work on the last one."""
        assert self._batch is not None
        rows: int = self._batch.num_rows
        return rows - length_hint(self._numbers)

    def at_work(self) -> list[tuple[int, int, int]]:
        """Returns the rows that were drawn and are not known to be finished or skipped.

        The handler runs on the last one at most. Called with the outcome's lock held.
        """
        if self._batch is None:
            return []
        part, offset, key_hash = (self._batch.column(n) for n in (0, OFFSET, HASH))
        drawn = range(max(self._first, self.settled), self._drawn)
        return [
            (part[i].as_py(), offset[i].as_py(), key_hash[i].as_py())
            for i in drawn
            if i not in self._skipped
        ]

    def queued(self) -> list[tuple[int, int]]:
        """Returns (part, offset) of the rows that were not drawn."""
        if self._batch is None:
            return []
        rest = self._batch.slice(self._drawn)
        return list(zip(*(rest.column(n).to_pylist() for n in (0, OFFSET)), strict=True))

    def end(self) -> None:
        """All rows of the Arrow batch are finished."""
        assert self._batch is not None
        with self._outcome.lock:
            rows = self._batch.num_rows
            self._done(rows)
            self._batch = None
        self._is_fast = rows > 0 and time.time() - self.started[0] < rows * _FAST

    def _done(self, end: int) -> None:
        assert self._batch is not None
        if self._changed:
            self._add_changes(self._batch, end)
        first, self._first = self._first, end
        skipped = [i - first for i in self._skipped if first <= i < end]
        self._outcome.draft.ended += end - first - len(skipped)
        rows = self._batch.slice(first, end - first)
        block = self._block
        blocks = slice(-(-first // block), -(-end // block))
        at = self.started[blocks]
        # Without a copy: this is done for each record.
        starts = pa.Array.from_buffers(pa.float64(), len(at), [None, pa.py_buffer(at)])
        begin = rows
        if block > 1:
            begin = rows.take(
                pa.array(range(blocks.start * block - first, len(rows), block), pa.int64())
            )
        self._outcome.count_starts(begin, starts, block)
        self._count_calls(starts, self.started[blocks.stop : blocks.stop + 1])
        done_rows(self._outcome.draft, rows, skipped)

    def _add_changes(self, batch: pa.RecordBatch, end: int) -> None:
        """Adds the changes of the rows before one; the handler may add others meanwhile."""
        changes, count = self._outcome.changes, bisect_left(self._changed, end)
        assert changes is not None
        rows, values, expiry = self._changed[:count], self._values[:count], self._expiry[:count]
        del self._changed[:count], self._values[:count], self._expiry[:count]
        found = batch.take(pa.array(rows, pa.int64()))
        _, value_type, expires_type = changes.schema.types
        changes.add_columns([
            found.column(KEY), pa.array(values, value_type), pa.array(expiry, expires_type),
            found.column(0), found.column(OFFSET), found.column(HASH),
        ])  # fmt: skip

    def _count_calls(self, starts: pa.Array, following: array[float]) -> None:
        """Counts the times of calls: each lasts until the next one, as each clock read has a cost.

        Settling a failed record counts as part of its call.
        """
        begun = starts.filter(pc.is_finite(starts))
        if len(begun):
            last = [at for at in following if math.isfinite(at)] or [time.time()]
            ends = pa.concat_arrays([begun[1:], pa.array(last)])
            calls = self._outcome.draft.calls
            calls.add_all(pc.subtract(ends, begun))
            # Of a block, one call counts with all of the time.
            calls.counts[0] += (self._block - 1) * len(begun)


def done_rows(draft: ReportDraft, batch: pa.RecordBatch, skipped: list[int]) -> None:
    """Notes the rows of a batch as done, except those at some indexes."""
    found = batch.select([0, OFFSET, STAMP])
    if skipped:
        left = set(skipped)
        keep = pa.array([i for i in range(batch.num_rows) if i not in left], pa.int64())
        found = found.take(keep)
    if (
        len(draft.partitions) > 1
    ):  # A filter for each partition would cost more, the more there are.
        found = found.take(pc.array_sort_indices(found.column(0)))
    first, done = 0, found.select([1, 2])
    for part, count in zip(*found.column(0).value_counts().flatten(), strict=True):
        draft.partitions[part.as_py()].done.append(done.slice(first, count.as_py()))
        first += count.as_py()
