"""A job that works on while its group rebalances."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from assignors import KeyRange, Share, key_hash
from commits import CommitLogUnavailable, OffsetRanges, Pending
from commits.rows import Event
from commits.validation import parts_of
from coopconsume.group import GroupMember
from coopconsume.group.owned import EpochGrant
from tests.model.job_group import HIGH, KEYS, LIFE_MS, LOW, WHOLE, Group, slot_mates
from tests.model.job_sinks import Answering, Watching
from tests.model.job_world import _PATIENCE, TP, until


def test_work_goes_on_through_a_rebalance_that_moves_none_of_it(group):
    """What is done in between counts under the next epoch; nothing is stopped or called again."""
    there, member, gate = group.there, group.member, group.there.gate(13)
    job = there.run(member, gate)
    there.until(lambda: gate.at_work)
    held_back = slot_mates(13)
    there.until(lambda: set(range(20)) - held_back <= there.done(member))
    assignment, keys = member.assignment, {KEYS[o] for o in held_back}
    for end in (40, 60):
        assert member.owner.continue_work()
        group.opens([WHOLE])
        there.kafka.log |= {offset: b"k%d" % (offset % 5) for offset in range(end - 20, end)}
        there.kafka.end = end
        job._epoch_state.assignment.proof._seen = -math.inf
        there.turns(job, 5)
        group.begins()
        others = {o for o in range(end) if b"k%d" % (o % 5) not in keys}
        there.until(lambda others=others: others <= there.done(member))
    assert member.assignment is assignment
    gate.opened.set()
    there.until(lambda: there.done(member) == set(range(60)))
    assert sorted(offset for offset, _ in gate.calls) == list(range(60))
    assert job._meter.totals["rebalances"] == 3


@pytest.mark.parametrize("pieces", [2, 4, 8])
@pytest.mark.parametrize("is_late", [False, True])
def test_keys_that_stay_go_on_while_others_are_given_up(world, pieces, is_late):
    """Running handlers of the others end and are committed; nothing is called twice.

    If one of them outlives `drainTimeout`, its record alone is in doubt.
    """
    group = Group(world(channel=True, slow=0.5, drainTimeout="300 seconds"))
    group.opens([WHOLE])
    group.begins(continues=False)
    there, member = group.there, group.member
    moved = KeyRange().split(pieces)[-1]
    goes = {o for o in range(20) if moved.contains(key_hash(KEYS[o]))}
    first = min(goes)
    key = min(o for o in range(5) if not moved.contains(key_hash(KEYS[o])))
    gate, slow = there.gate(first), there.gate(60 + key)

    def handler(record):
        gate(record)
        slow(record)

    job = there.run(member, handler)
    there.until(lambda: gate.at_work)
    assignment, shares = member.assignment, (Share(*TP, KeyRange(0, moved.first - 1)),)
    assert member.owner.continue_work()
    group.opens([WHOLE])
    gives_up = threading.Thread(target=group.begins, kwargs={"moving": (Share(*TP, moved),)})
    gives_up.start()
    until(lambda: job._rebalance.leaving is not None)
    there.kafka.log |= {offset: b"k%d" % (offset % 5) for offset in range(20, 60)}
    there.kafka.end = 60
    stays = {o for o in range(80) if not moved.contains(key_hash(b"k%d" % (o % 5)))}
    there.until(lambda: {o for o in stays if o < 60} <= there.done(member))
    there.kafka.log |= {offset: b"k%d" % (offset % 5) for offset in range(60, 80)}
    there.kafka.end = 80
    there.until(lambda: slow.at_work)
    assert gives_up.is_alive()
    called = {offset for offset, _ in gate.calls}
    assert not called - stays - goes
    if is_late:
        job._rebalance.leaving.until = 0.0
    else:
        gate.opened.set()
    gives_up.join(_PATIENCE)
    assert member.assignment is assignment
    assert assignment.shares == shares
    (partition,) = job.partitions
    there.until(lambda: partition.dealer.undealt_since is None)
    assert all(share.ranges for share in partition.cursors.values()), "a slot has nothing to do"
    slow.opened.set()
    there.until(lambda: stays <= there.done(member))
    doubts = {first} if is_late else set()
    assert member.owner.continue_work()
    group.opens(shares, [Share(*TP, moved)], continues={"a": group.epoch.number})
    stuck = [KeyRange(h, h) for h in sorted({key_hash(KEYS[o]) for o in doubts})]
    assert [one.key_range for one in group.in_doubt(Share(*TP, moved))] == stuck
    group.begins()
    gate.opened.set()
    there.kafka.log |= {offset: b"k%d" % (offset % 5) for offset in range(80, 100)}
    there.kafka.end = 100
    stays = {o for o in range(100) if not moved.contains(key_hash(b"k%d" % (o % 5)))}
    there.until(lambda: stays <= there.done(member))
    calls = Counter(offset for offset, _ in gate.calls)
    assert set(calls) == called | stays
    assert max(calls.values()) == 1
    assert [o for o, _ in slow.calls if o % 5 == key] == list(range(key, 100, 5))
    assert called - doubts <= there.done(member) <= called | stays
    assert member.assignment is assignment


@pytest.mark.parametrize("doubt", ["nothing", "a key", "a range"])
def test_keys_that_stay_go_on_while_others_come(world, doubt):
    """What their earlier owner did counts, and what it may be at work on waits for that alone."""
    group = Group(world(channel=True, drainTimeout="300 seconds"))
    there, member = group.there, group.member
    group.opens([LOW], [HIGH])
    group.begins(continues=False)
    high = [o for o in range(20) if HIGH.key_range.contains(key_hash(KEYS[o]))]
    low = [o for o in range(20) if LOW.key_range.contains(key_hash(KEYS[o]))]
    theirs, failed = high[:3], high[3]
    gate = there.gate(low[0])
    job = there.run(member, gate)
    there.until(lambda: gate.at_work)
    assignment, (partition,) = member.assignment, job.partitions
    member.store.commit(
        "g", group.epoch, "b", {TP: OffsetRanges.from_offsets(theirs)},
        pending={TP: [Pending(failed, key_hash(KEYS[failed]), 3, 0, "not yet")]}, holes={},
        commit_id="theirs",
    )  # fmt: skip
    listener = Mock()
    member._listener.attach(listener)
    assert member.owner.continue_work()
    group.opens([WHOLE], continues={"a": group.epoch.number})
    stuck = key_hash(KEYS[failed])
    share = {"nothing": [], "a key": [Share(*TP, KeyRange(stuck, stuck))], "a range": [HIGH]}[doubt]
    begun, wait = time.monotonic(), 2.0
    group.begins(waits=tuple((one, wait) for one in share))
    listener.on_assigned.assert_called_once_with({TP: [HIGH.key_range]})
    assert member.assignment is assignment
    assert job.partitions == [partition]
    assert assignment.key_ranges == {TP: [KeyRange()]}
    key = {o for o in low if KEYS[o] == KEYS[low[0]]}
    there.until(lambda: set(range(20)) - key <= there.done(member))
    assert gate.at_work, "it was stopped"
    gate.opened.set()
    there.until(lambda: there.done(member) == set(range(20)))
    calls = dict(gate.calls)
    assert sorted(o for o, _ in gate.calls) == sorted(calls.keys())
    assert set(calls) == set(range(20)) - set(theirs)
    waits = {o for o in calls if any(s.key_range.contains(key_hash(KEYS[o])) for s in share)}
    assert min((calls[o] for o in waits), default=begun + wait) >= begun + wait
    there.until(lambda: partition.is_drained)
    assert partition.ledger.is_whole
    listener.on_revoked.assert_not_called()


def test_a_returned_partition_starts_again(group):
    """What others did of it meanwhile counts, and nothing that was known of it before does."""
    there, member = group.there, group.member
    gate = there.gate()
    job = there.run(member, gate)
    there.until(lambda: there.done(member) == set(range(20)))
    assignment = member.assignment
    assert member.owner.continue_work()
    group.opens([WHOLE])
    group.begins(moving=(WHOLE,))
    assert (member.assignment, job.partitions, member.owned) == (assignment, [], {})
    assert member.owner.continue_work()
    group.opens([], [WHOLE], continues={"a": group.epoch.number})
    group.begins()
    member.store.commit(
        "g", group.epoch, "b", {TP: OffsetRanges([(20, 24)])}, holes={}, commit_id="theirs"
    )
    there.kafka.log |= {offset: b"k%d" % (offset % 5) for offset in range(20, 40)}
    there.kafka.end = 40
    assert member.owner.continue_work()
    group.opens([WHOLE], continues={"a": group.epoch.number})
    group.begins()
    assert member.assignment is assignment
    there.until(lambda: there.done(member) == set(range(40)))
    calls = sorted(offset for offset, _ in gate.calls)
    assert calls == [*range(20), *range(25, 40)]
    assert assignment.key_ranges == {TP: [KeyRange()]}


def test_ranges_that_cannot_be_added_restart_all(group, monkeypatch):
    """What runs ends first: nothing of it is lost or called twice."""
    there, member, gate = group.there, group.member, group.there.gate()
    group.opens([LOW], [HIGH])
    group.begins(continues=False)
    job = there.run(member, gate)
    there.until(lambda: job._epoch_state is not None)
    assignment = member.assignment
    assert member.owner.continue_work()
    group.opens([WHOLE], continues={"a": group.epoch.number})

    def refuse(_load):
        raise CommitLogUnavailable("table", "read", "it does not answer")

    monkeypatch.setattr(job._requests, "extend", refuse)
    group.begins()
    assert member.assignment is not assignment
    there.until(lambda: there.done(member) == set(range(20)))
    assert sorted(offset for offset, _ in gate.calls) == list(range(20))


def test_what_the_log_refuses_between_two_epochs_is_committed_under_the_next(group):
    """The slot reports while the next epoch is in force and not known yet."""
    there, member, gate = group.there, group.member, group.there.gate(*range(20))
    job = there.run(member, gate)
    there.until(lambda: gate.at_work)
    assert member.owner.continue_work()
    group.opens([WHOLE])
    gate.opened.set()
    there.until(lambda: job._epoch_state is None or job._epoch_state.committer.refused_for > 0)
    assert job._epoch_state is not None, "it was stopped"
    assert there.done(member) == set()
    group.begins()
    there.until(lambda: there.done(member) == set(range(20)))
    assert sorted(offset for offset, _ in gate.calls) == list(range(20))


def test_what_is_written_between_two_epochs_is_committed_under_the_next(group):
    """Once: its rows carry the id of the commit, and the log would never count a refused id."""
    there, member, handler = group.there, group.member, Answering(*range(20))
    sink = Watching(member, there)
    job = there.run(member, handler, outputs=sink)
    there.until(lambda: handler.at_work)
    assert member.owner.continue_work()
    group.opens([WHOLE])
    handler.opened.set()
    there.until(lambda: job._epoch_state is None or job._epoch_state.committer.outbox.ready)
    there.turns(job, 5)
    assert job._epoch_state is not None, "it was stopped"
    assert there.done(member) == set()
    group.begins()
    there.until(lambda: there.done(member) == set(range(20)))
    assert sorted(offset for offset, _, _ in sink.seen) == list(range(20))
    assert sorted(offset for offset, _ in handler.calls) == list(range(20))


def test_who_asks_for_a_rebalance_begins_again(group):
    """It is to learn how long its work may go on, or that a topic is gone: it hands over."""
    there, member, gate = group.there, group.member, group.there.gate(3)
    job = there.run(member, gate)
    there.until(lambda: gate.at_work)
    # It is in no group of a broker.
    member._group = GroupMember(there.options, member.store, there.kafka, 2, member.owner, LIFE_MS)
    member.rebalance("to begin again")
    assert not member.owner.continue_work()
    assert member.owner.continue_work()
    # It is about to stop.
    stopping = threading.Thread(target=job.stop)
    stopping.start()
    until(lambda: job._completion.is_stopping)
    assert not member.owner.continue_work()
    gate.opened.set()
    stopping.join(_PATIENCE)


def test_a_member_whose_topic_is_deleted_hands_over_at_a_rebalance(world):
    """Also if the rebalance had begun before the member asked for one; the topic is gone by then.

    If the member went on, it would lose all that it has, and all of that would be in doubt.
    """
    group = Group(world(channel=True, onMissingTopic="wait"))
    there, member = group.there, group.member
    group.opens([WHOLE])
    group.begins(continues=False)
    job = there.run(member, there.gate())
    there.until(lambda: there.done(member) == set(range(20)))
    there.kafka.is_deleted, there.kafka.end = True, 0
    there.until(lambda: member.assignment.owned[TP].is_deleted)
    there.turns(job)
    member.owner._hands_over = False
    assert not member.owner.continue_work()


def test_a_member_that_closes_between_two_epochs_leaves_nothing_in_doubt(group):
    """It gives its key ranges back under the epoch in force, which it does not know yet."""
    there, member = group.there, group.member
    job = there.run(member, there.gate())
    there.until(lambda: there.done(member) == set(range(20)))
    group.joins_a_group()
    place = SimpleNamespace(member_id="a")
    member._group._consumer = SimpleNamespace(group_metadata=lambda: place)
    core = member._group._core
    core.taken(EpochGrant(group.epoch, "a", (WHOLE,), {"t": "topic-id"}))
    assert member.owner.continue_work()
    core.is_continuing = True
    group.opens([WHOLE], continues={"a": group.epoch.number})
    job.stop()
    member.leave()
    group.opens([], [WHOLE])
    assert not member.store.assignment("g").doubts


def test_a_member_that_keeps_under_another_id_commits_under_that(group):
    """Kafka gives one whose id it does not know any more another one."""
    there, member, gate = group.there, group.member, group.there.gate(*range(20))
    there.run(member, gate)
    there.until(lambda: gate.at_work)
    group.joins_a_group()
    assert member.owner.continue_work()
    group.name = "a2"
    group.opens([WHOLE])
    group.begins()
    gate.opened.set()
    there.until(lambda: there.done(member) == set(range(20)))
    assert member.assignment.member == "a2"
    assert sorted(offset for offset, _ in gate.calls) == list(range(20))


def test_a_commit_is_repeated_under_the_epoch_that_it_began_under(group, monkeypatch):
    """Its row came after the next epoch's and its answer was lost: it is refused under its id."""
    there, member, gate = group.there, group.member, group.there.gate(*range(20))
    there.run(member, gate)
    there.until(lambda: gate.at_work)
    group.joins_a_group()
    assert member.owner.continue_work()
    commit, first = member.store.commit, []

    def lossy(name, epoch, who, offsets, **how):
        if offsets and not first:
            first.append(epoch)
            group.opens([WHOLE])
            parts = parts_of(offsets, how["pending"] or {}, how["holes"])
            row = Event("commit", how["commit_id"], "cluster", name, epoch, member=who, parts=parts)
            with member.store._lock:
                assert not member.store._append(row).counted
            group.begins()
            raise CommitLogUnavailable("t", "append", "no answer")
        return commit(name, epoch, who, offsets, **how)

    monkeypatch.setattr(member.store, "commit", lossy)
    gate.opened.set()
    there.until(lambda: there.done(member) == set(range(20)))
    assert first
    assert sorted(offset for offset, _ in gate.calls) == list(range(20))


