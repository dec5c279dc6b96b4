"""Schedules the rows of a slot by key and settles their outcomes, for threads and coroutines.

Threads hold a lock around each call. If the next attempt of a failed record is due within the time
box, and the slot has other work until then, the record is retried in this batch. Task-side code.
"""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from coopconsume.record import Record
from coopconsume.worker.input_rows import rows_of
from coopconsume.worker.key_queues import KeyQueues
from coopconsume.worker.rate_limit import RateLimiter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from coopconsume.worker.input_rows import InputRow
    from coopconsume.worker.outcome import TaskOutcome
    from coopconsume.worker.rate_limit import Lane
    from coopconsume.worker.report import Failure
    from coopconsume.worker.time_box import TimeBox

#: Rows and bytes that a slot with concurrent handlers reads ahead, so that one key cannot fill it.
LOOKAHEAD_ROWS = 20_000
LOOKAHEAD_BYTES = 64 << 20
#: Rows that leave a full queue before the reader that waits for space is woken, as a wake-up costs
#: more than a row. It is woken earlier if fewer rows than these may start.
_FEW_ROWS = 32
#: Rows that are admitted each time the lock is taken.
_CHUNK = 256
#: Seconds before a record is tried again in the same batch, at least.
LEAST_WAIT = 0.1
_make = tuple.__new__
_clock = time.time


