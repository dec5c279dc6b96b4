"""A job's loop without Kafka and Spark: lost tasks; logs that are cut, deleted, created again."""

from __future__ import annotations

import math
import threading
from collections import Counter
from dataclasses import replace

import pytest

from assignors import KeyRange, key_hash
from commits import OffsetRanges
from coopconsume.errors import BrokerUnreachable, DataLoss, TopicReplaced
from coopconsume.group.epoch_assignment import EpochAssignment
from coopconsume.group.owned import LEASE
from coopconsume.runtime.dispatch.reports import Reports
from coopconsume.runtime.dispatch.slot_leases import SlotLeases
from tests.model.job_group import KEYS, slot_mates
from tests.model.job_world import TP, Frame, until


@pytest.mark.parametrize("batches", [1, 2])
def test_work_of_a_lost_task_is_done_again_and_nothing_counts_without_a_handler(world, batches):
    """A batch that fails before any handler was called: its slots wait for its life, and begin."""
    there = world(batchTime="0.2 seconds", handlerTimeout="0.2 seconds")
    there.failures = [RuntimeError("executor lost")] * batches
    member, gate = there.claim(), there.gate()
    there.run(member, gate)
    there.until(lambda: there.done(member) >= set(range(20)))
    assert {offset for offset, _ in gate.calls} == set(range(20))


def test_what_is_owned_is_loaded_with_one_look_at_the_log(world, monkeypatch):
    """Nothing of it is written, so all answers belong together."""
    member = world().claim()
    one, looks, refresh = member.assignment, [], member.store._engine.refresh
    monkeypatch.setattr(
        member.store._engine, "refresh", lambda **how: looks.append(1) or refresh(**how)
    )
    again = EpochAssignment(one.options, one.cluster, one.store, one._grant, lambda *_: None)
    assert again.owned[TP].stable == one.owned[TP].stable
    assert len(looks) == 1


def test_of_a_failed_batch_a_slot_that_has_started_waits_alone(world):
    """Its handlers may run on in a task that Spark has not ended; the other slot has begun none."""
    there = world(channel=True)
    halves = KeyRange().split(2)
    at_work = next(slot for slot, half in enumerate(halves) if half.contains(key_hash(KEYS[3])))
    there.without_core, there.fails_on = {1 - at_work}, (failed := threading.Event())
    member, gate = there.claim(), there.gate(3)
    job = there.run(member, gate)
    there.until(lambda: gate.at_work)
    there.without_core = set()
    failed.set()
    there.until(lambda: there.done(member) >= set(range(20)) - slot_mates(3))
    assert job._dispatcher.slots.barred.keys() == {at_work}
    assert Counter(offset for offset, _ in gate.calls)[3] == 1


def test_a_batch_whose_read_fails_is_planned_again_at_once(world):
    """No slot has connected: nobody waits for handlers, and no record is suspected."""
    there = world(channel=True)
    there.failures = [RuntimeError("the read failed")]
    member, gate = there.claim(), there.gate()
    job = there.run(member, gate)
    there.until(lambda: there.done(member) >= set(range(20)))
    assert sorted(offset for offset, _ in gate.calls) == list(range(20))
    assert not any(map(job._dispatcher.slots.crashes.concern, range(2)))


@pytest.mark.parametrize("channel", [True, False])
def test_without_a_channel_nobody_knows_whether_a_slot_of_a_failed_batch_has_started(
    world, monkeypatch, channel
):
    """Also where the job has given its channel up, and the slots of others still have it."""
    monkeypatch.setattr(SlotLeases, "spec", None)
    there = world(channel=channel)
    there.failures = [RuntimeError("the read failed")]
    member, gate = there.claim(), there.gate()
    job = there.run(member, gate)
    there.until(lambda: len(job._dispatcher.slots.barred) == 2 or gate.calls)
    assert job._dispatcher.slots.barred.keys() == {0, 1}
    there.turns(job)
    assert not gate.calls


def test_a_task_that_begins_as_its_batch_fails_starts_nothing(world, monkeypatch):
    """Its records are about to be in another batch."""
    collect, take, frames = Frame.collect, Reports.ended, []

    def collect_late(self):
        frames.append(self)
        return collect(self)

    def take_late(self, event):
        if event.error is not None:
            frames[0]._run(0)
        take(self, event)

    monkeypatch.setattr(Frame, "collect", collect_late)
    monkeypatch.setattr(Reports, "ended", take_late)
    there = world(channel=True)
    there.failures = [RuntimeError("the read failed")]
    member, gate = there.claim(), there.gate()
    there.run(member, gate)
    there.until(lambda: there.done(member) >= set(range(20)))
    assert sorted(offset for offset, _ in gate.calls) == list(range(20))


