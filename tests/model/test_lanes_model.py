"""The rows of a slot in virtual time: any keys, durations, failures, deadlines, rates and ways."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from coopconsume.record import RetryPolicy
from coopconsume.worker import key_scheduler
from coopconsume.worker.input_rows import InputRow
from coopconsume.worker.key_scheduler import KeyScheduler
from coopconsume.worker.outcome import TaskOutcome
from coopconsume.worker.rate_limit import Rates
from coopconsume.worker.report import BatchSpec, PartitionWork, SlotEnd, unpack_offsets
from coopconsume.worker.reporter import SlotReporter
from tests.examples import examples
from tests.unit.worker.slot_harness import Scheduled

#: Of so many turns, the states of all records are checked before one: it takes longer than a turn.
_CHECKED = 5


def a_scheduler(rows, *, ordering, rates, blocked, gates, policy):
    """A scheduler for rows of partitions 0 and 1, and its outcome."""
    parts = {0, 1}
    work = {p: PartitionWork(((0, 10**6),), {}, blocked[p]) for p in parts}
    spec = BatchSpec(
        batch=0, partitions=(("t", 0), ("t", 1)), slots=(0,), work={0: work}, ordering=ordering,
        concurrency=1, batch_time=1.0, handler_timeout=1.0, headers=False, rates=rates,
        gates={0: gates},
    )  # fmt: skip
    outcome = TaskOutcome(spec, 0, policy, None, dead_letters=True)
    return KeyScheduler(outcome, 0.0), outcome


class Seats:
    """Handlers in virtual time: each record takes as long, and fails as many times, as drawn."""

    def __init__(self, scheduler, outcome, seats, lasts, fails):
        self.scheduler, self.outcome, self.seats = scheduler, outcome, seats
        self.reporter = SlotReporter(outcome, Scheduled(scheduler))
        self.lasts, self.fails = lasts, fails
        self.now = 0.0
        self.at_work: list = []
        self.busy: set = set()
        self.starts: list = []
        self.done: list = []
        self.calls: Counter = Counter()
        self.failed_at: dict = {}
        self.settled_at = 0.0
        self.most_held = 0
        self.is_woken = False
        self.numbers, self.turns = itertools.count(), itertools.count()

    def lane_of(self, row):
        ordering = self.outcome.spec.ordering
        return {"key": (row.part, row.key_hash), "partition": (row.part, 0)}.get(
            ordering, (row.part, ~row.offset)
        )

    def start_all(self):
        """Start what may start now, and wake the reader if it is to read on."""
        while len(self.at_work) < self.seats:
            found = self.scheduler.take(self.now)
            self.is_woken |= self.scheduler.wants_rows
            if found is None:
                return
            lane, row, record = found
            assert lane not in self.busy, "two of a lane at once"
            self.busy.add(lane)
            self.starts.append((self.now, lane, row))
            at = row.part, row.offset
            assert record.attempt == self.calls[at] + 1
            assert (
                self.now >= self.failed_at.get(at, -99.0) + self.scheduler._outcome.policy.backoff
            )
            ends = self.now + self.lasts[row.part, row.offset]
            heapq.heappush(self.at_work, (ends, next(self.numbers), lane, row, record))

    def turn(self):
        """Go on to the next thing that happens; False if nothing ever will."""
        self.start_all()
        if next(self.turns) % _CHECKED == 0:
            self.reporter.check(self.lasts, [])
        self.most_held = max(self.most_held, self.scheduler._lanes.rows)
        soonest = self.now + self.scheduler.next_start_in(self.now)
        if (self.at_work and self.at_work[0][0] <= soonest) or len(self.at_work) == self.seats:
            self.now, _, lane, row, record = heapq.heappop(self.at_work)
            self.busy.discard(lane)
            at = row.part, row.offset
            self.calls[at] += 1
            failed = self.calls[at] <= self.fails.get(at, 0)
            if not failed:
                self.done.append(at)
            self.settled_at = self.failed_at[at] = self.now
            answer = RuntimeError("planned") if failed else None
            self.scheduler.settle(lane, row, record, answer, 0.0, self.now)
        elif self.at_work or not self.scheduler.is_finished(self.now):
            self.now = soonest
        else:
            return False
        return True


rows_drawn = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 5), st.sampled_from([0.0, 0.01, 0.3, 2.0])),
    max_size=40,
)


@given(
    drawn=rows_drawn,
    failing=st.dictionaries(st.integers(0, 39), st.sampled_from([1, 2, 10**6]), max_size=8),
    backoff=st.sampled_from([0.01, 0.2, 3.0]),
    blocked=st.dictionaries(st.integers(0, 5), st.integers(-1, 39), max_size=2),
    ordering=st.sampled_from(["key", "key", "partition", "none"]),
    seats=st.integers(1, 6),
    box=st.sampled_from([0.0, 0.5, 5.0, 1e6]),
    rates=st.sampled_from([Rates(), Rates(), Rates(per_slot=20), Rates(per_share=9, per_key=4)]),
    gates=st.dictionaries(
        st.sampled_from([None, 0, 1]), st.sampled_from([-0.04, 0.2, 0.7, 3.0, 40.0])
    ),
    lookahead=st.one_of(st.integers(1, 30), st.integers(1, 4)),
    few=st.integers(1, 3),
    leaving=st.dictionaries(st.integers(0, 39), st.sets(st.integers(0, 5)), max_size=2),
)
@settings(max_examples=examples(1_500), deadline=None)
def test_any_slot_keeps_the_order_and_settles_every_row(
    drawn, failing, backoff, blocked, ordering, seats, box, rates, gates, lookahead, few, leaving
):
    """Order within lanes, nothing done twice or lost, bounded memory, rates kept, box kept."""
    leaving = leaving if ordering != "partition" else {}  # These move whole.
    if ordering != "key":
        rates = Rates(rates.per_slot, rates.per_share)
    rows = [InputRow(p, o, k, b"k", b"v", 0, ()) for o, (p, k, _) in enumerate(drawn)]
    lasts = {(r.part, r.offset): drawn[r.offset][2] for r in rows}
    fails = {(r.part, r.offset): failing[r.offset] for r in rows if r.offset in failing}
    blocked = {0: blocked if ordering == "key" else {}, 1: {}}
    policy = RetryPolicy(max_attempts=None, backoff=backoff, max_backoff=backoff, jitter=0)
    scheduler, outcome = a_scheduler(
        rows, ordering=ordering, rates=rates, blocked=blocked, gates=gates, policy=policy
    )
    runner = Seats(scheduler, outcome, seats, lasts, fails)
    scheduler.deadline = box
    before = key_scheduler.LOOKAHEAD_ROWS, key_scheduler._FEW_ROWS
    key_scheduler.LOOKAHEAD_ROWS, key_scheduler._FEW_ROWS = lookahead, few
    try:
        refused = feed_all(runner, rows, leaving)
        scheduler.is_closed = True
        for _ in range(10_000):
            if not runner.turn():
                break
        else:
            raise AssertionError("it did not come to rest")
    finally:
        key_scheduler.LOOKAHEAD_ROWS, key_scheduler._FEW_ROWS = before
    if not rates and not refused:
        assert runner.now <= runner.settled_at, "it waited for nothing but another try"
    scheduler.close(runner.now)
    report = outcome.close(SlotEnd())
    assert runner.most_held <= lookahead
    check_order(runner, rows, ordering)
    for _, _, row in runner.starts:
        assert row.offset <= blocked[row.part].get(row.key_hash, row.offset), "it is blocked"
    check_rates(runner, rates)
    if rates:
        for at, _, row in runner.starts:
            assert at >= max(gates.get(None, 0.0), gates.get(row.part, 0.0)), "a gate was closed"
    late = [at for at, _, _ in runner.starts[1:] if at >= box]
    assert not late
    settled = check_outcomes(runner, report, rows)
    for row in refused:
        assert (row.part, row.offset) not in settled
    if box == 1e6:
        assert len(settled) == len(rows), "a box that never closes leaves nothing"


def test_records_that_keep_failing_do_not_keep_a_slot_for_each_other():
    """Once nothing else is there, each of them is left to a later batch at its next failure."""
    rows = [InputRow(0, o, o, b"k", b"v", 0, ()) for o in range(2)]
    policy = RetryPolicy(max_attempts=None, backoff=0.01, max_backoff=0.01, jitter=0)
    scheduler, outcome = a_scheduler(
        rows, ordering="key", rates=Rates(), blocked={0: {}, 1: {}}, gates={}, policy=policy
    )
    runner = Seats(
        scheduler, outcome, 2, {(0, 0): 0.3, (0, 1): 2.0}, {(0, 0): 10**9, (0, 1): 10**9}
    )
    scheduler.deadline = 1e6
    feed_all(runner, rows)
    scheduler.is_closed = True
    while runner.turn():
        assert runner.now < 10
    assert runner.calls == {(0, 0): 6, (0, 1): 2}


def feed_all(runner, rows, leaving=()):
    """Admit rows as a feeder does: sleeps while the scheduler is full, gives up when it is late.

    Before some rows, by their place, the keys of some hashes begin to leave.
    """
    refused, scheduler = [], runner.scheduler
    for place, row in enumerate(rows):
        if place in leaving:
            ranges = [(one, one) for one in leaving[place]]
            runner.reporter.withhold(place + 1, {0: ranges, 1: ranges})
            runner.reporter.check(runner.lasts, [])
        while not scheduler.has_space() and not scheduler.is_late(runner.now):
            runner.is_woken = False
            while not (runner.is_woken or scheduler.is_late(runner.now)):
                assert runner.turn(), "full, and nothing ever happens"
                runner.start_all()
                is_busy = len(runner.at_work) == runner.seats
                may_wait = is_busy or runner.is_woken or scheduler.is_late(runner.now)
                assert may_wait or not scheduler.has_space(), "nobody wakes the reader"
        if scheduler.is_late(runner.now):
            runner.outcome.leave(row.part, row.offset)
            refused.append(row)
        else:
            scheduler.admit(row)
            runner.start_all()
    return refused


def check_order(runner, rows, ordering):
    """Within a lane each row starts until it is done, then the next; the last one may fail."""
    by_lane = defaultdict(list)
    for row in rows:
        by_lane[runner.lane_of(row)].append(row)
    started = defaultdict(list)
    for _, lane, row in runner.starts:
        started[lane].append(row)
    for lane, calls in started.items():
        ran = [row for row, _ in itertools.groupby(calls)]
        assert ran == by_lane[lane][: len(ran)]
        assert {(row.part, row.offset) for row in ran[:-1]} <= set(runner.done)


def check_rates(runner, rates):
    """No second has more starts than allowed, but for what a slot may make good."""
    for rate, slack, name in [
        (rates.per_slot, 0.05, lambda lane: None),
        (rates.per_share, 0.05, lambda lane: lane[0]),
        (rates.per_key, 0.0, lambda lane: lane),
    ]:
        times = defaultdict(list)
        for at, lane, _ in runner.starts if rate else []:
            times[name(lane)].append(at)
        for starts in times.values():
            for i, first in enumerate(starts):
                inside = sum(first <= at < first + 1 - 1e-6 for at in starts[i:])
                assert inside <= rate * (1 + slack) + 1


def check_outcomes(runner, report, rows):
    """Each row is in one set only: done, failed, behind one that failed, or not looked at."""
    settled = set()
    for part, outcome in report.partitions.items():
        done = [(part, o) for o in unpack_offsets(outcome.done).to_pylist()]
        failed = [(part, f.offset) for f in outcome.failed]
        assert all(f.attempts == runner.calls[part, f.offset] for f in outcome.failed)
        behind = [(part, o) for o, _ in outcome.blocked]
        for outcome_set in (done, failed, behind):
            assert len(set(outcome_set)) == len(outcome_set)
            assert not settled & set(outcome_set)
            settled |= set(outcome_set)
        assert sorted(done) == sorted(at for at in runner.done if at[0] == part)
        for row in rows:
            at = (row.part, row.offset)
            if row.part == part and at not in settled:
                assert outcome.resume is not None
                assert row.offset >= outcome.resume, f"{at} is lost"
    assert len(runner.starts) == report.stats.handled == runner.calls.total()
    assert report.stats.failures == runner.calls.total() - len(runner.done)
    return settled
