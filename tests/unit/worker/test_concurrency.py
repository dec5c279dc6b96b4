"""Handlers side by side: threads by the hundred, coroutines by the thousand, time limits, rates."""

from __future__ import annotations

import asyncio
import functools
import threading
import time

import pytest

from coopconsume.record import Reject, Retry, RetryPolicy
from coopconsume.runtime.settle.carryover import SlotCarryover
from coopconsume.values.callables import is_async
from coopconsume.worker import key_scheduler
from coopconsume.worker.async_runner import event_loop
from coopconsume.worker.rate_limit import Rates
from tests.unit.worker.slot_harness import (
    PATIENCE,
    WAYS,
    Together,
    done,
    held_up,
    in_way,
    prepared,
    reporters_of,
    run,
)


def keyed(count, keys):
    """So many rows (partition, offset, key) of so many keys, in turn."""
    return [(0, o, b"%d" % (o % keys)) for o in range(count)]


def test_a_hundred_threads_are_in_flight():
    """A hundred handlers wait for each other: fewer at once would never get through."""
    meeting = threading.Barrier(100, timeout=PATIENCE)

    def handler(record):
        meeting.wait()

    report = run(handler, keyed(300, 300), concurrency=100)
    assert done(report) == list(range(300))


def test_handlers_that_were_quick_run_side_by_side_once_they_are_not():
    """As long as calls end at once, one thread makes all of them; then eight calls need eight."""
    quick, slow = keyed(100, 100), [(0, 100 + n, b"slow-%d" % n) for n in range(8)]
    calls, busy, most, together = [], set(), [0], Together(8)
    all_quick = threading.Event()

    def handler(record):
        calls.append(record.offset)
        if len(calls) == len(quick):
            all_quick.set()
        if record.offset >= len(quick):
            busy.add(record.offset)
            most[0] = max(most[0], len(busy))
            together.wait(len(busy))
            busy.discard(record.offset)

    slot, batches = prepared(handler, quick + slow, concurrency=8, batch_rows=len(quick))

    def one_after_another():
        yield batches[0]
        assert all_quick.wait(PATIENCE)
        yield batches[1]

    report = slot.run(3, one_after_another())
    assert done(report) == list(range(108))
    assert most[0] == 8


def test_records_that_came_one_by_one_are_followed_by_eight_calls_at_once():
    """Few threads were needed before; the last eight records come together, and none after them."""
    quick, most, together = 50, [0], Together(8)
    called, busy = [threading.Event() for _ in range(quick)], set()

    def handler(record):
        if record.offset < quick:
            called[record.offset].set()
            return
        busy.add(record.offset)
        most[0] = max(most[0], len(busy))
        together.wait(len(busy))
        busy.discard(record.offset)

    slot, (rows,) = prepared(handler, keyed(quick + 8, quick + 8), concurrency=8, batch_rows=100)

    def one_by_one():
        for offset in range(quick):
            yield rows.slice(offset, 1)
            assert called[offset].wait(PATIENCE)
        yield rows.slice(quick)

    report = slot.run(3, one_by_one())
    assert done(report) == list(range(quick + 8))
    assert most[0] == 8


def test_a_thousand_coroutines_are_in_flight():
    """A thousand coroutines wait for each other, all on one event loop in one thread."""
    here, threads, arrived = [], set(), asyncio.Event()

    async def handler(record):
        threads.add(threading.get_ident())
        here.append(record.offset)
        if len(here) == 1_000:
            arrived.set()
        await asyncio.wait_for(arrived.wait(), PATIENCE)

    report = run(handler, keyed(1_500, 1_500), concurrency=1_000)
    assert done(report) == list(range(1_500))
    assert len(threads) == 1


def test_coroutines_that_soon_end_do_not_run_out_of_records():
    """Rows come in as fast as handlers end that wait for one pass of the event loop each."""
    busy, most = [0], [0]

    async def handler(record):
        busy[0] += 1
        most[0] = max(most[0], busy[0])
        await asyncio.sleep(0)
        busy[0] -= 1

    report = run(handler, keyed(5_000, 5_000), concurrency=1_000, batch_rows=5_000)
    assert done(report) == list(range(5_000))
    assert most[0] >= 900