def test_a_batch_that_fails_again_is_not_planned_again_at_once(world):
    """What makes reads fail may take time to go away: no busy loop, and no early end of the job."""
    there = world(channel=True)
    there.failures = [RuntimeError("the read failed")] * 2
    member, gate = there.claim(), there.gate()
    job = there.run(member, gate)
    there.until(lambda: len(job._dispatcher.slots.barred) == 2 or gate.calls)
    assert job._dispatcher.slots.barred.keys() == {0, 1}
    there.turns(job)
    assert not there.failures
    assert not gate.calls


def test_four_batches_in_a_row_that_fail_end_a_job(world, monkeypatch):
    """Also if slots never started."""
    monkeypatch.setattr("coopconsume.runtime.dispatch.slot_leases.lease_of", lambda _: 0.2)
    there = world(channel=True, handlerTimeout="0.1 seconds")
    there.failures = [RuntimeError(f"the read failed: {i}") for i in range(5)]
    job = there.run(there.claim(), there.gate())
    until(job.ended.is_set)
    assert str(job.error) == "the read failed: 3"
    there.end(job)


@pytest.mark.parametrize("silent", [[0], [0, 1]])
def test_a_slot_whose_report_is_lost_has_reported_no_hole(world, silent):
    """Spark returns no row for some slots: their records are done again, and holes are holes."""
    there = world(
        {o: key for o, key in KEYS.items() if o not in (7, 11)},
        batchTime="0.2 seconds", handlerTimeout="0.2 seconds",
    )  # fmt: skip
    there.silent = silent
    member, gate = there.claim(), there.gate()
    there.run(member, gate)
    there.until(lambda: there.done(member) >= set(range(20)))
    assert sorted(offset for offset, _ in gate.calls) == sorted(set(range(20)) - {7, 11})


def test_a_batch_without_records_is_all_holes(world):
    """Spark runs no task for it, and the log has none of its records."""
    there = world()
    there.kafka.log, there.kafka.end = {}, 20
    member, gate = there.claim(), there.gate()
    there.run(member, gate)
    there.until(lambda: there.done(member) >= set(range(20)))
    assert not gate.calls


@pytest.mark.parametrize("fail", [True, False])
def test_retention_that_outruns_batches_does_not_end_a_job_that_may_lose_records(world, fail):
    """Each batch finds its first offsets deleted: the job goes on from where the log begins."""
    there = world(batchTime="0.1 seconds", handlerTimeout="0.1 seconds", failOnDataLoss=fail)
    there.kafka.retention = [2, 4, 6, 8, 10]
    member, gate = there.claim(), there.gate()
    job = there.run(member, gate)
    until(lambda: there.done(member) >= set(range(20)) or job.ended.is_set())
    if fail:
        assert isinstance(job.error, DataLoss)
        assert (job.error.first, job.error.last) == (0, 1)
    else:
        assert job.error is None
        assert {offset for offset, _ in gate.calls} == set(range(10, 20))


@pytest.mark.parametrize("regrown", [False, True])
def test_a_log_that_was_cut_is_noticed_also_once_it_has_grown_again(world, monkeypatch, regrown):
    """By the end of the former leader's epoch; what is new under old offsets is not done."""
    monkeypatch.setattr("coopconsume.runtime.log_watch._ENDS_EVERY", 0.01)
    there = world()
    member, gate = there.claim(), there.gate()
    job = there.run(member, gate)
    there.until(lambda: there.done(member) == set(range(20)))
    there.kafka.elect_leader(20, 20)
    there.turns(job)
    assert job.error is None
    there.kafka.elect_leader(12, 20 if regrown else 12)
    until(job.ended.is_set)
    assert isinstance(job.error, DataLoss)
    assert (job.error.first, job.error.last) == (12, 19)
    assert there.done(member) == set(range(12))


