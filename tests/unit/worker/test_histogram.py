"""Histograms: fixed buckets, quantiles, and the times that slots count in them."""

from __future__ import annotations

import math
import threading
import time
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopconsume.record import Retry
from coopconsume.worker import row_progress, time_box
from coopconsume.worker.channel.messages import decode_report, encode_report
from coopconsume.worker.channel.wire import Identity
from coopconsume.worker.frame_runner import FrameHandler
from coopconsume.worker.histogram import BOUNDS, Histogram
from coopconsume.worker.report import PartitionWork, SlotEnd, SlotReport, pack_times, unpack_times
from coopconsume.worker.reporter import SlotReporter
from coopconsume.worker.serial_runner import SerialRunner
from tests.unit.worker.slot_harness import PATIENCE, WAYS, done, prepared, run

KNOWN = st.integers(0, 2**50 - 1)
SECONDS = st.floats(-5, 1e9, allow_nan=False) | st.sampled_from(BOUNDS)


def bucket_of(seconds):
    """The bucket of a time, by its definition."""
    return next((n for n, bound in enumerate(BOUNDS) if seconds <= bound), len(BOUNDS))


@given(st.lists(SECONDS | st.none(), max_size=200))
def test_many_times_count_as_each_of_them(times):
    """Bounds are included, negative times are 0, nulls do not count."""
    one, many = Histogram(), Histogram()
    known = [seconds for seconds in times if seconds is not None]
    for seconds in known:
        one.add(seconds)
    many.add_all(pa.array(times, pa.float64()))
    assert many.counts == one.counts
    assert one.counts == [
        sum(bucket_of(t) == n for t in known) for n in range(len(BOUNDS) + 1)
    ]  # fmt: skip
    assert many.count == len(known)
    assert math.isclose(many.seconds, sum(max(0.0, t) for t in known), abs_tol=1e-6)


@given(st.lists(st.lists(SECONDS, max_size=9), max_size=4))
def test_what_is_described_can_be_added_up(parts):
    """As progress events are."""
    whole, described = Histogram(), []
    for part in parts:
        one = Histogram()
        for seconds in part:
            one.add(seconds)
        whole.merge(one)
        described.append(one.describe())
    found = Histogram.of(described)
    assert found.counts == whole.counts
    assert math.isclose(found.seconds, whole.seconds, abs_tol=1e-4)


@given(st.lists(st.floats(0, 80_000), min_size=1, max_size=50), st.floats(0, 1))
def test_a_quantile_is_in_the_bucket_of_the_exact_one(times, part):
    """Buckets show no more than that."""
    counted = Histogram()
    counted.add_all(pa.array(times, pa.float64()))
    exact = sorted(times)[max(0, math.ceil(part * len(times)) - 1)]
    bucket, found = bucket_of(exact), counted.quantile(part)
    assert (BOUNDS[bucket - 1] if bucket else 0.0) <= found <= BOUNDS[bucket]


def test_no_times_have_no_quantile():
    """Neither half nor all of none; and beyond the last bound nothing more is known."""
    assert Histogram().quantile(0.5) is None
    assert Histogram().describe()["p99Seconds"] is None
    late = Histogram()
    late.add(1e9)
    assert late.quantile(0.99) == BOUNDS[-1]
    assert late.describe()["buckets"] == [[None, 1]]


@given(st.lists(KNOWN | st.integers(-(2**63), 2**63 - 1), max_size=30))
def test_timestamps_arrive_as_they_were(times):
    """In any order; those that no clock has are not known."""
    expected = [t if 0 <= t < 2**50 else -1 for t in times]
    assert unpack_times(pack_times(pa.array(times, pa.int64()))).to_pylist() == expected


ROWS = [(0, 5, b"a"), (0, 6, b"b"), (1, 7, b"a"), (0, 8, b"a"), (0, 9, b"c")]


@pytest.mark.parametrize("way", [*WAYS, "frames"])
def test_a_slot_counts_the_starts_of_first_attempts(way):
    """Of what is blocked and of what was tried before nothing is counted; done has timestamps."""

    def handler(record):
        if record.offset == 5:
            raise Retry("not now")

    def frames(frame):
        offsets = frame.column("offset").to_pylist()
        return [Retry("not now") if offset == 5 else None for offset in offsets]

    work = {0: PartitionWork(((0, 99),), {9: 2}), 1: PartitionWork(((0, 99),))}
    before = time.time()
    if way == "frames":
        report = run(FrameHandler(frames, 1), ROWS, work=work)
    else:
        report = run(handler, ROWS, work=work, way=way)
    after = time.time()
    assert done(report) == [6, 9]
    assert report.stats.starts.count == 3, "5, 6 and 7: 8 waits behind 5, and 9 was tried before"
    sent = sum(1_000 + offset for offset in (5, 6, 7)) / 1000  # See `prepared`.
    assert 3 * before - sent - 1 <= report.stats.starts.seconds <= 3 * after - sent + 1
    assert unpack_times(report.partitions[0].times).to_pylist() == [1_006, 1_009]
    assert unpack_times(report.partitions[1].times).to_pylist() == [1_007]


@pytest.mark.parametrize("way", [*WAYS, "frames"])
def test_a_call_after_one_that_does_not_count_is_no_start(way):
    """In a later batch: 9 has failed so."""
    work = {0: PartitionWork(((0, 99),), {9: 0}), 1: PartitionWork(((0, 99),))}
    if way == "frames":
        report = run(FrameHandler(lambda frame: None, 1), ROWS, work=work)
    else:
        report = run(lambda record: None, ROWS, work=work, way=way)
    assert report.stats.starts.count == report.stats.handled - 1 == 4


