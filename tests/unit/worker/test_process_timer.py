"""The timer that ends a process whatever its threads do: each test ends a child process by it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from coopconsume.record import RetryPolicy
from coopconsume.worker.crash_journal import CrashJournal, Deadline, read_journal
from coopconsume.worker.fail_stop import FailStop
from coopconsume.worker.frame_runner import FrameHandler
from coopconsume.worker.process_timer import clock, process_timer
from tests.unit.worker.slot_harness import PATIENCE, WAYS, in_way, prepared

#: How faulthandler ends a process.
_BY_FAULTHANDLER = 1


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    """Journals are in the test's folder."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def stuck(_=None):
    """Never ends, and keeps the interpreter lock."""
    re.match(r"(a+)+b", "a" * 60)


def stopped():
    """Stops this process, as Ctrl-Z does."""
    os.kill(os.getpid(), signal.SIGSTOP)


def in_a_child(body):
    """Runs a function in a child process; returns the exit status, negative for a signal."""
    child = os.fork()
    if child == 0:
        try:
            body()
            os._exit(0)
        finally:
            os._exit(99)
    until = time.monotonic() + PATIENCE
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            pytest.fail("nothing has ended the process")
        time.sleep(0.01)


def ends(timer, body, seconds=0.2):
    """Runs a function in a child process that a timer ends; returns the exit status."""

    def timed():
        timer().set(clock() + seconds)
        body()

    return in_a_child(timed)


@pytest.mark.parametrize("body", [stuck, stopped])
def test_the_kernel_ends_a_process_that_no_thread_of_it_could_end(body):
    """One in native code that keeps the interpreter lock, and one that is stopped."""
    assert ends(process_timer, body) == -signal.SIGKILL


def test_an_instant_that_has_passed_ends_the_process_at_once():
    """As after a sleep of the host."""
    assert ends(process_timer, stuck, -5.0) == -signal.SIGKILL
    assert ends(process_timer, stuck, -2 * clock()) == -signal.SIGKILL


def test_each_renewal_sets_the_timer_forward():
    """The process lives as long as it is renewed."""

    def renewed():
        timer, until = process_timer(), clock() + 1.0
        timer.set(clock() + 0.5)
        while clock() < until:
            timer.set(clock() + 0.5)
            time.sleep(0.01)
        os.write(into, b"renewed")
        stuck()

    out, into = os.pipe()
    assert in_a_child(renewed) == -signal.SIGKILL
    os.close(into)
    with os.fdopen(out, "rb") as found:
        assert found.read() == b"renewed"


_GOES_ON = """
import math, time
from coopconsume.worker import process_timer as timers
one = timers.{timer}()
one.set(timers.clock() + 0.1)
one.set(math.inf)
time.sleep(0.3)
one.set(timers.clock() + 0.1)
one.close()
one.close()
time.sleep(0.3)
"""
_STUCK = """
import re, time
from coopconsume.worker import process_timer as timers
{missing}
one = timers.process_timer()
assert isinstance(one, timers._FaultTimer)
one.set(timers.clock() + 0.1)
re.match(r"(a+)+b", "a" * 60)
"""


