"""What chaos rounds excuse: a driver that stands still for no longer than a lease loses nothing."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from coopconsume.group.owned import LEASE
from tests.chaos.watcher import Watcher


@pytest.mark.parametrize(("seconds", "excused"), [(LEASE / 2, 0), (2 * LEASE, 1)])
def test_a_driver_that_stood_still_is_an_excuse_beyond_its_lease_alone(
    monkeypatch, seconds, excused
):
    """The end of a worker by its timer excuses nothing where its driver was there."""
    watcher, now = Watcher(list, dict), [10**9]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    app = SimpleNamespace(is_alive=True, workers=frozenset({1}))
    watcher.disturb(app)
    now[0] += int(1e9 * seconds)
    watcher.woke(app)
    assert len(watcher.seen().disturbances) == excused
