"""Calls of the commit table that are repeated while it does not answer."""

from __future__ import annotations

import re
import threading

import pytest

from commits import CommitLogUnavailable, CommitStoreBusy, FencedMember
from coopconsume.group.repeating import repeated


class Table:
    """Fails as often as is said, then answers with the number of the attempt."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> int:
        """One attempt."""
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.calls


def away() -> CommitLogUnavailable:
    """The table does not answer."""
    return CommitLogUnavailable("/table", "append", "no route")


def busy() -> CommitStoreBusy:
    """Others came first."""
    return CommitStoreBusy("/table", "append", 20)


def test_the_first_answer_is_taken():
    """However many attempts had none before."""
    assert repeated(Table(away(), busy(), away()), "commit 7", 60.0) == 4


def test_after_the_limit_the_error_says_what_is_known():
    """The error says what was tried, how often, how long; certain failures are raised unchanged."""
    table = Table(*[away() for _ in range(99)])
    with pytest.raises(CommitLogUnavailable) as error:
        repeated(table, "commit 7 of 3 offsets", 0.3)
    assert table.calls > 1
    said = f"commit 7 of 3 offsets: no answer after {table.calls} attempts in [0-9]+ s: no route"
    assert re.fullmatch(said, error.value.problem)
    assert (error.value.target, error.value.retriable) == ("/table", True)
    with pytest.raises(CommitStoreBusy):
        repeated(Table(busy()), "commit 7", 0.0)
    # After one attempt without an answer the outcome of the call is unknown.
    with pytest.raises(CommitLogUnavailable, match="commit 7: no answer after"):
        repeated(Table(away(), *[busy() for _ in range(99)]), "commit 7", 0.5)


def test_other_errors_and_the_end_are_heard_at_once():
    """A fenced member does not try again, nor does one whose shares are over."""
    fence = FencedMember("g", "m", None, None, "taken over")
    with pytest.raises(FencedMember):
        repeated(Table(away(), fence), "commit 7", 60.0)
    over, table = threading.Event(), Table(away(), away())
    over.set()
    with pytest.raises(CommitLogUnavailable, match="1 attempts"):
        repeated(table, "commit 7", 60.0, over)
    assert table.calls == 1
