"""Fixtures of the models of a job."""

from __future__ import annotations

import pytest

from tests.model.job_group import KEYS, WHOLE, Group
from tests.model.job_world import World


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
