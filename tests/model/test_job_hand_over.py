"""A job that hands its shares over, and one that gives up or gets a part of them."""

from __future__ import annotations

import functools
import math
import threading
import time
from collections import Counter

import pytest

from assignors import KeyRange, Share, key_hash
from coopconsume.group import GroupMember
from coopconsume.group.owned import EpochGrant
from coopconsume.runtime.dispatch.dispatcher import Dispatcher
from coopconsume.runtime.dispatch.reports import Reports
from coopconsume.runtime.dispatch.slot_leases import SlotLeases
from coopconsume.worker.channel.wire import Frame, decode_withhold, encode_withhold
from coopconsume.worker.time_box import TimeBox
from tests.model.job_group import HIGH, KEYS, LIFE_MS, LOW, WHOLE, Group, slot_mates
from tests.model.job_world import _PATIENCE, TP, keeps, until


@pytest.mark.parametrize("channel", [True, False])
def test_a_hand_over_waits_for_running_handlers_and_commits_them(world, channel):
    """Nothing starts any more, what runs ends and counts, and the next owner need not wait."""
    there = world(channel=channel, drainTimeout="300 seconds")
    member, gate = there.claim(), there.gate(3)
    job = there.run(member, gate)
    there.until(lambda: gate.at_work)
    there.kafka.log |= {offset: b"new%d" % offset for offset in range(20, 50)}
    handing_over = threading.Thread(target=member.owner.hand_over)
    handing_over.start()
    until(lambda: job._rebalance.hand_over is not None or not handing_over.is_alive())
    there.kafka.end = 50
    until(lambda: not handing_over.is_alive() or any(p.ledger.end == 50 for p in job.partitions))
    there.turns(job)
    gate.opened.set()
    handing_over.join(120)
    called = {offset for offset, _ in gate.calls}
    assert called == there.done(member)
    # With a channel the slot starts no further record; without one it goes on to its end.
    assert called == set(range(20)) if not channel else not slot_mates(3) <= called
    after = there.claim()
    assert after.assignment.in_doubt.seconds(TP, [KeyRange()]) <= 0


def test_what_a_hand_over_gives_up_is_in_doubt_and_done_again(world):
    """It is late: the release names the slot, its work does not count, and the next owner waits."""
    there = world(drainTimeout="0 seconds")
    member, gate = there.claim(), there.gate(3)
    there.run(member, gate)
    there.until(lambda: gate.at_work)
    member.owner.hand_over()
    assert 3 not in there.done(member)
    after = there.claim()
    assert after.assignment.in_doubt.seconds(TP, [KeyRange()]) > 0
    gate.opened.set()


def test_a_hand_over_waits_for_no_handler_that_ends_after_its_time(world, monkeypatch):
    """Else handlers that end one after another would prolong it by a commit each."""
    monkeypatch.setattr("coopconsume.runtime.rebalance.LAST_COMMIT", _PATIENCE)
    there = world(channel=True, drainTimeout="300 seconds")
    member, gates = there.claim(), [there.gate(offset) for offset in range(5)]
    job = there.run(member, lambda record: gates[record.offset](record), concurrency=5)
    there.until(lambda: all(gate.at_work for gate in gates))
    heard, is_committing, commit = set(), threading.Event(), member.store.commit

    def noted(take):
        def taken(report):
            take(report)
            for outcome in report.partitions.values():
                heard.update(outcome.done_offsets.to_pylist())

        return taken

    reports = job._dispatcher.reports
    for name in ("progressed", "reported"):
        monkeypatch.setattr(reports, name, noted(getattr(reports, name)))

    def slow(*given, **how):
        """While a commit runs, the next handler ends."""
        is_committing.set()
        until(lambda: job._rebalance.hand_over.is_late)
        following = len(heard)
        for gate in gates[following : following + 1]:
            gate.opened.set()
            until(lambda: following in heard)
        return commit(*given, **how)

    monkeypatch.setattr(member.store, "commit", slow)
    handing_over = threading.Thread(target=member.owner.hand_over)
    handing_over.start()
    until(lambda: job._rebalance.hand_over is not None)
    gates[0].opened.set()
    assert is_committing.wait(_PATIENCE)
    job._rebalance.hand_over.until = time.monotonic()
    handing_over.join(_PATIENCE)
    assert [gate.opened.is_set() for gate in gates] == [True, True, False, False, False]
    assert there.done(member) == {0}