@pytest.fixture
def full(monkeypatch):
    """Called with the rows that fill a slot's queue: a list that gets an item for each wait."""

    def small(rows):
        has_space, waits = key_scheduler.KeyScheduler.has_space, []

        def counted(self):
            if not (found := has_space(self)):
                waits.append(self)
            return found

        monkeypatch.setattr(key_scheduler, "LOOKAHEAD_ROWS", rows)
        monkeypatch.setattr(key_scheduler.KeyScheduler, "has_space", counted)
        return waits

    return small


@pytest.mark.parametrize("way", ["threads", "coroutines"])
def test_a_reader_that_waits_for_space_is_not_woken_for_each_row(full, way):
    """A wake-up costs more than a row does: the queue is filled again once some rows have left."""
    waits = full(100)
    report = run(lambda _: time.sleep(0.001), keyed(600, 600), way=way, batch_rows=300)
    assert done(report) == list(range(600))
    assert 1 <= len(waits) <= 200


@pytest.mark.parametrize("way", ["threads", "coroutines"])
@pytest.mark.parametrize(
    "why", ["one key has all", "a record waits for its retry", "all others leave", "all have begun"]
)
def test_a_full_queue_takes_a_row_at_once_if_others_cannot_start(full, way, why):
    """50 rows fill it; all calls but the first one last until the next row is queued."""
    waits, is_queued, is_retry = full(50), threading.Event(), why.endswith("retry")
    is_hot, leaves = why.startswith("one key"), range(2, 50) if why.endswith("leave") else ()
    rows = [(0, n, b"hot" if is_hot and n < 50 else b"%d" % n) for n in range(52)]
    hashes = [hash(b"%d" % n) & (2**63 - 1) for n in leaves]

    async def coroutine(record):
        is_first = record.offset == 0
        while not (is_queued.is_set() or (waits and is_first)):  # noqa: ASYNC110
            await asyncio.sleep(0 if is_first else 0.001)
        if is_first and is_retry:
            raise Retry(after=PATIENCE / 2)
        if is_first and leaves:
            reporters[0].withhold(1, {0: [(one, one) for one in hashes]})

    def plain(record):
        asyncio.run(coroutine(record))

    slot, batches = prepared(
        plain if way == "threads" else coroutine, rows,
        concurrency=60 if why == "all have begun" else 2, batch_rows=51, batch_time=PATIENCE,
    )  # fmt: skip
    reporters = reporters_of(slot)

    def watched():
        yield batches[0]
        is_queued.set()
        yield batches[1]

    report = slot.run(3, watched())
    assert done(report) == sorted(set(range(52)) - set(leaves) - ({0} if is_retry else set()))


@pytest.mark.parametrize("way", ["threads", "coroutines"])
def test_a_full_queue_takes_a_row_at_once_if_a_rate_holds_back_the_others(full, way):
    """They are of another partition, and one of them has started."""
    waits = full(50)
    rows = [(0, n, b"%d" % n) for n in range(50)] + [(1, 50, b"other")]

    def handler(record):
        if record.offset == 50:
            with waits[0]._outcome.lock:
                reporters[0]._runner.give_back()

    handler, concurrency = in_way(way, handler)
    slot, batches = prepared(
        handler, rows, concurrency=concurrency, rates=Rates(per_share=0.001), batch_rows=51,
        batch_time=PATIENCE,
    )  # fmt: skip
    reporters = reporters_of(slot)
    report = slot.run(3, batches)
    assert [done(report, part) for part in (0, 1)] == [[0], [50]]


@pytest.mark.parametrize("way", ["threads", "coroutines"])
def test_one_at_a_time_within_a_key_in_order(way):
    """A hot key and many others: never two of a key at once, each key in its order."""
    busy, order, most, together = set(), {}, [0], Together(8)

    def begin(record):
        assert record.key not in busy
        busy.add(record.key)
        most[0] = max(most[0], len(busy))
        order.setdefault(record.key, []).append(record.offset)

    def plain(record):
        begin(record)
        together.wait(len(busy))
        time.sleep(0.001)
        busy.discard(record.key)

    async def coroutine(record):
        begin(record)
        await together.awaited(len(busy))
        await asyncio.sleep(0.001)
        busy.discard(record.key)

    rows = [(0, o, b"hot" if o % 2 else b"%d" % (o % 20)) for o in range(400)]
    report = run(plain if way == "threads" else coroutine, rows, concurrency=8)
    assert done(report) == list(range(400))
    assert report.stats.failures == 0
    assert most[0] == 8
    assert all(offsets == sorted(offsets) for offsets in order.values())


