"""Failed records are logged: the first failure, the end, not every one, and the trace once."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import replace

from coopconsume.cli.run import status_line
from coopconsume.monitoring import JsonFormatter
from coopconsume.runtime.settle.failure_log import FailureLog
from coopconsume.worker.histogram import Histogram
from coopconsume.worker.report import DeadLetter, Failure, PartitionReport, SlotReport

NAMES = [("orders", 1)]
DECLINED = "ValueError: card declined"


def failed(offset, attempts=1, *, error=DECLINED, delay=8.0, trace=""):
    """A report of one failed record."""
    one = Failure(offset, 5, b"customer-7", attempts, delay, error, trace)
    return SlotReport(0, 0, partitions={0: PartitionReport(failed=[one])})


def dead(offset, attempts=3, *, error=DECLINED, trace=""):
    """A report of one dead letter."""
    letter = DeadLetter("orders", 1, offset, b"k", b"v", 0, (), attempts, error, trace,
                        dealt_by=b"o")  # fmt: skip
    return SlotReport(0, 0, dead=[letter])


def lines(caplog) -> list[str]:
    """The lines that were logged since the last call."""
    found = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return found


def test_the_first_failure_and_the_end_of_a_record_are_logged(caplog):
    """Retries in between are not."""
    now = [0.0]
    failure_log = FailureLog(lambda: now[0])
    for attempt in (1, 2):
        failure_log.take(failed(58, attempt, trace="Traceback:\n  the line\n"), NAMES)
        now[0] += 100
    failure_log.take(dead(58), NAMES)
    now[0] += 100
    failure_log.take(failed(60, 3, delay=math.inf), NAMES)
    now[0] += 100
    failure_log.take(failed(61, 0), NAMES)
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    assert lines(caplog) == [
        (
            "orders-1@58 key=customer-7: ValueError: card declined (attempt 1, next in 8 s)\n"
            "Traceback:\n  the line"
        ),
        "orders-1@58 key=o: ValueError: card declined (dead-lettered after attempt 3)",
        "orders-1@60 key=customer-7: ValueError: card declined (parked after attempt 3)",
        "orders-1@61 key=customer-7: ValueError: card declined (postponed, next in 8 s)",
    ]


def test_a_parked_dead_letter_is_one_line(caplog):
    """Not one of a dead letter and one of a parked record."""
    report = replace(failed(58, 3, delay=math.inf), dead=dead(58).dead)
    FailureLog().take(report, NAMES)
    assert lines(caplog) == [
        "orders-1@58 key=customer-7: ValueError: card declined (parked after attempt 3)"
    ]


def test_the_first_line_of_a_type_has_the_trace(caplog):
    """Also if the failure that carries it is that of a later partition in the report."""
    report = failed(58)
    report.partitions[1] = failed(7, trace="the trace").partitions[0]
    FailureLog().take(report, [*NAMES, ("orders", 2)])
    (text,) = lines(caplog)
    assert text.startswith("orders-2@7")
    assert text.endswith("\nthe trace")


def test_a_trace_that_came_with_a_line_left_out_is_logged_with_the_next(caplog):
    """It comes once in a batch of a slot."""
    now = [0.0]
    failure_log = FailureLog(lambda: now[0])
    for offset, trace in enumerate(("", "the trace", "")):
        failure_log.take(failed(offset, trace=trace), NAMES)
        now[0] += 6
    failure_log.take(failed(3), NAMES)
    assert [text.splitlines()[1:] for text in lines(caplog)] == [[], ["the trace"]]


def test_one_type_of_error_has_a_line_in_ten_seconds(caplog):
    """The next line counts what was left out; another type has lines of its own; one trace each."""
    now = [0.0]
    failure_log = FailureLog(lambda: now[0])
    for offset in range(30):
        failure_log.take(failed(offset, trace="the trace"), NAMES)
    failure_log.take(failed(40, error="KeyError: 'x'", trace="another"), NAMES)
    assert [text.splitlines()[1:] for text in lines(caplog)] == [["the trace"], ["another"]]
    now[0] = 9.9
    failure_log.take(failed(50), NAMES)
    assert lines(caplog) == []
    now[0] = 10.0
    failure_log.take(failed(51, trace="the trace"), NAMES)
    (text,) = lines(caplog)
    assert text.endswith("(attempt 1, next in 8 s); 30 more like it since the last line")


def test_words_of_retry_are_one_type(caplog):
    """Else a handler that asks for a retry with ever new words would fill the log."""
    failure_log = FailureLog(lambda: 0.0)
    for offset in range(30):
        failure_log.take(failed(offset, error=f"not yet, {offset} to go"), NAMES)
    assert len(lines(caplog)) == 1


def test_json_logs_carry_the_facts(caplog):
    """As fields, beside the text."""
    FailureLog().take(failed(58), NAMES)
    (record,) = caplog.records
    line = json.loads(JsonFormatter().format(record))
    assert line["context"]["failure"] == {
        "topic": "orders", "partition": 1, "offset": 58, "key": "customer-7", "error": DECLINED,
        "attempt": 1, "outcome": "retry", "leftOut": 0,
    }  # fmt: skip


def event(waiting=None, **blockers):
    """A progress event with blockers, by how many seconds they block."""
    partitions = [
        {"topic": "orders", "partition": n, "blocker": None if age is None else
         {"offset": 58, "state": "failed", "key": "customer-7", "keyHash": 5, "attempts": 4,
          "dueInSeconds": due, "error": DECLINED, "behind": 36, "ageSeconds": age}}
        for n, (age, due) in enumerate(blockers.values())
    ]  # fmt: skip
    return {
        "totals": {"done": 1200, "deadLetters": 2, "filtered": 0}, "lag": 40, "pending": 37,
        "gapRanges": 1, "waitingFor": waiting, "partitions": partitions, "mode": "batch",
        "verdict": {"level": "working", "sentence": "Working"},
    }  # fmt: skip


def test_the_status_line_shows_the_oldest_blocker():
    """With its key, error, attempt, and what waits behind it."""
    numbers = "1,200 done, 7/s, lag 40, 37 pending, 1 gaps, 2 dead letters"
    assert status_line(event(), 7.0) == numbers
    assert status_line(event() | {"mode": "realTime"}, 7.0) == f"real time: {numbers}"
    fast, slow = Histogram(), Histogram()
    fast.add(0.0049), slow.add(0.2)
    some = [event() | {"startLatency": one.describe(), "commitLatency": two.describe()}
            for one, two in ((fast, slow), (fast, Histogram()))]  # fmt: skip
    live = event() | {"mode": "realTime"}
    latency = "p99 5 ms to handlers, 200 ms to commits"
    assert status_line(live, 7.0, some) == f"real time: {numbers}, {latency}"
    some = event()
    some["totals"]["filtered"] = 3000
    assert status_line(some, 7.0) == f"{numbers}, 3,000 filtered"
    line = status_line(event(a=(1.0, 5.0), b=(9.0, 8.2), c=(None, 0.0)), 7.0)
    assert line == (
        f"{numbers}; held by orders-1@58 key=customer-7: ValueError: card declined "
        "(attempt 4, next in 8 s, 36 records behind)"
    )
    alone = event(a=(1.0, 8.2))
    alone["partitions"][0]["blocker"]["behind"] = 0
    assert status_line(alone, 7.0) == (
        f"{numbers}; orders-0@58 key=customer-7: ValueError: card declined (attempt 4, next in "
        "8 s, nothing behind it so far)"
    )
    parked = event(a=(1.0, None))
    assert "(attempt 4, retry in progress, 36" in status_line(parked, 7.0)
    parked["partitions"][0]["blocker"]["state"] = "parked"
    assert "(attempt 4, parked, 36" in status_line(parked, 7.0)
    postponed = event(a=(1.0, 8.2))
    postponed["partitions"][0]["blocker"]["attempts"] = 0
    assert "(postponed, next in 8 s, 36" in status_line(postponed, 7.0)
    postponed["partitions"][0]["blocker"]["error"] = ""
    assert status_line(postponed, 7.0) == numbers
    deleted = event() | {"verdict": {"level": "danger", "sentence": "Retention deletes 3"}}
    assert status_line(deleted, 7.0) == f"{numbers}; Retention deletes 3"


def test_the_status_line_says_why_nothing_runs():
    """Never 0 records a second without a reason."""
    waiting = {"reason": "paused", "message": "paused by pause(): resume() continues"}
    assert status_line(event(waiting), 0.0).endswith("; paused by pause(): resume() continues")
