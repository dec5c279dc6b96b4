"""How often a job commits."""

from __future__ import annotations

import math

import pytest

from coopconsume.runtime.commit.pace import Pace


def _pace(shortest: float, cost: float, *, real_time: bool) -> Pace:
    """A pace after many commits that took so long."""
    made = Pace(shortest, real_time=real_time)
    for _ in range(200):
        made.took(cost)
    return made


@pytest.mark.parametrize(("shortest", "cost", "real_time", "interval"), [
    (0.04, 0.003, True, 0.04), (0.0, 0.003, True, 0.024), (0.04, 0.015, True, 0.12),
    (0.04, 0.003, False, 0.15), (0.04, 0.005, False, 0.2), (0.0, 0.0, False, 0.0),
    (0.04, 0.3, True, 0.2), (0.04, 0.3, False, 0.2),
    (5.0, 0.003, True, 5.0), (5.0, 0.3, False, 5.0),
])  # fmt: skip
def test_the_time_between_commits_follows_what_one_costs(shortest, cost, real_time, interval):
    """It is eight times that in real time, and fifty times in batches.

    It is ``commitInterval`` at least, and if that is less, 0.2 s at most.
    """
    assert _pace(shortest, cost, real_time=real_time).interval == pytest.approx(interval)


def test_one_slow_commit_changes_little():
    """A checkpoint, or a table that did not answer for a moment."""
    made = _pace(0.01, 0.003, real_time=True)
    made.took(0.04)
    assert made.interval == pytest.approx(8 * (0.003 + (0.04 - 0.003) / 8))


def test_the_first_commit_does_not_wait():
    """Later ones wait from the begin of the one before."""
    made = Pace(0.04, real_time=True)
    assert made.next_at == -math.inf
    made.began(100.0)
    assert made.next_at == pytest.approx(100.04)
