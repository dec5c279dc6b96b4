"""A slot with a channel: what it reports while it works, and when it starts nothing more."""

from __future__ import annotations

import asyncio
import fcntl
import json
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from coopconsume.record import Retry, RetryPolicy
from coopconsume.worker.channel.server import ChannelServer
from coopconsume.worker.channel.spec import ChannelSpec
from coopconsume.worker.channel.wire import TAKEN, Frame, encode_withhold
from coopconsume.worker.crash_journal import CrashJournal
from coopconsume.worker.frame_runner import FrameHandler
from coopconsume.worker.host_locks import DriverLock, this_host
from coopconsume.worker.input_rows import InputRow
from coopconsume.worker.key_scheduler import KeyScheduler
from coopconsume.worker.rate_limit import Rates
from coopconsume.worker.realtime.slot_reading import SlotReading
from coopconsume.worker.report import SlotEnd, unpack_offsets
from coopconsume.worker.reporter import SlotReporter
from coopconsume.worker.time_box import OUTLIVED, TimeBox
from tests.unit.worker.slot_harness import PATIENCE, WAYS, Scheduled, done, in_way, prepared

FOUR_WAYS = [*WAYS, "frames"]
SECRET = b"s" * 32


class Driver:
    """A driver that keeps its slot's lease, as long as it is alive."""

    def __init__(self, report_every, lease, driver_lock=None):
        self.reports, self.calls, self.alive = [], [], threading.Event()
        self.alive.set()
        self.server = ChannelServer(
            ChannelSpec("127.0.0.1", 0, SECRET, lease, report_every),
            "127.0.0.1",
            "",
            self._report,
            on_call=lambda *call: self.calls.append(call),
            driver_lock=driver_lock,
        )
        self.takes = True
        self.is_over = threading.Event()
        self._thread = threading.Thread(target=self._renew)
        self._thread.start()

    def _report(self, report):
        self.reports.append(report)
        if self.takes:
            self.server.send((report.batch, report.slot), Frame.TAKEN, TAKEN.pack(report.seq, 0.01))

    def _renew(self):
        while not self.is_over.wait(0.02):
            if self.alive.is_set():
                self.server.renew([(0, 3)])

    def stop(self):
        self.server.stop([(0, 3)])

    def close(self):
        self.is_over.set()
        self._thread.join()
        self.server.close()

    def heard(self):
        """Offsets that progressive reports count as done."""
        return {o for one in self.reports for of in one.partitions.values()
                for o in unpack_offsets(of.done).to_pylist()}  # fmt: skip


@contextmanager
def a_driver(report_every=0.02, lease=60.0, driver_lock=None):
    """A driver, closed at the end."""
    driver = Driver(report_every, lease, driver_lock)
    try:
        yield driver
    finally:
        driver.close()


def runner(driver, way, handler, rows, *, frame=4, **more):
    """A slot's runner with a channel, and its rows."""
    if way == "frames":

        def of_frame(rows):
            for offset in rows.column("offset").to_pylist():
                handler(offset)

        function, concurrency = FrameHandler(of_frame, frame), 1
    else:
        function, concurrency = in_way(way, lambda record: handler(record.offset))
    more.setdefault("channel", driver.server.spec())
    return prepared(function, rows, None, concurrency, **more)


def wait_for(condition):
    """Waits until a condition holds; whether it does."""
    end = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < end:
        time.sleep(0.002)
    return condition()


ROWS = [(0, o, b"k") for o in range(12)]


@pytest.mark.parametrize("way", FOUR_WAYS)
def test_what_is_done_is_reported_while_a_handler_hangs(way):
    """All before it; the final report has the rest, and nothing is in two reports."""
    with a_driver() as driver:
        heard = []

        def handler(offset):
            if offset == 8:
                heard.append(wait_for(lambda: driver.heard() >= set(range(8))))

        slot, batches = runner(driver, way, handler, ROWS)
        report = slot.run(3, batches)
        assert heard == [True]
        assert report.end.stopped == ""
        every = {one.seq: one for one in [*driver.reports, *report.end.unacknowledged, report]}
        assert sorted(o for one in every.values() for o in done(one)) == list(range(12))
        assert sum(one.stats.handled for one in every.values()) == 12


