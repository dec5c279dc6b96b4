"""The driver shows the lines of handlers, so many a second, and waits for none."""

from __future__ import annotations

import threading

from coopconsume.monitoring import line_display
from coopconsume.monitoring.line_display import LineDisplay
from coopconsume.runtime.status.progress import Meter
from coopconsume.worker.handler_lines import HandlerLine, SlotLines
from coopconsume.worker.report import SlotReport
from tests.unit.worker.slot_harness import PATIENCE

IDENTITY = {"id": "i", "runId": "r", "name": None, "groupId": "shop", "clientId": "c"}


def some(first, last, left_out=0):
    """The lines of a report, by their numbers."""
    return SlotLines(tuple(HandlerLine(f"{n}") for n in range(first, last)), left_out)


def test_lines_are_shown_until_there_are_too_many_in_a_second():
    """What slots have left out counts as well; it is said at once, then once a second."""
    now, shown = [7.0], []
    display = LineDisplay(4, shown.append, lambda: now[0])
    display._thread = threading.Thread()  # The test makes the turns of the thread itself.

    def said():
        return [str(line) for line in display._next()]

    display.take(some(0, 3))
    assert said() == ["0", "1", "2"]
    display.take(some(3, 6, left_out=5))
    assert said() == ["3", "… 7 more lines not shown"]
    now[0] += 0.5
    display.take(some(6, 8))
    assert said() == []
    now[0] += 0.5
    display.take(some(8, 10))
    assert said() == ["8", "9", "… 2 more lines not shown"]
    assert said() == []


def test_a_line_that_is_not_shown_in_time_holds_nothing_up():
    """While one hangs, as many as a second has wait; all others are counted."""
    now, shown = [7.0], []
    hangs, goes_on = threading.Event(), threading.Event()

    def show(line):
        hangs.set()
        assert goes_on.wait(PATIENCE)
        shown.append(str(line))

    with LineDisplay(3, show, lambda: now[0]) as display:
        display.take(some(0, 1))
        assert hangs.wait(PATIENCE)
        for first in range(1, 31, 3):
            now[0] += 1.0
            display.take(some(first, first + 3))
        goes_on.set()
    display._thread.join(PATIENCE)
    assert shown == ["0", "1", "2", "3", "… 27 more lines not shown"]


def test_the_end_of_a_job_shows_what_is_left_and_does_not_wait_for_ever(monkeypatch, capsys):
    """An error of a function that shows lines costs its line alone."""
    monkeypatch.setattr(line_display, "_PATIENCE", PATIENCE)
    shown = []

    def show(line):
        shown.append(str(line))
        if line.text == "0":
            raise RuntimeError

    meter = Meter(IDENTITY, 1, (), LineDisplay(2, show))
    meter.reported(SlotReport(0, 0, lines=some(0, 2, left_out=9)), [])
    meter.reported(SlotReport(0, 0), [])
    meter.ended(None)
    assert shown == ["0", "1", "… 9 more lines not shown"]

    meter = Meter(IDENTITY, 1, (), LineDisplay(2))
    meter.reported(SlotReport(0, 0, lines=some(5, 6)), [])
    meter.ended(None)
    assert capsys.readouterr().err == "5\n"

    monkeypatch.setattr(line_display, "_PATIENCE", 0.01)
    for_ever = threading.Event()
    meter = Meter(IDENTITY, 1, (), LineDisplay(2, lambda _: for_ever.wait(PATIENCE)))
    meter.reported(SlotReport(0, 0, lines=some(0, 2)), [])
    meter.ended(None)
    assert not for_ever.is_set()
    for_ever.set()
    Meter(IDENTITY, 1, (), LineDisplay(2)).ended(None)