@pytest.mark.parametrize("lost", [False, True])
def test_of_a_late_hand_over_the_running_records_alone_are_in_doubt(world, lost):
    """Their slot named them: the next owner starts all else at once, and their keys after the wait.

    So it is if the slot was lost before the hand-over.
    """
    there = world(
        channel=True, batchTime="2 seconds", handlerTimeout="0.1 seconds",
        drainTimeout="300 seconds", slow=0.1 if lost else math.inf,
    )  # fmt: skip
    member, gate = there.claim(), there.gate(3)
    job = there.run(member, gate)
    there.until(lambda: gate.at_work)

    def has_named():
        """Whether the slot has said what it still works on."""
        return any(map(keeps, job._dispatcher.runs.by_number.copy().values()))

    if lost:
        there.until(lambda: there.done(member) == {o for o in range(20) if o % 5 != 3})
        there.until_one_slot_works(job)
        until(has_named)
        job._dispatcher.leases._server._on_report = lambda _: None
        there.dying = 1
        gate.opened.set()
        there.until(lambda: job._meter.totals["lostSlots"])
        gate.opened.clear()
        gate.at_work.clear()
    handing_over = threading.Thread(target=member.owner.hand_over)
    handing_over.start()
    if not lost:
        until(has_named)
        there.until_one_slot_works(job)
        job._rebalance.hand_over.until = 0.0
    handing_over.join(120)
    gate.opened.set()
    before, stuck = len(gate.calls), key_hash(KEYS[3])
    after = there.claim()
    assert after.assignment.in_doubt.seconds(TP, [KeyRange(stuck, stuck)]) > 0
    others = [KeyRange(0, stuck - 1), KeyRange(stuck + 1)]
    assert after.assignment.in_doubt.seconds(TP, others) <= 0
    until_when = dict(after.assignment.in_doubt.ranges(TP))[KeyRange(stuck, stuck)]
    there.run(after, gate)
    there.until(lambda: there.done(after) == set(range(20)))
    again = gate.calls[before:]
    assert min(at for offset, at in again if offset % 5 == 3) >= until_when
    assert [offset for offset, _ in again if offset % 5 == 3] == [3, 8, 13, 18]
    counts = Counter(offset for offset, _ in gate.calls)
    assert {offset for offset, count in counts.items() if count > 1} == {3}


@pytest.fixture
def hands_over_all(monkeypatch):
    """Have jobs hand over all they have, as those without a channel do."""
    monkeypatch.setattr(Dispatcher, "may_leave", False)


@pytest.mark.usefixtures("hands_over_all")
def test_what_moves_is_ended_and_released_and_the_rest_begins_again(group):
    """It is committed before it is released; the member begins again with what it keeps."""
    there, member, gate = group.there, group.member, group.there.gate(3)
    job = there.run(member, gate)
    there.until(lambda: gate.at_work)
    assert member.owner.continue_work()
    group.opens([WHOLE])
    moves = threading.Thread(target=group.begins, kwargs={"moving": (HIGH,)})
    moves.start()
    until(lambda: job._rebalance.hand_over is not None)
    there.turns(job)
    assert moves.is_alive()
    assert not member.store.assignment("g").handed
    gate.opened.set()
    moves.join(_PATIENCE)
    assert {offset for offset, _ in gate.calls} <= there.done(member)
    assert member.store.assignment("g").handed == {"a": (Share(*TP, HIGH.key_range),)}
    low = {o for o in range(20) if LOW.key_range.contains(key_hash(KEYS[o]))}
    there.until(lambda: low <= there.done(member))
    assert sorted(offset for offset, _ in gate.calls) == sorted(there.done(member))
    # The next epoch moves nothing of this member.
    assert member.owner.continue_work()
    group.opens([LOW], [HIGH])
    (doubt,) = member.store.assignment("g").doubts
    assert doubt.share == Share(*TP, LOW.key_range)
    assignment = member.assignment
    group.begins()
    assert member.assignment is assignment