@pytest.mark.parametrize("way", ["threads", "coroutines", "frames"])
def test_in_real_time_a_slot_without_news_reports_the_next_record_at_once(way):
    """Its next report would be due in a minute; without news it makes none."""
    with a_driver(report_every=60.0) as driver:
        heard, channels, outcomes = [], [], []

        def handler(offset):
            if offset == 4:
                heard.append(wait_for(lambda: driver.heard() >= set(range(4))))
            if offset in (0, 4):
                channels[0]._cut_at = 0.0
                channels[0]._wake()
                heard.append(wait_for(lambda: outcomes[0].on_settled is not None))
            if offset == 8:
                heard.append(wait_for(lambda: driver.heard() >= set(range(8))))

        slot, batches = runner(driver, way, handler, ROWS)

        def begin(batches, outcome, time_box, channel, reporter):
            channels.append(channel)
            outcomes.append(outcome)
            channel.begin(reporter, time_box, SlotReading(reporter, channel.report_soon))
            return batches

        slot._begin = begin
        slot.run(3, batches)
        assert heard == [True] * 4
        assert [one.seq for one in driver.reports][:2] == [1, 2]


@pytest.mark.parametrize("way", FOUR_WAYS)
def test_lines_of_a_call_are_reported_while_it_runs(way):
    """By a report that has nothing else; each line is in one report."""
    with a_driver() as driver:

        def lines_of(reports):
            return [line for one in reports if one.lines for line in one.lines.lines]

        def handler(offset):
            before = len(driver.reports)
            sys.stdout.write(f"call for {offset}\n")
            if offset == 0:
                assert wait_for(lambda: lines_of(list(driver.reports)))
                assert all(not one.partitions for one in driver.reports[before:])

        slot, batches = runner(driver, way, handler, ROWS, frame=1, shown_lines=1_000)
        report = slot.run(3, batches)
        every = {one.seq: one for one in [*driver.reports, *report.end.unacknowledged, report]}
        assert sorted(o for one in every.values() for o in done(one)) == list(range(12))
        lines = lines_of(every.values())
        assert sorted(one.place.offset for one in lines) == list(range(12))
        assert all(one.text == f"call for {one.place.offset}" for one in lines)


@pytest.mark.parametrize("way", FOUR_WAYS)
def test_the_driver_knows_which_handler_call_takes_long(way, monkeypatch):
    """The record, or the first one of the frame, and another one when it is through."""
    monkeypatch.setattr("coopconsume.worker.channel.client.SLOW_CALL", 0.0)
    with a_driver() as driver:

        def handler(offset):
            if offset in (4, 8):
                assert wait_for(
                    lambda: (0, offset) in [call[:2] for _, _, call in list(driver.calls) if call]
                )

        slot, batches = runner(driver, way, handler, ROWS)
        report = slot.run(3, batches)
        assert [f for part in report.partitions.values() for f in part.failed] == []
        assert {(batch, slot) for batch, slot, _ in driver.calls} == {(0, 3)}
        assert all(call is None or call[2] >= 0 for _, _, call in driver.calls)


