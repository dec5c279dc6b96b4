"""`stop` and `close` while no broker answers: nothing that is left to do needs one."""

from __future__ import annotations

import threading

import pytest

from assignors import KeyRange
from coopconsume.errors import AlreadyClosed
from coopconsume.runtime.poll.poller import Poller
from tests.model.job_world import _PATIENCE, TP, until

#: Seconds, far longer than any limit, after which an end counts as one that waits for brokers.
_LONG = _PATIENCE


def ends(call):
    """Make a call in a thread; it must return although no broker answers."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(_LONG)
    assert not thread.is_alive(), "it waits for brokers"


@pytest.mark.parametrize("state", ["idle", "at work"])
def test_a_job_stops_and_commits_while_no_broker_answers(world, state):
    """Its call that runs is given up, and it makes no other one."""
    there = world(channel=True, often=False)
    member, gate = there.claim(), there.gate(*([3] if state == "at work" else []))
    job, kafka = there.run(member, gate), there.kafka
    there.until(lambda: gate.at_work or there.done(member) == set(range(20)))
    kafka.answers.clear()
    looks = kafka.calls.count("log ends")
    until(lambda: kafka.calls.count("log ends") > looks)  # The loop waits in it now.
    threading.Timer(0.2, gate.opened.set).start()
    before = [*kafka.calls]
    ends(job.stop)
    assert job.error is None
    assert kafka.calls == before
    assert there.done(member) == {offset for offset, _ in gate.calls}
    ends(member.leave)
    assert not kafka.answers.is_set()


@pytest.mark.parametrize("how", ["stop", "hand over"])
def test_a_batch_that_spark_plans_is_not_waited_for(world, monkeypatch, how):
    """Its slots were stopped before they connected: they start nothing, and nothing is in doubt."""
    there = world(channel=True, drainTimeout="60 seconds")
    monkeypatch.setattr("coopconsume.runtime.dispatch.spark_jobs.interrupt", lambda *_: None)
    there.is_reading = True
    member, gate = there.claim(), there.gate()
    job = there.run(member, gate)
    there.until(lambda: job._dispatcher.runs.by_number and not there.is_reading)
    running = []
    ends(job.stop if how == "stop" else lambda: running.extend(job._requests.hand_over(10 * _LONG)))
    assert job._dispatcher.runs.by_number
    assert running == []
    assert job.error is None
    ends(member.leave)
    assert there.claim().assignment.in_doubt.seconds(TP, [KeyRange()]) <= 0
    assert gate.calls == []
    there.interrupted.set()


def test_a_poll_that_waits_for_brokers_ends_with_its_consumer(world):
    """Like a poll that waits for records."""
    there = world()
    member = there.claim()
    poller = Poller(None, there.options, lambda: 2)
    poller.session.begin(member.assignment)
    there.kafka.answers.clear()
    calls, errors = len(there.kafka.calls), []

    def poll():
        try:
            poller.poll(member, 10 * _LONG)
        except AlreadyClosed as error:
            errors.append(error)

    polling = threading.Thread(target=poll, daemon=True)
    polling.start()
    until(lambda: len(there.kafka.calls) > calls)
    ends(poller.close)
    ends(member.leave)
    polling.join(_LONG)
    assert errors
