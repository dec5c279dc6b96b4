"""Key ranges that come to and go from a job in real time, without Kafka and Spark."""

from __future__ import annotations

import threading

import pytest

from assignors import KeyRange, Share, key_hash
from assignors.shares import without
from commits import OffsetRanges
from coopconsume.record import RetryPolicy
from coopconsume.runtime.dispatch.reports import Reports
from coopconsume.runtime.dispatch.slot_requests import SlotRequests
from coopconsume.worker.realtime import slot_reading
from coopconsume.worker.report import unpack_offsets
from tests.model.job_group import HIGH, LOW, WHOLE, Group
from tests.model.job_world import _PATIENCE, TP, World, until
from tests.model.test_real_time_model import LONG, crash, grow, key_of


@pytest.fixture
def world(monkeypatch, tmp_path):
    """Return what makes a world of 20 records; its jobs are ended with the test."""
    made = []
    # On a loaded host a lease of 2 s may pass between two turns of a test.
    monkeypatch.setattr("coopconsume.runtime.dispatch.slot_leases.lease_of", lambda _options: 60.0)

    def make(**options):
        log = {offset: key_of(offset) for offset in range(20)}
        options = {"drainTimeout": "300 seconds"} | options
        there = World(monkeypatch, tmp_path, log, channel=True, **options)

        def present(_spark, _options, span, _slices):
            found = [o for o in there.kafka.log if span.first <= o <= span.last]
            return OffsetRanges.from_offsets(sorted(found))

        monkeypatch.setattr("coopconsume.runtime.read.audit.present_offsets", present)
        made.append(there)
        return there

    yield make
    for one in made:
        one.close()


def only(*keys):
    """The shares of some keys alone, by their numbers."""
    hashes = sorted(key_hash(key_of(key)) for key in keys)
    return tuple(Share(*TP, KeyRange(one, one)) for one in hashes)


def of(shares, end, start=0):
    """The offsets below an end whose keys are in some shares."""
    ranges = [share.key_range for share in shares]
    return {
        o for o in range(start, end)
        if any(one.contains(key_hash(key_of(o))) for one in ranges)
    }  # fmt: skip


def live(there, handler, share=WHOLE, *others, **work):
    """A member of a group, and its job in real time whose slots read by themselves by now."""
    group = Group(there)
    group.opens([share], others)
    group.begins(continues=False)
    job = there.run(group.member, handler, **({"concurrency": 4, "real_time": LONG} | work))
    until_live(there, job)
    there.until(lambda: of([share], 20) <= there.done(group.member))
    return group, job


def until_live(there, job):
    """Wait until slots read by themselves."""
    there.until(lambda: job._meter.mode == "realTime" and there.sources)
    there.until(lambda: not job._dispatcher.runs.by_number or is_met(job))


def is_met(job):
    """Whether all slots of the run have begun."""
    runs = [one for one in list(job._dispatcher.runs.by_number.copy().values()) if one.is_real_time]
    return any(all(job._dispatcher.leases.has_met(at) for at in one.connections) for one in runs)


def gives_up(group, *moving):
    """The group takes some shares from the member, in a thread of its own."""
    assert group.member.owner.continue_work()
    group.opens(group.mine)
    thread = threading.Thread(target=group.begins, kwargs={"moving": moving})
    thread.start()
    return thread


def staying(moving):
    """The shares that stay."""
    return without([WHOLE], moving)


