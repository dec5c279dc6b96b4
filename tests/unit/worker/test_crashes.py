"""Workers that die: what they leave behind, who is charged with it, and who is not."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import pickle
import sys
import threading
import time
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assignors import KeyRange
from commits import OffsetRanges
from coopconsume.record import RetryPolicy
from coopconsume.runtime.plan import deal
from coopconsume.runtime.settle.crashes import Crashes
from coopconsume.runtime.settle.poison_bisect import PoisonBisect
from coopconsume.worker.crash_journal import CrashJournal, read_journal
from coopconsume.worker.frame_runner import FrameHandler
from coopconsume.worker.input_rows import rows_of
from coopconsume.worker.key_scheduler import KeyScheduler
from coopconsume.worker.left_report import DAMAGED, remove_old_reports, take_left_report
from coopconsume.worker.outcome import TaskOutcome
from coopconsume.worker.report import PartitionWork
from coopconsume.worker.time_box import OUTLIVED, TimeBox
from tests.partitions import make_partition
from tests.unit.worker.slot_harness import PATIENCE, WAYS, done, in_way, prepared, run


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    """Boxes lie in the test's folder."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


#: The process of the last `in_a_worker`.
_workers: list[int] = []


def in_a_worker(slot, batches):
    """Run a slot in a process of its own, as Spark's workers are; returns its exit status."""
    worker = os.fork()
    _workers[:] = [worker]
    if worker == 0:
        try:
            slot.run(3, batches)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])


ROWS = [(0, o, b"ab"[o % 2 : o % 2 + 1]) for o in range(8)]


def dies_at(offset):
    """A handler that kills its worker at an offset."""

    def handler(record):
        if record.offset == offset:
            os._exit(9)

    return handler


@pytest.mark.parametrize("concurrency", [1, 2])
def test_the_record_that_killed_its_worker_is_charged_an_attempt(concurrency, tmp_path):
    """Spark's second attempt starts nothing, names the record, and leaves the rest undone."""
    rows = ROWS if concurrency == 1 else [(0, o, b"a") for o in range(8)]
    slot, batches = prepared(dies_at(3), rows, concurrency=concurrency, run_id="r1")
    assert in_a_worker(slot, batches) == 9
    report = slot.after_a_crash(3)
    assert report.end.crashed
    assert (report.pid, report.end.overdue) == (_workers[0], False)
    assert not report.end.unknown
    assert (report.end.culprits, report.end.suspects) == ([(0, 3)], [])
    assert done(report) == []
    assert report.partitions[0].resume == 0
    assert not list(tmp_path.iterdir()), "the box is taken away"


@pytest.mark.parametrize("way", [*WAYS, "frames"])
def test_a_call_that_ended_its_worker_counts_once_without_another_call(way):
    """The next batch has the whole record: it decides as about any other failure."""
    called = []
    handler, concurrency = in_way(way, lambda record: called.append(record.offset))
    if way == "frames":
        handler = FrameHandler(lambda frame: called.extend(frame.column("offset").to_pylist()), 4)
    work = {0: PartitionWork(((0, 99),), attempts={3: 1}, ended={2: "it died", 3: "it died"})}
    policy = RetryPolicy(max_attempts=2, backoff=1_000, max_backoff=1_000)
    more = {"concurrency": concurrency, "work": work, "break_after": 9}
    report = run(handler, ROWS, policy=policy, **more)
    failed = [(one.offset, one.attempts, one.key, one.error) for one in report.partitions[0].failed]
    assert failed == [(2, 1, b"a", "WorkerEnded: it died")]
    assert report.partitions[0].failed[0].delay >= 1_000
    assert [(d.offset, d.value, d.attempts) for d in report.dead] == [(3, b"v3", 2)]
    assert sorted(called) == [0, 1, 5, 7]
    assert (done(report), report.stats.failures) == ([0, 1, 3, 5, 7], 2)


def test_calls_that_ended_their_workers_count_for_the_circuit_breaker():
    """With those of the batch before, and with the calls that fail after them."""

    def handler(record):
        raise ValueError(record.offset)

    work = {0: PartitionWork(((0, 99),), ended={0: "it died"})}
    for concurrency in (1, 2):
        more = {"concurrency": concurrency, "work": work, "streaks": {3: 3}}
        assert run(handler, ROWS[:1], break_after=4, **more).end.tripped == "WorkerEnded: it died"
        assert run(handler, ROWS[:2], break_after=5, **more).end.tripped == "ValueError: 1"