class KeyScheduler:
    """Queues rows, returns the next record for a handler, and settles the handler's answer.

    Args:
        outcome: The outcome of the slot.
        now: The time, in seconds.
    """

    def __init__(self, outcome: TaskOutcome, now: float) -> None:
        self._outcome = outcome
        rates, gates = outcome.spec.rates, outcome.spec.gates.get(outcome.report.slot)
        self._pace = RateLimiter(rates, gates, now) if rates else None
        self._lanes = KeyQueues(self._pace)
        self._was_rate_limited = False
        #: Offsets and timestamps, by partition.
        self._done: dict[int, tuple[list[int], list[int]]] = {p: ([], []) for p in outcome.work}
        #: Seconds from the timestamps of records to their first handler call.
        self._starts: list[float] = []
        #: Seconds of the handler calls that have ended.
        self._calls: list[float] = []
        self._names = outcome.spec.partitions
        self._deadline = float("inf")
        self._settled = 0
        #: When the last record was settled.
        self._now = now
        #: By lane what failed and is to be tried again, and when.
        self._retries: dict[Lane, tuple[Failure, float]] = {}
        outcome.retry_here = self._retry_here
        outcome.flush = self._flush
        outcome.at_work = self._at_work
        outcome.leave_withheld = lambda now: self._postpone_retries(now, withheld=True)
        outcome.is_held_up = lambda: self.ready > 0 or self._is_full
        self.is_closed = False
        self._is_halted = False
        #: Whether the slot's lease holds at an instant.
        self.may_start: Callable[[float], bool] = lambda _now: True

    def has_space(self) -> bool:
        """Whether more rows may be admitted; if it is full, waiting retries go to a later batch."""
        if not self._is_full:
            return True
        if self._retries:
            self._postpone_retries(self._now)
        return not self._is_full

    @property
    def _is_full(self) -> bool:
        lanes = self._lanes
        return lanes.rows >= LOOKAHEAD_ROWS or lanes.bytes >= LOOKAHEAD_BYTES

    @property
    def wants_rows(self) -> bool:
        """Whether to wake a reader that waits for space: some rows have left, or few may start.

        It is asked after each `take`: that may remove rows, too, and what it leaves may be few.
        With rate limits it is not known how many may start.
        """
        if self._is_full:
            return bool(self._retries)
        lanes = self._lanes
        has_left = lanes.rows <= LOOKAHEAD_ROWS - _FEW_ROWS
        return has_left or lanes.ready < _FEW_ROWS or self._pace is not None

    @property
    def ready(self) -> int:
        """The number of rows that may start, as far as the order of their lanes is concerned."""
        return self._lanes.ready

    @property
    def running(self) -> int:
        """The number of rows that handlers run on."""
        return self._lanes.running

    @property
    def deadline(self) -> float:
        """The instant after which nothing starts."""
        return self._deadline

    @deadline.setter
    def deadline(self, instant: float) -> None:
        if not self._outcome.report.end.tripped and not self._is_halted:
            self._deadline = instant

    def halt(self) -> None:
        """Starts nothing more, not even a first record."""
        self._is_halted = True
        self._deadline = 0.0

    def give_back(self, now: float) -> None:
        """Starts none of the queued rows; records that wait for a retry are reported as failed."""
        self.halt()
        self._postpone_retries(now)
        if self._pace is not None:
            self._outcome.report.gates = self._pace.gates(now)

    def _at_work(self) -> list[tuple[int, int, int]]:
        return [row[:3] for row in self._lanes.at_work]

    def is_late(self, now: float) -> bool:
        """Whether the time box is over; a first record may start late, unless a rate forbids it."""
        if self._is_halted or not self.may_start(now):
            return True
        return now >= self._deadline and (
            self._outcome.report.stats.handled > 0 or self._is_rate_limited(now)
        )

    def _is_rate_limited(self, now: float) -> bool:
        """Whether a rate leaves even the first record to a later batch; it stays true."""
        at = self._lanes.next_start(now)
        self._was_rate_limited = self._was_rate_limited or (at is not None and at > now)
        return self._was_rate_limited

    def is_finished(self, now: float) -> bool:
        """Whether nothing will start any more."""
        return self.is_late(now) or (self.is_closed and self._lanes.is_idle)

    def admit(self, row: InputRow) -> bool:
        """Queues a row, unless its lane is blocked; returns whether it may start now."""
        outcome = self._outcome
        if outcome.blocked[row.part] and outcome.is_blocked(row):
            outcome.block(row)
            return False
        return self._lanes.add((row.part, outcome.lane(row)), row)

    def take(self, now: float) -> tuple[Lane, InputRow, Record] | None:
        """Returns the next record for a handler; None if none may start now."""
        outcome = self._outcome
        while not self.is_late(now):
            found = self._lanes.start(now)
            if found is None:
                return None
            lane, row = found
            if outcome.is_withheld(row.part, row.key_hash):
                for waiting in (row, *self._lanes.remove_running(lane, flows=False)):
                    outcome.block(waiting)
                continue
            topic, number = self._names[row.part]
            part, offset, _, key, value, timestamp, headers = row
            attempt = outcome.attempt(part, offset) if outcome.retried else 1
            if self._retries and lane in self._retries:
                attempt = self._retries.pop(lane)[0].attempts + 1
            if outcome.added[part]:
                headers = outcome.headers(part, offset, headers)
            record = _make(Record, (topic, number, offset, key, value, timestamp, headers, attempt))
            if not (outcome.retried and outcome.is_uncalled(row, attempt)):
                outcome.report.stats.handled += 1
                if attempt == 1 and timestamp >= 0:
                    self._starts.append(_clock() - timestamp / 1000)
                return lane, row, record
            outcome.number, self._now = self._settled, now
            self._settle(lane, row, done=outcome.settle_uncalled(row, record))
            if outcome.report.end.tripped:
                self._deadline = 0.0
        return None

    def settle(
        self, lane: Lane, row: InputRow, record: Record, answer: Any, took: float, now: float
    ) -> None:
        """Settles the answer of a handler, or its error, after a call of ``took`` seconds."""
        self._calls.append(took)
        self._settled += 1
        self._outcome.ended = self._settled
        self._now = now
        if answer is None:
            self._settle(lane, row, done=True)
            return
        outcome = self._outcome
        outcome.number = self._settled
        self._settle(lane, row, done=outcome.settle(row, record, answer))
        if outcome.report.end.tripped:
            self._deadline = 0.0

    def _settle(self, lane: Lane, row: InputRow, *, done: bool) -> None:
        if done:
            self._outcome.added[row.part].pop(row.offset, None)
            offsets, times = self._done[row.part]
            offsets.append(row.offset)
            times.append(row.timestamp)
            self._lanes.remove_running(lane, flows=True)
            return
        if lane in self._retries:
            self._lanes.postpone(lane, self._retries[lane][1])
            return
        outcome = self._outcome
        for waiting in self._lanes.remove_running(
            lane, flows=lane[1] not in outcome.blocked[row.part]
        ):
            outcome.block(waiting)

    def _retry_here(self, row: InputRow, failure: Failure) -> bool:
        """Returns whether the next attempt of a failed record is made in this batch.

        It is not if only retries are left: they would keep the slot waiting.
        """
        due, report = self._now + max(LEAST_WAIT, failure.delay), self._outcome.report
        alone = self.is_closed and not self._lanes.has_fresh
        if self._outcome.is_withheld(row.part, row.key_hash):
            return False
        if due >= self._deadline or alone or report.end.tripped or report.end.fatal:
            return False
        self._retries[row.part, self._outcome.lane(row)] = failure, due
        return True

    def _postpone_retries(self, now: float, *, withheld: bool = False) -> None:
        """Leaves records that wait for a retry to a later batch: all, or the withheld ones."""
        for lane, (failure, due) in list(self._retries.items()):
            if withheld and not self._outcome.is_withheld(lane[0], failure.key_hash):
                continue
            del self._retries[lane]
            first, *behind = self._lanes.drop(lane)
            self._outcome.postpone(first, replace(failure, delay=max(0.0, due - now)))
            for row in behind:
                self._outcome.block(row)

    def next_start_in(self, now: float) -> float:
        """Returns the seconds until a record may start that may not start now."""
        at = self._lanes.next_start(now)
        until = self.deadline if at is None else min(at, self.deadline)
        return max(0.001, min(1.0, until - now))

    def close(self, now: float) -> None:
        """Leaves all queued rows to a later batch; called when no handler runs and no row comes."""
        outcome = self._outcome
        outcome.number = self._settled
        if self._pace is not None:
            outcome.report.gates = self._pace.gates(now)
        self._postpone_retries(now)
        for _, row in self._lanes.held():
            outcome.report.end.timed_out = True
            outcome.resume_from(row.part, row.offset)
        self._flush()

    def _flush(self) -> None:
        for part, (offsets, times) in self._done.items():
            if offsets:
                self._outcome.add_done(part, offsets, times)
                offsets.clear()
                times.clear()
        if self._starts:
            self._outcome.report.stats.starts.add_all(pa.array(self._starts))
            self._starts.clear()
        if self._calls:
            self._outcome.report.stats.calls.add_all(pa.array(self._calls))
            self._calls.clear()


def feed_rows(
    batches: Iterable[pa.RecordBatch],
    feed: Callable[[list[InputRow], float], int],
    outcome: TaskOutcome,
    time_box: TimeBox,
) -> None:
    """Feeds the rows of a slot to a runner that handles several at once.

    Args:
        batches: The rows.
        feed: Queues some rows, given the end of the time box; returns how many: the others come
            too late for this batch.
        outcome: The outcome of the slot.
        time_box: Its time box.
    """
    for raw in batches:
        batch = outcome.wanted(raw)
        deadline = time_box.begin()
        rows = rows_of(batch)
        while chunk := list(islice(rows, _CHUNK)):
            for row in chunk[feed(chunk, deadline) :]:
                outcome.report.end.timed_out = True
                outcome.resume_from(row.part, row.offset)