def test_a_log_that_was_cut_and_has_grown_while_nobody_had_it_is_noticed(world):
    """Also above the stable offset: commits have how far the log had reached in which epoch."""
    options = {"failOnDataLoss": "false"}
    there = world(**options)
    there.kafka.former = [0]
    member = there.claim()
    member.assignment.commit({TP: OffsetRanges([(0, 2), (4, 19)])})
    member.owner.hand_over()
    there.kafka.elect_leader(20, 30)
    there.claim().owner.hand_over()
    assert there.done(there.claim()) == set(range(20)) - {3}, "nothing was cut"
    there.options = replace(there.options, fail_on_data_loss=True)
    there.kafka.former = [0, 12]
    with pytest.raises(DataLoss) as caught:
        there.claim(takeover=True)
    assert (caught.value.first, caught.value.last) == (12, 19)
    there.options = replace(there.options, fail_on_data_loss=False)
    member = there.claim(takeover=True)
    assert there.done(member) == set(range(12)) - {3}
    there.options = replace(there.options, fail_on_data_loss=True)
    member.assignment.commit({TP: OffsetRanges([(14, 14)])})
    member = there.claim(takeover=True)  # It is not notified again.
    member.assignment.commit({TP: OffsetRanges([(25, 27)])})
    there.kafka.elect_leader(29, 40)  # Nobody had done what this cuts.
    assert there.done(there.claim(takeover=True)) == {*range(12), 14, *range(25, 28)} - {3}


def test_a_former_leader_that_answers_late_has_cut_nothing(world, monkeypatch):
    """It reports the end of its own epoch; the job looks again."""
    monkeypatch.setattr("coopconsume.runtime.log_watch._ENDS_EVERY", 0.01)
    there = world()
    there.kafka.former = [0]
    member, gate = there.claim(), there.gate()
    job = there.run(member, gate)
    there.until(lambda: there.done(member) == set(range(20)))
    there.kafka.former = []
    there.kafka.end = 25
    there.turns(job)
    assert job.error is None
    assert job.partitions[0].ledger.end == 20
    there.kafka.log |= {offset: b"k%d" % (offset % 5) for offset in range(20, 25)}
    there.kafka.former = [0]
    there.until(lambda: there.done(member) == set(range(25)))


def test_the_next_owner_waits_for_the_life_of_a_batch(world):
    """What its former owner did not hand over may still be at work: no handler starts before."""
    there = world(batchTime="0.3 seconds", handlerTimeout="0.3 seconds")
    first = there.claim()
    second = there.claim(takeover=True)
    wait = second.assignment.in_doubt.seconds(TP, [KeyRange()])
    claimed = second.assignment.proof._seen
    assert wait > 0
    gate = there.gate()
    job = there.run(second, gate)
    event = until(lambda: job._meter.recent)[0]
    assert 0 < event["partitions"][0]["inDoubtSeconds"] <= wait + 0.1
    assert event["waitingFor"]["reason"] == "lostMember"
    assert "it did not hand over its key ranges of" in event["waitingFor"]["message"]
    there.until(lambda: there.done(second) == set(range(20)))
    assert min(at for _, at in gate.calls) >= claimed + 0.6 + LEASE - 0.1
    first.owner.lost("it was taken over")


def test_a_job_says_that_no_broker_answers_until_one_does(world, monkeypatch):
    """It has processed all that was there, and does not claim to wait for new records."""
    there = world(channel=True)
    member = there.claim()
    job = there.run(member, there.gate())
    there.until(lambda: there.done(member) == set(range(20)))

    def away(_name):
        raise BrokerUnreachable(there.kafka.servers, "no route")

    def reason():
        return job._meter.waiting and job._meter.waiting.reason

    with monkeypatch.context() as patch:
        patch.setattr(there.kafka, "call", away)
        there.until(lambda: reason() == "kafka")
        assert "no route" in job._meter.waiting.message
    there.until(lambda: reason() == "newRecords")


@pytest.mark.parametrize("is_done", [True, False])
def test_a_topic_that_is_created_again_is_taken_up_where_nothing_is_lost(
    world, monkeypatch, is_done
):
    """With `onMissingTopic=wait` the member joins again; where records were open the job ends."""
    monkeypatch.setattr("coopconsume.runtime.log_watch._STARTS_EVERY", 0.05)
    there = world(onMissingTopic="wait")
    member, gate = there.claim(), there.gate(*([] if is_done else [7]))
    reasons = []
    # A member of a group joins again; here the shares are claimed by hand.
    member.rejoin = lambda why, _running: bool(reasons.append(why)) or True
    job = there.run(member, gate)
    there.until(lambda: there.done(member) == set(range(20)) if is_done else 7 in dict(gate.calls))
    there.turns(job)
    there.kafka.topic_id, there.kafka.log, there.kafka.end = "new", {}, 0
    until(lambda: reasons or job.ended.is_set())
    if is_done:
        assert "created again" in reasons[0]
        assert job.error is None
    else:
        gate.opened.set()
        until(job.ended.is_set)
        assert isinstance(job.error, TopicReplaced)
        assert not reasons