def test_the_end_of_a_worker_is_one_failure_for_the_circuit_breaker():
    """However many records were charged with it: one call of a frame has many."""
    work = {0: PartitionWork(((0, 99),), ended=dict.fromkeys((0, 1, 2), "it died"))}
    for concurrency in (1, 2):
        report = run(lambda _: None, ROWS[:3], concurrency=concurrency, work=work, break_after=2)
        assert report.stats.failures == 2, "the third waits behind its key"
        assert not report.end.tripped


def test_half_of_a_left_report_does_not_count(tmp_path):
    """The disk was full as the worker ended itself."""
    journal = tmp_path / "journal"
    journal.with_name("journal.report").write_bytes(pickle.dumps((1, "here", {}))[:-9])
    assert take_left_report(journal) is None


def test_reports_of_cancelled_jobs_are_removed_by_a_later_worker(tmp_path):
    """A report that may still be taken stays, and so does what is not of this library."""
    names = ["coopconsume-old-3-1", "coopconsume-old-4-1", "coopconsume-new-3-1", "other-3-1"]
    for name in names:
        (tmp_path / name).touch()
        (tmp_path / f"{name}.report").touch()
    part = tmp_path / "coopconsume-old-5-1.part"
    part.touch()
    two_days_ago = time.time() - 48 * 3600
    for path in (part, *(tmp_path / f"{name}.report" for name in (*names[:2], names[3]))):
        os.utime(path, (two_days_ago, two_days_ago))
    slot, batches = prepared(lambda _record: None, ROWS[:2], concurrency=1, run_id="r")
    remove_old_reports.cache_clear()
    assert in_a_worker(slot, batches) == 0
    left = {path.name.removesuffix(".report") for path in tmp_path.iterdir()}
    assert left == {"coopconsume-new-3-1", "other-3-1"}


def test_of_several_at_work_none_is_charged_but_all_are_suspects():
    """Nobody knows which of them it was."""
    slot, batches = prepared(slow_but_for(3), ROWS[2:4], concurrency=2, run_id="r3")
    assert in_a_worker(slot, batches) == 9
    report = slot.after_a_crash(3)
    assert sorted(report.end.suspects) == [(0, 2), (0, 3)]
    assert report.end.culprits == []
    assert report.partitions[0].resume == 0


def slow_but_for(offset):
    """All wait; one kills the worker once another waits."""
    waits = threading.Event()

    def handler(record):
        if record.offset == offset:
            waits.wait(PATIENCE)
            os._exit(9)
        waits.set()
        time.sleep(600)

    return handler


def test_a_thread_that_never_ends_has_its_worker_ended_and_is_charged():
    """After its time and as much again; the others at work are not charged."""

    def handler(record):
        time.sleep(600 if record.offset == 2 else 0.05)

    rows = [(0, o, b"%d" % (o % 2)) for o in range(400)]
    slot, batches = prepared(
        handler, rows, concurrency=2, run_id="r4", policy=RetryPolicy(timeout=3.0, jitter=0)
    )  # fmt: skip
    assert in_a_worker(slot, batches) == OUTLIVED
    report = slot.after_a_crash(3)
    assert report.end.culprits == [(0, 2)]
    assert (report.pid, report.end.overdue) == (_workers[0], True)
    assert not report.end.suspects


@pytest.mark.parametrize("by_policy", [True, False])
def test_a_coroutine_that_blocks_its_loop_is_charged_alone(by_policy):
    """The others cannot end: by the time limit of a call, and at the end of the batch's time."""

    async def handler(record):
        if record.offset == 2:
            await asyncio.sleep(0.2)  # All others have begun.
            time.sleep(600)  # noqa: ASYNC251 - that is the defect
        await asyncio.sleep(600)

    policy, life = (RetryPolicy(timeout=1.0), 40.0) if by_policy else (RetryPolicy(), 1.0)
    times = {"batch_time": life, "handler_timeout": life}
    rows = [(0, o, b"%d" % o) for o in range(8)]
    slot, batches = prepared(handler, rows, concurrency=8, run_id="r8", policy=policy, **times)
    begun = time.monotonic()
    assert in_a_worker(slot, batches) == OUTLIVED
    assert not by_policy or time.monotonic() - begun < 2 * life, "its time limit has ended it"
    end = slot.after_a_crash(3).end
    assert (end.culprits, end.suspects, end.overdue) == ([(0, 2)], [], True)


