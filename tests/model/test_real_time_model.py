"""A job in real time without Kafka and Spark: its slots read a log that grows."""

from __future__ import annotations

import gc
import math
import threading
import time
from collections import Counter
from functools import partial

import pytest

from assignors import KeyRange, key_hash
from coopconsume.errors import DataLoss
from coopconsume.record import Reject, RetryPolicy
from coopconsume.runtime.realtime.mode import RealTimeMode
from coopconsume.worker.outcome import WorkerEnded
from coopconsume.worker.realtime import slot_reading
from coopconsume.worker.realtime.slot import RealTimeRunner
from tests.model.job_group import WHOLE, Group
from tests.model.job_world import World, until

LONG = 300.0


@pytest.fixture
def world(monkeypatch, tmp_path):
    """Return what makes a world; its jobs are ended with the test."""
    made = []

    def make(keys=20, **options):
        log = {offset: key_of(offset) for offset in range(keys)}
        made.append(World(monkeypatch, tmp_path, log, channel=True, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def key_of(offset):
    """The key of a record."""
    return b"k%d" % (offset % 5)


def grow(there, count, holes=()):
    """Adds records to the log; returns their offsets."""
    first = there.kafka.end
    new = [o for o in range(first, first + count) if o not in holes]
    there.kafka.log = there.kafka.log | {offset: key_of(offset) for offset in new}
    there.kafka.end = first + count
    return new


class Calls:
    """A handler that notes its calls and may fail."""

    def __init__(self, fails=lambda record: None):
        self.all = []
        self._fails = fails
        self._lock = threading.Lock()

    def __call__(self, record):
        with self._lock:
            self.all.append(record.offset)
        return self._fails(record)

    def of(self, offset):
        return self.all.count(offset)


def live(there, handler, *, concurrency=4, **work):
    """A job in real time whose slots read by themselves by now."""
    member = there.claim()
    job = there.run(member, handler, concurrency=concurrency, **({"real_time": LONG} | work))
    there.until(lambda: there.runs and len(there.sources) == 2)
    there.until(lambda: job._meter.mode == "realTime")
    there.until(lambda: there.done(member) == set(range(20)) and job._meter.recent)
    return member, job


@pytest.mark.usefixtures("long_leases")
def test_slots_read_by_themselves_once_batches_have_caught_up(world):
    """Records are handled once each, in the order of their keys, and committed."""
    there, handler = world(), Calls()
    member, job = live(there, handler)
    for _ in range(5):
        grow(there, 20)
        end = there.kafka.end
        there.until(lambda: there.done(member) == set(range(end)))  # noqa: B023
    assert sorted(handler.all) == list(range(120))
    for key in range(5):
        of_key = [o for o in handler.all if o % 5 == key]
        assert of_key == sorted(of_key)
    assert there.runs == 1
    there.until(lambda: job._meter.totals["done"] == 120)
    counters = [job._meter.totals[name] for name in ("cacheHits", "cacheMisses", "brokerBytes")]
    assert counters == [2, 4, 6], "each of two slots counts once"
    assert job._meter.recent[-1]["mode"] == "realTime"
    assert job._meter.recent[-1]["lag"] == 0


def test_holes_at_the_end_of_the_log_are_committed(world):
    """An end that the brokers name, without records before it, is proof."""
    there, handler = world(), Calls()
    member, _ = live(there, handler)
    grow(there, 10, holes=range(20, 40))
    there.until(lambda: there.done(member) == set(range(30)))
    assert max(handler.all) == 19


@pytest.mark.usefixtures("long_leases")
def test_a_failed_record_is_tried_again_in_its_slot(world):
    """Its key waits for it, others go on, and no batch is needed."""
    failures = []

    def fails(record):
        if record.offset == 22 and len(failures) < 3:
            failures.append(1)
            raise ValueError("not yet")

    there, handler = world(), Calls(fails)
    member, _ = live(there, handler)
    grow(there, 20)
    there.until(lambda: there.done(member) == set(range(40)))
    assert handler.of(22) == 4
    assert [o for o in handler.all if o > 22 and o % 5 == 2] == [27, 32, 37]
    assert there.runs == 1


def test_a_record_that_is_tried_again_in_its_slot_is_seen_and_keeps_its_attempts(world):
    """Progress names it; if the slot is lost, the next one goes on counting."""
    passes, attempts = threading.Event(), []

    def fails(record):
        if record.offset == 22:
            attempts.append(record.attempt)
            if not passes.is_set():
                raise ValueError("not yet")

    there, handler = world(handlerTimeout="0.1 seconds"), Calls(fails)
    policy = RetryPolicy(backoff=0.2, max_backoff=0.2, jitter=0)
    member, job = live(there, handler, policy=policy)
    grow(there, 20)

    def blocker():
        return job._meter.recent[-1]["partitions"][0]["blocker"]

    there.until(lambda: blocker() and blocker()["attempts"] >= 3)
    assert (blocker()["offset"], blocker()["key"]) == (22, "k2")
    assert blocker()["error"] == "ValueError: not yet"
    there.until(lambda: blocker()["state"] == "failed" and blocker()["dueInSeconds"] is not None)
    there.dying = 2
    there.read_errors += ["gone", "gone"]
    there.until(lambda: job._meter.totals["lostSlots"])
    passes.set()
    there.until(lambda: there.done(member) == set(range(40)))
    # An attempt that the lost slot has not reported any more counts again.
    assert attempts == sorted(attempts)
    assert len(attempts) - len(set(attempts)) <= 1


def test_a_frame_that_fails_is_tried_again_by_a_batch_and_real_time_returns(world):
    """What is pending and due ends the run; the key's order is kept."""
    from coopconsume.worker.frame_runner import FrameHandler

    seen, failed = [], []

    def handler(frame):
        offsets = frame.column("offset").to_pylist()
        seen.extend(offsets)
        return [
            ValueError("not yet") if o == 21 and not failed and not failed.append(1) else None
            for o in offsets
        ]

    there = world()
    member, _ = live(there, FrameHandler(handler, 100), concurrency=1)
    grow(there, 20)
    there.until(lambda: there.done(member) == set(range(40)))
    there.until(lambda: there.runs == 2)
    grow(there, 5)
    there.until(lambda: there.done(member) == set(range(45)))
    assert seen.count(21) == 2
    of_key = [o for o in seen if o % 5 == 1 and o >= 20]
    assert of_key[of_key.index(21, 1) :] == [21, 26, 31, 36, 41]


@pytest.mark.usefixtures("long_leases")
def test_a_rejected_record_is_parked_and_holds_back_its_key_alone(world, tmp_path):
    """It does not end the run; it is pending, and what comes behind it waits."""
    from coopconsume.sinks import open_dead_letters

    def fails(record):
        return Reject("no") if record.offset == 20 else None

    there, handler = world(), Calls(fails)
    letters = open_dead_letters(str(tmp_path / "letters"), there.options)
    member, job = live(there, handler, dead_letters=letters, park=True)
    grow(there, 20)
    others = {o for o in range(40) if o < 20 or o % 5}
    there.until(lambda: there.done(member) == others)
    there.until(lambda: job._meter.recent[-1]["lag"] == 4)
    assert job._meter.recent[-1]["pending"] == 1
    assert there.runs == 1


def test_a_slot_that_is_lost_is_read_again_from_its_last_report(world):
    """Nothing is lost; what was done and reported is not done again; real time returns."""
    there, handler = world(handlerTimeout="0.1 seconds"), Calls()
    member, job = live(there, handler)
    grow(there, 20)
    there.until(lambda: there.done(member) == set(range(40)))
    there.dying = 1
    there.read_errors.append("gone")
    there.until(lambda: job._meter.totals["lostSlots"])
    grow(there, 20)
    there.until(lambda: there.done(member) == set(range(60)))
    assert sorted(handler.all) == list(range(60))
    there.until(lambda: there.runs >= 2)


def crash(there, job):
    """The worker of one of the slots that read ends; returns once the driver knows."""
    lost = job._meter.totals["lostSlots"]
    there.crashing, there.at_crash = 1, ()
    there.read_errors.append("gone")
    there.until(lambda: job._meter.totals["lostSlots"] > lost)


@pytest.mark.usefixtures("long_leases")
def test_other_slots_read_on_while_one_gets_a_batch(world):
    """It reads by itself again once the batch has caught up; they do so in the same run."""
    there, handler = world(), Calls()
    member, job = live(there, handler)
    for end in (40, 60):
        crash(there, job)
        grow(there, 20)
        there.until(lambda: there.done(member) == set(range(end)))  # noqa: B023
        there.until(lambda: len(there.sources) == 2)
        if end == 40:
            assert sorted(there.begun.values()) == [1, 2]
    assert sum(there.begun.values()) == 4
    assert sorted(handler.all) == list(range(60))
    assert job._meter.mode == "realTime"


@pytest.mark.usefixtures("long_leases")
def test_a_slot_reads_by_itself_although_another_one_is_in_a_batch(world, monkeypatch):
    """A handler that takes long in a batch holds back its slot alone."""
    few = partial(RealTimeMode, small_lag=10)  # It begins with a batch.
    monkeypatch.setattr("coopconsume.runtime.realtime.runs.RealTimeMode", few)
    there = world()
    gate = there.gate(3)
    member = there.claim()
    job = there.run(member, gate, concurrency=4, real_time=LONG)
    there.until(lambda: gate.at_work and len(there.sources) == 1)
    (slot,) = [slot for _, slot in there.begun]
    ranges = job.partitions[0].cursors[slot].ranges
    grow(there, 20)
    own = {o for o in range(40) if any(one.contains(key_hash(key_of(o))) for one in ranges)}
    there.until(lambda: own <= there.done(member))
    gate.opened.set()
    there.until(lambda: there.done(member) == set(range(40)) and len(there.sources) == 2)
    assert sorted(there.begun.values()) == [1, 1]


@pytest.mark.usefixtures("long_leases")
def test_slots_end_if_another_one_gets_no_core_for_its_batch(world, monkeypatch):
    """They would keep the cores for the time of their run."""
    there, handler = world(), Calls()
    _, job = live(there, handler)
    there.without_core = {0, 1}
    crash(there, job)
    grow(there, 20)
    there.turns(job, 10)
    assert len(there.sources) == 1
    monkeypatch.setattr("coopconsume.runtime.realtime.runs.START_TIME", 0.0)
    there.until(lambda: not there.sources and job._meter.mode == "batch")
    assert "no free core" in job._dispatcher._real_time.mode.why


def test_what_a_lost_slot_had_started_is_done_again_after_its_lease(world, monkeypatch):
    """The driver hears nothing of a slot's last records: they are in flight, and come again."""
    there, handler = world(handlerTimeout="0.1 seconds"), Calls()
    member, job = live(there, handler)
    server = job._dispatcher.leases._server
    with monkeypatch.context() as patch:
        patch.setattr(server, "_on_report", lambda _: None)
        there.dying = 2
        grow(there, 20)
        there.until(lambda: len(handler.all) == 40)
        assert there.done(member) == set(range(20))
        there.read_errors += ["gone", "gone"]
        there.until(lambda: job._meter.totals["lostSlots"] == 2)
    there.until(lambda: there.done(member) == set(range(40)))
    assert set(handler.all) == set(range(40))
    assert all(handler.of(o) == 1 for o in range(20))


@pytest.mark.parametrize("is_heard", [False, True])
@pytest.mark.parametrize("at_work", [(25,), (25, 26, 27, 29)])
def test_a_record_that_ends_the_worker_of_a_real_time_slot_is_charged_as_in_batches(
    world, tmp_path, at_work, is_heard
):
    """If it is certain which record it was, it is not called again; nothing waits for a lease."""
    from coopconsume.sinks import open_dead_letters

    def fails(record):
        if record.offset == 25 and handler.of(25) == 1:
            there.crashing, there.at_crash = 2, at_work
            there.read_errors += ["gone", "gone"]
            raise ValueError("its worker is ended")

    there, handler = world(), Calls(fails)
    letters = open_dead_letters(str(tmp_path / "letters"), there.options)
    policy = RetryPolicy(backoff=60.0, give_up_on=(WorkerEnded,))
    member, job = live(there, handler, dead_letters=letters, policy=policy)
    server = job._dispatcher.leases._server
    report_to = server._on_report
    server._on_report = lambda report: report_to(report) if is_heard else None
    grow(there, 20)
    there.until(lambda: job._meter.totals["lostSlots"] == 2)
    server._on_report = report_to
    there.until(lambda: there.done(member) == set(range(40)))
    assert handler.of(25) == (1 if at_work == (25,) else 2)
    assert not job._dispatcher.slots.barred
    last = {o: len(handler.all) - handler.all[::-1].index(o) for o in range(20, 40)}
    assert last[25] < last[30] < last[35]


def test_a_slot_that_cannot_read_leaves_the_judgement_to_batches(world):
    """Retention has passed the slot's position: batches find the loss."""
    there, handler = world(failOnDataLoss="false"), Calls()
    member, _ = live(there, handler)
    first = there.kafka.end
    there.kafka.start = first + 10
    grow(there, 30, holes=range(first, first + 10))
    there.until(lambda: there.done(member) >= set(range(first + 10, first + 30)))
    assert min(o for o in handler.all if o >= first) == first + 10


@pytest.mark.usefixtures("long_leases")
def test_a_source_that_cannot_be_opened_does_not_end_its_worker(world, monkeypatch, caplog):
    """The reason is shown, batches handle the records, and the slot tries again later."""
    there, handler = world(), Calls()
    member, job = live(there, handler)
    errors, opens = [OSError(24, "Too many open files")], RealTimeRunner.open_source

    def open_source(*given):
        if errors:
            raise errors.pop()
        return opens(*given)

    monkeypatch.setattr(RealTimeRunner, "open_source", staticmethod(open_source))
    crash(there, job)
    there.until(lambda: not errors)
    grow(there, 20)
    there.until(lambda: there.done(member) == set(range(40)) and len(there.sources) == 2)
    assert sorted(handler.all) == list(range(40))
    assert "cannot open its source: OSError: [Errno 24] Too many open files" in caplog.text
    assert job._meter.totals["lostSlots"] == 1, "the one whose worker had ended before"
    assert not job._dispatcher.slots.failing


@pytest.mark.parametrize("regrown", [True, False])
def test_what_slots_report_above_the_end_of_the_log_does_not_count(world, monkeypatch, regrown):
    """They have read it, and it was cut off before the driver looked: what is new has offsets."""
    there, handler = world(), Calls()
    member, job = live(there, handler)
    with monkeypatch.context() as patched:
        patched.setattr("coopconsume.runtime.log_watch._ENDS_EVERY", math.inf)
        there.turns(job)
        first = there.kafka.end
        grow(there, 10)
        there.until(lambda: there.done(member) == set(range(first + 10)))
        if regrown:
            there.kafka.elect_leader(first + 5, first + 30)
        else:
            there.kafka.end = first + 5
    until(job.ended.is_set)
    assert isinstance(job.error, DataLoss)
    assert (job.error.first, job.error.last) == (first + 5, first + 9)
    assert there.done(member) == set(range(first + 5))


def test_stop_is_prompt_and_what_is_done_is_committed(world):
    """Slots that wait for records end at once."""
    there, handler = world(), Calls()
    member, job = live(there, handler)
    grow(there, 20)
    there.until(lambda: len(handler.all) == 40)
    began = time.monotonic()
    job.stop()
    assert time.monotonic() - began < 30
    assert there.done(member) == set(range(40))
    assert job.error is None


def test_a_stop_that_drains_handles_what_slots_have_read(world):
    """Records that wait behind one that runs are handled, too."""
    there = world()
    gate = there.gate(20)
    member, job = live(there, gate, concurrency=1)
    mates = [o for o in range(20, 40) if slot_of(o) == slot_of(20)]
    grow(there, 20)
    there.until(lambda: gate.at_work)
    there.until(lambda: there.done(member) >= {o for o in range(40) if o not in mates})
    stopper = threading.Thread(target=job.stop, kwargs={"drain": True})
    stopper.start()
    there.until(lambda: len(there.sources) < 2)
    gate.opened.set()
    stopper.join()
    assert there.done(member) == set(range(40))


@pytest.mark.parametrize("real_time", [None, LONG])
def test_what_a_slot_gives_back_during_a_stop_that_drains_is_left_to_the_next_job(
    world, monkeypatch, real_time
):
    """The lease of a slot lapses, as on a loaded host: it starts nothing more, and stop returns."""
    monkeypatch.setattr("coopconsume.runtime.dispatch.slot_leases.lease_of", lambda _options: 1.0)
    there = world()
    gate = there.gate(0)
    member = there.claim()
    job = there.run(member, gate, concurrency=1, real_time=real_time)
    there.until(lambda: gate.at_work)
    mates = [o for o in range(20) if slot_of(o) == slot_of(0)]
    others = set(range(20)) - set(mates)
    there.until(lambda: there.done(member) == others)
    monkeypatch.setattr(job._dispatcher.leases._server, "renew", lambda *_: None)
    stopper = threading.Thread(target=job.stop, kwargs={"drain": True})
    stopper.start()
    lapsed = time.monotonic() + 2.0
    until(lambda: time.monotonic() > lapsed)
    gate.opened.set()
    stopper.join()
    assert there.done(member) == {0, *others}
    there.run(member, gate, concurrency=1, real_time=real_time)
    until(lambda: there.done(member) == set(range(20)))
    assert [o for o, _ in gate.calls if o in mates] == mates


def slot_of(offset):
    """The slot of a record."""
    return [h.contains(key_hash(key_of(offset))) for h in KeyRange().split(2)].index(True)


def test_a_hand_over_ends_what_real_time_slots_run(world):
    """Before the shares move, what is done is committed, and nothing runs any more."""
    there, handler = world(), Calls()
    member, job = live(there, handler)
    grow(there, 20)
    there.until(lambda: len(handler.all) == 40)
    assert job._requests.hand_over(60.0) == []
    assert there.done(member) == set(range(40))
    assert there.sources == []


def test_no_collection_goes_through_what_a_worker_had_before_its_run(world):
    """Handlers would stand still meanwhile."""
    there, seen = world(), []
    look = lambda _record: seen.append((len(there.sources), gc.get_freeze_count()))  # noqa: E731
    member, job = live(there, look)
    grow(there, 20)
    there.until(lambda: there.done(member) == set(range(40)))
    # Both slots are in this process here: what one ends is over for the other, too.
    frozen = [count for slots, count in seen if slots == 2]
    assert frozen
    assert all(frozen)
    job._requests.hand_over(60.0)
    there.until(lambda: gc.get_freeze_count() == 0)


def test_a_pause_ends_the_run_and_resume_begins_another(world):
    """While paused no record is started."""
    there, handler = world(), Calls()
    member, job = live(there, handler)
    job.pause()
    there.until(lambda: not there.sources)
    grow(there, 10)
    there.turns(job)
    assert len(handler.all) == 20
    job.resume()
    there.until(lambda: there.done(member) == set(range(30)))
    there.until(lambda: there.runs == 2)


def test_the_next_run_follows_when_the_time_of_one_is_over(world):
    """Records of all runs are handled once."""
    there, handler = world(), Calls()
    member, _ = live(there, handler, real_time=1.0)
    there.until(lambda: there.runs >= 3)
    grow(there, 20)
    there.until(lambda: there.done(member) == set(range(40)))
    assert sorted(handler.all) == list(range(40))


def test_a_slot_without_a_free_handler_gives_its_records_back(world, monkeypatch):
    """A handler that hangs costs its key; batches and then other runs handle the others."""
    monkeypatch.setattr(slot_reading, "HELD_UP", 0.1)
    there = world()
    gate = there.gate(24)
    member, _ = live(there, gate, concurrency=1)
    grow(there, 20)
    there.until(lambda: there.done(member) == {o for o in range(40) if o < 24 or o % 5 != 4})
    gate.opened.set()
    there.until(lambda: there.done(member) == set(range(40)))
    assert [o for o, _ in gate.calls if o >= 20 and o % 5 == 4] == [24, 29, 34, 39]


@pytest.mark.usefixtures("long_leases")
def test_a_handler_that_hangs_beside_free_ones_ends_no_run(world, monkeypatch):
    """Its key waits; the others are handled in real time, however long it hangs."""
    cut, looks = slot_reading.SlotReading.take_report, Counter()

    def looked(watch, seq):
        report = cut(watch, seq)
        looks[watch] += 1
        return report

    monkeypatch.setattr(slot_reading.SlotReading, "take_report", looked)
    monkeypatch.setattr(slot_reading, "HELD_UP", LONG)
    there = world()
    gate = there.gate(24)
    member, _ = live(there, gate)
    grow(there, 20)
    there.until(lambda: there.done(member) == {o for o in range(40) if o < 24 or o % 5 != 4})
    # From now on a single look at a slot without a free handler would end the run.
    monkeypatch.setattr(slot_reading, "HELD_UP", 0.0)
    looks.clear()
    there.until(lambda: len(looks) == 2 and min(looks.values()) > 3)
    monkeypatch.setattr(slot_reading, "HELD_UP", LONG)
    grow(there, 20)
    there.until(lambda: there.done(member) == {o for o in range(60) if o < 24 or o % 5 != 4})
    gate.opened.set()
    there.until(lambda: there.done(member) == set(range(60)))
    assert there.runs == 1
    assert len(there.sources) == 2


def test_filtered_records_are_done_without_a_handler(world):
    """The slot drops them by the same rules as Spark."""
    there, handler = world(denyKeys="k1"), Calls()
    member, job = live(there, handler)
    grow(there, 20)
    there.until(lambda: there.done(member) == set(range(40)))
    assert not any(o % 5 == 1 for o in handler.all)
    there.until(lambda: job._meter.totals["filtered"] == 8)


def test_too_many_pending_records_end_a_run(world):
    """Batches read nothing new either until some are done."""
    failing = threading.Event()

    def fails(record):
        if record.offset >= 20 and not failing.is_set():
            raise ValueError("not yet")

    there, handler = world(maxPending="5"), Calls(fails)
    policy = RetryPolicy(backoff=1_000.0, max_backoff=1_000.0, jitter=0)
    member, job = live(there, handler, policy=policy)
    grow(there, 40)
    there.until(lambda: not there.sources)
    first = len(handler.all)
    assert first > 24
    grow(there, 40)
    there.turns(job, 10)
    assert (len(handler.all), there.runs) == (first, 1)
    assert there.done(member) == set(range(20))


def test_a_slot_that_fails_at_once_does_not_begin_again_at_once():
    """Each failure doubles its pause, up to a minute; other slots may begin."""
    mode = RealTimeMode(10, why="gone")
    pauses, now = [], 0.0
    for _ in range(9):
        mode.failed(1, now, now + 1.0)
        mode.failed(1, now, now + 1.5)
        due = mode._backoffs[1].not_before
        pauses.append(due - now - 1.0)
        assert mode.why_not([], 1, due - 0.1) == "gone"
        assert mode.why_not([], 0, due - 0.1) == mode.why_not([], 1, due) == ""
        now = due
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    mode.failed(1, now, now + 11.0)
    assert mode._backoffs[1].not_before == now + 12.0, "it had worked"


@pytest.mark.usefixtures("long_leases")
def test_a_rebalance_that_moves_nothing_ends_no_run(world, monkeypatch):
    """What slots do between two epochs is committed under the next one."""
    # On a loaded host a lease of 2 s may pass between two turns of this test.
    monkeypatch.setattr("coopconsume.runtime.dispatch.slot_leases.lease_of", lambda _options: 60.0)
    there = world(drainTimeout="300 seconds")
    group = Group(there)
    group.opens([WHOLE])
    group.begins(continues=False)
    gate = there.gate(22)
    job = there.run(group.member, gate, concurrency=4, real_time=LONG)
    there.until(lambda: there.runs and len(there.sources) == 2)
    assignment = group.member.assignment
    grow(there, 20)
    there.until(lambda: gate.at_work)
    for _ in range(2):
        assert group.member.owner.continue_work()
        grow(there, 20)
        others = {o for o in range(there.kafka.end) if o < 22 or o % 5 != 2}
        there.until(lambda others=others: others <= {o for o, _ in gate.calls})
        assert there.runs == 1, job._dispatcher._real_time.mode.why
        group.opens([WHOLE])
        group.begins()
        there.until(lambda others=others: there.done(group.member) == others)
    gate.opened.set()
    there.until(lambda: there.done(group.member) == set(range(there.kafka.end)))
    assert group.member.assignment is assignment
    assert sorted(o for o, _ in gate.calls) == list(range(there.kafka.end))
    assert there.runs == 1, job._dispatcher._real_time.mode.why
    assert job.error is None