@pytest.mark.usefixtures("hands_over_all")
def test_a_member_that_is_refused_while_it_hands_over_joins_again(group):
    """It stays in no group without shares: nothing else would give it any."""
    there, member, gate = group.there, group.member, group.there.gate(3)
    job = there.run(member, gate)
    there.until(lambda: gate.at_work)
    assert member.owner.continue_work()
    group.opens([WHOLE])
    member._group = GroupMember(there.options, member.store, there.kafka, 2, member.owner, LIFE_MS)
    moves = threading.Thread(target=group.begins, kwargs={"moving": (HIGH,)})
    moves.start()
    until(lambda: job._rebalance.hand_over is not None)
    group.opens([], [WHOLE])
    gate.opened.set()
    moves.join(_PATIENCE)
    assert not member.owner.has_shares
    assert member._group._again


@pytest.mark.usefixtures("hands_over_all")
def test_late_handlers_alone_are_in_doubt_of_what_moves(world):
    """And the member itself does not start their keys again before that has passed."""
    group = Group(world(channel=True, drainTimeout="300 seconds"))
    there, member = group.there, group.member
    group.opens([WHOLE])
    group.begins(continues=False)
    high = next(o for o in range(20) if HIGH.key_range.contains(key_hash(KEYS[o])))
    low = next(o for o in range(20) if LOW.key_range.contains(key_hash(KEYS[o])))
    gate = there.gate(high, low)
    job = there.run(member, gate)
    there.until(lambda: gate.at_work == {high, low})
    assert member.owner.continue_work()
    group.opens([WHOLE])
    moves = threading.Thread(target=group.begins, kwargs={"moving": (HIGH,)})
    moves.start()
    until(lambda: job._rebalance.hand_over is not None)
    runs = job._dispatcher.runs.by_number
    until(
        lambda: all(
            task.kept is not None for run in runs.copy().values() for task in run.tasks.values()
        )
    )
    job._rebalance.hand_over.until = 0.0
    moves.join(_PATIENCE)
    stuck, ours = key_hash(KEYS[high]), key_hash(KEYS[low])
    assert member.assignment.in_doubt.seconds(TP, [KeyRange(ours, ours)]) > 0
    assert member.assignment.in_doubt.seconds(TP, [KeyRange(0, ours - 1)]) <= 0
    group.opens([LOW], [HIGH])
    doubts = [d.share for d in member.store.assignment("g").doubts]
    late = Share(*TP, KeyRange(stuck, stuck))
    assert late in doubts
    assert [s for s in doubts if s.key_range >= HIGH.key_range] == [late]


def test_a_member_that_loses_part_of_its_work_begins_again(group):
    """A leader that does not know that it works on: what it did is not committed any more."""
    there, member, gate = group.there, group.member, group.there.gate(*range(20))
    there.run(member, gate)
    there.until(lambda: gate.at_work)
    assert member.owner.continue_work()
    before = member.assignment
    group.opens([LOW], [HIGH])
    group.begins(continues=False)
    gate.opened.set()
    assert member.assignment is not before
    low = {o for o in range(20) if LOW.key_range.contains(key_hash(KEYS[o]))}
    there.until(lambda: low <= there.done(member))
    assert there.done(member) <= low


@pytest.mark.parametrize("how", ["moves", "closed by a listener", "rejoins", "follows"])
def test_what_a_member_gains_stays_in_doubt_until_its_earlier_owner_has_ended(world, how):
    """Also if the member gives it to others before it starts it."""
    group = Group(world(channel=True, drainTimeout="300 seconds"))
    there, member = group.there, group.member
    group.opens([LOW], [HIGH])
    group.begins(continues=False)
    job = there.run(member, there.gate())
    there.until(lambda: job._epoch_state is not None)

    class Closes:
        """A listener that closes its consumer."""

        def on_revoked(self, _ranges):
            """Close it."""
            job.stop()
            member.leave()

    assert member.owner.continue_work()
    group.opens([WHOLE])  # The other member has crashed.
    assert group.in_doubt(HIGH) == (HIGH,)
    waits = ((HIGH, 1000.0),)
    if how == "closed by a listener":
        member._listener.attach(Closes())
        group.begins(moving=(LOW,), waits=waits)
        assert job.ended.wait(_PATIENCE)
        until(lambda: member.store.assignment("g").fenced)
    elif how == "follows":
        member.owner.follow(group.epoch, "a", waits)
        member.owner.hand_over()
    elif how == "rejoins":
        group.joins_a_group()
        member.assignment.continue_under(
            EpochGrant(group.epoch, "a", group.mine, {"t": "topic-id"}, waits, LIFE_MS)
        )
        assert member.rejoin("the log was cut", ())
    else:
        group.begins(moving=(WHOLE,), waits=waits)
        assert not member.owned
    group.opens([], [WHOLE])
    assert group.in_doubt(HIGH) == (HIGH,)