@pytest.mark.skipif(not this_host(), reason="the system does not name its boot")
@pytest.mark.parametrize("way", FOUR_WAYS)
def test_while_handlers_of_a_slot_may_run_its_host_knows_that(way, monkeypatch, tmp_path):
    """So a driver that comes after a crash waits for them, and not for longer."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    lock = DriverLock("g")
    with a_driver(driver_lock=lock) as driver, Path(lock.workers.path).open() as file:
        free = []

        def look(*_):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                free.append(False)
            else:
                fcntl.flock(file, fcntl.LOCK_UN)
                free.append(True)

        slot, batches = runner(driver, way, look, ROWS)
        look()
        slot.run(3, batches)
        look()
        assert free == [True, *(len(free) - 2) * [False], True]
        assert len(free) > 3
        assert lock.workers is not None
        # A file that the slot does not find: another host.
        spec = replace(driver.server.spec(), workers=replace(lock.workers, host="another"))
        slot, batches = runner(driver, way, lambda _: None, ROWS, channel=spec)
        driver.server.forget(0)
        slot.run(3, batches)
        assert lock.workers is None


def test_a_batch_that_is_soon_over_reports_once():
    """Nothing is sent before the first interval has passed."""
    with a_driver(report_every=60.0) as driver:
        slot, batches = runner(driver, "plain", lambda offset: None, ROWS)
        report = slot.run(3, batches)
        assert driver.reports == []
        assert done(report) == list(range(12))


@pytest.mark.parametrize("way", FOUR_WAYS)
def test_what_was_not_acknowledged_comes_with_the_final_report(way):
    """Under its number, so that the driver takes nothing twice."""
    with a_driver() as driver:
        driver.takes = False

        def handler(offset):
            if offset in (4, 8):
                wait_for(lambda: driver.heard() >= set(range(offset)))

        slot, batches = runner(driver, way, handler, ROWS)
        report = slot.run(3, batches)
        assert wait_for(lambda: not driver.server.connected)
        kept = report.end.unacknowledged
        assert kept[: len(driver.reports)] == driver.reports
        assert [one.seq for one in kept] == [*range(1, len(kept) + 1)]
        assert sorted(o for one in [*kept, report] for o in done(one)) == list(range(12))


@pytest.mark.parametrize("way", FOUR_WAYS)
def test_a_stopped_slot_ends_what_runs_and_starts_nothing_more(way):
    """It reports what is done, and that the rest was not looked at."""
    with a_driver() as driver:
        started = []

        def handler(offset):
            started.append(offset)
            if offset == 5:
                halted = halt_of(time_box)
                driver.stop()
                assert halted.wait(PATIENCE)

        slot, batches = runner(driver, way, handler, ROWS, frame=3)
        time_box = time_box_of(slot)
        report = slot.run(3, batches)
        assert started == list(range(6))
        assert (report.end.stopped, report.end.timed_out) == ("stop", False)
        assert wait_for(lambda: sorted(driver.heard() | all_of(report)) == started)
        assert report.partitions[0].resume == 6


@pytest.mark.parametrize("way", FOUR_WAYS)
def test_a_relieved_slot_keeps_what_runs_and_starts_nothing_more(way):
    """It says at once what it keeps, and reports it as the handler ends."""
    with a_driver() as driver:
        started, kept = [], []

        def handler(offset):
            started.append(offset)
            if offset == 5:
                driver.server.send((0, 3), Frame.RELIEVE)
                assert wait_for(lambda: any(one.kept for one in driver.reports))
                kept.extend(*(one.kept for one in driver.reports if one.kept))

        slot, batches = runner(driver, way, handler, ROWS, frame=3)
        report = slot.run(3, batches)
        assert started == list(range(6))
        assert [offset for _, offset, _ in kept] == ([3, 4, 5] if way == "frames" else [5])
        assert {lane for _, _, lane in kept} == {hash(b"k") & (2**63 - 1)}
        assert (report.end.stopped, report.end.timed_out) == ("relief", False)
        assert driver.heard() | all_of(report) == set(started)


@pytest.mark.parametrize("way", ["threads", "coroutines"])
def test_a_relieved_slot_leaves_what_it_would_try_again_to_later_batches(way):
    """The failure is in the report that gives back, with its attempt."""
    with a_driver() as driver:

        def handler(offset):
            if offset == 0:
                raise RuntimeError("planned")
            if offset == 5:
                assert wait_for(lambda: outcomes[0].draft.failures)
                driver.server.send((0, 3), Frame.RELIEVE)
                assert wait_for(lambda: any(one.kept for one in driver.reports))

        rows = [(0, o, b"k%d" % o) for o in range(6)]
        soon = RetryPolicy(backoff=200.0, max_backoff=200.0, jitter=0)
        slot, batches = runner(driver, way, handler, rows, policy=soon)
        outcomes = [slot._outcome(3)]
        slot._outcome = lambda _slot: outcomes[0]
        report = slot.run(3, batches)
        (given,) = (one for one in driver.reports if one.kept)
        assert [(one.offset, one.attempts) for one in given.partitions[0].failed] == [(0, 1)]
        assert not report.partitions[0].failed


def all_of(report):
    """Offsets that count as done by a final report, with what was not acknowledged."""
    return {offset for one in [*report.end.unacknowledged, report] for offset in done(one)}


def time_box_of(slot):
    """The time box that a runner's slot gets, before it has it."""
    seen = TimeBox(slot._spec, CrashJournal(None, 1))
    begin = seen.begin

    class Same:
        """Takes the place of the class in the runner's module."""

        def __call__(self, spec, box):
            seen.journal = box
            return seen

    import coopconsume.worker.slot as module

    original = module.TimeBox
    module.TimeBox = Same()

    def restore_and_begin():
        module.TimeBox = original
        return begin()

    seen.begin = restore_and_begin
    return seen