def test_a_call_after_one_that_does_not_count_is_no_start_in_the_same_batch_either():
    """It has the number of a first attempt; another record is at work until it is made."""
    attempts, again = [], threading.Event()

    def handler(record):
        if record.offset == 6:
            assert again.wait(PATIENCE)
            return
        attempts.append(record.attempt)
        if len(attempts) == 1:
            raise Retry(0.0, counts=False)
        again.set()

    report = run(handler, [(0, 5, b"a"), (0, 6, b"b")], concurrency=4)
    assert attempts == [1, 1]
    assert report.stats.starts.count == report.stats.handled - 1 == 2


@pytest.mark.parametrize("way", WAYS)
def test_a_slot_counts_the_time_of_each_handler_call(way):
    """Those that fail, too; what is not called does not count."""

    def handler(record):
        if record.offset == 1:
            time.sleep(0.06)
        if record.offset == 2:
            raise ValueError("no")

    report = run(handler, [(0, o, b"%d" % (o % 4)) for o in range(8)], way=way)
    calls = report.stats.calls
    assert calls.count == report.stats.handled == 7, "6 is behind 2"
    assert sum(calls.counts[bucket_of(0.06) :]) >= 1
    assert calls.seconds >= 0.06


def test_a_call_of_a_frame_handler_counts_once():
    """However many records it has."""
    rows = [(0, o, b"%d" % o) for o in range(10)]
    report = run(FrameHandler(lambda _frame: None, 4), rows)
    assert (report.stats.handled, report.stats.calls.count) == (10, 3)


class Journal:
    """Stands for a crash journal that is kept nowhere."""

    FIRST = 0

    def __init__(self):
        self.cells = [0, 0]


def test_calls_of_a_plain_handler_last_until_the_next_one(monkeypatch):
    """Each is in one report: those that have ended, in the progressive one; then the rest."""
    now, cut = [0.0], []
    clock = SimpleNamespace(monotonic=time.monotonic, time=lambda: now[0])
    monkeypatch.setattr(row_progress, "time", clock)
    seconds = [0.0, 2**-11, 0.75, 2**-12, 3.0, 7.0]  # Exact as floats.

    def handler(record):
        if record.offset == 4:
            cut.append(SlotReporter(outcome, serial).take_report(1))
        now[0] += seconds[record.offset]

    rows = [(0, o, b"%d" % o) for o in range(6)]
    runner, batches = prepared(handler, rows, batch_rows=3)
    outcome = runner._outcome(3)
    serial = SerialRunner(handler, outcome, time_box.TimeBox(outcome.spec, Journal()))
    serial.run(batches)

    def counts(times):
        found = Histogram()
        for one in times:
            found.add(one)
        return found

    assert cut[0].stats.calls == counts(seconds[:4])
    assert outcome.close(SlotEnd()).stats.calls == counts(seconds[4:])


def test_calls_that_take_microseconds_are_timed_in_blocks(monkeypatch):
    """All count, in reports that cut a block, too, and one that takes long is seen."""
    now, reads, cut = [1e9], [], []

    def read():
        reads.append(now[0])
        return now[0]

    monkeypatch.setattr(row_progress, "time", SimpleNamespace(monotonic=time.monotonic, time=read))

    def handler(record):
        if record.offset == 70:
            cut.append(SlotReporter(outcome, serial).take_report(1))
        now[0] += 3.0 if record.offset == 90 else 2**-20

    rows = [(0, o, b"%d" % o) for o in range(160)]
    runner, batches = prepared(handler, rows, batch_rows=64)
    outcome = runner._outcome(3)
    serial = SerialRunner(handler, outcome, time_box.TimeBox(outcome.spec, Journal()))
    serial.run(batches)
    assert 64 + 4 + 32 <= len(reads) < 160 - 40, "the second batch is fast, the third is not"
    early, late = cut[0].stats, outcome.close(SlotEnd()).stats
    assert early.calls.count + late.calls.count == 160
    assert early.starts.count + late.starts.count == 160
    assert late.calls.counts[bucket_of(3.1)] == 1
    assert 3.0 <= early.calls.seconds + late.calls.seconds <= now[0] - 1e9


@pytest.mark.parametrize(("seconds", "most"), [(1e-4, 0), (2**-20, 15)])
def test_a_slot_that_stood_still_looks_at_its_lease_before_it_starts_more(
    monkeypatch, seconds, most
):
    """The thread that keeps the lease comes to it later. Fast calls are in blocks of 16."""
    now, started = [1e9], []
    clock = SimpleNamespace(monotonic=lambda: now[0], time=lambda: now[0])
    for module in (row_progress, time_box):
        monkeypatch.setattr(module, "time", clock)

    def handler(record):
        started.append(record.offset)
        now[0] += 9.0 if record.offset == 100 else seconds

    rows = [(0, o, b"%d" % o) for o in range(320)]
    runner, batches = prepared(handler, rows, batch_rows=64)
    outcome = runner._outcome(3)
    box = time_box.TimeBox(outcome.spec, Journal())
    box.may_start = lambda at: at < 1e9 + 5.0
    SerialRunner(handler, outcome, box).run(batches)
    assert 100 <= started[-1] <= 100 + most
    assert box.stopped == "lease"
    report = outcome.close(SlotEnd())
    assert report.partitions[0].resume == started[-1] + 1
    assert done(report) == started


def test_times_of_calls_travel_over_the_channel():
    """As those of starts do."""
    report = SlotReport(5, 1, seq=3, pid=8)
    report.stats.starts.add(0.5)
    report.stats.calls.add(7.0)
    assert decode_report(encode_report(report), Identity("run", 5, 1, 8)) == report
