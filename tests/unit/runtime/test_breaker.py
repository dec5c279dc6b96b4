"""The circuit breaker: when it opens, when it tries, when it closes; and what a slot does of it."""

from __future__ import annotations

import dataclasses
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopconsume.record import Record, Reject, Retry
from coopconsume.runtime.dispatch.circuit_breaker import JobCircuitBreaker
from coopconsume.runtime.settle.carryover import SlotCarryover
from coopconsume.worker.frame_runner import FrameHandler
from coopconsume.worker.report import PartitionWork
from tests.unit.worker.slot_harness import PATIENCE, RETRIES_LATER, WAYS, done, run


def test_it_opens_tries_after_the_pause_and_closes():
    """Twice as long after each failed trial, at most ten times; reset once it has closed."""
    breaker = JobCircuitBreaker(5, 10.0)
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


def test_a_trial_that_has_handled_nothing_is_followed_by_a_longer_one():
    """All of its records may have been filtered; the next pause begins with a short one again."""
    breaker = JobCircuitBreaker(5, 10.0)
    breaker.reported("down", 7, 0.0, trial=False)
    assert breaker.may_start(10.0)
    spans = [breaker.trial_offsets]
    for now in (11.0, 12.0):
        breaker.reported("", 0, now, trial=True)
        spans.append(breaker.trial_offsets)
    assert spans == [200, 200 * 64, 200 * 64**2]
    breaker.reported("", 0, 12.0, trial=False)
    assert breaker.trial_offsets == spans[-1], "it was given its records before"
    breaker.reported("still down", 1, 13.0, trial=True)
    assert breaker.may_start(99.0)
    assert (breaker.state, breaker.trial_offsets) == ("trial", 200)


def test_a_slow_batch_from_before_does_not_close_it():
    """Records that other slots handled meanwhile say nothing about now."""
    breaker = JobCircuitBreaker(5, 10.0)
    breaker.reported("down", 7, 0.0, trial=False)
    breaker.reported("", 1_000, 1.0, trial=False)
    assert not breaker.may_start(2.0)
    assert breaker.may_start(10.0)
    breaker.reported("", 1_000, 11.0, trial=False)
    assert breaker.state == "trial"


def test_without_a_number_it_says_nothing():
    """No option, no breaker."""
    assert JobCircuitBreaker(None, 10.0).describe(0.0) is None


def keyed(count):
    """Rows of as many keys."""
    return [(0, o, b"%d" % o) for o in range(count)]


@pytest.mark.parametrize("way", WAYS)
def test_a_slot_stops_after_so_many_failures_in_a_row(way):
    """What was not started is left as it was; those that failed are tried again."""
    at_once = threading.Barrier(4)

    def handler(record):
        if record.offset in range(20, 24) and way == "threads":
            # All threads have noted their successes by then: none comes between the failures.
            at_once.wait(PATIENCE)
        if record.offset >= 20:
            raise OSError("refused")

    report = run(handler, keyed(200), way=way, break_after=5)
    assert report.end.tripped == "OSError: refused"
    # A few may be at work as it trips.
    assert 5 <= report.stats.failures <= 5 + 3
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

    report = run(handler, keyed(200), way=way, break_after=20)
    assert not report.end.tripped
    assert report.stats.handled == 200


def test_a_frame_handler_trips_too():
    """By the frames that failed, each as one; where it answers for each row, by the rows."""

    def handler(frame):
        raise OSError

    report = run(FrameHandler(handler, 4), keyed(40), break_after=6)
    assert report.stats.handled == 24
    assert report.partitions[0].resume == 24
    report = run(FrameHandler(lambda f: [OSError() for _ in f["key"]], 4), keyed(40), break_after=6)
    assert report.stats.handled == 8


@pytest.mark.parametrize("way", [*WAYS, "frames"])
def test_failures_of_several_batches_are_in_a_row(way):
    """Three in one batch and two in the next make five; other ends reset the count."""

    def failing(record):
        raise OSError("refused")

    def batch(handler, **more):
        if way == "frames":
            frames = FrameHandler(lambda f: [_outcome(handler, o) for o in f["offset"]], 1)
            return run(frames, keyed(more.pop("count")), break_after=5, **more)
        return run(handler, keyed(more.pop("count")), way=way, break_after=5, **more)

    first = batch(failing, count=3)
    assert (first.end.streak, first.end.tripped) == (3, "")
    second = batch(failing, count=2, streaks={3: first.end.streak})
    assert second.end.streak == 5
    assert second.end.tripped == "OSError: refused"
    assert batch(failing, count=2, streaks={4: 3}).end.streak == 2, "of another slot"
    assert batch(lambda record: None, count=1, streaks={3: 4}).end.streak == 0
    assert batch(failing, count=0, streaks={3: 4}).end.streak == 4, "no record, no answer"


def _outcome(handler, offset):
    try:
        handler(Record("t", 10, offset.as_py(), None, None, 0, (), 1))
    except OSError as error:
        return error
    return None


@pytest.mark.parametrize("way", WAYS)
def test_a_record_that_is_given_up_without_a_call_is_no_failure_in_a_row(way):
    """Its last attempt was counted as it ended."""
    work = {0: PartitionWork(((0, 10),), attempts={0: 2})}
    policy = dataclasses.replace(RETRIES_LATER, max_attempts=2)
    report = run(
        lambda record: None, keyed(1), way=way, work=work, policy=policy, break_after=1,
        streaks={3: 2},
    )  # fmt: skip
    assert (report.stats.failures, report.end.streak, report.end.tripped) == (1, 2, "")

    def handler(record):
        raise Retry

    work = {0: PartitionWork(((0, 10),), attempts={1: 2})}
    report = run(handler, keyed(2), work=work, policy=policy, break_after=1)
    assert (report.stats.failures, report.end.streak, report.end.tripped) == (2, 0, "")


@given(st.lists(st.lists(st.booleans(), max_size=4), max_size=12), st.integers(1, 8))
@settings(deadline=None, max_examples=100)
def test_however_small_the_batches_it_opens_at_the_same_failure(batches, most):
    """A slot stops where so many in a row have failed, wherever its batches end and begin."""
    carried, outcomes = SlotCarryover(), [fails for batch in batches for fails in batch]
    row, expected = 0, None
    for number, fails in enumerate(outcomes):
        row = row + 1 if fails else 0
        if row == most:
            expected = number
            break
    seen, tripped = -1, None
    for batch in batches:

        def handler(record, batch=batch):
            if batch[record.offset]:
                raise OSError

        report = run(handler, keyed(len(batch)), break_after=most, streaks=dict(carried.streaks))
        seen += report.stats.handled
        if report.end.tripped:
            tripped = seen
            break
        carried.failed(3, report.end.streak, restarts=False)
    assert tripped == expected


def test_a_pause_resets_the_streaks_of_all_slots():
    """What failed before a trial went well says nothing of what comes after."""
    carried = SlotCarryover()
    carried.failed(1, 19, restarts=False)
    carried.failed(2, 7, restarts=False)
    assert carried.streaks == {1: 19, 2: 7}
    carried.failed(2, 20, restarts=True)
    assert not carried.streaks