def halt_of(time_box):
    """Returns an event that is set once a time box has halted its runner, which comes before."""
    halted = threading.Event()
    time_box.on_halt(halted.set)
    return halted


@pytest.mark.parametrize("way", FOUR_WAYS)
def test_a_slot_that_is_stopped_before_its_rows_come_starts_nothing(way):
    """Not even the one record that a time box always lets through."""
    with a_driver() as driver:
        driver.stop()
        started = []
        slot, batches = runner(driver, way, started.append, ROWS)
        report = slot.run(3, batches)
        assert started == []
        assert (report.stats.handled, report.end.stopped) == (0, "stop")
        assert report.partitions[0].resume == 0


@pytest.mark.parametrize("way", FOUR_WAYS)
def test_a_slot_that_is_stopped_as_its_rows_come_starts_nothing(way):
    """Between the arrival of the first rows and the first record."""
    with a_driver() as driver:
        started = []
        slot, batches = runner(driver, way, started.append, ROWS)
        time_box = time_box_of(slot)
        begin = time_box.begin

        def begin_and_stop():
            end = begin()
            time_box.halt("stop", time.monotonic())
            return end

        time_box.begin = begin_and_stop
        report = slot.run(3, batches)
        assert started == []
        assert (report.stats.handled, report.end.stopped, report.partitions[0].resume) == (
            0,
            "stop",
            0,
        )


@pytest.mark.parametrize("way", FOUR_WAYS)
def test_a_stopped_slot_passes_over_the_rest_quickly(way):
    """Of each of its partitions it reports from where on nothing was looked at."""
    rows = [(o // 30_000, o, b"k") for o in range(60_000)]
    with a_driver() as driver:

        def handler(offset):
            if offset == 3:
                halted = halt_of(time_box)
                driver.stop()
                assert halted.wait(PATIENCE)

        slot, batches = runner(driver, way, handler, rows, batch_rows=100)
        time_box, read = time_box_of(slot), []
        passed = slot._outcome(3)
        slot._outcome = lambda _slot: passed
        passed.skip = lambda batch, really=passed.skip: read.append(really(batch))
        report = slot.run(3, batches)
        assert report.partitions[0].resume <= 30_000
        assert max(driver.heard() | all_of(report)) < report.partitions[0].resume
        assert report.partitions[1].resume == 30_000
        assert len(read) > 100


@pytest.mark.parametrize("way", ["threads", "coroutines"])
def test_a_slot_that_waits_is_stopped_at_once(way):
    """Although its rate lets nothing start for a long time."""
    with a_driver() as driver:
        started = []

        def handler(offset):
            started.append(offset)
            threading.Thread(target=driver.stop).start()

        slot, batches = runner(driver, way, handler, ROWS, rates=Rates(per_slot=0.01))
        begun = time.monotonic()
        report = slot.run(3, batches)
        assert started == [0]
        assert report.end.stopped == "stop"
        assert time.monotonic() - begun < 50


def test_a_busy_event_loop_does_not_start_another_coroutine():
    """A handler that never waits keeps the loop; the next one sees that the slot is stopped."""
    with a_driver() as driver:
        started = []

        async def handler(record):
            started.append(record.offset)
            if record.offset == 2:
                halted = halt_of(time_box)
                driver.stop()
                halted.wait(PATIENCE)
            elif record.offset > 2:
                await asyncio.sleep(0)

        slot, batches = prepared(handler, ROWS, None, 1, channel=driver.server.spec())
        time_box = time_box_of(slot)
        assert slot.run(3, batches).end.stopped == "stop"
        assert started == [0, 1, 2]


@pytest.mark.parametrize("way", FOUR_WAYS)
@pytest.mark.parametrize("how", ["lease", "connection"])
def test_a_slot_without_its_driver_starts_nothing_more(way, how):
    """The loop renews no more; or the connection is gone."""
    with a_driver(lease=1.0 if how == "lease" else 60.0) as driver:
        started = []

        def handler(offset):
            started.append(offset)
            if offset == 5:
                halted = halt_of(time_box)
                driver.alive.clear()
                if how == "connection":
                    driver.server.close()
                assert halted.wait(PATIENCE)

        slot, batches = runner(driver, way, handler, ROWS, frame=3)
        time_box = time_box_of(slot)
        report = slot.run(3, batches)
        assert started == list(range(6))
        assert report.end.stopped == how


def test_a_slot_without_a_channel_starts_nothing_and_says_why():
    """The driver then goes on without one."""
    nobody = ChannelSpec("127.0.0.1", 1, SECRET, 2.0)
    for spec in (nobody, None):
        with a_driver() as driver:
            wrong = spec or replace(driver.server.spec(), secret=b"x" * 32)
            started = []
            slot, batches = runner(driver, "plain", started.append, ROWS, channel=wrong)
            report = slot.run(3, batches)
            assert started == []
            assert f"no channel to the driver at 127.0.0.1:{wrong.port}" in report.end.channel_error
            assert report.partitions[0].resume == 0


#: A slot of its own process; it writes when its handlers began.
CHILD = """
import json, sys, time
from coopconsume.worker.channel.spec import ChannelSpec
from coopconsume.worker.channel.wire import TAKEN, Frame, encode_withhold
from tests.unit.worker.slot_harness import prepared

port = int(sys.argv[1])
starts = []

def handler(record):
    starts.append(time.monotonic())
    if len(starts) == 20:
        print("at work", flush=True)
    time.sleep(0.001)

spec = ChannelSpec("127.0.0.1", port, b"s" * 32, 2.0, 0.05)
rows = [(0, o, b"%d" % (o % 50)) for o in range(100_000)]
slot, batches = prepared(handler, rows, channel=spec, batch_rows=1_000)
report = slot.run(3, (batch for _ in range(100) for batch in batches))
print(json.dumps([starts, report.end.stopped]), flush=True)
"""


def test_a_slot_that_was_frozen_beyond_its_lease_starts_nothing_more():
    """Its work may be another's by now."""
    with a_driver(lease=2.0) as driver:
        port = str(driver.server.spec().port)
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, port], stdout=subprocess.PIPE,
            text=True, cwd=Path(__file__).parents[3],
        )  # fmt: skip
        try:
            assert child.stdout.readline() == "at work\n"
            driver.alive.clear()
            child.send_signal(signal.SIGSTOP)
            time.sleep(2.2)
            thawed = time.monotonic()
            child.send_signal(signal.SIGCONT)
            starts, stopped = json.loads(child.stdout.readline())
            assert stopped == "lease"
            assert sum(at > thawed for at in starts) <= 1, "the one that was about to"
        finally:
            child.kill()
            child.wait()
            child.stdout.close()