@pytest.mark.usefixtures("long_leases")
@pytest.mark.parametrize(
    "moving",
    [(HIGH,), (LOW,), only(2), (Share(*TP, KeyRange(0, 10)), *only(0, 4))],
    ids=["high", "low", "2", "first"],
)
def test_keys_that_stay_go_on_in_the_same_run_while_others_are_given_up(world, moving):
    """What runs of the others ends and counts; nothing further of them starts."""
    there = world()
    at = min(of(moving, 40, 20))
    gate = there.gate(at)
    group, job = live(there, gate)
    member = group.member
    grow(there, 20)
    there.until(lambda: at in gate.at_work)
    stays = staying(moving)
    thread = gives_up(group, *moving)
    until(lambda: job._rebalance.leaving is not None or not thread.is_alive())
    there.until(lambda: not any(s.leaving.may_start for s in job.partitions[0].cursors.values()))
    grow(there, 20, holes=(41, 42, 47))
    there.until(lambda: of(stays, 60) - {41, 42, 47} <= there.done(member))
    assert thread.is_alive()
    assert not {o for o, _ in gate.calls} & of(moving, 60, 40)
    gate.opened.set()
    thread.join(_PATIENCE)
    called = {o for o, _ in gate.calls}
    assert called & of(moving, 60) <= there.done(member)
    assert member.owner.continue_work()
    group.opens(stays, moving, continues={"a": group.epoch.number})
    assert all(group.in_doubt(share) == () for share in moving)
    group.begins()
    holes = {41, 42, 47, 63, 66}
    grow(there, 20, holes=holes)
    there.until(lambda: of(stays, 80) - holes <= there.done(member))
    there.turns(job, 5)
    has_first = not any(share.key_range.contains(0) for share in moving)
    if has_first:
        there.until(lambda: there.done(member) >= holes)
    known = {o for o, _ in gate.calls} | (holes if has_first else set())
    assert there.done(member) - holes == known - holes
    assert sorted(o for o, _ in gate.calls) == sorted(called | of(stays, 80, 60) - holes)
    assert there.runs == 1, job._dispatcher._real_time.mode.why
    assert len(there.sources) == 2
    # Once their new owner has done the others, nothing is left of them in the job.
    theirs = OffsetRanges.from_offsets(sorted(set(range(80)) - there.done(member)))
    member.store.commit("g", group.epoch, "b", {TP: theirs}, commit_id="theirs")
    there.until(lambda: job.partitions[0].ledger.stable == 80)
    assert not any(share.dispatched or share.todo for share in job.partitions[0].cursors.values())
    assert there.runs == 1, job._dispatcher._real_time.mode.why
    assert job.error is None


@pytest.mark.usefixtures("long_leases")
def test_what_waits_for_another_try_is_left_to_the_next_owner(world):
    """With its attempts; the run goes on, also after the retry would be due."""
    there, calls = world(), []
    at = 22

    def fails(record):
        calls.append(record.offset)
        if record.offset == at:
            raise ValueError("not yet")

    policy = RetryPolicy(backoff=0.5, max_backoff=0.5, jitter=0)
    group, job = live(there, fails, policy=policy)
    member, moving = group.member, only(2)
    grow(there, 20)
    there.until(lambda: calls.count(at) >= 2)
    gives_up(group, *moving).join(_PATIENCE)
    (failed,) = member.store.pending("g")[TP].values()
    assert (failed.offset, failed.attempts) == (at, calls.count(at))
    assert member.owner.continue_work()
    group.opens(staying(moving), moving, continues={"a": group.epoch.number})
    group.begins()
    grow(there, 20)
    others = of(staying(moving), 60)
    there.until(lambda: others <= there.done(member))
    assert calls.count(at) == failed.attempts
    assert of(moving, 60, 20) & set(calls) == {at}
    assert there.runs == 1, job._dispatcher._real_time.mode.why


@pytest.mark.usefixtures("long_leases")
def test_records_that_do_not_pass_the_filter_are_their_next_owners(world):
    """It may have another filter."""
    there = world(denyKeys="k2")
    gate = there.gate()
    group, job = live(there, gate)
    member, moving = group.member, only(2)
    gives_up(group, *moving).join(_PATIENCE)
    assert member.owner.continue_work()
    group.opens(staying(moving), moving, continues={"a": group.epoch.number})
    group.begins()
    grow(there, 20)
    there.until(lambda: there.done(member) == set(range(40)) - of(moving, 40, 20))
    there.turns(job)
    assert there.done(member) == set(range(40)) - of(moving, 40, 20)
    assert there.runs == 1, job._dispatcher._real_time.mode.why