def test_a_worker_whose_own_code_fails_leaves_its_report_and_ends(monkeypatch, tmp_path):
    """What runs in it next would fail as well; the second attempt of the task reports it."""

    def broken(*_):
        raise ZeroDivisionError("it is damaged")

    for concurrency, crashed in ((1, True), (2, False)):
        monkeypatch.setattr(TaskOutcome, "settle", broken)
        slot, batches = prepared(_fails_at(3), ROWS, concurrency=concurrency, run_id="r9")
        worker = os.fork()
        if worker == 0:
            try:
                slot.first_attempt(3, iter(batches))
            finally:
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) == DAMAGED
        report = slot.after_a_crash(3)
        assert report.end.error == "ZeroDivisionError: it is damaged"
        assert (report.end.crashed, report.pid) == (crashed, worker)
        assert [*report.end.culprits, *report.end.suspects] == [], "no record is charged"
        assert report.partitions[0].resume == 0
        assert 3 not in done(report)
        assert not list(tmp_path.iterdir())


def _fails_at(offset):
    def handler(record):
        if record.offset == offset:
            raise OSError

    return handler


def test_what_outlives_its_batch_is_charged_too():
    """The end of a batch's time box is the last time limit of all."""
    slot, batches = prepared(
        lambda record: time.sleep(600), ROWS[:1], run_id="r5", batch_time=0.1, handler_timeout=2.0
    )
    assert in_a_worker(slot, batches) == OUTLIVED
    assert slot.after_a_crash(3).end.culprits == [(0, 0)]


class NoTimer:
    """Takes the place of the timer that would end this process."""

    def set(self, at):
        """Does nothing."""

    def close(self):
        """Does nothing."""


def boxed(way, monkeypatch, *, is_closed=False):
    """The runner of a slot, its rows, what it has handled, its time box, and how its worker ends.

    The time box comes once the slot runs.
    """
    handled, boxes, ends = [], [], []

    def time_box(*args):
        boxes.append(TimeBox(*args, end=end))
        boxes[0].is_closed = is_closed
        return boxes[0]

    def end(status):
        ends.append(status)
        sys.exit(status)

    def handler(record):
        handled.append(record.offset)

    def frames(frame):
        handled.extend(frame.column("offset").to_pylist())

    monkeypatch.setattr("coopconsume.worker.slot.TimeBox", time_box)
    monkeypatch.setattr("coopconsume.worker.slot.process_timer", NoTimer)
    is_frames = way == "frames"
    found, concurrency = (FrameHandler(frames, 4), 1) if is_frames else in_way(way, handler)
    return *prepared(found, ROWS, None, concurrency), handled, boxes, ends


def until(is_it):
    """Waits for a condition."""
    end = time.monotonic() + PATIENCE
    while not is_it():
        assert time.monotonic() < end
        time.sleep(0.002)


@pytest.mark.parametrize("way", [*WAYS, "frames"])
def test_a_worker_that_is_only_late_to_report_is_not_ended(way, monkeypatch):
    """As on an overloaded host: no handler runs any more, and what was done is reported."""
    slot, batches, handled, boxes, ends = boxed(way, monkeypatch)

    def slow_rows():
        yield from batches
        (box,) = boxes
        until(lambda: len(handled) == len(ROWS) and not box.journal.is_at_work)
        box.halt("lease", time.monotonic() - slot._spec.handler_timeout)
        until(lambda: box.is_closed or ends)
        yield from prepared(None, [(0, o, b"a") for o in range(8, 12)])[1]

    report = slot.run(3, slow_rows())
    assert not ends
    assert done(report) == list(range(8))
    assert report.partitions[0].resume == 8
    assert report.end.stopped == "lease"