def test_side_by_side_the_clock_decides_before_each_record():
    """The thread that keeps the lease need not have come to it."""
    slot, _ = prepared(None, ROWS)
    scheduler = KeyScheduler(slot._outcome(3), 0.0, lambda now: now < 5.0)
    for offset in range(3):
        scheduler.admit(InputRow(0, offset, offset, b"k", b"v", 0, ()))
    scheduler.deadline = 100.0
    assert scheduler.take(4.9)
    assert not scheduler.is_finished(4.9)
    assert scheduler.take(5.0) is None
    assert scheduler.is_finished(5.0)


def test_an_error_in_the_channel_ends_the_worker(monkeypatch):
    """A handler may have damaged what it stands on: what runs in the worker next would fail."""
    handled = []
    damaged = threading.Event()

    def broken(_report):
        damaged.set()
        raise ZeroDivisionError("it is damaged")

    def handler(offset):
        handled.append(offset)
        if offset == 1:
            monkeypatch.setattr("coopconsume.worker.channel.client.encode_report", broken)
            assert damaged.wait(PATIENCE)

    with a_driver() as driver:
        slot, batches = runner(driver, "threads", handler, ROWS)
        report = slot.run(3, batches)
    assert report.end.error == "ZeroDivisionError: it is damaged"
    assert not report.end.crashed
    assert handled[:2] == [0, 1]
    known = driver.heard().union(done(report), *map(done, report.end.unacknowledged))
    assert known == set(handled), "what was cut for a report that could not be sent is not lost"
    assert report.partitions[0].resume == 0, "all others are to be handled: none of them is a hole"