@pytest.mark.parametrize("asked", ["to hand over", "to keep"])
def test_a_log_that_retention_shortens_between_two_epochs_hangs_no_hand_over(world, asked):
    """What the log refuses then is not waited for, if somebody waits for the end of the work."""
    group = Group(world(channel=True, drainTimeout="300 seconds", failOnDataLoss=False))
    group.opens([WHOLE])
    group.begins(continues=False)
    there, member, gate = group.there, group.member, group.there.gate(*range(20))
    job = there.run(member, gate)
    there.until(lambda: gate.at_work)
    group.joins_a_group()
    assert member.owner.continue_work()
    group.opens([LOW], [HIGH])
    gate.opened.set()
    there.until(lambda: job._epoch_state is None or job._epoch_state.committer.refused_for > 0)
    there.kafka.start = 20
    job._epoch_state.log_watch._starts_at = -math.inf

    def next_epoch():
        if asked == "to keep":
            assert not member.owner.continue_work()
            member.owner.hand_over()
            group.joins_a_group()
        group.begins(continues=False)

    # In a thread, as it would wait for ever.
    threading.Thread(target=next_epoch, daemon=True).start()
    there.until(
        lambda: job._epoch_state is not None and job._epoch_state.assignment.epoch == group.epoch
    )
    assert job._epoch_state.assignment is member.assignment
