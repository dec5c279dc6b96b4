"""A job's slots: stuck handlers, records that are given back, lost slots, stops."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import Counter
from unittest.mock import Mock

import pytest

from assignors import KeyRange, key_hash
from coopconsume.consumer import CooperativeConsumer
from coopconsume.errors import BrokerUnreachable
from coopconsume.group.epoch_proof import EpochProof
from coopconsume.record import Reject
from coopconsume.subscription import QueryRun, Subscription
from tests.model.job_group import KEYS, WHOLE, Group, slot_mates
from tests.model.job_sinks import Unreliable
from tests.model.job_world import _PATIENCE, TP, keeps, until


def test_a_stuck_handler_holds_back_no_commit_of_what_is_done(world):
    """Its slot and all others report what is done while it runs; it comes with its own end."""
    there = world(channel=True)
    member, gate = there.claim(), there.gate(13)
    there.run(member, gate)
    behind = {o for o in slot_mates(13) if o >= 13}
    there.until(lambda: there.done(member) == set(range(20)) - behind)
    gate.opened.set()
    there.until(lambda: there.done(member) == set(range(20)))
    assert sorted(offset for offset, _ in gate.calls) == list(range(20))


def test_a_stuck_handler_costs_its_own_key(world):
    """All other keys go on, of its partition and of another one, and its own go on after it.

    So do records that come later.
    """
    there = world(channel=True, slow=0.1)
    there.kafka.partitions = 2
    member, gate, other = there.claim(), there.gate(4), there.gate()
    there.run(member, lambda record: (other if record.partition else gate)(record))

    def is_done_beside_it():
        end = there.kafka.end
        rest = {o for o in range(end) if o % 5 != 4}
        return there.done(member) == rest and there.done(member, ("t", 1)) == set(range(end))

    there.until(is_done_beside_it)
    there.kafka.log |= {offset: b"k%d" % (offset % 5) for offset in range(20, 40)}
    there.kafka.end = 40
    there.until(is_done_beside_it)
    assert sorted(offset for offset, _ in other.calls) == list(range(40))
    assert [offset for offset, _ in gate.calls if offset % 5 == 4] == [4]
    gate.opened.set()
    there.until(lambda: there.done(member) == set(range(40)))
    calls = [offset for offset, _ in gate.calls]
    assert sorted(calls) == list(range(40))
    assert [offset for offset in calls if offset % 5 == 4] == list(range(4, 40, 5))


def test_filtered_records_are_committed_and_counted_without_a_handler(world):
    """A stuck handler does not hold them back; the log has the filter and how many it dropped."""
    there = world(channel=True, denyKeys="k1")
    member, gate = there.claim(), there.gate(4)
    job = there.run(member, gate)
    there.until(lambda: there.done(member) >= {o for o in range(20) if o % 5 == 1})
    gate.opened.set()
    there.until(lambda: there.done(member) == set(range(20)))
    assert sorted(offset for offset, _ in gate.calls) == [o for o in range(20) if o % 5 != 1]
    there.until(lambda: job._meter.totals["done"] == 20)
    assert job._meter.totals["filtered"] == 4
    history = member.store.history("g")
    assert sum(p["filtered"] for e in history for p in e["partitions"]
               if e["kind"] == "commit") == 4  # fmt: skip
    (claim,) = [e for e in history if e["kind"] == "claim"]
    assert claim["detail"]["filter"] == "denyKeys=k1"


def test_relief_starts_no_more_handlers_at_once_than_there_are_slots(world):
    """The task that keeps the stuck record counts; the other keys of its slot have their turn."""
    there = world(
        keys={offset: b"k%d" % (offset % 20) for offset in range(200)}, channel=True, slow=0.1
    )
    member, gate = there.claim(), there.gate(4)
    running, most, lock = [0], [0], threading.Lock()

    def handler(record):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        try:
            time.sleep(0.002)
            gate(record)
        finally:
            with lock:
                running[0] -= 1

    job = there.run(member, handler)
    there.until(lambda: any(map(keeps, job._dispatcher.runs.by_number.copy().values())))
    there.kafka.log |= {offset: b"k%d" % (offset % 20) for offset in range(200, 400)}
    there.kafka.end = 400
    there.until(lambda: there.done(member) == {o for o in range(400) if o % 20 != 4})
    gate.opened.set()
    there.until(lambda: there.done(member) == set(range(400)))
    assert most[0] == 2


def test_a_record_whose_slot_is_lost_is_done_again_after_its_lease_and_holds_back_its_key_alone(
    world,
):
    """The slot has given back all else: that is not in doubt, and goes on at once."""
    there = world(channel=True, slow=0.1, handlerTimeout="0.1 seconds")
    member, gate = there.claim(), there.gate(4)
    job = there.run(member, gate)
    there.until(lambda: there.done(member) == {o for o in range(20) if o % 5 != 4})
    job._dispatcher.leases._server._on_report = lambda _: None
    there.until_one_slot_works(job)
    there.dying = 1
    lost_at = time.monotonic()
    gate.opened.set()
    there.until(lambda: job._meter.totals["lostSlots"])
    there.kafka.log |= {offset: b"k%d" % (offset % 5) for offset in range(20, 30)}
    there.kafka.end = 30
    assert not job._dispatcher.slots.barred
    there.until(lambda: there.done(member) == set(range(30)))
    assert [offset for offset, _ in gate.calls if offset % 5 == 4] == [4, 4, 9, 14, 19, 24, 29]
    assert max(Counter(offset for offset, _ in gate.calls if offset != 4).values()) == 1
    again = max(at for offset, at in gate.calls if offset == 4)
    assert 2.0 < again - lost_at < 60


def test_one_slot_is_left_to_go_on_with(world):
    """A task that keeps a record keeps its core."""
    there = world(channel=True, slow=0.1)
    other = next(o for o in range(20) if o not in slot_mates(3))
    member, gate = there.claim(), there.gate(3, other)
    job = there.run(member, gate)
    there.until(lambda: gate.at_work == {3, other})
    there.until(lambda: any(map(keeps, job._dispatcher.runs.by_number.copy().values())))
    since = time.monotonic()
    there.until(lambda: time.monotonic() > since + 0.5)
    runs = job._dispatcher.runs.by_number.copy().values()
    assert sum(task.kept is not None for run in runs for task in run.tasks.values()) == 1
    gate.opened.set()
    there.until(lambda: there.done(member) == set(range(20)))
    assert sorted(offset for offset, _ in gate.calls) == list(range(20))


@pytest.mark.parametrize("does", ["fails", "is rejected", "is stopped"])
def test_a_record_that_its_slot_keeps_may_fail_or_be_the_last_one(world, does):
    """It is tried again before its key goes on; a stop waits for it and commits it."""
    there = world(channel=True, slow=0.1)
    member, gate, sink = there.claim(), there.gate(4), Unreliable()

    def handler(record):
        gate(record)
        if record.offset == 4 and does != "is stopped" and record.attempt == 1:
            raise Reject("no") if does == "is rejected" else RuntimeError("planned")

    job = there.run(member, handler, dead_letters=sink)
    there.until(lambda: there.done(member) == {o for o in range(20) if o % 5 != 4})
    if does == "is stopped":
        stopping = threading.Thread(target=job.stop)
        stopping.start()
        there.until(lambda: job._completion.is_stopping)
        there.turns(job)
        gate.opened.set()
        stopping.join(120)
        assert job.error is None
        assert there.done(member) == {o for o in range(20) if o % 5 != 4 or o == 4}
        return
    gate.opened.set()
    there.until(lambda: there.done(member) == set(range(20)))
    calls = [offset for offset, _ in gate.calls if offset % 5 == 4]
    assert calls == [4] * (1 + (does == "fails")) + [9, 14, 19]
    assert sink.written == ([4] if does == "is rejected" else [])


def test_a_lost_slot_repeats_only_what_it_did_not_report(world, caplog):
    """What was committed while it worked is not handled again, and the rest waits for its lease.

    The log names it before any of that is planned again.
    """
    there = world(channel=True, handlerTimeout="0.1 seconds")
    member, gate = there.claim(), there.gate(13)
    job = there.run(member, gate)
    behind = {o for o in slot_mates(13) if o >= 13}
    there.until(lambda: there.done(member) == set(range(20)) - behind)
    there.until_one_slot_works(job)
    there.dying = 1
    lost_at = time.monotonic()
    gate.opened.set()
    there.until(lambda: there.done(member) == set(range(20)))
    (line,) = [record for record in caplog.records if hasattr(record, "lostSlot")]
    assert (line.lostSlot["pid"], line.lostSlot["reason"]) == (os.getpid(), "it is lost")
    assert 2.0 < line.lostSlot["mayRunFor"] < 3.0
    counts = Counter(offset for offset, _ in gate.calls)
    assert {offset for offset, count in counts.items() if count > 1} <= behind
    assert counts[13] == 2
    again = max(at for offset, at in gate.calls if offset == 13)
    assert 2.0 < again - lost_at < 60


@pytest.mark.parametrize("how", ["stop", "trial", "pause", "drain"])
def test_a_stop_starts_nothing_more_and_commits_what_has_run(world, monkeypatch, how):
    """A pause does so, too, until it ends; where it is to drain, all that was read is handled."""
    there = world(channel=True)
    if how == "trial":  # Its slots are not asked to give records back.
        monkeypatch.setattr(
            "coopconsume.runtime.dispatch.slot_requests.SlotRequests.may_relieve", lambda *_: False
        )
    member, gate = there.claim(), there.gate(3)
    job = there.run(member, gate)
    there.until(lambda: gate.at_work)
    if how == "pause":
        job.pause()
        there.turns(job)
    else:
        stopping = threading.Thread(target=job.stop, kwargs={"drain": how == "drain"})
        stopping.start()
        there.until(lambda: job._completion.is_stopping)
        there.turns(job)
    slots = job._dispatcher.leases._server._slots
    tasks = next(iter(job._dispatcher.runs.by_number.copy().values())).tasks.values()
    stopped = any(task.is_stopped for task in tasks)
    assert stopped == (how != "drain")
    until(lambda: not stopped or all(one.is_asked_to_stop for one in slots.values()))
    gate.opened.set()
    if how == "pause":
        there.until(lambda: not job._dispatcher.runs.by_number)
        there.until(lambda: there.done(member) == {offset for offset, _ in gate.calls})
    else:
        stopping.join(120)
        assert job.ended.is_set()
        assert job.error is None
    called = {offset for offset, _ in gate.calls}
    assert there.done(member) == called
    assert called == set(range(20)) if how == "drain" else not slot_mates(3) <= called
    if how == "pause":
        # Until its state is noted again, running handlers go on to their end.
        there.until(lambda: job._meter.message == "paused by pause(): resume() continues")
        assert job._meter.waiting.reason == "paused"
        job.resume()
        there.until(lambda: there.done(member) == set(range(20)))
    assert sorted(offset for offset, _ in gate.calls) == sorted(there.done(member))


def test_the_loop_goes_on_while_the_commit_table_does_not_answer(world, monkeypatch):
    """No batch starts meanwhile; what the job is asked for, it does."""
    there = world()
    member, asked, answers = there.claim(), threading.Event(), threading.Event()
    check = EpochProof.check

    def silent(self, *within, **named):
        asked.set()
        assert answers.wait(120)
        return check(self, *within, **named)

    monkeypatch.setattr(EpochProof, "check", silent)
    member.assignment.proof._seen = -math.inf
    handled = []
    job = there.run(member, lambda record: handled.append(record.offset))
    try:
        until(asked.is_set)
        job.pause()
        until(lambda: (waiting := job._meter.waiting) is not None and waiting.reason == "paused")
        job.resume()
        there.turns(job)
        assert not job._dispatcher.runs.by_number
        assert not handled
    finally:
        answers.set()
    there.until(lambda: there.done(member) == set(range(20)))


def test_batches_start_while_looks_at_kafka_take_longer_than_the_epoch_is_confirmed_for(
    world, monkeypatch
):
    """And fail: what is known to be there is handled, by an answer that came after the look."""
    there = world(maxOffsetsPerTrigger=5)
    member = there.claim()
    monkeypatch.setattr("coopconsume.group.epoch_proof.LEASE", 0.1)
    looks, log_ends = [], member.cluster.log_ends

    def unanswered(partitions):
        looks.append(partitions)
        if len(looks) == 1:
            return log_ends(partitions)
        time.sleep(0.2)
        raise BrokerUnreachable("broker:9092", "no answer")

    monkeypatch.setattr(member.cluster, "log_ends", unanswered)
    there.run(member, lambda _: until(lambda: len(looks) > 2))
    there.until(lambda: there.done(member) == set(range(20)))


@pytest.mark.parametrize("how", ["stop", "close"])
def test_a_stop_leaves_what_outlasts_its_timeout_in_doubt(world, how):
    """None starts, all else that is done is committed; that record comes again, after its handler.

    The stop is over while the handler still runs.
    """
    there = world(channel=True, batchTime="1 seconds")
    member, gate = there.claim(), there.gate(3)
    job = there.run(member, gate)
    there.until(lambda: gate.at_work)
    if how == "stop":
        job.stop(0.2)
        waits = member.assignment.in_doubt.seconds(TP, [KeyRange()])
    else:
        consumer = object.__new__(CooperativeConsumer)
        subscription = Subscription(there.options, Mock(), Mock())
        subscription.membership, subscription.query = member, QueryRun(job, job._meter)
        vars(consumer).update(_subscription=subscription, _poller=Mock(), _page=Mock())
        consumer.close(timeout=0.2)
        member = there.claim()
        waits = member.assignment.in_doubt.seconds(TP, [KeyRange()])
    assert waits > 0
    assert job.ended.is_set()
    assert job.error is None
    called = {offset for offset, _ in gate.calls}
    assert there.done(member) == called - {3}
    gate.opened.set()
    until(lambda: not job._dispatcher._jobs._threads._open)
    assert {offset for offset, _ in gate.calls} == called


def test_a_handler_call_that_takes_long_is_named_until_it_ends(world, monkeypatch):
    """In progress and among the reasons; whatever the other slot reports."""
    monkeypatch.setattr("coopconsume.worker.channel.client.SLOW_CALL", 0.0)
    there = world(channel=True)
    member, gate = there.claim(), there.gate(3)
    job = there.run(member, gate)
    meter = job._meter
    there.until(lambda: meter.waiting is not None and meter.oldest_call is not None)
    at = meter.oldest_call.topic, meter.oldest_call.partition, meter.oldest_call.offset
    assert at == (*TP, 3)
    there.until(lambda: "that of t-0@3 runs for" in meter.waiting.message)
    there.until(lambda: (meter.recent[-1]["oldestHandler"] or {}).get("offset") == 3)
    gate.opened.set()
    there.until(lambda: there.done(member) == set(range(20)))
    there.until(lambda: meter.oldest_call is None)


def test_a_batch_that_has_not_begun_is_ended_by_a_pause_and_is_in_nobodys_way(world):
    """None of its slots can have started a record: there is nothing to wait for."""
    there = world(channel=True)
    there.is_reading = True
    member, gate = there.claim(), there.gate()
    job = there.run(member, gate)
    there.until(lambda: job._dispatcher.runs.by_number)
    # Slots that do not start are visible within seconds, in an event of their own.
    there.until(lambda: job._meter.waiting is not None)
    waiting = job._meter.recent[-1]["waitingFor"]
    assert waiting["reason"] == "slots"
    assert waiting["message"].startswith("starting: Spark starts 2 slots; ")
    job.pause()
    there.until(lambda: not job._dispatcher.runs.by_number)
    assert not job._dispatcher.slots.barred
    assert not job._meter.totals["lostSlots"]
    job.resume()
    there.until(lambda: there.done(member) == set(range(20)))
    assert sorted(offset for offset, _ in gate.calls) == list(range(20))


def test_a_batch_that_has_not_begun_is_in_nobodys_way_if_its_job_fails(world):
    """Its slots never begin."""
    there = world(channel=True)
    there.without_core = {0, 1}
    member, gate = there.claim(), there.gate()
    job = there.run(member, gate)
    there.until(lambda: job._dispatcher.runs.by_number)
    job._requests.fail(RuntimeError("the group is gone"))
    until(job.ended.is_set)
    assert member.assignment.in_doubt.seconds(TP, [KeyRange()]) <= 0
    there.end(job)


def test_a_batch_that_has_not_begun_is_in_nobodys_way_if_its_topic_is_created_again(world):
    """The member joins again, and gives back all that it had without a doubt."""
    group = Group(world(channel=True, failOnDataLoss=False))
    there, member = group.there, group.member
    group.opens([WHOLE])
    group.begins(continues=False)
    group.joins_a_group()
    there.without_core = {0, 1}
    job = there.run(member, there.gate())
    there.until(lambda: job._dispatcher.runs.by_number)
    there.kafka.topic_id, there.kafka.end = "new", 0
    there.until(lambda: not member.owner.has_shares)
    there.until(lambda: job._epoch_state is None)
    group.opens([], [WHOLE])
    assert not group.in_doubt(WHOLE)


@pytest.mark.parametrize("how", ["stop", "hand over", "late hand over"])
def test_a_slot_that_waits_for_a_core_is_in_nobodys_way(world, how):
    """Others of its batch are at work: it never begins, and its keys are not in doubt."""
    there = world(channel=True, drainTimeout="300 seconds")
    halves = KeyRange().split(2)
    at_work = next(slot for slot, half in enumerate(halves) if half.contains(key_hash(KEYS[3])))
    there.without_core = {1 - at_work}
    member, gate = there.claim(), there.gate(3)
    job = there.run(member, gate)
    there.until(lambda: gate.at_work)
    running = next(iter(job._dispatcher.runs.by_number.copy().values()))
    ends = threading.Thread(target=job.stop if how == "stop" else member.owner.hand_over)
    ends.start()
    until(lambda: keeps(running))
    if how == "late hand over":
        job._rebalance.hand_over.until = 0.0
    else:
        gate.opened.set()
    ends.join(_PATIENCE)
    assert not ends.is_alive()
    assignment = member.assignment or there.claim().assignment
    assert assignment.in_doubt.seconds(TP, [halves[1 - at_work]]) <= 0
    assert (assignment.in_doubt.seconds(TP, [halves[at_work]]) > 0) == (how == "late hand over")
    assert {offset for offset, _ in gate.calls} <= slot_mates(3)
