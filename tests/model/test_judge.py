"""The checker of chaos runs beside jobs in this process: what each planted fault looks like."""

from __future__ import annotations

import os
import threading
import time

import pytest

from coopconsume.testing.history import check, read_history
from tests.model.job_world import _PATIENCE, TP, World, until
from tests.spark.support import Recorded

KEYS = {offset: b"k%d" % (offset % 5) for offset in range(20)}


class Judged:
    """Members of one group in this process, each with a history of its own."""

    def __init__(self, monkeypatch, folder, **options):
        self.there = World(monkeypatch, folder, KEYS, **options)
        self._folder = folder
        self._histories = []

    def run(self, member, handler, **work):
        """A job of one member whose calls are recorded."""
        self._histories.append(self._folder / f"history-{len(self._histories)}")
        return self.there.run(member, Recorded(self._histories[-1], handler), **work)

    def verdict(self, member):
        """What the checker makes of it: no process was disturbed, so no repeat is excused."""
        everything = self._folder / "history"
        everything.mkdir()
        for history in self._histories:
            for file in history.glob("calls-*"):
                os.link(file, everything / file.name)
        done = {TP: [(offset, offset) for offset in self.there.done(member)]}
        return check(read_history(everything), {TP: self.there.kafka.log}, done, {}, {})


@pytest.fixture
def judged(monkeypatch, tmp_path):
    """Return what makes a group; its jobs are ended with the test."""
    made = []

    def make(**options):
        made.append(Judged(monkeypatch, tmp_path, **options))
        return made[-1]

    yield make
    for one in made:
        one.there.close()


def test_work_of_a_lost_task_is_seen_to_be_done(judged):
    """A commit without a handler would be a lost record."""
    group = judged(batchTime="0.2 seconds", handlerTimeout="0.2 seconds")
    group.there.failures = [RuntimeError("executor lost")]
    member = group.there.claim()
    group.run(member, None)
    group.there.until(lambda: group.there.done(member) >= set(range(20)))
    verdict = group.verdict(member)
    assert verdict.ok, str(verdict)


class FailsUntilOpened:
    """Fails for one offset until it is opened."""

    def __init__(self, offset):
        self.offset = offset
        self.has_failed = threading.Event()
        self.opened = threading.Event()

    def __call__(self, record):
        if record.offset == self.offset and not self.opened.is_set():
            self.has_failed.set()
            raise RuntimeError("not yet")


def test_what_comes_while_a_record_waits_for_its_next_attempt_is_seen_to_wait(judged):
    """A batch that is planned meanwhile starts nothing of its key."""
    group = judged()
    member, handler = group.there.claim(), FailsUntilOpened(3)
    group.run(member, handler)
    assert handler.has_failed.wait(_PATIENCE)
    group.there.until(lambda: group.there.done(member) >= set(range(20)) - {3, 8, 13, 18})
    group.there.kafka.log |= {offset: b"k%d" % (offset % 5) for offset in range(20, 30)}
    group.there.kafka.end = 30
    group.there.until(lambda: group.there.done(member) >= {20, 21, 22, 24, 25, 26, 27, 29})
    handler.opened.set()
    group.there.until(lambda: group.there.done(member) == set(range(30)))
    verdict = group.verdict(member)
    assert verdict.ok, str(verdict)


class TakesLong:
    """Takes some seconds for one offset."""

    def __init__(self, offset, seconds):
        self.offset, self.seconds = offset, seconds
        self.is_at_work = threading.Event()

    def __call__(self, record):
        if record.offset == self.offset:
            self.is_at_work.set()
            time.sleep(self.seconds)


def test_a_handler_that_outlives_its_member_is_seen_to_be_waited_for(judged):
    """Its records are taken over; no handler of their keys starts while it runs."""
    group = judged(batchTime="1 second", handlerTimeout="2 seconds")
    first, handler = group.there.claim(), TakesLong(3, 2.0)
    group.run(first, handler)
    assert handler.is_at_work.wait(_PATIENCE)
    second = group.there.claim(takeover=True)
    group.run(second, None)
    # The first job ends as it is fenced.
    until(lambda: group.there.done(second) == set(range(20)))
    verdict = group.verdict(second)
    assert not verdict.overlaps, str(verdict)
    assert not verdict.order_breaks, str(verdict)
    assert not verdict.lost, str(verdict)


def test_a_hand_over_is_seen_to_repeat_nothing(judged):
    """It waits for the handler that runs, so that its record counts."""
    group = judged(batchTime="1 second", handlerTimeout="2 seconds", drainTimeout="300 seconds")
    first, gate = group.there.claim(), group.there.gate(3)
    job = group.run(first, gate)
    group.there.until(lambda: gate.at_work)
    handing_over = threading.Thread(target=first.owner.hand_over)
    handing_over.start()
    until(lambda: job._rebalance.hand_over is not None or not handing_over.is_alive())
    group.there.turns(job)
    gate.opened.set()
    handing_over.join(_PATIENCE)
    second = group.there.claim()
    group.run(second, None)
    until(lambda: group.there.done(second) == set(range(20)))
    verdict = group.verdict(second)
    assert verdict.ok, str(verdict)
