"""`coopconsume.testing`: tests of users' handlers, as its how-to page shows them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from coopconsume import Record, Reject, RetryPolicy
from coopconsume.errors import HandlerNotUsable
from coopconsume.testing import Fault, recorded, run_handler
from coopconsume.worker.frame_runner import FrameHandler

pytestmark = [pytest.mark.spark, pytest.mark.broker]

ORDERS = [(b"customer-%d" % (i % 5), b"" if i == 17 else b"%d" % i) for i in range(40)]


def bill(record):
    """Bill an order; one without content can never be billed."""
    if not record.value:
        raise Reject("an order without content")
    return {"customer": record.key.decode(), "cents": int(record.value)}


def test_a_service_that_is_away_and_a_worker_that_dies(kafka, spark):
    """Each order is billed once, in the order of its customer."""

    def faults(record):
        if record.attempt > 1:
            return None
        if record.offset == 23:
            return Fault(end_worker=True)
        return Fault(error=OSError("the service is away")) if record.offset % 7 == 0 else None

    run = run_handler(
        bill, ORDERS, kafka=kafka, spark=spark, faults=faults,
        output_schema="customer string, cents long", options={"slots": 2},
        retry=RetryPolicy(max_attempts=4, backoff=0.0),
    )  # fmt: skip
    assert run.verdict.ok, str(run.verdict)
    assert [letter["_offset"] for letter in run.dead_letters] == [17]
    assert [row["cents"] for row in run.rows] == [n for n in range(40) if n != 17]
    calls = list(run.history)
    assert sum(call.end_ns is None for call in calls) >= 1
    failed = {call.offset for call in calls if "the service is away" in call.error}
    assert failed >= {n for n in range(40) if n % 7 == 0}


@dataclass(frozen=True)
class Order:
    """An order as its topic has it, in JSON."""

    cents: int


def book(record: Record[str, Order]):
    """Book an order of a customer."""
    return {"customer": record.key, "cents": record.value.cents}


def test_a_typed_handler_gets_raw_records_decoded(kafka, spark):
    """What does not decode is a dead letter without a call; the history has the keys as bytes."""
    cents = [(b"ada", b"1"), (b"ada", b"none"), (b"ada", b"3"), (b"bob", b"4")]
    run = run_handler(
        book, [(name, b'{"cents": %s}' % value) for name, value in cents],
        kafka=kafka, spark=spark, value=Order, key="text",
        output_schema="customer string, cents long", options={"slots": 2},
        faults=lambda r: Fault(error=OSError(r.key)) if r.value == Order(3) else None,
    )  # fmt: skip
    assert run.verdict.ok, str(run.verdict)
    assert [(row["customer"], row["cents"]) for row in run.rows] == [("ada", 1), ("bob", 4)]
    reasons = [letter["reason"].partition(":")[0] for letter in run.dead_letters]
    assert reasons == ["NotDecodable", "OSError"]
    calls = sorted((call.offset, call.attempt, call.key) for call in run.history)
    assert calls == [(0, 1, b"ada"), *((2, n, b"ada") for n in (1, 2, 3)), (3, 1, b"bob")]


class Ask:
    """Asks a service, by a client that each worker opens once."""

    client = None

    async def open(self, slot):
        """Open the client."""
        assert slot.slot >= 0
        self.client = asyncio.get_running_loop()

    async def __call__(self, record):
        """Ask."""
        assert self.client is asyncio.get_running_loop()
        await asyncio.sleep(0.01)


def test_an_async_handler_that_is_slow_at_some_records(kafka, spark):
    """Faults reach coroutines, too; an attempt too many is a dead letter."""
    run = run_handler(
        Ask, ORDERS, kafka=kafka, spark=spark, concurrency=8,
        faults=lambda r: Fault(delay=0.2, error=ValueError("no")) if r.offset in (3, 4) else None,
        retry=RetryPolicy(max_attempts=2, backoff=0.0),
    )  # fmt: skip
    assert run.verdict.ok, str(run.verdict)
    assert [letter["_offset"] for letter in run.dead_letters] == [3, 4]
    slow = [call for call in run.history if call.offset in (3, 4)]
    assert len(slow) == 4
    assert all(call.end_ns - call.start_ns > 0.2e9 for call in slow)


def test_a_job_that_does_not_end_is_stopped(kafka, spark):
    """And a frame handler is refused."""
    with pytest.raises(TimeoutError, match=r"still runs after 0\.5 s"):
        run_handler(
            bill, ORDERS[:1], kafka=kafka, spark=spark, timeout=0.5,
            faults=lambda _: Fault(delay=3.0),
        )  # fmt: skip
    with pytest.raises(HandlerNotUsable, match="single records"):
        recorded(FrameHandler(print, 10, "arrow"), "/nowhere")