def test_what_is_done_of_key_ranges_is_committed_before_they_are_given_up(group, monkeypatch):
    """However long the commit log takes to answer."""
    there, member = group.there, group.member
    high = {o for o in range(20) if HIGH.key_range.contains(key_hash(KEYS[o]))}
    gate = there.gate(max(high))
    job = there.run(member, gate)
    there.until(lambda: gate.at_work)
    assert member.owner.continue_work()
    group.opens([WHOLE])
    commit, may_commit = member.store.commit, threading.Event()

    def late(*args, **more):
        assert may_commit.wait(_PATIENCE)
        return commit(*args, **more)

    monkeypatch.setattr(member.store, "commit", late)
    gives_up = threading.Thread(target=group.begins, kwargs={"moving": (HIGH,)})
    gives_up.start()
    until(lambda: job._rebalance.leaving is not None)
    gate.opened.set()
    until(lambda: getattr(job._rebalance.leaving, "mark", True) is not None)
    there.turns(job, 5)
    assert job._rebalance.leaving is not None
    assert not member.store.assignment("g").handed
    may_commit.set()
    gives_up.join(_PATIENCE)
    assert high <= there.done(member)
    assert member.store.assignment("g").handed == {"a": (Share(*TP, HIGH.key_range),)}


def test_a_batch_that_has_not_begun_is_in_nobodys_way_as_keys_are_given_up(world):
    """A slot with some of them never begins, and nothing is in doubt."""
    group = Group(world(channel=True, drainTimeout="300 seconds"))
    there, member, gate = group.there, group.member, group.there.gate()
    there.is_reading = True
    group.opens([WHOLE])
    group.begins(continues=False)
    job = there.run(member, gate)
    there.until(lambda: job._dispatcher.runs.by_number)
    assert member.owner.continue_work()
    group.opens([WHOLE])
    group.begins(moving=(HIGH,))
    assert member.assignment.shares == (LOW,)
    assert member.owner.continue_work()
    group.opens([LOW], [HIGH], continues={"a": group.epoch.number})
    group.begins()
    assert group.in_doubt(HIGH) == ()
    running = next(iter(job._dispatcher.runs.by_number.copy().values()), None)
    assert running is not None, "it has ended"
    withdrawn = [task.is_withdrawn for task in running.unfinished]
    assert any(withdrawn)
    assert not all(withdrawn)
    assert not gate.calls


@pytest.mark.parametrize("answers", ["not", "to another question"])
def test_a_slot_that_does_not_give_back_in_time_starts_nothing_more(world, monkeypatch, answers):
    """Others may work on its keys long before its lease ends."""
    send, take = SlotLeases.send, Reports.progressed
    answered = threading.Event()

    def ask_something_else(self, at, kind, payload=b""):
        if kind != Frame.WITHHOLD:
            send(self, at, kind, payload)
        elif answers != "not":
            number, ranges = decode_withhold(payload)
            send(self, at, kind, encode_withhold(number + 1, ranges))

    def take_answer(self, report):
        take(self, report)
        if report.leaving is not None:
            answered.set()

    monkeypatch.setattr(SlotLeases, "send", ask_something_else)
    monkeypatch.setattr(Reports, "progressed", take_answer)
    group = Group(world(channel=True, drainTimeout="300 seconds"))
    there, member = group.there, group.member
    group.opens([WHOLE])
    group.begins(continues=False)
    high = {o for o in range(20) if HIGH.key_range.contains(key_hash(KEYS[o]))}
    gate = there.gate(min(high))
    job = there.run(member, gate)
    there.until(lambda: gate.at_work)
    assert member.owner.continue_work()
    group.opens([WHOLE])
    gives_up = threading.Thread(target=group.begins, kwargs={"moving": (HIGH,)})
    gives_up.start()
    until(lambda: job._rebalance.leaving is not None and (answers == "not" or answered.is_set()))
    job._rebalance.leaving.until = 0.0
    gives_up.join(_PATIENCE)
    called = {offset for offset, _ in gate.calls}
    assert member.owner.continue_work()
    group.opens([LOW], [HIGH], continues={"a": group.epoch.number})
    group.begins()
    assert group.in_doubt(HIGH) == (HIGH,)
    gate.opened.set()
    low = {o for o in range(20) if LOW.key_range.contains(key_hash(KEYS[o]))}
    there.until(lambda: low <= {offset for offset, _ in gate.calls})
    there.until(lambda: not job._dispatcher.runs.by_number)
    assert {offset for offset, _ in gate.calls} == called | low


