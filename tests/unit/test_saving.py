"""When a job has saved all: where outputs are published in transactions, not before that."""

from __future__ import annotations

import queue
from types import SimpleNamespace
from typing import Any

import pytest

from coopconsume.errors import OutputsNotPublished
from coopconsume.runtime.committer import Committer


class Holding:
    """What is owned; publishing it fails as often as is said."""

    def __init__(self, failures: list[BaseException | bool]) -> None:
        self.options = SimpleNamespace(max_num_ranges_to_commit=10, batch_time=1.0)
        self.is_shared = False
        self.primary = self
        self.publishes = True
        self.has_unpublished = True
        self.stopped = False
        self.failures = failures

    def refresh(self) -> dict:
        """Nobody else moves anything."""
        return {}

    def write(self) -> None:
        """Publish, unless it fails, or is not to be done now."""
        failure = self.failures.pop(0) if self.failures else False
        if isinstance(failure, BaseException):
            raise failure
        self.has_unpublished = failure

    def write_quietly(self, *, force: bool = False) -> None:
        """For the end."""

    def stop_repeating(self) -> None:
        """No commit is under way."""

    def stop_publishing(self) -> None:
        """It is over."""
        self.stopped = True


def saver(holding: Holding) -> tuple[Committer, queue.Queue[Any]]:
    """One that has nothing to commit, and what it has to say."""
    said: queue.Queue[Any] = queue.Queue()
    work = SimpleNamespace(park=False, available_now=False)
    meter = SimpleNamespace()
    made = Committer(holding, work, [], meter, iter(()), lambda call, *args: said.put((call, args)))  # type: ignore[arg-type]
    return made, said


def turn(made: Committer, said: queue.Queue[Any]) -> None:
    """A turn of the loop: have it save, and hear what it says."""
    made.save(more_to_come=False)
    while made.is_busy:
        call, args = said.get(timeout=60)
        call(*args)


def test_all_is_saved_once_it_is_published(monkeypatch):
    """What the group's coordinator does not take now is tried again."""
    monkeypatch.setattr("coopconsume.runtime.committer._PUBLISH_EVERY", -1.0)
    holding = Holding([True, True])
    made, said = saver(holding)
    for unpublished in (True, True, False):
        assert not made.has_all
        turn(made, said)
        assert holding.primary.has_unpublished is unpublished
    assert made.has_all
    made.close(well=True)
    assert not holding.stopped


def test_what_cannot_be_published_ends_the_job():
    """It is no warning, as the primary offset of other jobs is; and the end waits for nothing."""
    made, said = saver(Holding([OutputsNotPublished("topic 'out'", "gone")]))
    with pytest.raises(OutputsNotPublished, match="gone"):
        turn(made, said)
    assert not made.has_all
    holding: Any = made._holding
    made.close(well=False)
    assert holding.stopped