@pytest.mark.parametrize("way", ["threads", "coroutines"])
def test_a_record_is_tried_again_while_its_slot_has_other_work(way):
    """Within the batch, before what comes behind it; what fails to the end is left for later."""
    calls, settled = [], threading.Event()

    def note(record):
        calls.append((record.offset, record.attempt))
        if record.offset == 4:
            settled.set()
        if record.offset == 1 and record.attempt < 3:
            raise Retry(after=0.01)

    rows = [(0, 0, b"slow"), (0, 1, b"a"), (0, 2, b"b"), (0, 3, b"a"), (0, 4, b"a")]
    handler = held_up(way, note, settled)
    report = run(handler, rows, concurrency=2, policy=RetryPolicy(backoff=0, jitter=0))
    assert done(report) == [0, 1, 2, 3, 4]
    assert [at for at in calls if at[0] in {1, 3, 4}] == [(1, 1), (1, 2), (1, 3), (3, 1), (4, 1)]
    assert (report.stats.failures, report.stats.handled) == (2, 7)
    assert not report.partitions[0].failed


@pytest.mark.parametrize("way", ["threads", "coroutines"])
def test_a_record_that_fails_again_and_again_does_not_trip_the_breaker(way):
    """Of one batch it is one failure in a row, however often it is tried."""
    over = threading.Event()

    def note(record):
        if record.offset == 1:
            if record.attempt == 4:
                over.set()
            raise RuntimeError("bad")

    async def coroutine(record):
        while record.offset == 0 and not over.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        note(record)

    def plain(record):
        if record.offset == 0:
            assert over.wait(PATIENCE)
        note(record)

    handler = coroutine if way == "coroutines" else plain
    policy = RetryPolicy(backoff=0, max_backoff=0, jitter=0)
    rows = [(0, 0, b"slow"), (0, 1, b"a")]
    report = run(handler, rows, concurrency=2, policy=policy, break_after=2)
    assert report.stats.failures >= 4
    assert not report.end.tripped
    assert done(report) == [0]


@pytest.mark.parametrize("way", ["threads", "coroutines"])
def test_a_slot_does_not_wait_for_another_try(way):
    """With nothing else to do it ends, and the record is for a later batch."""

    def handler(_record):
        raise Retry(after=200.0)

    report = run(handler, [(0, 0, b"a"), (0, 1, b"a"), (0, 2, b"b")], way=way)
    failed = report.partitions[0].failed
    assert sorted((f.offset, f.attempts) for f in failed) == [(0, 1), (2, 1)]
    assert all(100 < f.delay <= 200 for f in failed)
    assert [offset for offset, _ in report.partitions[0].blocked] == [1]


def test_handlers_that_never_wait_leave_their_turn_to_others():
    """Coroutines that compute alone do not keep one that waits from its time."""
    ended = []

    async def handler(record):
        if record.offset == 0:
            await asyncio.sleep(0.001)
        else:
            time.sleep(0.0002)  # noqa: ASYNC251 - as one that computes
        ended.append(record.offset)

    run(handler, keyed(3_000, 3_000), concurrency=4)
    assert ended.index(0) < 2_000


def test_the_event_loop_is_one_for_all_batches():
    """What a handler keeps open belongs to a loop, and finds it again in the next batch."""
    loops = set()

    async def handler(record):
        loops.add(id(asyncio.get_running_loop()))

    for _ in range(3):
        run(handler, keyed(3, 3), concurrency=2)
    assert loops == {id(event_loop())}


def test_a_coroutine_that_takes_too_long_is_cancelled_and_awaited():
    """It may clean up, fails with TimeoutError, and its key waits while others go on."""
    cleaned = []

    async def handler(record):
        if record.offset == 1:
            try:
                await asyncio.sleep(600)
            finally:
                await asyncio.sleep(0.05)
                cleaned.append(record.offset)

    rows = [(0, o, b"ab"[o % 2 : o % 2 + 1]) for o in range(6)]
    report = run(handler, rows, concurrency=2, policy=RetryPolicy(timeout=3.0, jitter=0))
    (failure,) = report.partitions[0].failed
    assert failure.offset == 1
    assert failure.error == "TimeoutError: the handler took longer than 3 s"
    assert cleaned == [1]
    assert done(report) == [0, 2, 4]


