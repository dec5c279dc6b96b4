"""Schedules the rows of a slot by key and settles their outcomes, for threads and coroutines.

Threads and coroutines share it; threads hold a lock around each call. A failed record whose next
attempt is due within the time box is tried again here, as long as the slot has other work: nothing
waits for it. Task-side code.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from coopconsume.record import Record
from coopconsume.worker.key_queues import KeyQueues
from coopconsume.worker.rate_limit import RateLimiter

if TYPE_CHECKING:
    from collections.abc import Callable

    from coopconsume.worker.outcome import Row, TaskOutcome
    from coopconsume.worker.rate_limit import Lane
    from coopconsume.worker.report import Failure

#: Rows that a slot with several handlers at once holds ready, so that one key cannot fill it up.
LOOKAHEAD_ROWS = 20_000
LOOKAHEAD_BYTES = 64 << 20
#: Seconds before a record is tried again in the same batch, at least.
LEAST_WAIT = 0.1
_make = tuple.__new__
_clock = time.time


class KeyScheduler:
    """Rows come in, records go out to handlers, answers come back.

    Args:
        ledger: Of the slot.
        now: The time, in seconds.
    """

    def __init__(self, ledger: TaskOutcome, now: float) -> None:
        self._ledger = ledger
        rates, gates = ledger.spec.rates, ledger.spec.gates.get(ledger.report.slot)
        self._pace = RateLimiter(rates, gates, now) if rates else None
        self._lanes = KeyQueues(self._pace)
        self._gave_up = False
        #: Offsets and timestamps, by partition.
        self._done: dict[int, tuple[list[int], list[int]]] = {p: ([], []) for p in ledger.work}
        #: Seconds from the timestamps of records to their first handler call.
        self._starts: list[float] = []
        #: Seconds of the handler calls that have ended.
        self._calls: list[float] = []
        self._names = ledger.spec.partitions
        self._deadline = float("inf")
        self._settled = 0
        self._now = now
        #: By lane what failed and is to be tried again, and when.
        self._again: dict[Lane, tuple[Failure, float]] = {}
        ledger.again = self._try_again
        ledger.flush = self._flush
        ledger.at_work = self._at_work
        ledger.leave_withheld = lambda now: self._leave_what_waits(now, withheld=True)
        ledger.is_held_up = lambda: self.ready > 0 or self._is_full
        self.is_closed = False
        self._is_halted = False
        #: Whether the slot's lease holds at an instant.
        self.may_start: Callable[[float], bool] = lambda _now: True

    def has_space(self) -> bool:
        """Whether more may be admitted; what waits for another try gives up its place for it."""
        if self._is_full and self._again:
            self._leave_what_waits(self._now)
        return not self._is_full

    @property
    def _is_full(self) -> bool:
        lanes = self._lanes
        return lanes.rows >= LOOKAHEAD_ROWS or lanes.bytes >= LOOKAHEAD_BYTES

    @property
    def ready(self) -> int:
        """Rows that may start, as far as their lanes go."""
        return self._lanes.ready

    @property
    def running(self) -> int:
        """Rows that handlers work on."""
        return self._lanes.running

    @property
    def deadline(self) -> float:
        """The instant from which on nothing starts."""
        return self._deadline

    @deadline.setter
    def deadline(self, instant: float) -> None:
        if not self._ledger.report.tripped and not self._is_halted:
            self._deadline = instant

    def halt(self) -> None:
        """Starts nothing more, not even a first record."""
        self._is_halted = True
        self._deadline = 0.0

    def give_back(self, now: float) -> None:
        """Starts nothing more of what is held; what waits to be tried again has failed."""
        self.halt()
        self._leave_what_waits(now)
        if self._pace is not None:
            self._ledger.report.gates = self._pace.gates(now)

    def _at_work(self) -> list[tuple[int, int, int]]:
        return [row[:3] for row in self._lanes.at_work]

    def is_late(self, now: float) -> bool:
        """Whether the time box has closed; a slot may start one record, unless its pace forbids."""
        if self._is_halted or not self.may_start(now):
            return True
        return now >= self._deadline and (self._ledger.report.handled > 0 or self._gives_up(now))

    def _gives_up(self, now: float) -> bool:
        """Whether a rate keeps even the first record for a later batch; once so, it stays so."""
        at = self._lanes.next_start(now)
        self._gave_up = self._gave_up or (at is not None and at > now)
        return self._gave_up

    def is_through(self, now: float) -> bool:
        """Whether nothing will start any more."""
        return self.is_late(now) or (self.is_closed and self._lanes.is_idle)

    def admit(self, row: Row) -> bool:
        """Hold a row for its turn, unless its lane is blocked; whether its turn is now."""
        ledger = self._ledger
        if ledger.blocked[row.part] and ledger.is_blocked(row):
            ledger.block(row)
            return False
        return self._lanes.add((row.part, ledger.lane(row)), row)

    def take(self, now: float) -> tuple[Lane, Row, Record] | None:
        """The next record for a handler; None if none may start now."""
        ledger = self._ledger
        while not self.is_late(now):
            found = self._lanes.start(now)
            if found is None:
                return None
            lane, row = found
            if ledger.is_withheld(row.part, row.key_hash):
                for waiting in (row, *self._lanes.settle(lane, flows=False)):
                    ledger.block(waiting)
                continue
            topic, number = self._names[row.part]
            part, offset, _, key, value, timestamp, headers = row
            attempt = ledger.attempt(part, offset) if ledger.retried else 1
            if self._again and lane in self._again:
                attempt = self._again.pop(lane)[0].attempts + 1
            if ledger.added[part]:
                headers = ledger.headers(part, offset, headers)
            record = _make(Record, (topic, number, offset, key, value, timestamp, headers, attempt))
            if attempt == 1 or not ledger.is_spent(attempt):
                ledger.report.handled += 1
                if attempt == 1 and timestamp >= 0:
                    self._starts.append(_clock() - timestamp / 1000)
                return lane, row, record
            self._settle(lane, row, done=ledger.give_up_spent(row, record))
        return None

    def settle(
        self, lane: Lane, row: Row, record: Record, answer: Any, took: float, now: float
    ) -> None:
        """A handler has returned or raised, after some seconds."""
        self._calls.append(took)
        self._settled += 1
        self._ledger.ended = self._settled
        self._now = now
        if answer is None:
            self._settle(lane, row, done=True)
            return
        ledger = self._ledger
        ledger.number = self._settled
        self._settle(lane, row, done=ledger.answer(row, record, answer))
        if ledger.report.tripped:
            self._deadline = 0.0

    def _settle(self, lane: Lane, row: Row, *, done: bool) -> None:
        if done:
            self._ledger.added[row.part].pop(row.offset, None)
            offsets, times = self._done[row.part]
            offsets.append(row.offset)
            times.append(row.timestamp)
            self._lanes.settle(lane, flows=True)
            return
        if lane in self._again:
            self._lanes.postpone(lane, self._again[lane][1])
            return
        ledger = self._ledger
        for waiting in self._lanes.settle(lane, flows=lane[1] not in ledger.blocked[row.part]):
            ledger.block(waiting)

    def _try_again(self, row: Row, failure: Failure) -> bool:
        """Whether the next attempt may be for this batch.

        Not where all that is left is tried again: such records would keep a slot for each other.
        """
        due, report = self._now + max(LEAST_WAIT, failure.delay), self._ledger.report
        alone = self.is_closed and not self._lanes.has_fresh
        if self._ledger.is_withheld(row.part, row.key_hash):
            return False
        if due >= self._deadline or alone or report.tripped or report.fatal:
            return False
        self._again[row.part, self._ledger.lane(row)] = failure, due
        return True

    def _leave_what_waits(self, now: float, *, withheld: bool = False) -> None:
        """A later batch is to try again what waits for that: all of it, or what is withheld."""
        for lane, (failure, due) in list(self._again.items()):
            if withheld and not self._ledger.is_withheld(lane[0], failure.key_hash):
                continue
            del self._again[lane]
            first, *behind = self._lanes.drop(lane)
            self._ledger.leave(first, replace(failure, delay=max(0.0, due - now)))
            for row in behind:
                self._ledger.block(row)

    def patience(self, now: float) -> float:
        """Seconds after which something may start that may not start now."""
        at = self._lanes.next_start(now)
        until = self.deadline if at is None else min(at, self.deadline)
        return max(0.001, min(1.0, until - now))

    def close(self, now: float) -> None:
        """Nothing more comes and nothing runs: what is left is for a later batch."""
        ledger = self._ledger
        ledger.number = self._settled
        if self._pace is not None:
            ledger.report.gates = self._pace.gates(now)
        self._leave_what_waits(now)
        for _, row in self._lanes.held():
            ledger.report.timed_out = True
            ledger.unlooked(row.part, row.offset)
        self._flush()

    def _flush(self) -> None:
        for part, (offsets, times) in self._done.items():
            if offsets:
                self._ledger.add_done(part, offsets, times)
                offsets.clear()
                times.clear()
        if self._starts:
            self._ledger.report.starts.add_all(pa.array(self._starts))
            self._starts.clear()
        if self._calls:
            self._ledger.report.calls.add_all(pa.array(self._calls))
            self._calls.clear()