@pytest.mark.parametrize("is_done", [True, False])
def test_a_topic_that_is_created_again_before_a_job_begins_is_taken_up_alike(world, is_done):
    """Its new id is seen after the shares were dealt, and before their partitions are known."""
    there = world(onMissingTopic="wait")
    member = there.claim()
    if is_done:
        there.run(member, there.gate())
        there.until(lambda: there.done(member) == set(range(20)))
        member.owner.hand_over()
        member = there.claim()
    reasons = []
    # A member of a group joins again; here the shares are claimed by hand.
    member.rejoin = lambda why, _running: bool(reasons.append(why)) or True
    there.kafka.topic_id, there.kafka.log, there.kafka.end = "new", {}, 0
    job = there.run(member, there.gate())
    until(lambda: reasons or job.ended.is_set())
    if is_done:
        assert [str(job.error), "created again" in "".join(reasons)] == ["None", True]
    else:
        until(job.ended.is_set)
        assert isinstance(job.error, TopicReplaced)
        assert not reasons


def test_no_record_is_read_of_a_topic_that_is_created_again_with_a_longer_log(world, monkeypatch):
    """Its end is looked at first, and its id after that: the end is that of another log."""
    monkeypatch.setattr("coopconsume.runtime.log_watch._ENDS_EVERY", 0.01)
    there = world()
    member, gate = there.claim(), there.gate()
    job = there.run(member, gate)
    there.until(lambda: there.done(member) == set(range(20)))
    log_ends = there.kafka.log_ends

    def replaced_before_the_answer(partitions):
        there.kafka.topic_id = "new"
        there.kafka.log, there.kafka.end = dict.fromkeys(range(40), b"new"), 40
        return log_ends(partitions)

    there.kafka.log_ends = replaced_before_the_answer
    until(job.ended.is_set)
    assert isinstance(job.error, TopicReplaced)
    assert {offset for offset, _ in gate.calls} == set(range(20))


def test_a_deleted_topic_whose_log_seems_cut_ends_no_job(world, monkeypatch):
    """Brokers may report a lower end before they say that the topic is gone."""
    monkeypatch.setattr("coopconsume.runtime.log_watch._ENDS_EVERY", 0.01)
    there = world(onMissingTopic="wait")
    member = there.claim()
    job = there.run(member, there.gate())
    there.until(lambda: there.done(member) == set(range(20)))
    there.turns(job)
    there.kafka.is_deleted, there.kafka.end = True, 0
    there.until(lambda: member.assignment.owned[TP].is_deleted)
    there.turns(job)
    assert job.error is None


def test_the_last_commit_of_a_job_that_ends_by_itself_does_not_wait(world):
    """However rarely the job commits: nothing follows that it could be joined with."""
    there = world(commitInterval="60 seconds")
    member, gate = there.claim(), there.gate(7)
    job = there.run(member, gate, available_now=True)
    there.until(lambda: gate.calls)
    job._epoch_state.committer._pace.began(math.inf)
    gate.opened.set()
    until(job.ended.is_set)
    assert job.error is None
    assert there.done(member) == set(range(20))


def test_batches_whose_workers_ended_for_their_driver_do_not_end_a_job(world, monkeypatch):
    """Neither the batch nor what it stands on is at fault, however often it comes."""
    monkeypatch.setattr("coopconsume.runtime.dispatch.slot_leases.lease_of", lambda _: 0.2)
    monkeypatch.setattr(SlotLeases, "was_deserted", lambda *_: True)
    there = world(channel=True, handlerTimeout="0.1 seconds")
    there.failures = [RuntimeError(f"a worker has ended: {i}") for i in range(5)]
    member, gate = there.claim(), there.gate()
    there.run(member, gate)
    there.until(lambda: there.done(member) == set(range(20)))
    assert not there.failures