def test_a_coroutine_that_ends_all_the_same_counts_and_the_next_is_not_cancelled():
    """What came of it counts, even late; a record after it on the same seat has its own time."""

    async def handler(record):
        try:
            await asyncio.sleep(60 if record.offset == 0 else 0.05)
        except asyncio.CancelledError:
            if record.offset:
                raise

    report = run(handler, keyed(3, 1), concurrency=1, policy=RetryPolicy(timeout=3.0))
    assert done(report) == [0, 1, 2]


def test_a_thread_that_is_late_but_ends_counts():
    """A thread cannot be stopped: what it returns within its grace counts."""
    report = run(
        lambda record: time.sleep(4.2), keyed(2, 2), concurrency=2,
        policy=RetryPolicy(timeout=4.0),
    )  # fmt: skip
    assert done(report) == [0, 1]


@pytest.mark.parametrize("way", WAYS)
def test_a_policy_distinguishes_errors(way):
    """Some are given up at once, some tried again; Retry always is, whatever the policy."""

    class Broken(OSError):
        pass

    errors = [OSError("a"), Broken("b"), ValueError("c"), Retry(), Reject("e"), KeyError("f")]

    def handler(record):
        raise errors[record.offset]

    policy = RetryPolicy(retry_on=(OSError, KeyError), give_up_on=(Broken,), backoff=3, jitter=0)
    report = run(handler, keyed(6, 6), way=way, policy=policy)
    assert sorted(f.offset for f in report.partitions[0].failed) == [0, 3, 5]
    assert sorted(letter.offset for letter in report.dead) == [1, 2, 4]


def test_max_attempts_hold_for_every_kind_of_failure():
    """Out of attempts is out of attempts, also for one that asks for another."""
    policy = RetryPolicy(max_attempts=1, retry_on=(OSError,))

    def handler(record):
        raise Retry(after=5)

    assert [letter.offset for letter in run(handler, keyed(2, 2), policy=policy).dead] == [0, 1]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"timeout": 0}, ValueError),
        ({"retry_on": ("OSError",)}, TypeError),
        ({"give_up_on": (3,)}, TypeError),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(fields, error):
    """The message names the field."""
    with pytest.raises(error, match=next(iter(fields))):
        RetryPolicy(**fields)


def test_one_class_may_stand_for_a_tuple():
    """As in an except clause."""
    assert RetryPolicy(retry_on=OSError).retry_on == (OSError,)
    assert RetryPolicy(give_up_on=[OSError]).may_give_up
    assert not RetryPolicy().may_give_up


def test_rates_hold_for_slot_share_and_key():
    """So many starts a second, however many handlers there could be."""
    starts = []

    def handler(record):
        starts.append((time.monotonic(), record.partition, record.key))

    rows = [(o % 2, o, b"%d" % (o % 4)) for o in range(24)]
    began = time.monotonic()
    report = run(handler, rows, concurrency=8, rates=Rates(per_key=20.0))
    assert (done(report, 0), done(report, 1)) == ([*range(0, 24, 2)], [*range(1, 24, 2)])
    for key in {key for _, _, key in starts}:
        times = [at for at, _, name in starts if name == key]
        # Six of a key at twenty a second; the first may come late to its own clock.
        assert times[-1] - began >= 5 / 20


@pytest.mark.parametrize("way", ["threads", "coroutines"])
def test_a_slow_rate_is_reached_not_undercut(way):
    """Those who wait for the rate are woken in time."""
    starts = []
    rows = keyed(60, 60)
    began = time.monotonic()
    run(lambda record: starts.append(time.monotonic()), rows, way=way, rates=Rates(per_slot=50.0))
    assert len(starts) == 60
    # 60 at 50 a second are 1.2 s; a waiting worker that slept on would take a second for each.
    assert starts[-1] - began >= 59 / 50 - 0.051
    assert time.monotonic() - began < 50


