"""Members that share a partition by chunks in real time: slots get chunks while they work."""

from __future__ import annotations

import threading

import pytest

from assignors import Share
from commits import AcquireRequest, OffsetRanges, Wanted
from coopconsume.group.owned import EpochGrant
from coopconsume.record import RetryPolicy
from tests.model.job_world import TP, Calls

LONG = 300.0
COUNT = 20


@pytest.fixture
def world(world):
    """Return what makes a world of cooperative members and so many records."""
    return lambda count=COUNT, **options: world(
        dict.fromkeys(range(count)), channel=True, sharing="cooperative", **options
    )


def grow(there, count, holes=()):
    """Adds records to the log."""
    first = there.kafka.end
    there.kafka.log = there.kafka.log | {
        offset: None for offset in range(first, first + count) if offset not in holes
    }
    there.kafka.end = first + count


def is_live(job):
    """Whether its slots read by themselves, and have chunks beyond the end of the log."""
    return job._meter.mode == "realTime" and all(
        share.unread for partition in job.partitions for share in partition.cursors.values()
    )


def run(there, member, handler, **work):
    """A job in real time."""
    work = {"ordering": "none", "concurrency": 4, "real_time": LONG} | work
    return there.run(member, handler, **work)


def live(there, handler, *names, **work):
    """Members that run jobs in real time, whose slots wait for records by now."""
    members = there.cooperate(*(names or ("a",)))
    handlers = handler if isinstance(handler, tuple) else (handler,)
    jobs = [run(there, one, how, **work) for one, how in zip(members, handlers, strict=True)]
    there.until(lambda: all(map(is_live, jobs)) and there.done(members[0]) == set(range(COUNT)))
    return members, jobs


@pytest.mark.usefixtures("long_leases")
def test_slots_handle_each_new_record_once(world):
    """They have acquired its offset before it comes; no batch is needed."""
    there, calls = world(), Calls()
    (member,), (job,) = live(there, calls)
    for _ in range(5):
        grow(there, 50)
        end = there.kafka.end
        there.until(lambda: there.done(member) == set(range(end)))  # noqa: B023
    assert calls.count == dict.fromkeys(range(end), 1)
    assert there.runs == 1
    assert job._meter.recent[-1]["mode"] == "realTime"

    def waits_for_records():
        waiting = job._meter.waiting
        return waiting is None or waiting.reason == "newRecords"

    there.until(waits_for_records)


@pytest.mark.usefixtures("long_leases")
def test_holes_are_found_by_the_slots_that_have_them(world):
    """Also at the end of the log, where no record follows."""
    there, calls = world(), Calls()
    (member,), _ = live(there, calls)
    grow(there, 30, holes=[20, 21, 35, 49])
    there.until(lambda: there.done(member) == set(range(50)))
    assert calls.count == dict.fromkeys(set(range(50)) - {20, 21, 35, 49}, 1)
    assert there.runs == 1


def test_members_share_new_records(world):
    """Each record goes to one of them, and both get some."""
    there, calls, others = world(), Calls(), Calls()
    (member, _), _ = live(there, (calls, others), "a", "b")
    before = len(calls.calls), len(others.calls)
    for _ in range(3):
        grow(there, 100)
        end = there.kafka.end
        there.until(lambda: there.done(member) == set(range(end)))  # noqa: B023
    assert calls.count + others.count == dict.fromkeys(range(end), 1)
    assert len(calls.calls) > before[0]
    assert len(others.calls) > before[1]
    assert there.runs == 2


def test_a_stuck_member_holds_back_its_own_chunks_alone(world):
    """The other one goes on with all the rest, and with what comes later."""
    opened, stuck = threading.Event(), []

    def act(record):
        if record.offset >= COUNT and not opened.is_set():
            stuck.append(record.offset)
            assert opened.wait(120)

    there, calls, others = world(), Calls(act), Calls()
    (member, _), jobs = live(there, (calls, others), "a", "b")
    grow(there, 100)
    there.until(lambda: stuck)

    def held():
        chunks = member.store.acquisitions("g").get(TP, [])
        return {int(o) for c in chunks if c.member == "a" for o in c.offsets.offsets()}

    there.until(lambda: jobs[0]._dispatcher.sizes.demand(jobs[0]._epoch_state) == 0)
    before = held()
    for _ in range(5):
        grow(there, 20)
        there.until(lambda: there.done(member) | held() >= set(range(there.kafka.end)))
    assert held() == before, "it acquires nothing more once it is stuck"
    opened.set()
    there.until(lambda: there.done(member) == set(range(there.kafka.end)))
    assert calls.count + others.count == dict.fromkeys(range(there.kafka.end), 1)


def test_a_record_that_another_member_left_is_tried_again_in_a_slot(world):
    """Its attempts go on, and it ends no run."""

    def act(record):
        if record.offset == 25 and record.attempt < 3:
            raise RuntimeError("not yet")

    there, calls, others = world(), Calls(act), Calls(act)
    policy = RetryPolicy(backoff=2.0, max_backoff=2.0, jitter=0)
    (member, _), jobs = live(there, (calls, others), "a", "b", policy=policy)
    grow(there, 30)
    everything = set(range(50))
    there.until(lambda: there.done(member) == everything - {25})
    first = 0 if 25 in calls.count else 1
    jobs[first].stop()
    there._jobs.remove(jobs[first])
    there.until(lambda: there.done(member) == everything)
    assert [one.attempts[25] for one in (calls, others)][first] == [1]
    assert [one.attempts[25] for one in (calls, others)][1 - first] == [2, 3]
    assert there.runs == 2


