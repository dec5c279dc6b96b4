"""Answers of brokers are waited for no longer than a call has time."""

from __future__ import annotations

import math
import threading

import pytest

from coopconsume.kafka import call_limit
from coopconsume.kafka.call_limit import Deadline, NoAnswerInTime, call_in_time, time_left


def test_the_nearest_of_the_deadlines_of_a_thread_counts() -> None:
    """Until the end of its block, and not in other threads."""
    others: list[float] = []
    assert time_left() == math.inf
    with Deadline(50), Deadline(500):
        assert time_left() <= 50
        thread = threading.Thread(target=lambda: others.append(time_left()))
        thread.start()
        thread.join()
        with Deadline(5):
            assert time_left() <= 5
        assert time_left() > 5
    assert others == [time_left()] == [math.inf]


def test_a_call_without_an_answer_ends_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name is in the error."""
    monkeypatch.setattr(call_limit, "_LEAST", 0.02)
    never = threading.Event()
    with Deadline(0.02), pytest.raises(NoAnswerInTime, match="no answer to wait in time"):
        call_in_time(never.wait, 60)
    with Deadline(0.0):
        assert call_in_time(max, 1, 2, key=abs) == 2
    never.set()


def test_a_call_with_much_time_needs_no_thread() -> None:
    """The client itself has a limit."""
    threads: list[int] = []
    with Deadline(60):
        call_in_time(lambda: threads.append(threading.get_ident()))
    assert threads == [threading.get_ident()]
