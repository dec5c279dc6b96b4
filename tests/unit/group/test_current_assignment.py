"""The current assignment: when a worker begins with it, and what ends it."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from coopconsume.errors import AlreadyClosed
from coopconsume.group.current_assignment import CurrentAssignment


class Recorder:
    """A worker that notes what it is asked for."""

    def __init__(self) -> None:
        self.begun: list[object] = []
        self.failed: list[BaseException] = []
        self.begin = self.begun.append
        self.fail = self.failed.append


def an_assignment() -> Any:
    """Nothing of it is looked at."""
    return SimpleNamespace()


def begun() -> tuple[Any, Any, Recorder]:
    """A current assignment, what is assigned, and the worker that works on it."""
    worker: Any = Recorder()
    current, assignment = CurrentAssignment(worker), an_assignment()
    assert current.begin(assignment)
    return current, assignment, worker


def test_the_worker_that_is_attached_begins_with_each_assignment() -> None:
    """Also with the one that is there; without it the first worker has it again."""
    current, first, idle = begun()
    job, second = Recorder(), an_assignment()
    current.attach(job)
    current.begin(second)
    current.detach()
    assert (job.begun, idle.begun) == ([first, second], [first, second])
    assert current.end() is second
    current.attach(job)
    current.detach()
    assert (len(job.begun), len(idle.begun)) == (2, 2), "there is nothing to begin with"
    assert current.latest is second


def test_a_consumer_that_leaves_begins_nothing_and_keeps_nobody_waiting() -> None:
    """What it had stays until it is given back."""
    current, first, worker = begun()
    current.end()
    found: list[object] = []
    waits = threading.Thread(target=lambda: found.append(current.wait()), daemon=True)
    waits.start()
    current.leave()
    waits.join(60)
    assert found == [None]
    assert not current.begin(an_assignment())
    assert (current.held, current.latest, worker.begun) == (None, first, [first])
    with pytest.raises(AlreadyClosed):
        current.wait_for_first(str)


def test_what_the_log_refused_is_said_once() -> None:
    """A second refusal finds nothing, and does not hide the first one."""
    current, assignment, _ = begun()
    assert current.refuse() is assignment
    assert current.refuse() is None
    assert current.get() is None
    assert current.take_refused() is assignment
    assert current.take_refused() is None


def test_an_error_ends_it_for_all() -> None:
    """A worker that comes later gets it, too."""
    current, _, worker = begun()
    error, later = RuntimeError("the end"), Recorder()
    current.fail(error)
    current.attach(later)
    assert (worker.failed, later.failed, later.begun) == ([error], [error], [])
    for read in (current.get, current.wait, lambda: current.wait_for_first(str)):
        with pytest.raises(RuntimeError, match="the end"):
            read()