def test_an_error_in_the_channel_is_known_before_its_thread_has_ended(monkeypatch):
    """On a loaded host the thread may not have come to its end as the slot reports."""
    damaged, is_over = threading.Event(), threading.Event()

    def broken(_report):
        damaged.set()
        raise ZeroDivisionError("it is damaged")

    def handler(offset):
        if offset == 1:
            monkeypatch.setattr("coopconsume.worker.channel.client.encode_report", broken)
            assert damaged.wait(PATIENCE)

    monkeypatch.setattr(
        "coopconsume.worker.channel.client.log.exception", lambda *_: is_over.wait(PATIENCE)
    )
    with a_driver() as driver:
        try:
            slot, batches = runner(driver, "threads", handler, ROWS)
            report = slot.run(3, batches)
        finally:
            is_over.set()
    assert report.end.error == "ZeroDivisionError: it is damaged"
    assert report.partitions[0].resume == 0


def test_failures_that_are_tried_again_are_counted_although_nothing_was_reported():
    """A report that would hold nothing else is not made; the next one counts them."""
    policy = RetryPolicy(max_attempts=None, backoff=0.2, max_backoff=0.2, jitter=0)
    slot, _ = prepared(None, ROWS, policy=policy)
    outcome = slot._outcome(3)
    scheduler = KeyScheduler(outcome, 0.0)
    reporter = SlotReporter(outcome, Scheduled(scheduler))
    scheduler.deadline = 100.0
    for offset in range(3):
        scheduler.admit(InputRow(0, offset, offset, b"k", b"v", 0, ()))
    scheduler.settle(*scheduler.take(0.0), RuntimeError("planned"), 0.1, 0.1)
    assert reporter.take_report(1) is None
    scheduler.settle(*scheduler.take(0.1), None, 0.0, 0.1)
    chunk = reporter.take_report(1)
    assert (chunk.stats.handled, chunk.stats.failures, done(chunk)) == (2, 1, [1])
    scheduler.settle(*scheduler.take(0.4), None, 0.0, 0.4)
    scheduler.settle(*scheduler.take(0.4), None, 0.0, 0.4)
    scheduler.close(0.4)
    final = outcome.close(SlotEnd())
    assert (final.stats.handled, final.stats.failures, done(final)) == (2, 0, [0, 2])


def test_who_found_nothing_to_report_hears_of_the_next_record_once():
    """Done or failed; and not if a report was made meanwhile."""
    slot, _ = prepared(None, ROWS)
    outcome, heard = slot._outcome(3), []
    scheduler = KeyScheduler(outcome, 0.0)
    reporter = SlotReporter(outcome, Scheduled(scheduler))
    scheduler.deadline = 100.0
    for offset in range(4):
        scheduler.admit(InputRow(0, offset, offset, b"k%d" % offset, b"v", 0, ()))

    def settle(answer=None):
        scheduler.settle(*scheduler.take(0.0), answer, 0.0, 0.0)

    assert reporter.take_report(1, otherwise=lambda: heard.append(1)) is None
    settle()
    settle()
    assert heard == [1]
    assert done(reporter.take_report(1, otherwise=lambda: heard.append(2))) == [0, 1]
    settle()
    assert done(reporter.take_report(2)) == [2]
    assert reporter.take_report(3, otherwise=lambda: heard.append(3)) is None
    settle(RuntimeError("planned"))
    assert heard == [1, 3]


def a_time_box(**more):
    """A time box with a running handler, and the list of what its worker was ended with."""
    slot, _ = prepared(None, [(0, 0, b"k")], **more)
    ends, journal = [], CrashJournal(None, 1)
    journal.enter(0, 0, 0)
    return TimeBox(slot._spec, journal, end=ends.append), ends


def test_a_halted_slot_has_the_handler_timeout_from_the_halt_on():
    """Not that from the end of its time box: a new owner waits no longer."""
    time_box, ends = a_time_box(batch_time=1_000.0, handler_timeout=100.0)
    time_box.begin()
    time_box.halt("lease", time.monotonic() - 100.0)
    assert wait_for(lambda: ends == [OUTLIVED])
    assert time_box.is_over
    time_box.end()
    time_box, ends = a_time_box(batch_time=1_000.0, handler_timeout=100.0)
    time_box.begin()
    time_box.halt("lease", time.monotonic())
    time.sleep(0.05)
    assert ends == []
    time_box.end()


def test_a_slot_that_was_halted_before_it_began_is_not_ended():
    """However long its rows take to come: nothing runs."""
    time_box, ends = a_time_box(batch_time=1_000.0, handler_timeout=0.0)
    time_box.halt("stop", time.monotonic() - 100.0)
    time_box.begin()
    time.sleep(0.05)
    assert (ends, time_box.is_over) == ([], True)
    time_box.end()


