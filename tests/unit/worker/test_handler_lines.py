"""Lines of handlers for the driver: which there are, with which record, and how many pass."""

from __future__ import annotations

import logging
import sys
import threading

import pyarrow as pa
import pytest

from coopconsume.record import Record, Reject, RetryPolicy
from coopconsume.worker import handler_lines
from coopconsume.worker.channel.messages import decode_report, encode_report
from coopconsume.worker.channel.wire import Identity, ProtocolError
from coopconsume.worker.frame_runner import FrameHandler
from coopconsume.worker.handler_lines import (
    CallPlace,
    HandlerLine,
    LineBuffer,
    LineLimit,
    SlotLines,
    note_of,
)
from coopconsume.worker.report import PartitionWork, SlotReport
from tests.unit.worker.slot_harness import WAYS, run

ROWS = [(0, o, b"k%d" % o) for o in range(12)]
FEW = RetryPolicy(max_attempts=9)
logger = logging.getLogger("shop")


@pytest.fixture(autouse=True)
def process(monkeypatch):
    """Has what is set in the process as it was before."""
    factory, stdout = logging.getLogRecordFactory(), sys.stdout
    monkeypatch.setattr(logger, "level", logging.INFO)
    yield
    logging.setLogRecordFactory(factory)
    sys.stdout = stdout


class Clock:
    """Seconds that a test sets."""

    now = 7.0

    def __call__(self):
        return self.now


