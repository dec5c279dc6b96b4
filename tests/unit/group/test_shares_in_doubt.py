"""What of an assignment's shares is in doubt, and for how long."""

from __future__ import annotations

import time

import pytest

from assignors import KeyRange, Share
from coopconsume.group.shares_in_doubt import SharesInDoubt

LOW, HIGH = KeyRange().split(2)
TP = ("t", 0)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which a test sets."""
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    return clock


def test_each_part_has_its_time(now: list[float]) -> None:
    """Key ranges that touch none of them wait for nobody; what is over is left out."""
    found = SharesInDoubt([(Share(*TP, LOW), 5.0), (Share("t", 1, LOW), 90.0)])
    found.mark([Share(*TP, HIGH)], 8.0)
    assert found.seconds(TP, [LOW]) == 5.0
    assert found.seconds(TP, [KeyRange()]) == 8.0
    assert found.seconds(("u", 0), [KeyRange()]) == 0.0
    assert found.ranges(TP) == [(LOW, 105.0), (HIGH, 108.0)]
    now[0] = 106.0
    assert found.ranges(TP) == [(HIGH, 108.0)]
    assert found.left() == [(Share("t", 1, LOW), 84.0), (Share(*TP, HIGH), 2.0)]
    assert found.seconds(TP, [LOW]) < 0


def test_the_next_owner_waits_for_what_is_released(now: list[float]) -> None:
    """In a part of a share, too."""
    found = SharesInDoubt([(Share(*TP, KeyRange()), 5.0)])
    found.release([Share(*TP, HIGH)])
    assert found.ranges(TP) == [(LOW, now[0] + 5.0)]
    found.release([Share(*TP, LOW)])
    assert found.left() == []