@pytest.mark.parametrize("way", [*WAYS, "frames"])
def test_no_handler_starts_once_the_time_of_running_ones_is_over(way, monkeypatch):
    """A thread may stand still between its look at the clock and its start: then it is too late."""
    slot, batches, handled, boxes, ends = boxed(way, monkeypatch, is_closed=True)
    with suppress(SystemExit):  # It is no end of this process.
        slot.run(3, batches)
    assert set(ends) == {OUTLIVED}
    assert not boxes[0].journal.is_at_work, "no record is charged"
    assert not handled


def test_a_record_that_is_charged_without_a_call_waits_its_delay_from_then_on():
    """It may have been queued for long behind calls of other records."""
    work = {0: PartitionWork(((0, 99),), ended={1: "it died"})}
    policy = RetryPolicy(backoff=5.0, max_backoff=5.0, jitter=0)
    rows = [(0, 0, b"a"), (0, 1, b"b"), (0, 2, b"c")]
    slot, batches = prepared(None, rows, work, concurrency=2, policy=policy)
    outcome = slot._outcome(3)
    scheduler = KeyScheduler(outcome, 0.0)
    scheduler.deadline = 1_000.0
    for row in rows_of(batches[0]):
        scheduler.admit(row)
    started = [scheduler.take(100.0), scheduler.take(100.0)]
    assert [row.offset for _, row, _ in started] == [0, 2]
    assert scheduler.take(104.9) is None
    _, row, record = scheduler.take(105.0)
    assert (row.offset, record.attempt) == (1, 2)


def test_a_worker_with_a_running_handler_is_ended():
    """Also if others of its handlers have ended."""
    slot, ends = prepared(None, ROWS)[0], []
    time_box = TimeBox(slot._spec, CrashJournal(None, 2), end=ends.append)
    time_box.begin()
    time_box.journal.enter(1, 0, 7)
    time_box.halt("stop", time.monotonic() - 300.0)
    until(lambda: ends == [OUTLIVED])


def test_without_a_box_nothing_is_known():
    """As on another host: the outcome is unknown, and nobody is charged."""
    report = prepared(dies_at(3), ROWS, run_id="r6")[0].after_a_crash(3)
    assert report.end.unknown
    assert not report.end.crashed


def test_a_worker_that_may_still_run_is_not_considered_dead(tmp_path):
    """Its journal is kept and not read."""
    path = tmp_path / "box"
    box = CrashJournal(path, 2)
    box.enter(1, 0, 5)
    assert read_journal(path) is None
    assert path.exists()
    box.close()
    assert not path.exists()


def test_a_box_that_cannot_be_made_costs_nothing(tmp_path):
    """Without space or permission the worker goes on without a journal."""
    box = CrashJournal(tmp_path / "no" / "folder", 1)
    box.enter(0, 0, 2**62)
    box.leave(0)
    box.close()
    assert read_journal(tmp_path / "nothing") is None


def test_a_run_that_ends_well_leaves_nothing_behind(tmp_path):
    """However it handled its records."""
    for concurrency in (1, 2):
        slot, batches = prepared(lambda record: None, ROWS, concurrency=concurrency, run_id="r7")
        slot.run(3, batches)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("way", WAYS)
def test_a_record_that_has_had_its_attempts_is_given_up_without_another_call(way):
    """Its last attempt ended with its worker, and nobody could say so at the time."""
    called = []
    work = {0: PartitionWork(((0, 99),), attempts={1: 3, 2: 2})}
    report = run(
        lambda record: called.append(record.offset), ROWS[:4], way=way, work=work,
        policy=RetryPolicy(max_attempts=3),
    )  # fmt: skip
    assert sorted(called) == [0, 2, 3]
    assert [(d.offset, d.attempts) for d in report.dead] == [(1, 3)]
    assert done(report) == [0, 1, 2, 3]


def test_a_pending_record_and_lower_ones_may_start_while_their_key_is_blocked():
    """What waits behind it waits until it is known to be done."""
    called = []
    a, b = (hash(key) & (2**63 - 1) for key in (b"a", b"b"))
    work = {0: PartitionWork(((0, 99),), blocked={a: 2, b: 1})}
    for way in WAYS:
        called.clear()
        report = run(lambda record: called.append(record.offset), ROWS, way=way, work=work)
        assert sorted(called) == [0, 1, 2]
        assert sorted(o for o, _ in report.partitions[0].blocked) == [3, 4, 5, 6, 7]