@pytest.mark.parametrize("way", ["threads", "coroutines"])
@pytest.mark.parametrize("rates", [Rates(per_slot=20.0), Rates(per_share=20.0)])
def test_a_rate_holds_over_batches(way, rates):
    """Many small batches start no more than one large one would."""
    starts, carried, names = [], SlotCarryover(), [("t", 10)]
    began = time.monotonic()
    for o in range(10):
        gates = carried.gates([3], names, time.monotonic())
        report = run(
            lambda record: starts.append(time.monotonic()), [(0, o, b"k")], way=way, rates=rates,
            gates=gates,
        )  # fmt: skip
        carried.closed(3, report.gates, names, time.monotonic())
    assert len(starts) == 10
    # Ten at twenty a second, less the moment that may be made good.
    assert starts[-1] - began >= 9 / 20 - 0.051


@pytest.mark.parametrize("way", ["threads", "coroutines"])
def test_a_rate_slower_than_the_time_box_leaves_records_to_a_later_batch(way):
    """A batch ends in its time with nothing started, and reports how long the slot is to wait."""
    starts = []
    report = run(
        starts.append, keyed(6, 6), way=way, rates=Rates(per_slot=0.001),
        gates={3: {None: 900.0}}, batch_time=0.05,
    )  # fmt: skip
    assert not starts
    assert (report.stats.handled, report.end.timed_out, report.partitions[0].resume) == (0, True, 0)
    assert 0 < report.gates[None] < 900.0


def test_gates_are_carried_by_slot_and_partition():
    """Time passes between batches; what a batch is not about waits for one that is."""
    carried, a, b = SlotCarryover(), ("t", 0), ("t", 1)
    carried.closed(1, {None: 2.0, 0: 5.0, 1: 7.0}, [a, b], now=100.0)
    assert carried.gates([1, 2], [b], now=101.0) == {1: {None: 1.0, 0: 6.0}}
    carried.closed(1, {0: 9.0}, [b], now=103.0)
    assert carried.gates([1], [a, b], now=104.0) == {1: {None: -2.0, 0: 1.0, 1: 8.0}}


def test_async_handlers_are_known():
    """A function, a bound method, an object with an async call, a partial of one."""

    class Caller:
        async def __call__(self, record, more=None):
            pass

        async def method(self, record):
            pass

    async def function(record, more=None):
        pass

    for handler in (Caller(), Caller().method, function):
        assert is_async(handler)
        assert is_async(functools.partial(handler, more=1))
    assert not is_async(print)
    assert not is_async(functools.partial(print, sep=""))


def test_a_coroutine_that_nobody_awaits_is_reported():
    """A plain function that returns a coroutine is a mistake, and fails as one."""

    async def inner():
        pass

    report = run(lambda record: inner(), keyed(1, 1))
    (failure,) = report.partitions[0].failed
    assert "async def" in failure.error


def test_a_coroutine_that_cancels_all_tasks_of_its_loop_ends_no_seat():
    """While all others wait for a record: four of the next ones are at work at once."""
    cancelled, busy, together = threading.Event(), set(), Together(4)

    async def handler(record):
        if record.offset < 4:
            busy.add(record.offset)
            await together.awaited(len(busy))
        elif record.offset == 4:
            await asyncio.sleep(0.1)  # The others wait for a record.
            for task in asyncio.all_tasks():
                task.cancel()
            busy.clear()
            cancelled.set()
        else:
            busy.add(record.offset)
            await again.awaited(len(busy))

    again = Together(4)
    slot, batches = prepared(handler, keyed(9, 9), concurrency=4, batch_rows=5)

    def one_after_another():
        yield batches[0]
        assert cancelled.wait(PATIENCE)
        yield from batches[1:]

    begun = time.monotonic()
    report = slot.run(3, one_after_another())
    assert time.monotonic() - begun < PATIENCE / 2
    assert done(report) == list(range(9))
    assert not report.end.error


def test_time_in_which_another_blocked_the_loop_is_not_charged():
    """A call that takes moments has its time limit for itself."""
    begun = threading.Event()

    async def handler(record):
        if record.offset == 0:
            await asyncio.sleep(0)
            assert begun.is_set()
            time.sleep(1.5)  # noqa: ASYNC251 - that is the defect
        begun.set()
        await asyncio.sleep(0.05)

    report = run(handler, keyed(4, 4), concurrency=4, policy=RetryPolicy(timeout=1.0))
    failed = [failure.offset for failure in report.partitions[0].failed]
    assert failed in ([], [0]), "the call that blocked the loop is late at most"
