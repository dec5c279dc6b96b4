"""State per key while key ranges move at random; `STATE_SCHEDULES` schedules from `STATE_SEED`."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from coopconsume.errors import GroupRefused
from coopconsume.state.note import StateNote
from coopconsume.state.store import FOLDER
from tests.model.job_world import until
from tests.model.state_world import StateWorld

SCHEDULES = int(os.environ.get("STATE_SCHEDULES", "2"))


@pytest.mark.parametrize("number", range(SCHEDULES))
def test_each_record_sees_what_the_one_before_it_has_left(world, tmp_path, monkeypatch, number):
    """All members may be slow or late, fail, crash or get no answer meanwhile.

    A record is handled again only if it was in doubt, and sees the same state again.
    """
    fresh = "STATE_SEED" not in os.environ and not settings.default.derandomize
    first = int.from_bytes(os.urandom(4)) if fresh else int(os.environ.get("STATE_SEED", "0"))
    monkeypatch.setenv(FOLDER, str(tmp_path / "stores"))
    there = world({}, channel=True, slow=0.3, drainTimeout="300 seconds")
    model = StateWorld(there, tmp_path, monkeypatch, first + number)
    try:
        model.run(steps=6)
    except BaseException as error:
        error.add_note("\n".join([f"STATE_SEED={first + number}", *model.story]))
        raise


def test_a_job_without_state_is_refused_in_a_group_with_one(world):
    """Its records would be missing in the state; no handler is called."""
    there = world(channel=True)
    member, gate = there.claim(), there.gate()
    StateNote("a table", "/data/totals").write(member.store, "g")
    member.store.open_epoch("g", {"other": [("u", 0)]}, previous=None)
    job = there.run(member, gate)
    until(job.ended.is_set)
    assert isinstance(job.error, GroupRefused)
    assert "it keeps no state, that of the group is at /data/totals" in str(job.error)
    assert not gate.calls
    there.end(job)
