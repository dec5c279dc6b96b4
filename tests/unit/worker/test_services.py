"""Calls of handlers to a service on loopback: limits, circuits, waits that it asks for, time."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.message import Message
from email.utils import format_datetime

import aiohttp
import pytest
from multidict import CIMultiDict

from coopconsume.record import MAX_WAIT, Reject, Retry, RetryPolicy
from coopconsume.testing.history.recorder import outcome_of
from coopconsume.worker import between_tasks, open_handlers
from coopconsume.worker.circuit_breaker import CircuitBreaker, CircuitOpen
from coopconsume.worker.concurrency_limit import ConcurrencyLimit
from coopconsume.worker.handler_life import SlotContext
from coopconsume.worker.open_handlers import OpenHandlers
from coopconsume.worker.report import PartitionWork, QueryIds
from tests.unit.worker.loopback import Service
from tests.unit.worker.slot_harness import PATIENCE, RETRIES_LATER, done, prepared

SLOTS = 4
CONTEXT = SlotContext(0, "g", "q", "r", SLOTS)
#: Longer than a batch.
PAUSE = 1_000.0


class Calls:
    """Calls the service of a record, its key, in the one session of its process."""

    def __init__(self, limit=100, failures=3):
        self.most, self.failures, self.now = limit, failures, 0.0
        self.begun = self.inside = self.most_inside = self.sessions = 0

    async def open(self, slot):
        """Opens the session."""
        self.sessions += 1
        self.session = aiohttp.ClientSession()
        self.limit = ConcurrencyLimit(self.most, slot)
        self.breaker = CircuitBreaker(self.failures, PAUSE, clock=lambda: self.now)

    async def __call__(self, record):
        """Makes a call."""
        url = record.value.decode()
        self.begun += 1
        async with self.limit, self.breaker.to(url):
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
            try:
                async with self.session.post(url) as answer:
                    if answer.status in (429, 503):
                        raise Retry.after_response(answer.headers)
                    if answer.status == 400:
                        raise Reject("refused")
            finally:
                self.inside -= 1

    async def close(self, error):
        """Closes the session."""
        await self.session.close()


@pytest.fixture
def service():
    """Return a service that answers at once."""
    made = Service()
    yield made
    made.end()


@pytest.fixture
def handlers(monkeypatch):
    """Return the open handlers of a worker that runs many tasks."""
    made = OpenHandlers()
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    monkeypatch.setattr(open_handlers, "HANDLERS", made)
    monkeypatch.setattr(between_tasks, "close_at_the_end", lambda: None)
    yield made
    made.close_all()


def run(handler, urls, *, work=None, **more):
    """The report of a slot with a record, of a key of its own, for each address."""
    rows = [(0, offset, b"%d" % offset) for offset in range(len(urls))]
    values = [url.encode() for url in urls]
    settings = {"concurrency": len(urls), "run_id": "r", "batch_rows": len(urls)} | more
    runner, batches = prepared(handler, rows, work, values=values, **settings)
    runner._spec = replace(runner._spec, query=QueryIds("g", "q", "r", SLOTS))
    return runner.run(3, batches)


def failed(report):
    """The failed records of a report: offset, attempts and delay."""
    return sorted((one.offset, one.attempts, one.delay) for one in report.partitions[0].failed)


def until(condition):
    """Wait for a condition."""
    give_up = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.001)


# -- a limit over all slots


def test_a_slot_has_its_part_of_a_limit_and_one_session(service, handlers):
    """Of 15 calls at once each of 4 slots has 3; all batches use the connections of one session."""
    handler, service.way = Calls(limit=15), "held"

    def release():
        until(lambda: handler.begun == 40 and service.now >= 3)
        service.released.set()

    thread = threading.Thread(target=release)
    thread.start()
    assert done(run(handler, [service.url] * 40)) == list(range(40))
    thread.join()
    assert done(run(handler, [service.url] * 40)) == list(range(40))
    assert handler.most_inside == service.most == 3
    assert (service.requests, service.connections, handler.sessions) == (80, 3, 1)


def test_threads_wait_for_their_turn_in_the_order_in_which_they_came():
    """Three of nine pass; the others follow one by one."""
    limit, began, passed = ConcurrencyLimit(12, CONTEXT), [], []
    gates = [threading.Event() for _ in range(9)]

    def call(number):
        with limit:
            passed.append(number)
            assert gates[number].wait(PATIENCE)

    threads = []
    for number in range(9):
        threads.append(threading.Thread(target=call, args=(number,)))
        threads[-1].start()
        began.append(number)
        until(lambda: len(passed) + len(limit._turns) == len(began))
    assert passed == [0, 1, 2]
    for number in (1, 0, 2):
        before = len(passed)
        gates[number].set()
        until(lambda before=before: len(passed) == before + 1)
    assert passed == [0, 1, 2, 3, 4, 5]
    for gate in gates:
        gate.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(passed) == list(range(9))
    assert limit._free == limit.share == 3


@pytest.mark.parametrize("has_turn", [False, True])
def test_a_call_that_is_cancelled_leaves_its_turn_to_the_next(has_turn):
    """Before its turn has come, and just as it comes."""
    limit = ConcurrencyLimit(SLOTS, CONTEXT)

    async def call():
        async with limit:
            return True

    async def main():
        await limit.__aenter__()
        cancelled, following = asyncio.create_task(call()), asyncio.create_task(call())
        await asyncio.sleep(0)
        assert len(limit._turns) == 2
        # A turn may come from another thread at any time.
        assert not any(turn.cancel() for turn in limit._turns)
        if has_turn:
            await limit.__aexit__()
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        if not has_turn:
            assert limit._turns
            await limit.__aexit__()
        assert not limit._turns
        assert await asyncio.wait_for(following, PATIENCE)

    asyncio.run(main())
    assert limit._free == 1


def test_a_loop_that_is_closed_leaves_its_turn_to_the_next():
    """Its call waits for ever; what it does as it is collected returns no second turn."""
    limit, loop = ConcurrencyLimit(SLOTS, CONTEXT), asyncio.new_event_loop()

    async def call():
        async with limit:
            pass

    with limit:
        lost = loop.create_task(call())
        lost.set_name("lost")
        lost._log_destroy_pending = False
        loop.run_until_complete(asyncio.sleep(0))
        assert len(limit._turns) == 1
        loop.close()
    assert limit._free == 1
    coroutine = lost.get_coro()
    with suppress(RuntimeError):
        coroutine.close()
    assert limit._free == 1


def test_a_coroutine_that_would_hold_up_its_loop_is_refused():
    """By `with` it would keep the call from its end that it waits for."""
    limit = ConcurrencyLimit(SLOTS, CONTEXT)

    async def call():
        with pytest.raises(RuntimeError, match="write `async with limit:` in a coroutine"), limit:
            pass

    asyncio.run(call())
    assert limit._free == 1


@pytest.mark.parametrize("limit", [SLOTS - 1, 0, 7.5, None])
def test_a_limit_below_the_slots_is_refused(limit):
    """Each slot needs a call, so the limit would not hold."""
    with pytest.raises(ValueError, match=r"has 4 slots.*a whole number from 4 on.*option slots"):
        ConcurrencyLimit(limit, CONTEXT)


# -- time


def test_calls_of_a_slow_service_are_cancelled_at_their_time_limit(service, handlers):
    """The connection is closed, the limit is free again, and the next batch goes through."""
    handler, service.way = Calls(limit=SLOTS), "slow"
    policy = replace(RETRIES_LATER, timeout=0.3)
    report = run(handler, [service.url] * 3, policy=policy)
    assert [(offset, attempts) for offset, attempts, _ in failed(report)] == [
        (0, 1), (1, 1), (2, 1),
    ]  # fmt: skip
    assert all("longer than 0.3 s" in one.error for one in report.partitions[0].failed)
    until(lambda: service.lost == service.requests)
    assert handler.limit._free == 1
    service.way = 200
    assert done(run(handler, [service.url] * 3)) == [0, 1, 2]


# -- circuits


@pytest.mark.parametrize("way", ["refuses", "reset", 503])
def test_a_destination_that_fails_costs_few_attempts_and_no_other_destination(
    service, handlers, way
):
    """Three calls fail; then none is made until the pause is over, and no attempt counts."""
    other, handler = Service(), Calls()
    try:
        if way == "refuses":
            service.go_away()
        else:
            service.way = way
        urls = [service.url] * 10 + [other.url] * 10
        policy = replace(RETRIES_LATER, max_attempts=1)
        report = run(handler, urls, policy=policy, concurrency=1)
        assert [one.offset for one in report.dead] == [0, 1, 2]
        assert done(report) == [0, 1, 2, *range(10, 20)]
        assert [(offset, attempts) for offset, attempts, _ in failed(report)] == [
            (offset, 0) for offset in range(3, 10)
        ]
        assert all(PAUSE <= delay <= 1.1 * PAUSE for _, _, delay in failed(report))
        assert {one.error for one in report.partitions[0].failed} == {
            f"the circuit of {service.url} is open"
        }
        assert service.requests == (0 if way == "refuses" else 3)
        assert other.requests == 10
    finally:
        other.end()


def test_a_service_that_goes_away_and_comes_back_gets_one_trial_call(service, handlers):
    """Calls on its broken connections fail; after the pause one call tries, and all go through."""
    handler = Calls()
    assert done(run(handler, [service.url] * 3)) == [0, 1, 2]
    service.go_away()
    report = run(handler, [service.url] * 8, concurrency=1)
    assert [attempts for _, attempts, _ in failed(report)] == [1, 1, 1, 0, 0, 0, 0, 0]
    handler.now = PAUSE
    work = {0: PartitionWork(((0, 100),), dict.fromkeys(range(3), 1))}
    report = run(handler, [service.url] * 8, concurrency=1, work=work)
    assert [attempts for _, attempts, _ in failed(report)] == [2, 1, 1, 0, 0, 0, 0, 0]
    service.come_back()
    before, handler.now = service.requests, 3 * PAUSE
    assert done(run(handler, [service.url] * 8, concurrency=1)) == list(range(8))
    assert service.requests == before + 8


def test_a_circuit_opens_tries_and_closes():
    """By a clock of the test."""
    now = [0.0]
    breaker = CircuitBreaker(2, 10.0, KeyError, clock=lambda: now[0])

    def call(error=None, to="a"):
        with breaker.to(to):
            if error is not None:
                raise error

    def fails(error, to="a"):
        with pytest.raises(type(error)):
            call(error, to)

    def refused():
        with pytest.raises(CircuitOpen) as caught:
            call()
        return caught.value.after

    fails(OSError())
    call()  # ends the row
    fails(OSError())
    fails(Reject())  # so does a record that the service refuses
    fails(OSError())
    fails(KeyError())  # says nothing of the service
    # As a task group raises them.
    fails(ExceptionGroup("", [Reject()]))
    fails(OSError())
    fails(ExceptionGroup("", [CircuitOpen(1.0, "of another")]))
    fails(ExceptionGroup("", [ExceptionGroup("", [KeyError()])]))
    assert not breaker.is_open("a")
    late = breaker.to("a")
    late.__enter__()
    fails(asyncio.CancelledError())
    assert breaker.is_open("a")
    late.__exit__(None, None, None)  # It began before.
    assert 10.0 <= refused() <= 11.0
    for pause in (20.0, 40.0, 80.0, 100.0, 100.0):
        now[0] += 100.0
        trial = breaker.to("a")
        trial.__enter__()
        assert 1.0 <= refused() <= 1.1
        trial.__exit__(OSError, OSError(), None)
        assert pause <= refused() <= 1.1 * pause
    now[0] += 100.0
    fails(KeyError())
    call()
    assert not breaker.is_open("a")
    fails(OSError())
    assert not breaker.is_open("a")
    for _ in range(3):
        fails(CircuitOpen(1.0, "of another"), "b")
    assert set(breaker._circuits) == {"a"}


def test_many_coroutines_make_one_trial_call():
    """The others are refused while it runs."""
    breaker, ways = CircuitBreaker(1, PAUSE, clock=lambda: now[0]), Counter()
    now = [0.0]

    async def call(error):
        try:
            async with breaker.to("a"):
                await asyncio.sleep(0)
                if error is not None:
                    raise error
        except (CircuitOpen, OSError) as failure:
            ways[type(failure)] += 1
        else:
            ways["done"] += 1

    async def main():
        await call(OSError())
        now[0] = PAUSE
        await asyncio.gather(*(call(None) for _ in range(50)))

    asyncio.run(main())
    assert ways == {OSError: 1, CircuitOpen: 49, "done": 1}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"failures": 0}, "failures=0"),
        ({"failures": 1.5}, "failures=1.5"),
        ({"pause": 0}, "pause=0"),
        ({"pause": "10"}, "pause='10'"),
        ({"pause": MAX_WAIT}, "at most 3153600"),
        ({"ignore": (OSError, "KeyError")}, "ignore="),
    ],
)
def test_a_circuit_breaker_names_what_is_out_of_its_range(given, named):
    """With what to give."""
    with pytest.raises((ValueError, TypeError), match=named):
        CircuitBreaker(**given)


def test_of_many_destinations_those_that_failed_first_are_forgotten():
    """Closed ones first; open ones only if there are no others."""
    for failures, kept in ((1, {10_004}), (2, {0, 10_004})):
        breaker = CircuitBreaker(failures, PAUSE)
        for to in (0, *range(10_005)):
            with suppress(OSError, CircuitOpen), breaker.to(to):
                raise OSError
        assert len(breaker._circuits) <= 10_000
        assert {to for to in (0, 1, 10_004) if to in breaker._circuits} == kept


def test_a_destination_that_is_no_text_is_refused_by_name():
    """It would fail as a key of a dictionary."""
    for odd in (["h"], ("h", ["p"])):
        with pytest.raises(TypeError, match=rf"got a {type(odd).__name__}: give a text"):
            CircuitBreaker().to(odd)


def test_an_address_is_shown_without_its_login(caplog):
    """In the log and in the reason."""
    breaker, to = CircuitBreaker(1), "https://me:4711@host/bills?token=4711"
    with suppress(OSError), breaker.to(to):
        raise OSError
    with pytest.raises(
        CircuitOpen, match=r"https://me:\*\*\*@host/bills\?token=\*\*\* is open"
    ) as no:
        breaker.begin(to)
    assert "4711" not in f"{no.value}{caplog.text}"
    assert "me:***@host" in caplog.text


def test_two_calls_do_not_share_a_context():
    """One would end the trial of the other. One after another they may."""
    call = CircuitBreaker().to("a")
    with call, pytest.raises(RuntimeError, match=r"two calls to a share.*for each call"), call:
        pass
    with call:
        pass
    now = [0.0]
    breaker = CircuitBreaker(1, 10.0, clock=lambda: now[0])
    call = breaker.to("a")
    with suppress(OSError), call:
        raise OSError
    with pytest.raises(CircuitOpen), call:
        pass
    now[0] = 20.0
    with call:
        pass
    assert not breaker.is_open("a")


# -- what a service asks for

DATE = "Sun, 06 Nov 1994 08:49:37 GMT"


def message(**fields):
    """Return headers as `http.client` has them."""
    made = Message()
    for name, value in fields.items():
        made[name.replace("_", "-")] = value
    return made


@pytest.mark.parametrize(
    ("headers", "after"),
    [
        ({"Retry-After": "120"}, 120.0),
        ({"retry-after": " 0 "}, 0.0),
        (CIMultiDict({"RETRY-AFTER": "7"}), 7.0),
        ([(b"Retry-After", b"8")], 8.0),
        (message(Retry_After="9"), 9.0),
        ({"Retry-After": "99999999999"}, MAX_WAIT),
        ({"Retry-After": "Sun, 06 Nov 1994 08:50:07 GMT", "Date": DATE}, 30.0),
        ({"Retry-After": "Sunday, 06-Nov-94 08:50:07 GMT", "Date": DATE}, 30.0),
        ({"Retry-After": "Sun Nov  6 08:50:07 1994", "Date": DATE}, 30.0),
        ({"Retry-After": DATE}, 0.0),
        ({"Retry-After": DATE, "Date": "Sun, 06 Nov 1994 09:00:00 GMT"}, 0.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "-1"}, None),
        ({"Retry-After": ""}, None),
        ({"Date": DATE}, None),
        ({}, None),
    ],
)
def test_a_wait_that_a_response_asks_for(headers, after):
    """Seconds or a date, in the headers of any client."""
    found = Retry.after_response(headers, "busy", counts=False)
    assert (found.after, found.reason, found.counts) == (after, "busy", False)


def test_a_date_without_that_of_the_response_counts_from_this_clock():
    """To the second."""
    due = datetime.now(UTC) + timedelta(seconds=300)
    after = Retry.after_response({"Retry-After": format_datetime(due, usegmt=True)}).after
    assert 300 - PATIENCE < after <= 300


@pytest.mark.parametrize("headers", [None, "Retry-After: 5", b"x", 5, [1], ["abc"], [("a",)]])
def test_what_is_no_headers_is_named(headers):
    """By their type: their text may be a secret."""
    kind = type(headers).__name__
    with pytest.raises(ValueError, match=rf"headers of type {kind}: give the headers of the resp"):
        Retry.after_response(headers)


@pytest.mark.parametrize("counts", ["no", 0, None])
def test_a_retry_counts_or_does_not(counts):
    """A text that says no would be true."""
    for make in (Retry, lambda **given: Retry.after_response({}, **given)):
        with pytest.raises(ValueError, match=rf"counts={counts!r}\): give True or False"):
            make(counts=counts)


def test_a_record_waits_as_long_as_the_service_asks_for(service, handlers):
    """As its failure reports it."""
    service.way, service.headers = 429, {"Retry-After": "4711"}
    report = run(Calls(), [service.url])
    assert failed(report) == [(0, 1, 4711.0)]


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_retry_that_does_not_count_leaves_all_attempts(concurrency):
    """Of a plain handler in the task's thread, and on threads."""

    def handler(record):
        raise Retry(PAUSE, counts=record.offset % 2 == 0)

    policy = RetryPolicy(max_attempts=3)
    work = {0: PartitionWork(((0, 10),), {0: 2, 1: 2, 2: 1})}
    report = run(handler, ["http://a"] * 4, work=work, policy=policy, concurrency=concurrency)
    assert [one.offset for one in report.dead] == [0]
    assert failed(report) == [(1, 2, PAUSE), (2, 2, PAUSE), (3, 0, PAUSE)]


def test_retries_that_do_not_count_survive_pickling_and_are_recorded():
    """With what they have; a subclass without its own state counts."""
    for error in (Retry(2.0, "why", {"a": b"1"}, counts=False), CircuitOpen(2.0, "why")):
        again = pickle.loads(pickle.dumps(error))
        assert (again.after, again.reason, again.counts) == (2.0, "why", False)
        assert outcome_of(again) == "postponed"
    assert outcome_of(Retry()) == outcome_of(OSError()) == "retry"
    assert outcome_of(Reject()) == "reject"
    with suppress(Retry):
        raise Retry
