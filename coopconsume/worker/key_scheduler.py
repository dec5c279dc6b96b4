"""Schedules the rows of a slot by key and settles their outcomes, for threads and coroutines.

Threads hold a lock around each call. If the next attempt of a failed record is due within the time
box, and the slot has other work until then, the record is retried in this batch. Task-side code.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from coopconsume.record import Record
from coopconsume.worker.key_queues import KeyQueues
from coopconsume.worker.rate_limit import RateLimiter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from coopconsume.record import Fields
    from coopconsume.worker.input_rows import InputRow
    from coopconsume.worker.outcome import TaskOutcome
    from coopconsume.worker.rate_limit import Lane
    from coopconsume.worker.report import Failure

#: Rows and bytes that a slot with concurrent handlers reads ahead, so that one key cannot fill it.
LOOKAHEAD_ROWS = 20_000
LOOKAHEAD_BYTES = 64 << 20
#: Rows that leave a full queue before the reader that waits for space is woken, as a wake-up costs
#: more than a row. It is woken earlier if fewer rows than these may start.
_FEW_ROWS = 32
#: Seconds before a record is tried again in the same batch, at least.
LEAST_WAIT = 0.1
_as_record = partial(tuple.__new__, Record)  # `Record._make` is Python.
_clock = time.time


def _always(_now: float) -> bool:
    return True


class KeyScheduler:
    """Queues rows, returns the next record for a handler, and settles the handler's answer.

    Args:
        outcome: The outcome of the slot.
        now: The time, in seconds.
        may_start: Whether the slot's lease holds at an instant.
        are_plain: Whether the records for handlers are plain tuples of their fields.

    Attributes:
        is_closed: Whether no more rows come.
    """

    def __init__(
        self, outcome: TaskOutcome, now: float, may_start: Callable[[float], bool] = _always,
        *, are_plain: bool = False,
    ) -> None:  # fmt: skip
        self._outcome = outcome
        self._made: Callable[[Any], Any] = tuple if are_plain else _as_record
        self._draft = outcome.draft
        self._blocked = outcome.lanes
        self._may_start = may_start
        rates, gates = outcome.spec.rates, outcome.spec.gates.get(outcome.slot)
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
        self.is_closed = False
        self._is_halted = False

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
    def is_held_up(self) -> bool:
        """Whether a row waits only because all handlers are busy."""
        return self.ready > 0 or self._is_full

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
        if not self._outcome.streak.tripped and not self._is_halted:
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
            self._draft.gates = self._pace.gates(now)

    def leave_withheld(self, now: float) -> None:
        """Leaves the retries of withheld key ranges to a later batch."""
        self._postpone_retries(now, withheld=True)

    def at_work(self) -> list[tuple[int, int, int]]:
        """Returns the rows that handlers run on, as in `SlotReport.kept`."""
        return [row[:3] for row in self._lanes.at_work]

    def queued(self) -> Iterator[tuple[int, int]]:
        """Yields (part, offset) of the other rows, those that wait for a retry included."""
        running = set(self._lanes.at_work)
        return (row[:2] for _, row in self._lanes.held() if row not in running)

    def is_late(self, now: float) -> bool:
        """Whether the time box is over; a first record may start late, unless a rate forbids it."""
        if self._is_halted or not self._may_start(now):
            return True
        return now >= self._deadline and (self._draft.handled > 0 or self._is_rate_limited(now))

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
        lanes = self._blocked
        if lanes.blocked[row.part] and lanes.is_blocked(row):
            self._draft.block(row)
            return False
        return self._lanes.add((row.part, lanes.lane(row)), row)

    def take(self, now: float) -> tuple[Lane, InputRow, Fields] | None:
        """Returns the next record for a handler; None if none may start now."""
        outcome, history, made = self._outcome, self._outcome.history, self._made
        while not self.is_late(now):
            found = self._lanes.start(now)
            if found is None:
                return None
            lane, row = found
            if self._blocked.is_withheld(row.part, row.key_hash):
                for waiting in (row, *self._lanes.remove_running(lane, flows=False)):
                    self._draft.block(waiting)
                continue
            topic, number = self._names[row.part]
            part, offset, _, key, value, timestamp, headers = row
            attempt, is_again = 1, False
            if history.is_known or self._retries:
                attempt, is_again = self._attempt(lane, row)
            if history.added[part]:
                headers = history.headers(part, offset, headers)
            record = made((topic, number, offset, key, value, timestamp, headers, attempt))
            if not (history.is_known and history.is_uncalled(row, attempt)):
                self._draft.handled += 1
                if not is_again and timestamp >= 0:
                    self._starts.append(_clock() - timestamp / 1000)
                return lane, row, record
            outcome.streak.number, self._now = self._settled, now
            self._settle(lane, row, outcome.settle_uncalled(row, record))
            if outcome.streak.tripped:
                self._deadline = 0.0
        return None

    def _attempt(self, lane: Lane, row: InputRow) -> tuple[int, bool]:
        """Returns the number of the attempt that a call is, and whether an earlier one has failed.

        An earlier call need not count, so the number may be 1 again.
        """
        if lane in self._retries:
            return self._retries.pop(lane)[0].attempts + 1, True
        history = self._outcome.history
        return history.attempt(*row[:2]), history.has_failed(*row[:2])

    def settle(
        self, lane: Lane, row: InputRow, record: Fields, answer: Any, took: float, now: float
    ) -> None:
        """Settles the answer of a handler, or its error, after a call of ``took`` seconds."""
        self._calls.append(took)
        self._settled += 1
        self._draft.ended = self._settled
        self._now = now
        outcome = self._outcome
        if answer is None:
            self._settle(lane, row, None)
        else:
            outcome.streak.number = self._settled
            self._settle(lane, row, outcome.settle(row, record, answer))
            if outcome.streak.tripped:
                self._deadline = 0.0
        if outcome.on_settled is not None:
            outcome.say_settled()

    def _settle(self, lane: Lane, row: InputRow, failure: Failure | None) -> None:
        outcome = self._outcome
        if failure is None:
            outcome.history.forget_added(row)
            offsets, times = self._done[row.part]
            offsets.append(row.offset)
            times.append(row.timestamp)
            self._lanes.remove_running(lane, flows=True)
            return
        due = self._now + max(LEAST_WAIT, failure.delay)
        if self._retries_here(row, due):
            outcome.retry(row, failure)
            self._retries[lane] = failure, due
            self._lanes.postpone(lane, due)
            return
        outcome.postpone(row, failure)
        flows = lane[1] not in self._blocked.blocked[row.part]
        for waiting in self._lanes.remove_running(lane, flows=flows):
            self._draft.block(waiting)

    def _retries_here(self, row: InputRow, due: float) -> bool:
        """Returns whether the next attempt of a failed record is made in this batch.

        It is not if only retries are left: they would keep the slot waiting.
        """
        outcome = self._outcome
        alone = self.is_closed and not self._lanes.has_fresh
        if self._blocked.is_withheld(row.part, row.key_hash):
            return False
        return not (due >= self._deadline or alone or outcome.streak.tripped or outcome.fatal)

    def _postpone_retries(self, now: float, *, withheld: bool = False) -> None:
        """Leaves records that wait for a retry to a later batch: all, or the withheld ones."""
        for lane, (failure, due) in list(self._retries.items()):
            if withheld and not self._blocked.is_withheld(lane[0], failure.key_hash):
                continue
            del self._retries[lane]
            first, *behind = self._lanes.drop(lane)
            self._outcome.postpone(first, replace(failure, delay=max(0.0, due - now)))
            for row in behind:
                self._draft.block(row)

    def next_start_in(self, now: float) -> float:
        """Returns the seconds until a record may start that may not start now."""
        at = self._lanes.next_start(now)
        until = self.deadline if at is None else min(at, self.deadline)
        return max(0.001, min(1.0, until - now))

    def close(self, now: float) -> None:
        """Leaves all queued rows to a later batch; called when no handler runs and no row comes."""
        self._outcome.streak.number = self._settled
        if self._pace is not None:
            self._draft.gates = self._pace.gates(now)
        self._postpone_retries(now)
        for _, row in self._lanes.held():
            self._outcome.leave(row.part, row.offset)
        self.flush()

    def flush(self) -> None:
        """Adds the rows that are done so far to the outcome's draft."""
        draft = self._draft
        for part, (offsets, times) in self._done.items():
            if offsets:
                draft.add_done(part, offsets, times)
                offsets.clear()
                times.clear()
        if self._starts:
            draft.starts.add_all(pa.array(self._starts))
            self._starts.clear()
        if self._calls:
            draft.calls.add_all(pa.array(self._calls))
            self._calls.clear()