def test_a_key_whose_handler_is_late_is_in_doubt_and_its_slot_is_stopped(world):
    """The handler has `handlerTimeout` from then on; batches go on with all keys that stay."""
    there = world()
    gate = there.gate(22)
    group, job = live(there, gate)
    member, moving = group.member, (*only(2), *only(1))
    grow(there, 20)
    there.until(lambda: gate.at_work)
    thread = gives_up(group, *moving)
    until(lambda: job._rebalance.leaving is not None)
    there.until(lambda: not any(s.leaving.may_start for s in job.partitions[0].cursors.values()))
    job._rebalance.leaving.until = 0.0
    thread.join(_PATIENCE)
    assert member.owner.continue_work()
    stays = staying(moving)
    group.opens(stays, moving, continues={"a": group.epoch.number})
    assert group.in_doubt(only(2)[0]) == only(2)
    assert group.in_doubt(only(1)[0]) == ()
    group.begins()
    grow(there, 20)
    there.until(lambda: of(stays, 60) <= there.done(member))
    runs = job._dispatcher.runs.by_number.copy().values()
    assert not any(one.is_real_time and not one.ending for one in runs)
    gate.opened.set()
    there.until(lambda: there.runs >= 2 and len(there.sources) == 2)
    grow(there, 20)
    there.until(lambda: of(stays, 80) <= there.done(member))
    assert of(only(2), 80, 20) & {o for o, _ in gate.calls} == {22}


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_slot_that_is_lost_or_does_not_answer_leaves_its_key_ranges_in_doubt(
    world, monkeypatch, is_lost
):
    """It may have started any record of them."""
    there = world()
    gate = there.gate(22)
    group, job = live(there, gate)
    moving = only(2)
    grow(there, 20)
    there.until(lambda: gate.at_work)
    with monkeypatch.context() as patch:
        patch.setattr(SlotRequests, "_withhold", lambda *_: None)
        thread = gives_up(group, *moving)
        until(lambda: job._rebalance.leaving is not None)
        if is_lost:
            there.dying = 2
            there.read_errors += ["gone", "gone"]
            gate.opened.set()
            there.until(lambda: job._meter.totals["lostSlots"] == 2)
        else:
            job._rebalance.leaving.until = 0.0
        thread.join(_PATIENCE)
    assert group.member.owner.continue_work()
    group.opens(staying(moving), moving, continues={"a": group.epoch.number})
    assert group.in_doubt(moving[0]) == moving


def test_a_slot_that_has_not_begun_never_begins_with_keys_that_are_given_up(world):
    """The other slot goes on in its run."""
    there = world()
    group = Group(there)
    group.opens([WHOLE])
    group.begins(continues=False)
    there.without_core = {1}
    gate = there.gate()
    job = there.run(group.member, gate, concurrency=4, real_time=LONG)
    there.until(lambda: there.runs and len(there.sources) == 1)
    there.turns(job)
    gives_up(group, HIGH).join(_PATIENCE)
    member = group.member
    assert member.assignment.shares == (LOW,)
    assert member.owner.continue_work()
    group.opens([LOW], [HIGH], continues={"a": group.epoch.number})
    assert group.in_doubt(HIGH) == ()
    group.begins()
    grow(there, 20)
    there.until(lambda: of([LOW], 40) <= there.done(member))
    there.turns(job)
    assert sorted(o for o, _ in gate.calls) == sorted(of([LOW], 40))
    assert there.runs == 1, job._dispatcher._real_time.mode.why


def test_the_next_run_shares_what_is_left_among_all_slots(world, monkeypatch):
    """In the run that goes on a slot may have nothing left, and no other one is asked for some."""
    monkeypatch.setattr("coopconsume.runtime.plan.dealer._DEAL_WITHIN", 0.0)
    there = world()
    at = min(of([LOW], 40, 20))
    gate = there.gate(at)
    group, job = live(there, gate)
    grow(there, 20)
    there.until(lambda: gate.at_work and of([HIGH], 40) <= there.done(group.member))
    gives_up(group, HIGH).join(_PATIENCE)
    there.turns(job, 10)
    assert (there.runs, job._meter.mode) == (1, "realTime"), job._dispatcher._real_time.mode.why
    gate.opened.set()
    assert group.member.owner.continue_work()
    group.opens([LOW], [HIGH], continues={"a": group.epoch.number})
    group.begins()
    assert [bool(s.ranges) for _, s in sorted(job.partitions[0].cursors.items())] == [True, False]
    job.pause()
    there.until(lambda: not there.sources)
    job.resume()
    there.until(lambda: there.runs >= 2 and len(there.sources) == 2)
    assert all(share.ranges for share in job.partitions[0].cursors.values())
    grow(there, 20)
    there.until(lambda: of([LOW], 60) <= there.done(group.member))
    assert sorted(o for o, _ in gate.calls) == sorted({*range(40)} | of([LOW], 60))