def texts(report):
    """The lines of a report as the driver shows them, in the order of their offsets."""
    lines = () if report.lines is None else report.lines.lines
    return [str(one) for one in sorted(lines, key=lambda one: one.place.offset)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fails", [False, True])
def test_each_line_has_its_record_whether_its_call_fails_or_not(way, fails):
    """What is logged and what is printed, in their order; a last line needs no end."""

    def handler(record):
        logger.info("bill %d", record.offset)
        sys.stdout.write("in pa")
        sys.stdout.write("rts\nrest")
        if fails:
            raise Reject("bad")

    work = {0: PartitionWork(((0, 100),), {3: 4})}
    report = run(handler, ROWS, way=way, work=work, shown_lines=1_000, policy=FEW)
    assert len(report.dead) == 12 * fails
    assert texts(report) == [
        f"t-10@{o} key=k{o} attempt={5 if o == 3 else 1}: {text}"
        for o in range(12)
        for text in (f"INFO shop: bill {o}", "in parts", "rest")
    ]
    assert report.lines.left_out == 0


@pytest.mark.parametrize("format", ["arrow", "pandas"])
def test_lines_of_a_frame_have_the_range_of_its_records(format):  # noqa: A002 - as in the library
    """As the handler got it: it may change a frame of pandas before it prints."""

    def handler(frame):
        if format == "pandas":
            frame.sort_values("offset", ascending=False, inplace=True)
        sys.stdout.write(f"{len(frame)} records\n")

    rows = [*ROWS[:5], (1, 40, b"k")]
    report = run(FrameHandler(handler, 4, format), rows, shown_lines=1_000)
    assert texts(report) == [
        "t-10@0 to 3: 4 records", "t-10@4: 1 records", "t-11@40: 1 records"
    ]  # fmt: skip


def test_nothing_is_collected_unless_somebody_asks():
    """Nor is anything in the process changed."""

    def handler(record):
        sys.stdout.write("printed\n")
        logger.info("logged")

    before = logging.getLogRecordFactory(), sys.stdout
    report = run(handler, ROWS)
    assert report.lines is None
    assert before == (logging.getLogRecordFactory(), sys.stdout)
    assert run(lambda record: None, ROWS, shown_lines=9).lines is None


def test_lines_of_a_report_and_of_a_second_are_bounded_and_the_rest_is_counted(monkeypatch):
    """Those that come first pass; long ones are cut."""
    monkeypatch.setattr(handler_lines, "REPORT_LINES", 30)

    def handler(record):
        for _ in range(5):
            sys.stdout.write("x" * 600 + "\n")

    for most, passed in ((1_000, 30), (0, 0)):
        report = run(handler, ROWS, shown_lines=most)
        found = SlotLines() if report.lines is None else report.lines
        assert (len(found.lines), found.left_out) == (passed, (60 - passed) * (most > 0))
    report = run(handler, ROWS, shown_lines=1_000)
    assert {one.text for one in report.lines.lines} == {"x" * 500}
    assert {one.place.offset for one in report.lines.lines} == set(range(6))


def test_so_many_lines_pass_in_each_second():
    """Of a burst the first ones; in the next second as many again."""
    clock = Clock()
    limit = LineLimit(3, clock)
    assert [limit.passes() for _ in range(5)] == [True] * 3 + [False] * 2
    clock.now += 0.9
    assert not limit.passes()
    clock.now += 0.1
    assert [limit.passes() for _ in range(4)] == [True] * 3 + [False]


def test_a_buffer_counts_what_it_leaves_out_since_the_last_report():
    """A report without lines says it, too; then there is nothing to say."""
    clock = Clock()
    lines = LineBuffer(2, clock)
    assert (lines.take(), bool(lines)) == (None, False)
    lines.add("one\ntwo\nthree\nfour", None)
    lines.add("", None)
    assert bool(lines)
    two = (HandlerLine("one"), HandlerLine("two"))
    assert lines.take() == SlotLines(two, 3)
    lines.add("five", None)
    assert not lines, "nothing to show is no reason for a report"
    assert lines.take() == SlotLines((), 1)
    assert lines.take() is None
    clock.now += 1.0
    lines.add("", None)
    assert lines.take() == SlotLines((HandlerLine(""),), 0)


def test_no_line_is_lost_uncounted_where_threads_meet():
    """Each is in a report, or in the count of one."""
    lines, found, at_work = LineBuffer(50), [], 8
    over = threading.Event()

    def add():
        for number in range(2_000):
            lines.add(f"{number}", None)

    def take():
        while not over.is_set():
            if (some := lines.take()) is not None:
                found.append(some)

    taker = threading.Thread(target=take)
    threads = [threading.Thread(target=add) for _ in range(at_work)]
    for thread in (taker, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    over.set()
    taker.join()
    found.append(lines.take() or SlotLines())
    assert sum(len(one.lines) + one.left_out for one in found) == at_work * 2_000
    assert sum(len(one.lines) for one in found) >= 50
    assert all(len(one.lines) <= handler_lines.REPORT_LINES for one in found)


def test_lines_travel_over_the_channel():
    """Of records and of frames; what is no line is refused."""
    frame = pa.RecordBatch.from_pydict({"topic": ["t"] * 2, "partition": [1] * 2, "offset": [4, 9]})
    record = Record("t", 0, 7, b"\xff" * 100, None, 0, (), 2)
    lines = (
        HandlerLine("für 3 €", CallPlace.of(record)), HandlerLine("", CallPlace.of(frame)),
        HandlerLine("none", CallPlace("t", 0, 1, 1, None, 1)), note_of(1),
    )  # fmt: skip
    identity = Identity("run", 5, 1, 8)
    for found in (None, SlotLines(lines, 12)):
        report = SlotReport(5, 1, seq=3, pid=8, outputs=b"rows", lines=found)
        assert decode_report(encode_report(report), identity) == report
    wrong = SlotReport(5, 1, lines=SlotLines((HandlerLine("x", CallPlace("t", -1, 0, 0)),)))
    with pytest.raises(ProtocolError):
        decode_report(encode_report(wrong), identity)


def test_a_line_cannot_command_a_terminal():
    """Its key is short, and its control characters are escaped."""
    place = CallPlace.of(Record("t", 0, 7, b"k" * 100, None, 0, (), 2))
    line = HandlerLine("a\tb\x1b[2J\r", place)
    assert str(line) == f"t-0@7 key={'k' * 64}… attempt=2: a\tb\\x1b[2J\\r"
    assert str(note_of(1)) == "… 1 more line not shown"
    assert str(note_of(1_200)) == "… 1,200 more lines not shown"