def in_a_program(text):
    """Runs a program; returns its exit status and what it wrote to standard error."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", text],
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        pytest.fail("nothing has ended the program")
    return done.returncode, done.stderr


@pytest.mark.parametrize("timer", ["process_timer", "_FaultTimer"])
def test_a_timer_that_is_put_off_or_removed_ends_nothing(timer):
    """The process goes on behind the instant."""
    assert in_a_program(_GOES_ON.format(timer=timer)) == (0, "")


@pytest.mark.parametrize(
    "missing", ["timers._CLOCK = 99; timers.clock = time.monotonic", "timers._c_library = object"]
)
def test_without_timers_of_the_kernel_faulthandler_ends_the_process(missing):
    """As on systems other than Linux; it says where the process was stuck."""
    status, error = in_a_program(_STUCK.format(missing=missing))
    assert status == _BY_FAULTHANDLER
    assert "Timeout" in error


def test_the_earliest_deadline_ends_the_process_and_the_journal_names_it(tmp_path):
    """One is moved to be the earliest."""

    def body():
        journal = CrashJournal(tmp_path / "journal", 2)
        stop = FailStop(journal, process_timer())
        journal.enter(1, 0, 7)
        stop.end_in(Deadline.LEASE, 300.0)
        stop.end_in(Deadline.CALL, 600.0)
        stop.end_in(Deadline.SLOT, 900.0)
        stop.python_runs()
        stop.end_in(Deadline.CALL, 0.2)
        stuck()

    assert in_a_child(body) == -signal.SIGKILL
    found = read_journal(tmp_path / "journal")
    assert found is not None
    assert (found.deadline, found.running) == (Deadline.CALL, [(0, 7)])
    assert 0.0 < found.stood_still < PATIENCE


def test_a_worker_that_ended_before_its_deadline_was_not_ended_by_it(tmp_path):
    """Something else has: the record that was running is charged."""

    def body():
        journal = CrashJournal(tmp_path / "journal", 1)
        stop = FailStop(journal, process_timer())
        journal.enter(0, 0, 7)
        stop.end_in(Deadline.LEASE, 300.0)
        os._exit(9)

    in_a_child(body)
    found = read_journal(tmp_path / "journal")
    assert found is not None
    assert (found.deadline, found.culprits, found.was_overdue) == (None, [(0, 7)], False)


ROWS = [(0, o, b"%d" % o) for o in range(8)]


async def stuck_coroutine(_):
    """Keeps its event loop."""
    stuck()


def outlasts(way, run_id, **more):
    """Runs a slot whose handlers never end; returns how its worker ended, and the next report."""
    handler, concurrency = in_way(way, stuck) if way != "frames" else (FrameHandler(stuck, 1), 1)
    if way == "coroutines":
        handler = stuck_coroutine
    # One record: of several that run at once nobody knows which one keeps the lock.
    slot, batches = prepared(handler, ROWS[:1], concurrency=concurrency, run_id=run_id, **more)
    return in_a_child(lambda: slot.run(3, batches)), slot.after_a_crash(3)


@pytest.mark.parametrize("way", ["threads", "coroutines", "frames"])
def test_a_call_that_keeps_the_interpreter_lock_is_ended_at_its_time_limit(way):
    """That of `RetryPolicy`: it is charged an attempt as any call that does not end in time."""
    policy = RetryPolicy(timeout=0.2, jitter=0)
    status, report = outlasts(way, f"p-{way}", policy=policy)
    assert status == -signal.SIGKILL
    assert (report.end.crashed, report.end.overdue, report.end.suspects) == (True, True, [])
    assert report.end.culprits == [(0, 0)]


@pytest.mark.parametrize("way", [*WAYS, "frames"])
def test_a_call_that_keeps_the_interpreter_lock_is_ended_with_the_time_of_its_slot(way):
    """`batchTime` and `handlerTimeout` hold for it, too."""
    status, report = outlasts(way, f"s-{way}", batch_time=0.1, handler_timeout=2.0)
    assert status == -signal.SIGKILL
    assert (report.end.overdue, report.end.culprits) == (True, [(0, 0)])


def test_of_several_calls_none_is_charged_as_one_keeps_the_lock():
    """The others wait for it: they are suspects, and tried one by one."""
    policy = RetryPolicy(timeout=0.2, jitter=0)

    def handler(record):
        if record.offset == 1:
            stuck()
        time.sleep(600)

    slot, batches = prepared(handler, ROWS[:2], concurrency=2, run_id="p-two", policy=policy)
    assert in_a_child(lambda: slot.run(3, batches)) == -signal.SIGKILL
    report = slot.after_a_crash(3)
    assert sorted(report.end.suspects) == [(0, 0), (0, 1)]
    assert not report.end.culprits