def test_only_the_first_reason_of_a_halt_counts():
    """A callback that is added later is called at once."""
    time_box, _ = a_time_box()
    calls = []
    time_box.on_halt(lambda: calls.append("before"))
    time_box.halt("stop", 1.0)
    time_box.halt("lease", 2.0)
    time_box.on_halt(lambda: calls.append("after"))
    assert (time_box.stopped, calls) == ("stop", ["before", "after"])


@pytest.mark.parametrize("way", FOUR_WAYS)
def test_a_slot_goes_on_with_the_keys_that_do_not_leave(way):
    """It says at once what of the others runs, and later that it has ended; that counts as done."""
    stays, leaves = (hash(key) & (2**63 - 1) for key in (b"stays", b"leaves"))
    with a_driver() as driver:
        started = []

        def handler(offset):
            started.append(offset)
            if offset == 5:
                driver.server.send(
                    (0, 3), Frame.WITHHOLD, encode_withhold(7, {0: [(leaves, leaves)]})
                )
                assert wait_for(lambda: any(one.leaving for one in driver.reports))
            if offset == 10:
                assert wait_for(lambda: any(one.leaving == (7, []) for one in driver.reports))

        rows = [(0, o, b"leaves" if o % 2 else b"stays") for o in range(12)]
        slot, batches = runner(driver, way, handler, rows, frame=3)
        report = slot.run(3, batches)
        assert sorted(started) == [0, 1, 2, 3, 4, 5, 6, 8, 10]
        first, *_, last = [one.leaving for one in driver.reports if one.leaving]
        ran = [3, 5] if way == "frames" else [5]
        assert first == (7, [(0, offset, leaves) for offset in ran])
        assert last == (7, [])
        assert driver.heard() | all_of(report) == set(started)
        assert sorted(report.partitions[0].blocked) == [(o, leaves) for o in (7, 9, 11)]
        assert (report.end.stopped, report.end.timed_out, report.partitions[0].resume) == (
            "",
            False,
            None,
        )
        assert stays != leaves


@pytest.mark.parametrize("way", ["threads", "coroutines"])
def test_failures_of_keys_that_leave_are_reported_at_once(way):
    """Those that wait for another try in the slot, and those that come after."""
    with a_driver() as driver:

        def failed():
            reports = [one.partitions.get(0) for one in driver.reports]
            return {one.offset for report in reports if report for one in report.failed}

        def handler(offset):
            if offset == 0:
                raise RuntimeError("planned")
            if offset == 5:
                hashes = [hash(b"k%d" % o) & (2**63 - 1) for o in (0, 5)]
                driver.server.send(
                    (0, 3), Frame.WITHHOLD, encode_withhold(1, {0: [(one, one) for one in hashes]})
                )
                assert wait_for(lambda: any(one.leaving for one in driver.reports))
                raise RuntimeError("planned, too")
            if offset == 7:
                assert wait_for(lambda: failed() == {0, 5})

        rows = [(0, o, b"k%d" % o) for o in range(8)]
        soon = RetryPolicy(backoff=200.0, max_backoff=200.0, jitter=0)
        slot, batches = runner(driver, way, handler, rows, policy=soon)
        report = slot.run(3, batches)
        assert driver.heard() | all_of(report) == {1, 2, 3, 4, 6, 7}


def test_rows_of_a_frame_at_work_count_as_their_keys_leave():
    """Row by row: what the function answers for a key that leaves is taken like all else."""
    leaves = hash(b"leaves") & (2**63 - 1)
    with a_driver() as driver:

        def of_frame(rows):
            offsets = rows.column("offset").to_pylist()
            if 5 in offsets:
                driver.server.send(
                    (0, 3), Frame.WITHHOLD, encode_withhold(1, {0: [(leaves, leaves)]})
                )
                assert wait_for(lambda: any(one.leaving for one in driver.reports))
            return [Retry(after=1_000) if offset == 4 else None for offset in offsets]

        rows = [(0, o, b"leaves" if o % 2 else b"stays") for o in range(9)]
        slot, batches = prepared(
            FrameHandler(of_frame, 3), rows, None, 1, channel=driver.server.spec()
        )
        report = slot.run(3, batches)
        assert driver.heard() | all_of(report) == {0, 1, 2, 3, 5}
        blocked = {offset for offset, _ in report.partitions[0].blocked}
        assert blocked == {6, 7, 8}
