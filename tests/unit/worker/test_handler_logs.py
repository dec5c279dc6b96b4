"""What handlers log and print is found with its record, in log records and in traces of errors."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import pickle
import sys
import threading
from functools import partial
from itertools import repeat
from types import SimpleNamespace

import pytest

from coopconsume.decoding import Decoding
from coopconsume.monitoring.logs import JsonFormatter
from coopconsume.record import Reject, Retry, RetryPolicy
from coopconsume.worker import handler_logs
from coopconsume.worker.frame_runner import FrameHandler
from coopconsume.worker.handler_calls import watched
from coopconsume.worker.handler_logs import RecordLogFilter, log_watcher
from coopconsume.worker.report import PartitionWork
from tests.unit.worker.slot_harness import PATIENCE, WAYS, done, in_way, run

ROWS = [(0, o, b"k%d" % o) for o in range(12)]
ONCE = RetryPolicy(max_attempts=1)
logger = logging.getLogger("shop")


@pytest.fixture(autouse=True)
def process(monkeypatch):
    """Has what is set in the process as it was before."""
    factory, stdout = logging.getLogRecordFactory(), sys.stdout
    monkeypatch.setattr(handler_logs, "_has_filter", False)
    monkeypatch.setattr(logger, "level", logging.INFO)
    yield
    logging.setLogRecordFactory(factory)
    sys.stdout = stdout
    logger.handlers.clear()


@pytest.fixture
def logged():
    """Return the log records of the logger, each with its record."""
    found, handler = [], logging.Handler()
    handler.emit = found.append
    handler.addFilter(RecordLogFilter())
    logger.addHandler(handler)
    return found


def places(logged):
    """The message of each log record, and the record that it has."""
    return sorted(
        (one.getMessage(), one.topic, one.partition, one.offset, one.key, one.attempt)
        for one in logged
    )


@pytest.mark.parametrize("way", WAYS)
def test_log_records_have_their_record(way, logged):
    """Of handlers side by side, whose calls overlap; not of what is logged between them."""

    def handler(record):
        logger.info("at %d", record.offset)
        logging.getLogger("shop.bills").info("of %d", record.offset)

    handler, concurrency = in_way(way, handler)
    work = {0: PartitionWork(((0, 100),), {3: 4})}
    report = run(handler, ROWS, concurrency=concurrency, work=work)
    assert done(report) == list(range(12))
    logger.info("out")
    assert places(logged)[:-1] == sorted(
        (f"{word} {o}", "t", 10, o, f"k{o}", 5 if o == 3 else 1)
        for o in range(12)
        for word in ("at", "of")
    )
    assert places(logged)[-1] == ("out", None, None, None, None, None)


def test_tasks_and_threads_of_a_coroutine_have_its_record(logged):
    """Calls meet in the middle, and each goes on with its own record."""
    here, all_here = [], asyncio.Event()

    async def part(record):
        logger.info("task %d", record.offset)
        await asyncio.to_thread(logger.info, "thread %d", record.offset)

    async def handler(record):
        here.append(record)
        if len(here) == len(ROWS):
            all_here.set()
        await asyncio.wait_for(all_here.wait(), PATIENCE)
        async with asyncio.TaskGroup() as group:
            group.create_task(part(record))
        logger.info("end %d", record.offset)

    assert done(run(handler, ROWS, concurrency=12)) == list(range(12))
    words = ("task", "thread", "end")
    assert [one[0::3] for one in places(logged)] == sorted(
        (f"{word} {o}", o) for o in range(12) for word in words
    )


def test_threads_side_by_side_have_their_own_records(logged):
    """All calls are at work at once."""
    meeting = threading.Barrier(12, timeout=PATIENCE)

    def handler(record):
        meeting.wait()
        logger.info("at %d", record.offset)

    assert done(run(handler, ROWS, concurrency=12)) == list(range(12))
    assert [one[0::3] for one in places(logged)] == sorted((f"at {o}", o) for o in range(12))


def test_typed_records_and_json_lines_have_the_key_as_it_is_in_kafka():
    """As text; in one object with the message. What the handler gives itself stays."""
    out = io.StringIO()
    lines = logging.StreamHandler(out)
    lines.setFormatter(JsonFormatter())
    lines.addFilter(RecordLogFilter())
    logger.addHandler(lines)

    def handler(record):
        logger.info("billed %s", record.key, extra={"attempt": "of my own"})

    run(handler, [(1, 7, b"7\xff")], decoding=Decoding(key=len))
    context = {"topic": "t", "partition": 11, "offset": 7, "attempt": "of my own", "key": "7\\xff"}
    found = json.loads(out.getvalue())
    assert (found["msg"], found["context"]) == ("billed 2", context)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_returned", [False, True])
def test_a_dead_letter_has_the_last_lines_of_its_call(way, is_returned, capsys):
    """Those of its own call alone, printed and logged, also below a warning."""

    def handler(record):
        for number in range(5):
            logger.info("step %d of %d", number, record.offset)
        sys.stdout.write(f"paid {record.offset}")
        sys.stdout.writelines(["!\n", "in part"])
        error = ValueError("no") if record.offset % 2 else Reject("bad")
        if is_returned:
            return error
        raise error

    report = run(handler, ROWS, way=way, log_lines=4, policy=ONCE)
    assert sorted(letter.offset for letter in report.dead) == list(range(12))
    for letter in report.dead:
        assert letter.trace.endswith(
            "\nLast lines that the handler has logged and printed:\n"
            f"INFO shop: step 3 of {letter.offset}\nINFO shop: step 4 of {letter.offset}\n"
            f"paid {letter.offset}!\nin part\n"
        )
        assert "step 2" not in letter.trace
    assert "paid 7!" in capsys.readouterr().out


def test_generators_and_frames_have_their_lines_too():
    """A generator runs in the call; the error of a frame is that of all its rows."""

    def rows(record):
        yield {}
        logger.info("row of %d", record.offset)
        raise OSError

    def frame(batch):
        logger.info("frame of %d", batch.num_rows)
        raise OSError

    def outcomes(batch):
        frame_of = FrameHandler(frame, 100, "arrow")
        yield from [None] * (batch.num_rows - 1)
        frame_of(batch)

    def endless(batch):
        logger.info("frame of %d", batch.num_rows)
        yield from repeat(None)

    async def awaited(given):
        await asyncio.sleep(0)
        frame(given)

    def returned(given):
        return awaited(given)

    ways = [
        (rows, "row of 0"), (frame, "frame of 1"), (outcomes, "frame of 1"),
        (endless, ""), (awaited, "frame of 1"),
        (returned, "frame of 1"),
    ]  # fmt: skip
    for function, line in ways:
        handler = function if function is rows else FrameHandler(function, 100, "arrow")
        report = run(handler, ROWS[:1], log_lines=3, policy=ONCE)
        assert [line in letter.trace for letter in report.dead] == [True]


@pytest.mark.parametrize("batches", [1, 3])
def test_lines_are_not_doubled_by_what_wraps_what_we_have_wrapped(batches, capsys):
    """A library does it within a handler; the next batch wraps what it finds."""

    def wrap():
        make, out = logging.getLogRecordFactory(), sys.stdout
        logging.setLogRecordFactory(partial(make))
        sys.stdout = SimpleNamespace(write=out.write, flush=out.flush)

    def handler(record):
        logger.info("at %d", record.offset)
        sys.stdout.write("printed\n")
        raise OSError

    for _ in range(batches):
        assert len(run(handler, ROWS, log_lines=9, policy=ONCE).dead) == len(ROWS)
        wrap()
    for letter in run(handler, ROWS, log_lines=9, policy=ONCE).dead:
        assert letter.trace.endswith(f"printed:\nINFO shop: at {letter.offset}\nprinted\n")
    assert capsys.readouterr().out.count("printed") == len(ROWS) * (batches + 1)


def test_an_error_that_is_raised_again_has_the_lines_of_the_last_call():
    """And its other notes."""
    error = Retry(1_000.0)
    error.add_note("mine")

    def handler(record):
        logger.info("at %d", record.offset)
        raise error

    report = run(handler, ROWS, log_lines=3, policy=ONCE)
    for letter in report.dead:
        assert letter.trace.count("Last lines") == letter.trace.count("mine") == 1
        assert letter.trace.endswith(f"INFO shop: at {letter.offset}\n")


class Sly:
    """Cannot be shown."""

    def __str__(self):
        raise RuntimeError


class Fixed(Exception):
    """Takes no notes."""

    def __setattr__(self, name, value):
        raise RuntimeError


def test_lines_are_bounded_and_odd_ones_cost_nothing():
    """In number, in length, and beside the trace."""

    def handler(record):
        if record.offset == 0:
            sys.stdout.write("a" * 100_000)
            for number in range(200):
                alone.warning("%d%s", number, "b" * 1_000)
        if record.offset == 1:
            alone.warning(Sly())
            alone.warning("%d", "no number")
            alone.warning("\ud800")
        raise Fixed if record.offset == 2 else OSError

    alone = logging.Logger("alone")  # noqa: LOG001 - without those of pytest
    alone.addHandler(logging.NullHandler())
    report = run(handler, ROWS[:3], log_lines=100, policy=ONCE)
    traces = [letter.trace for letter in report.dead]
    assert [letter.reason for letter in report.dead] == ["OSError", "OSError", "Fixed"]
    assert "raise Fixed if" in traces[0]
    assert 3_000 < len(traces[0]) < 5_000
    assert r"\ud800" in traces[1]
    assert "WARNING alone: '%d'\n" in traces[1]
    assert "Last lines" not in traces[2]


def test_calls_that_end_well_keep_nothing_and_nothing_is_wrapped_unless_somebody_asks():
    """The handler is the same object then; calls that end well keep no lines."""

    def handler(record):
        sys.stdout.write("printed")
        logger.info("logged")

    assert watched(handler, []) is handler
    assert log_watcher(0) is None
    assert done(run(handler, ROWS, log_lines=3)) == list(range(12))
    assert log_watcher(0) is None
    RecordLogFilter()
    assert log_watcher(0) is not None


def test_a_filter_is_in_use_in_the_process_that_it_comes_to():
    """As it is unpickled there."""
    data = pickle.dumps(RecordLogFilter())
    handler_logs._has_filter = False
    assert isinstance(pickle.loads(data), RecordLogFilter)
    assert handler_logs._has_filter