def test_once_a_slot_has_ended_what_is_left_is_shared_before_any_reads_on(world):
    """Key ranges are dealt to all slots, while none of them reads by itself."""
    there = world()
    gate = there.gate()
    group, job = live(there, gate)
    moving = only(2)
    gives_up(group, *moving).join(_PATIENCE)
    stays = staying(moving)
    assert group.member.owner.continue_work()
    group.opens(stays, moving, continues={"a": group.epoch.number})
    group.begins()
    assert job._epoch_state.undealt
    crash(there, job)
    there.until(lambda: sorted(there.begun.values()) == [2, 2] and len(there.sources) == 2)
    assert not job._epoch_state.undealt
    grow(there, 20)
    there.until(lambda: of(stays, 40) <= there.done(group.member))


def test_key_ranges_that_come_are_read_by_batches_and_then_by_the_next_run(world):
    """Running handlers end; their keys alone wait for them, and nothing is handled again."""
    there = world()
    at = min(of([LOW], 40, 20))
    gate = there.gate(at)
    group, job = live(there, gate, LOW, HIGH)
    member = group.member
    theirs = OffsetRanges.from_offsets(sorted(of([HIGH], 10)))
    member.store.commit("g", group.epoch, "b", {TP: theirs}, commit_id="theirs")
    grow(there, 20, holes=(33,))
    there.until(lambda: at in gate.at_work)
    assignment = member.assignment
    stuck = {o for o in range(at, 60) if o % 5 == at % 5}
    assert member.owner.continue_work()
    group.opens([WHOLE], continues={"a": group.epoch.number})
    group.begins()
    grow(there, 20)
    there.until(lambda: set(range(60)) - stuck <= there.done(member))
    assert member.assignment is assignment
    gate.opened.set()
    there.until(lambda: there.done(member) == set(range(60)))
    there.until(lambda: there.runs >= 2 and len(there.sources) == 2)
    grow(there, 20)
    there.until(lambda: there.done(member) == set(range(80)))
    calls = [o for o, _ in gate.calls]
    assert sorted(calls) == sorted(set(range(80)) - of([HIGH], 10) - {33})
    for key in range(5):
        assert [o for o in calls if o % 5 == key] == sorted(o for o in calls if o % 5 == key)
    assert job.error is None


def test_key_ranges_in_doubt_end_a_run_once_they_may_start(world):
    """Until then the others are handled in real time."""
    there = world()
    gate = there.gate()
    group, job = live(there, gate, LOW, HIGH)
    member = group.member
    assert member.owner.continue_work()
    group.opens([WHOLE], continues={"a": group.epoch.number})
    group.begins(waits=((HIGH, 1000.0),))
    grow(there, 20)
    there.until(lambda: of([LOW], 40) <= there.done(member))
    there.turns(job, 10)
    assert (there.runs, job._meter.mode) == (1, "realTime"), job._dispatcher._real_time.mode.why
    (gain,) = job.partitions[0].dealer.gains
    object.__setattr__(gain, "until", 0.0)
    there.until(lambda: there.done(member) == set(range(40)))
    there.until(lambda: there.runs == 2)
    assert sorted(o for o, _ in gate.calls) == list(range(40))


