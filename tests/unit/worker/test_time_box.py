"""The time box of a slot begins once, whichever thread comes first."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

from coopconsume.worker.crash_journal import CrashJournal
from coopconsume.worker.time_box import TimeBox
from tests.unit.worker.slot_harness import prepared

ROWS = [(0, 0, b"a")]
PATIENCE = 120.0


class Stop:
    """Notes the deadlines at which the process would be ended."""

    def __init__(self):
        self.deadlines = []

    def end_in(self, of, seconds):
        """Notes one."""
        self.deadlines.append((of, seconds))

    def close(self):
        """Nothing is set."""


def made():
    """A time box of 300 s, and what ends its process."""
    box = TimeBox(prepared(None, ROWS)[0]._spec, CrashJournal(None, 1), end=lambda _status: None)
    box.fail_stop = Stop()
    return box, box.fail_stop


def test_two_threads_that_begin_at_once_have_one_end(monkeypatch):
    """The reader of rows and a runner may come at the same time."""
    box, stop = made()
    clocks, goes_on = [], threading.Event()

    def monotonic():
        clocks.append(time.monotonic())
        if len(clocks) == 1:
            assert goes_on.wait(PATIENCE)
        return clocks[-1]

    monkeypatch.setattr("coopconsume.worker.time_box.time", SimpleNamespace(monotonic=monotonic))
    ends = []
    threads = [threading.Thread(target=lambda: ends.append(box.begin())) for _ in range(2)]
    threads[0].start()
    while not clocks:
        time.sleep(0.001)
    threads[1].start()
    deadline = time.monotonic() + 0.2
    while not ends and time.monotonic() < deadline:  # With a lock it waits for the first.
        time.sleep(0.001)
    goes_on.set()
    for thread in threads:
        thread.join()
    assert len(set(ends)) == 1
    assert len(stop.deadlines) == 1
    box.end()


def test_a_time_box_that_begins_after_its_end_ends_nothing():
    """A slot that was halted may end before its reader begins."""
    box, stop = made()
    box.end()
    threads = threading.active_count()
    assert box.begin() == box.begin()
    assert not stop.deadlines
    assert threading.active_count() == threads