@given(
    count=st.integers(1, 3_000), culprit=st.floats(0, 1), known=st.booleans(),
    at_once=st.integers(1, 50),
)  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_the_culprit_is_alone_after_as_many_crashes_as_halvings(count, culprit, known, at_once):
    """Whichever record it is and whatever the workers leave behind; the others pass meanwhile."""
    slot, bad = PoisonBisect(), int(culprit * (count - 1))
    todo = OffsetRanges([(0, count - 1)])
    for crashes in itertools.count(1):
        assert crashes <= 4 + math.log2(count) + 1, "it takes too long"
        while True:
            allowed = slot.allowed
            given = {0: todo} if allowed is None else {0: todo & allowed[0]}
            assert given[0], "a slot that gets nothing stands still"
            if bad in given[0]:
                break
            todo = todo - given[0]
            slot.passed(given)
        around = [o for o in range(bad, min(count, bad + at_once)) if o in given[0]]
        at_work = {0: OffsetRanges.from_offsets(around)} if known else None
        if known and len(around) == 1:
            slot.crashed(given, at_work, charged=True)
            assert slot.allowed is None
            return
        slot.crashed(given, at_work, charged=False)
        if slot.culprit is not None:
            assert slot.culprit == (0, bad)
            return


def test_one_crash_alone_changes_nothing():
    """Hosts die: the slot gets its work as it was, and once that passes all is forgotten."""
    slot, given = PoisonBisect(), {0: OffsetRanges([(0, 99)]), 1: OffsetRanges([(5, 6)])}
    slot.crashed(given, None, charged=False)
    assert slot.allowed is None
    slot.passed(given)
    slot.crashed(given, None, charged=False)
    assert slot.allowed is None
    slot.crashed(given, None, charged=False)
    assert slot.allowed == {0: OffsetRanges([(0, 50)])}
    slot.crashed({0: OffsetRanges([(0, 50)])}, {}, charged=False)
    assert slot.allowed is None, "nothing was at work: it was no record's doing"


def two_partitions():
    """Two whole partitions of two slots."""
    return [
        make_partition(
            part, "t", part, stable=0, committed=OffsetRanges(),
            slots=deal((KeyRange(),), 2, part, "key"), ordering="key", whole=True,
        )
        for part in (0, 1)
    ]  # fmt: skip


def test_a_slot_is_of_concern_until_it_is_through_with_what_its_worker_had():
    """Then it is relieved, and dealt key ranges, as any other."""
    crashes, partitions = Crashes(None), two_partitions()
    given = {0: OffsetRanges([(0, 9)])}
    crashes.crashed(partitions, 1, given, None)
    assert [crashes.concern(slot) for slot in (0, 1)] == [False, True]
    crashes.passed(partitions, 1, given)
    assert not crashes.concern(1)


def test_what_was_given_up_is_not_suspected_any_more():
    """Nobody handles it here; a slot would start nothing else for ever."""
    crashes, partitions = Crashes(None), two_partitions()
    for _ in range(2):
        crashes.crashed(partitions, 1, {0: OffsetRanges([(0, 9)])}, None)
    assert crashes.confine(partitions, (0, 1)) == {1: {0: OffsetRanges([(0, 4)])}}
    assert partitions[1].cursors[1].only == OffsetRanges()
    partitions[0].leave([KeyRange()])
    partitions[0].has_left(0.0)
    crashes.drop_settled(partitions)
    assert crashes.confine(partitions, (0, 1)) == {}
    assert partitions[1].cursors[1].only is None
    assert not crashes.concern(1)


def test_what_was_done_or_deleted_elsewhere_is_not_suspected_any_more():
    """Retention deletes what a failed batch had: no slot is ever through with it."""
    crashes, partitions = Crashes(None), two_partitions()
    for _ in range(2):
        crashes.crashed(partitions, 1, {0: OffsetRanges([(0, 9)])}, None)
    partitions[0].slots.amend(OffsetRanges([(0, 6)]))
    crashes.drop_settled(partitions)
    assert crashes.confine(partitions, (0, 1)) == {1: {0: OffsetRanges([(7, 7)])}}
    partitions[0].slots.amend(OffsetRanges([(7, 9)]))
    crashes.drop_settled(partitions)
    assert not crashes.concern(1)