@pytest.mark.usefixtures("long_leases")
def test_key_ranges_that_went_may_come_back_to_the_run_that_gave_them_up(world):
    """What came of them meanwhile, and was dropped by the run's slots, is handled."""
    there = world()
    gate = there.gate()
    group, job = live(there, gate)
    member, moving = group.member, only(1, 2)
    gives_up(group, *moving).join(_PATIENCE)
    assert member.owner.continue_work()
    group.opens(staying(moving), moving, continues={"a": group.epoch.number})
    group.begins()
    grow(there, 20, holes=(31,))
    there.until(lambda: of(staying(moving), 40) <= there.done(member))
    assert there.runs == 1, job._dispatcher._real_time.mode.why
    theirs = OffsetRanges([(21, 21)])
    member.store.commit("g", group.epoch, "b", {TP: theirs}, commit_id="theirs")
    assert member.owner.continue_work()
    group.opens([WHOLE], continues={"a": group.epoch.number})
    group.begins()
    there.until(lambda: there.done(member) == set(range(40)))
    there.until(lambda: there.runs == 2)
    grow(there, 20)
    there.until(lambda: there.done(member) == set(range(60)))
    assert sorted(o for o, _ in gate.calls) == sorted({*range(60)} - {21, 31})


@pytest.mark.usefixtures("long_leases")
def test_queued_records_of_keys_that_are_given_up_are_not_started(world, monkeypatch):
    """The handler that they waited for may run on: the leave does not wait for it."""
    monkeypatch.setattr(slot_reading, "HELD_UP", LONG)
    there = world()
    gate = there.gate(20)
    group, job = live(there, gate, concurrency=1)
    member, moving = group.member, only(2)
    grow(there, 20)
    share = job.partitions[0].cursors[1]
    there.until(lambda: gate.at_work and 37 in (share.dispatched or ()))
    gives_up(group, *moving).join(_PATIENCE)
    assert member.owner.continue_work()
    group.opens(staying(moving), moving, continues={"a": group.epoch.number})
    group.begins()
    gate.opened.set()
    there.until(lambda: of(staying(moving), 40) <= there.done(member))
    there.until(lambda: not (share.dispatched or share.todo))
    assert not of(moving, 40, 20) & {o for o, _ in gate.calls}
    assert there.runs == 1, job._dispatcher._real_time.mode.why


def test_records_of_keys_that_were_given_up_are_read_as_those_of_other_slots(world, monkeypatch):
    """The slot's position passes them, and they are not its own."""
    reports, take = [], Reports.progressed

    def take_and_note(self, report):
        reports.append(report)
        take(self, report)

    monkeypatch.setattr(Reports, "progressed", take_and_note)
    there = world()
    group, job = live(there, there.gate())
    moving = only(2)
    gives_up(group, *moving).join(_PATIENCE)
    reports.clear()
    grow(there, 20)
    there.until(lambda: of(staying(moving), 40) <= there.done(group.member))
    there.until(lambda: all(share.position == 40 for share in job.partitions[0].cursors.values()))
    parts = [part for report in reports for part in report.partitions.values()]
    assert {o for part in parts for o in unpack_offsets(part.read).to_pylist()} == (
        of(staying(moving), 40, 20)
    )
    assert not any(part.blocked for part in parts)


@pytest.mark.usefixtures("long_leases")
def test_a_run_ends_once_all_key_ranges_are_given_up(world):
    """Nobody needs what its slots would read; another one begins as some come back."""
    there = world()
    gate = there.gate()
    group, job = live(there, gate)
    gives_up(group, WHOLE).join(_PATIENCE)
    there.until(lambda: not there.sources)
    assert group.member.owner.continue_work()
    group.opens([], [WHOLE], continues={"a": group.epoch.number})
    group.begins()
    grow(there, 20)
    there.turns(job)
    assert there.runs == 1
    assert group.member.owner.continue_work()
    group.opens([LOW], [HIGH], continues={"a": group.epoch.number})
    group.begins()
    there.until(lambda: there.runs == 2 and len(there.sources) == 2)
    grow(there, 20)
    there.until(lambda: of([LOW], 60) <= there.done(group.member))
    assert sorted(o for o, _ in gate.calls) == sorted({*range(20)} | of([LOW], 60))