def test_what_a_lost_slot_had_started_is_done_again_after_its_lease(world, monkeypatch):
    """What it had not started, and what others have, is done once."""
    there, calls = world(handlerTimeout="0.1 seconds"), Calls()
    (member,), (job,) = live(there, calls)
    grow(there, 20)
    there.until(lambda: there.done(member) == set(range(40)))
    server = job._dispatcher.leases._server
    with monkeypatch.context() as patch:
        patch.setattr(server, "_on_report", lambda _: None)
        there.dying = 2
        grow(there, 20)
        there.until(lambda: len(calls.calls) == 60)
        there.read_errors += ["gone", "gone"]
        there.until(lambda: job._meter.totals["lostSlots"] == 2)
    there.until(lambda: there.done(member) == set(range(60)))
    assert all(calls.count[offset] == 1 for offset in range(40))
    assert max(calls.count.values()) <= 2


def test_the_next_run_goes_on_with_the_chunks_of_the_one_before(world):
    """Records of all runs are handled once."""
    there, calls = world(), Calls()
    (member,), _ = live(there, calls, real_time=1.0)
    enough = there.runs + 2
    while there.runs < enough:
        grow(there, 3)
        end = there.kafka.end
        there.until(lambda: there.done(member) == set(range(end)))  # noqa: B023
    assert calls.count == dict.fromkeys(range(end), 1)


@pytest.mark.parametrize("drain", [False, True])
def test_a_job_that_stops_returns_what_its_slots_wait_for(world, drain):
    """So a record that comes later waits for nobody."""
    there, calls, others = world(), Calls(), Calls()
    (one, other), (job, _) = live(there, (calls, others), "a", "b")
    job.stop(drain=drain)
    there._jobs.remove(job)
    held = {chunk.member for chunk in one.store.acquisitions("g")[TP]}
    assert held == {"b"}
    grow(there, 100)
    there.until(lambda: there.done(other) == set(range(120)))
    assert calls.count + others.count == dict.fromkeys(range(120), 1)


def test_a_pause_returns_the_chunks_and_resume_begins_another_run(world):
    """While paused no record is started."""
    there, calls = world(), Calls()
    (member,), (job,) = live(there, calls)
    job.pause()
    there.until(lambda: not member.store.acquisitions("g").get(TP))
    grow(there, 30)
    there.turns(job)
    assert len(calls.calls) == COUNT
    job.resume()
    there.until(lambda: there.done(member) == set(range(50)) and there.runs == 2)
    assert calls.count == dict.fromkeys(range(50), 1)


def test_a_batch_reads_nothing_beyond_the_end_of_the_log(world):
    """What a member had acquired ahead, and returned, goes to one that works in batches."""
    there, calls, others = world(), Calls(), Calls()
    one, other = there.cooperate("a", "b")
    job = run(there, one, calls)
    there.until(lambda: is_live(job) and there.done(one) == set(range(COUNT)))
    job.stop()
    there._jobs.remove(job)
    batches = there.run(other, others, ordering="none")
    for _ in range(3):
        grow(there, 1)
        there.until(lambda: there.done(one) == set(range(there.kafka.end)))
        there.turns(batches)
    grow(there, 100)
    there.until(lambda: there.done(one) == set(range(there.kafka.end)))
    assert others.count == dict.fromkeys(range(COUNT, there.kafka.end), 1)


@pytest.mark.usefixtures("long_leases")
def test_chunks_of_a_member_that_is_gone_come_back_after_its_handlers_have_ended(world, watch):
    """Those below the end of the log and those beyond it, while the run goes on."""
    there, calls = world(), Calls()
    one, other = there.cooperate("a", "b")
    gone, life = one.store, one._life.ms
    epoch = gone.current_epoch("g")
    request = AcquireRequest("lost", {TP: Wanted(30, 29)})
    assert gone.acquire("g", epoch, "a", request)[TP] == OffsetRanges([(0, 29)])
    job = run(there, other, calls)
    there.until(lambda: is_live(job))
    grow(there, 40)
    there.until(lambda: there.done(one) == set(range(30, 60)))
    watch.goes_on(2 * life / 1000)
    assert there.done(one) == set(range(30, 60)), "the member is in its group"
    ids = {"t": there.kafka.topic_id}
    assert other.owner.continue_work()
    epoch = gone.open_epoch(
        "g", {"b": [TP]}, previous=epoch, topic_ids=ids, sharing="cooperative", life_ms=life,
        continues={"b": epoch.number},
    )  # fmt: skip
    other.owner.assigned(EpochGrant(epoch, "b", (Share(*TP),), ids, life_ms=life, continues=True))
    there.until(lambda: job._epoch_state.assignment.epoch == epoch)
    watch.goes_on()
    assert there.done(one) == set(range(30, 60)), "its handlers may still run"
    watch.goes_on(life / 1000)
    there.until(lambda: there.done(one) == set(range(60)))
    assert calls.count == dict.fromkeys(range(60), 1)
    assert there.runs == 1
