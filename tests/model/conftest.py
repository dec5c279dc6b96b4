"""Fixtures of the models of a job."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from coopconsume.kafka import call_limit
from coopconsume.runtime.dispatch import slot_leases
from tests.model.job_group import KEYS, WHOLE, Group
from tests.model.job_world import WatchClock, World


@pytest.fixture
def world(monkeypatch, tmp_path):
    """Return what makes a world; its jobs are ended with the test."""
    made = []

    def make(keys=KEYS, **options):
        made.append(World(monkeypatch, tmp_path, keys, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def group(world):
    """A member with the whole partition and slots that have a channel."""
    group = Group(world(channel=True, drainTimeout="300 seconds"))
    group.opens([WHOLE])
    group.begins(continues=False)
    return group


@pytest.fixture
def long_leases(monkeypatch):
    """Leases of slots that do not lapse, as those of 2 s may on a busy machine; that ends a run."""
    monkeypatch.setattr(slot_leases, "lease_of", lambda _: 300.0)


@pytest.fixture
def watch(monkeypatch):
    """The clock of jobs that watch the chunks of members that are gone."""
    return WatchClock(monkeypatch)


@pytest.fixture
def clock(monkeypatch):
    """The time of fenced writers, in a list of one number: pauses pass at once."""
    now = [0.0]

    def sleep(seconds):
        now[0] += max(seconds, 0.01)

    monkeypatch.setattr(call_limit, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    return now


@pytest.fixture
def still(monkeypatch):
    """No time goes by for fenced writers: a test must not depend on how fast the machine is."""
    fake = SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda _: None)
    monkeypatch.setattr(call_limit, "time", fake)