@pytest.fixture
def waits_for_a_lost_member(world, monkeypatch):
    """Returns a function: a job that waits long for key ranges, and may plan them before."""
    monkeypatch.setattr("coopconsume.runtime.dispatch.dispatcher._EARLY", 1_000.0)
    monkeypatch.setattr("coopconsume.worker.channel.client.CONNECT_TIME", 1_000.0)

    def begun(drain_timeout="300 seconds"):
        group = Group(world(channel=True, drainTimeout=drain_timeout))
        group.opens([WHOLE])
        group.begins(continues=False, waits=((LOW, 600.0), (HIGH, 500.0)))
        gate = group.there.gate()
        return group, gate, group.there.run(group.member, gate)

    return begun


def _early_batch(group, job):
    """The batch of a job whose slots have connected and wait for their leases."""
    server, running = job._dispatcher.leases._server, job._dispatcher.runs.by_number
    group.there.until(
        lambda: any(
            one.begins_at > one.started and one.connections <= server.connected
            for one in running.copy().values()
        )
    )
    (found,) = running.values()
    return found


def test_spark_starts_a_batch_before_an_earlier_owner_has_ended_but_no_record(
    waits_for_a_lost_member,
):
    """Its slots have no lease yet, so that the first one starts at the end of the wait."""
    group, gate, job = waits_for_a_lost_member()
    there, member = group.there, group.member
    running = _early_batch(group, job)
    first, last = (until_when for _, until_when in member.assignment.in_doubt.ranges(TP))
    assert first == running.begins_at < last
    there.turns(job, 10)
    assert not gate.calls
    running.begins_at = begins_at = time.monotonic()
    high = {o for o in range(20) if HIGH.key_range.contains(key_hash(KEYS[o]))}
    there.until(lambda: there.done(member) == high)
    assert {offset for offset, _ in gate.calls} == high
    assert min(at for _, at in gate.calls) >= begins_at
    assert running.number == 0


def test_a_batch_that_waits_for_its_leases_leaves_nothing_in_doubt(waits_for_a_lost_member):
    """It has started nothing, though its slots do not say so in time."""
    group, gate, job = waits_for_a_lost_member("0 seconds")
    there, member = group.there, group.member
    _early_batch(group, job)
    member.owner.hand_over()
    assert not gate.calls
    after = there.claim()
    assert after.assignment.in_doubt.seconds(TP, [HIGH.key_range]) <= 500
    assert 500 < after.assignment.in_doubt.seconds(TP, [LOW.key_range]) <= 600


def test_a_batch_that_waits_for_its_leases_gives_key_ranges_up_at_once(waits_for_a_lost_member):
    """Nobody waits until it has begun. The slot that had them starts nothing of this batch."""
    group, gate, job = waits_for_a_lost_member()
    member = group.member
    running = _early_batch(group, job)
    assert member.owner.continue_work()
    group.opens([WHOLE])
    moved = Share(*TP, KeyRange().split(8)[-1])
    gives_up = threading.Thread(target=group.begins, kwargs={"moving": (moved,)})
    gives_up.start()
    gives_up.join(_PATIENCE)
    assert not gives_up.is_alive()
    assert member.store.assignment("g").handed
    assert [slot for slot, task in running.tasks.items() if task.is_withdrawn] == [1]
    assert not gate.calls


def test_key_ranges_that_leave_as_others_wait_start_none_of_these(world):
    """The slots that come free get key ranges that an earlier owner may be at work on."""
    group = Group(world(channel=True, drainTimeout="300 seconds"))
    there, member, gate = group.there, group.member, group.there.gate()
    group.opens([WHOLE])
    group.begins(continues=False, waits=((WHOLE, 2.0),))
    ((_, ends),) = member.assignment.in_doubt.ranges(TP)
    job = there.run(member, gate)
    there.until(lambda: job._dispatcher.runs.by_number or gate.calls)
    assert member.owner.continue_work()
    group.opens([WHOLE])
    quarters = KeyRange().split(4)
    group.begins(moving=(Share(*TP, quarters[0]), Share(*TP, quarters[2])))
    stays = {o for o in KEYS if any(quarters[n].contains(key_hash(KEYS[o])) for n in (1, 3))}
    there.until(lambda: stays <= there.done(member))
    assert min(at for offset, at in gate.calls) >= ends


