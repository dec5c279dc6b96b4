"""A slot's part of a batch in this process: answers, time boxes, outputs, what is not its own."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from coopconsume.record import Record, Reject, Retry, RetryPolicy
from coopconsume.worker.crash_journal import CrashJournal
from coopconsume.worker.report import PartitionWork, pack_offsets, unpack_offsets
from coopconsume.worker.reporter import SlotReporter
from coopconsume.worker.slot import current_slot, resolve_handler
from coopconsume.worker.time_box import TimeBox
from tests.unit.worker.slot_harness import WAYS, Scheduled, Together, done, in_way, prepared, run


@pytest.mark.parametrize("way", WAYS)
def test_a_handler_gets_the_whole_record(way):
    """A handler gets topic, partition, offset, key, value, timestamp, and knows its slot."""
    seen = []

    def handler(record):
        seen.append((record, current_slot()))

    report = run(handler, [(0, 5, b"a"), (1, 7, None)], way=way)
    assert sorted(seen) == [
        (Record("t", 10, 5, b"a", b"v5", 1_005, (), 1), 3),
        (Record("t", 11, 7, None, b"v7", 1_007, (), 1), 3),
    ]
    assert (done(report, 0), done(report, 1)) == ([5], [7])
    assert (report.stats.rows, report.stats.handled, report.stats.failures) == (2, 2, 0)
    assert current_slot() == -1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("answer", "delay", "text"),
    [
        (Retry(after=7_000.0, reason="later"), 7_000.0, "later"),
        (RuntimeError("bad"), 2_000.0, "RuntimeError: bad"),
        (SystemExit(3), 2_000.0, "SystemExit: 3"),
    ],
)
def test_a_failed_record_blocks_its_key_alone(way, answer, delay, text):
    """Raised or returned, a failure holds back the later records of its key and no other."""

    def handler(record):
        if record.offset == 1:
            if isinstance(answer, Retry):
                return answer
            raise answer
        return None

    rows = [(0, o, b"ab"[o % 2 : o % 2 + 1]) for o in range(6)]
    work = {0: PartitionWork(((0, 99),), attempts={1: 1})}
    policy = RetryPolicy(backoff=1_000.0, max_backoff=9_000.0, jitter=0)
    report = run(handler, rows, work=work, way=way, policy=policy)
    (failure,) = report.partitions[0].failed
    assert (failure.offset, failure.attempts, failure.delay, failure.error) == (1, 2, delay, text)
    assert sorted(o for o, _ in report.partitions[0].blocked) == [3, 5]
    assert done(report) == [0, 2, 4]


@pytest.mark.parametrize("way", WAYS)
def test_what_is_given_up_is_a_dead_letter_and_its_key_flows_on(way):
    """Rejected, or out of attempts: the record is handed over whole, with why."""

    def handler(record):
        if record.offset == 0:
            raise Reject("never")
        if record.offset == 1:
            raise ValueError("third time")

    work = {0: PartitionWork(((0, 99),), attempts={1: 2})}
    policy = RetryPolicy(max_attempts=3)
    report = run(handler, [(0, o, b"k") for o in range(3)], work=work, way=way, policy=policy)
    assert done(report) == [0, 1, 2]
    first, second = report.dead
    assert (first.offset, first.reason, first.attempts, first.value) == (0, "never", 1, b"v0")
    assert (second.reason, second.attempts) == ("ValueError: third time", 3)
    frames = [line for line in second.trace.splitlines() if line.startswith("  File ")]
    assert frames[-1].endswith(", in handler")
    tests = str(Path(__file__).parents[2])
    assert all(tests in frame for frame in frames), "those of the library are left out"
    assert second.trace.endswith("ValueError: third time\n")


def test_a_reject_without_dead_letters_is_fatal():
    """Without a place for dead letters the record stays pending and the job stops."""

    def handler(record):
        raise Reject("no")

    report = run(handler, [(0, 4, b"k")], dead_letters=False)
    assert "t-10@4" in report.end.fatal
    assert "dead_letter" in report.end.fatal
    assert done(report) == []
    assert [f.offset for f in report.partitions[0].failed] == [4]


def test_without_ordering_a_failure_blocks_nothing():
    """With ordering none every record stands alone; with partition the failure stops all."""

    def handler(record):
        if record.offset == 1:
            raise RuntimeError

    rows = [(0, o, b"k") for o in range(4)]
    assert done(run(handler, rows, ordering="none")) == [0, 2, 3]
    assert done(run(handler, rows, ordering="none", concurrency=3)) == [0, 2, 3]
    assert done(run(handler, [(0, o, b"%d" % o) for o in range(4)], ordering="partition")) == [0]


@pytest.mark.parametrize("way", WAYS)
def test_past_the_time_box_nothing_starts(way):
    """What the box leaves over is named by the first offset not looked at."""

    def handler(record):
        time.sleep(0.05)

    rows = [(0, o, b"k") for o in range(50)]
    report = run(handler, rows, batch_time=0.12, way=way)
    first = report.partitions[0].resume
    assert report.end.timed_out
    assert 0 < first < 10
    assert done(report) == list(range(first))


@pytest.mark.parametrize("way", WAYS)
def test_the_time_box_opens_with_the_first_record(way):
    """Reading and shuffling may take their time; only what comes after counts."""
    came = []
    handler, concurrency = in_way(way, lambda record: None)
    slot, batches = prepared(handler, [(0, o, b"k") for o in range(8)], None, concurrency)

    def slowly():
        time.sleep(0.05)
        came.append(time.monotonic())
        yield from batches

    report = slot.run(3, slowly())
    assert 0 < report.stats.busy <= time.monotonic() - came[0]
    assert done(report) == list(range(8))


def test_a_time_box_is_opened_once():
    """Later records do not move its end."""
    slot, _ = prepared(None, [(0, 0, b"k")], batch_time=5.0)
    time_box = TimeBox(slot._spec, CrashJournal(None, 1), end=lambda status: None)
    before = time.monotonic()
    end = time_box.begin()
    assert before + 5 <= end <= time.monotonic() + 5
    assert time_box.begin() == end
    time_box.end()


def test_one_record_may_always_start():
    """Even a box of no time lets one record through, so that a job cannot stand still."""
    report = run(lambda record: None, [(0, o, b"k") for o in range(3)], batch_time=0.0)
    assert done(report) == [0]
    assert report.partitions[0].resume == 1


def test_keys_run_side_by_side_and_each_in_order():
    """As many handlers run at once as asked for, never two of a key."""
    running, most, overlaps, order = set(), [0], [], {}
    lock, together = threading.Lock(), Together(4)

    def handler(record):
        with lock:
            if record.key in running:
                overlaps.append(record)
            running.add(record.key)
            most[0] = max(most[0], len(running))
            order.setdefault(record.key, []).append(record.offset)
            at_work = len(running)
        together.wait(at_work)
        time.sleep(0.002)
        with lock:
            running.discard(record.key)

    rows = [(0, o, b"hot" if o % 2 else b"k%d" % (o % 16)) for o in range(200)]
    report = run(handler, rows, concurrency=4)
    assert done(report) == list(range(200))
    assert not overlaps
    assert most[0] == 4
    assert all(offsets == sorted(offsets) for offsets in order.values())


def test_rows_that_are_not_wanted_are_left_alone():
    """Offsets outside the slot's ranges, and blocked keys, are not started."""
    seen = []
    key = hash(b"x") & (2**63 - 1)
    work = {0: PartitionWork(((2, 3), (6, 6)), blocked={key: 0})}
    rows = [(0, o, b"x" if o == 3 else b"y") for o in range(8)]
    report = run(lambda r: seen.append(r.offset), rows, work=work)
    assert seen == [2, 6]
    assert report.partitions[0].blocked == [(3, key)]
    assert done(report) == [2, 6]


