"""The circuit breaker: when it opens, when it tries, when it closes; and what a slot does of it."""

from __future__ import annotations

import pytest

from coopconsume.breaker import Breaker
from coopconsume.frames import BatchHandler
from coopconsume.record import Reject, Retry, RetryPolicy
from tests.unit.slot_ground import WAYS, done, run


def test_it_opens_tries_after_the_pause_and_closes():
    """Twice as long after each failed trial, at most ten times; anew once it has closed."""
    breaker = Breaker(5, 10.0)
    assert breaker.may_start(0.0)
    assert breaker.reported("down", 7, 100.0, trial=False)
    assert not breaker.reported("down", 7, 101.0, trial=False), "it is open already"
    assert not breaker.may_start(109.9)
    assert breaker.describe(104.0) == {
        "state": "open", "opened": 1, "resumesInSeconds": 6.0, "reason": "down",
    }  # fmt: skip
    now = 110.0
    for pause in (20, 40, 80, 100, 100):
        assert breaker.may_start(now)
        assert breaker.state == "trial"
        assert breaker.reported("still down", 1, now, trial=True)
        assert not breaker.may_start(now + pause - 0.1)
        now += pause
    assert breaker.may_start(now)
    assert not breaker.reported("", 0, now, trial=True)
    assert breaker.state == "trial", "no record, no answer"
    assert not breaker.reported("", 3, now, trial=True)
    assert breaker.state == "closed"
    assert breaker.reported("down", 5, now, trial=False)
    assert breaker.until == now + 10


def test_a_slow_batch_from_before_does_not_close_it():
    """Records that other slots handled meanwhile say nothing about now."""
    breaker = Breaker(5, 10.0)
    breaker.reported("down", 7, 0.0, trial=False)
    breaker.reported("", 1_000, 1.0, trial=False)
    assert not breaker.may_start(2.0)
    assert breaker.may_start(10.0)
    breaker.reported("", 1_000, 11.0, trial=False)
    assert breaker.state == "trial"


def test_without_a_number_it_says_nothing():
    """No option, no breaker."""
    assert Breaker(None, 10.0).describe(0.0) is None


def keyed(count):
    """Rows of as many keys."""
    return [(0, o, b"%d" % o) for o in range(count)]


@pytest.mark.parametrize("way", WAYS)
def test_a_slot_stops_after_so_many_failures_in_a_row(way):
    """What was not started is left as it was; those that failed are tried again."""

    def handler(record):
        if record.offset >= 20:
            raise OSError("refused")

    report = run(handler, keyed(200), way=way, break_after=5)
    assert report.tripped == "OSError: refused"
    # A few may be at work as it trips.
    assert 5 <= report.failures <= 5 + 3
    assert done(report) == list(range(20))
    failed = {f.offset for f in report.partitions[0].failed}
    assert report.partitions[0].resume <= max(failed) + 1
    assert not failed & set(done(report))


@pytest.mark.parametrize("way", WAYS)
def test_failures_that_are_not_in_a_row_do_not_trip(way):
    """Nor do Retry and Reject, which are a handler's own word."""

    def handler(record):
        if record.offset < 50:
            raise Retry() if record.offset % 2 else Reject("no")
        if record.offset % 3:
            raise OSError

    report = run(handler, keyed(200), way=way, break_after=20, policy=RetryPolicy(jitter=0))
    assert not report.tripped
    assert report.handled == 200


def test_a_batch_handler_trips_too():
    """By the rows that failed."""

    def handler(frame):
        raise OSError

    report = run(BatchHandler(handler, 4), keyed(40), break_after=6)
    assert report.handled == 8
    assert report.partitions[0].resume == 8