@pytest.mark.parametrize("moved", [HIGH, Share(*TP, KeyRange().split(8)[-1])])
def test_what_is_given_up_stays_in_doubt_until_its_earlier_owner_has_ended(world, moved):
    """The next owner must wait as the member that gave it up was to, and no longer."""
    group = Group(world(channel=True, drainTimeout="300 seconds"))
    there, member = group.there, group.member
    group.opens([WHOLE])
    group.begins(continues=False, waits=((HIGH, 500.0),))
    job = there.run(member, there.gate())
    low = {o for o in range(20) if LOW.key_range.contains(key_hash(KEYS[o]))}
    there.until(lambda: low <= there.done(member))
    assert member.owner.continue_work()
    group.opens([WHOLE])
    group.begins(moving=(moved,))
    assert member.assignment is job._epoch_state.assignment
    left = (Share(*TP, KeyRange(0, moved.key_range.first - 1)),)
    assert member.assignment.shares == left
    group.opens(left, [moved])
    assert group.in_doubt(moved) == (moved,)
    doubts = member.store.assignment("g").doubts
    (wait,) = (d.life_ms for d in doubts if d.share.key_range.first >= moved.key_range.first)
    assert 0 < wait <= 500_000


@pytest.mark.parametrize("moved", [None, LOW])
def test_late_handlers_are_in_doubt_also_if_a_listener_closes_the_consumer(world, moved):
    """It gives back what the group's thread hands over, all of it or part of it."""
    group = Group(world(channel=True, drainTimeout="300 seconds"))
    there, member = group.there, group.member
    group.opens([WHOLE])
    group.begins(continues=False)
    gate = there.gate(3)
    job = there.run(member, gate)
    there.until(lambda: gate.at_work)

    class Closes:
        """A listener that closes its consumer."""

        def on_revoked(self, _ranges):
            """Close it."""
            member.leave()

    member._listener.attach(Closes())
    if moved is None:
        leaves = threading.Thread(target=member.owner.hand_over)
    else:
        assert member.owner.continue_work()
        group.opens([WHOLE])
        leaves = threading.Thread(target=group.begins, kwargs={"moving": (moved,)})
    leaves.start()
    until(lambda: job._rebalance.hand_over is not None or job._rebalance.leaving is not None)
    (job._rebalance.hand_over or job._rebalance.leaving).until = 0.0
    leaves.join(_PATIENCE)
    until(lambda: member.store.assignment("g").fenced)
    group.opens([], [WHOLE])
    stuck = key_hash(KEYS[3])
    assert group.in_doubt(Share(*TP, KeyRange(stuck, stuck)))


@pytest.mark.parametrize("has_given_back", [False, True])
def test_the_worker_of_a_late_handler_ends_before_another_owner_starts_its_key(
    world, monkeypatch, has_given_back
):
    """After the release it has `handlerTimeout`, however much of the batch's time is left."""
    # A busy machine may renew no lease for seconds, and the worker would end for that.
    monkeypatch.setattr("coopconsume.group.settings.LEASE", _PATIENCE)
    ended = []
    there = world(
        channel=True, drainTimeout="300 seconds", handlerTimeout="0.1 seconds",
        slow=0.1 if has_given_back else math.inf,
    )  # fmt: skip
    monkeypatch.setattr(
        "coopconsume.worker.slot.TimeBox", functools.partial(TimeBox, end=ended.append)
    )
    group, gate = Group(there), there.gate(3)
    group.opens([WHOLE])
    group.begins(continues=False)
    job = there.run(group.member, gate)
    there.until(lambda: gate.at_work)
    there.until_one_slot_works(job)
    if has_given_back:
        there.until(lambda: any(map(keeps, job._dispatcher.runs.by_number.copy().values())))
    assert group.member.owner.continue_work()
    group.opens([WHOLE])
    gives_up = threading.Thread(target=group.begins, kwargs={"moving": (LOW,)})
    gives_up.start()
    until(lambda: job._rebalance.leaving is not None)
    there.until(lambda: not any(s.leaving.may_start for s in job.partitions[0].cursors.values()))
    assert not ended
    job._rebalance.leaving.until = 0.0
    gives_up.join(_PATIENCE)
    until(lambda: ended)