def test_output_rows_carry_their_origin():
    """One row, several or none: each with the record it came from."""

    def handler(record):
        return (
            None
            if record.offset == 0
            else ({"n": record.offset * 10 + i} for i in range(record.offset))
        )

    report = run(handler, [(0, o, b"k") for o in range(3)], schema=pa.schema([("n", pa.int64())]))
    table = pa.ipc.open_stream(report.outputs).read_all()
    assert table.to_pydict() == {
        "n": [10, 20, 21], "_part": [0, 0, 0], "_offset": [1, 2, 2],
        "_key_hash": [hash(b"k") & (2**63 - 1)] * 3,
    }  # fmt: skip


def test_a_call_is_as_old_as_the_first_look_at_it():
    """Of several calls the oldest counts; one that has ended and runs again is young."""
    slot, _ = prepared(lambda record: None, [(0, 0, b"k"), (1, 0, b"k")])
    at_work = []
    scheduler = SimpleNamespace(flush=lambda: None, at_work=lambda: at_work)
    reporter = SlotReporter(slot._outcome(3), Scheduled(scheduler))
    assert reporter.oldest_call(1.0) is None
    at_work.append((0, 5, 77))
    assert reporter.oldest_call(2.0) == (0, 5, 0.0)
    at_work.append((1, 9, 78))
    assert reporter.oldest_call(5.0) == (0, 5, 3.0)
    assert reporter.oldest_call(6.0) == (0, 5, 4.0)
    del at_work[0]
    assert reporter.oldest_call(7.0) == (1, 9, 2.0)
    at_work.append((0, 5, 77))
    assert reporter.oldest_call(8.0) == (1, 9, 3.0)


@pytest.mark.parametrize("name", ["nowhere", "os:nothing", "no_such_module:f", ":f"])
def test_a_missing_handler_is_reported(name):
    """A name that leads to nothing callable is an error."""
    with pytest.raises((ValueError, ImportError)):
        resolve_handler(name)


@pytest.mark.parametrize(
    "offsets", [[], [5], [5, 6, 7], [0, 2**62], [0, 300, 400, 70_000, 2**33], list(range(9_999))]
)
def test_offsets_travel_unchanged(offsets):
    """Packed and unpacked, also from the middle of a larger array."""
    array = pa.array(offsets, pa.int64())
    assert unpack_offsets(pack_offsets(array)).to_pylist() == offsets
    assert unpack_offsets(pack_offsets(array[1:])).to_pylist() == offsets[1:]


def test_a_worker_needs_pyarrow_alone():
    """What tasks import loads neither Spark nor a client nor numpy, and works without them.

    Without coroutines and exporters of spans, their modules are not loaded either.
    """
    heavy = ["deltalake", "kafka", "numpy", "pandas", "pyroaring", "pyspark", "rich", "xxhash"]
    program = f"""
import sys
for name in {heavy}: sys.modules[name] = None
import coopconsume.worker.slot, coopconsume.worker.open_handlers
assert not sys.modules.keys() & {{"asyncio", "importlib.metadata"}}
import coopconsume.record, coopconsume.testing.history
import coopconsume.worker.channel.client, coopconsume.worker.left_report
import coopconsume.worker.realtime.slot, coopconsume.worker.realtime.fetch_server
import coopconsume.worker.async_runner, coopconsume.worker.frame_runner
import coopconsume.worker.thread_runner, coopconsume.worker.output_rows
from coopconsume import Record, Reject, Retry, RetryPolicy, current_slot
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
