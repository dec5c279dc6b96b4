"""Slots that fail for a cause outside of the handler: nothing is in doubt, and the job says why."""

from __future__ import annotations

import time

import pytest

from coopconsume.errors import HandlerNotOpened, SlotFailed
from coopconsume.record import RetryPolicy
from coopconsume.worker.report import SlotEnd
from coopconsume.worker.slot import SlotRunner
from tests.model.job_world import Calls, World, until

LONG = "300 seconds"


@pytest.fixture
def world(monkeypatch, tmp_path):
    """Return a world with a channel, whose slots fail as long as `failing` says why."""
    log = {offset: b"k%d" % (offset % 5) for offset in range(20)}
    made = World(monkeypatch, tmp_path, log, channel=True, handlerTimeout=LONG)
    made.failing = []
    handle = SlotRunner._handle

    def fails(self, slot, batches, channel):
        if made.failing:
            raise OSError(made.failing[-1])
        return handle(self, slot, batches, channel)

    run = SlotRunner.run

    def run_or_fail(self, slot, batches):
        # As the second attempt of a task reports it.
        try:
            return run(self, slot, batches)
        except OSError as error:
            outcome = self._outcome(slot)
            outcome.fail(error)
            return outcome.close(SlotEnd(crashed=True))

    monkeypatch.setattr(SlotRunner, "_handle", fails)
    monkeypatch.setattr(SlotRunner, "run", run_or_fail)
    monkeypatch.setattr("coopconsume.runtime.dispatch.job_slots._PAUSE", 0.05)
    yield made
    made.close()


def test_slots_that_fail_in_four_batches_in_a_row_end_the_job_with_the_reason(world, monkeypatch):
    """They pause meanwhile, are not considered lost, and no record is charged."""
    batches = []
    pauses = []
    launched = "coopconsume.runtime.status.progress.Meter.launched"
    monkeypatch.setattr(launched, lambda _, number, plan: batches.append((number, plan.slots)))
    world.failing.append("the folder is damaged")
    handler = Calls()
    job = world.run(world.claim(), handler)

    def has_ended():
        found = dict(job._dispatcher.slots.failing)
        if any(at > time.monotonic() for at, _ in found.values()):
            pauses.append(found)
        return job.ended.is_set()

    until(has_ended)
    assert isinstance(job.error, SlotFailed)
    assert job.error.cause == "OSError: the folder is damaged"
    assert len(batches) >= 4
    assert pauses
    assert all(why == job.error.cause for one in pauses for _, why in one.values())
    assert not handler.calls
    assert not job._dispatcher.slots.barred


def test_slots_go_on_at_once_when_the_cause_is_gone(world):
    """Batches in which something was handled are no failures in a row; the reason is shown."""
    world.failing.append("the folder is damaged")
    handler = Calls()
    member = world.claim()
    job = world.run(member, handler, policy=RetryPolicy(max_attempts=1))
    until(lambda: job._dispatcher.slots.failing)
    assert "OSError: the folder is damaged" in job._meter.message
    world.failing.clear()
    world.until(lambda: world.done(member) == set(range(20)))
    assert handler.count.total() == 20


def test_a_task_that_fails_before_its_slot_begins_leaves_nothing_in_doubt(world, monkeypatch):
    """Spark has run it a second time, and the first attempt has not connected."""
    run, failed = SlotRunner.run, []

    def never_begins(self, slot, batches):
        if slot == 1 and not failed:
            failed.append(slot)
            from coopconsume.worker.report import SlotEnd, SlotReport

            return SlotReport(self._spec.batch, slot, end=SlotEnd(unknown=True))
        return run(self, slot, batches)

    monkeypatch.setattr(SlotRunner, "run", never_begins)
    member, handler = world.claim(), Calls()
    job = world.run(member, handler)
    world.until(lambda: world.done(member) == set(range(20)))
    assert failed == [1]
    assert not job._dispatcher.slots.barred
    assert handler.count.total() == 20


class Opens(Calls):
    """A handler whose `open` fails so often."""

    failures = 0

    def open(self, _slot):
        """Opens it."""
        if Opens.failures:
            Opens.failures -= 1
            raise OSError("the service is away")


def test_a_handler_that_cannot_be_opened_four_times_in_a_row_ends_the_job(world, monkeypatch):
    """Of one slot, whatever others do; its records are not charged."""
    monkeypatch.setattr(Opens, "failures", 10**6)
    member, handler = world.claim(), Opens()
    job = world.run(member, handler, policy=RetryPolicy(max_attempts=1))
    slots = job._dispatcher.slots
    until(lambda: job.ended.is_set() or 5 in slots.unopened.values())
    assert isinstance(job.error, HandlerNotOpened)
    assert job.error.handler == "Opens"
    assert job.error.cause == "OSError: the service is away"
    assert not handler.calls
    assert not world.done(member)


def test_a_handler_that_is_opened_in_time_handles_all(world, monkeypatch):
    """A slot tries three times again, and its failures are shown until then."""
    monkeypatch.setattr(Opens, "failures", 3)
    member, handler = world.claim(), Opens()
    job = world.run(member, handler, policy=RetryPolicy(max_attempts=1))
    until(lambda: job._dispatcher.slots.failing or world.done(member))
    assert "its handler cannot be opened: OSError" in job._meter.message
    world.until(lambda: world.done(member) == set(range(20)))
    assert handler.count.total() == 20
    until(lambda: not job._dispatcher.slots.unopened)
