"""A group in which members of this version and of an older one meet, as it is moved."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.upgrade import kept, versions

if TYPE_CHECKING:
    from pathlib import Path

    from tests.broker.group_harness import GroupHarness, Process

pytestmark = [pytest.mark.broker, pytest.mark.history]


def commit(member: Process, offset: int) -> None:
    """Have a member commit an offset, which counts."""
    member.say(f"commit {offset}")
    member.wait_for("committed", offset=offset)


def test_a_group_is_moved_member_by_member(harness: GroupHarness, tmp_path: Path) -> None:
    """Each version leads the other; a static member is replaced without a rebalance; commits count.

    Members of both versions read one commit table at the same time.
    """
    old = versions.unpacked(kept.BEFORE.revision, tmp_path / "old")
    static = {"kafka.group.instance.id": "a"}
    a = harness.start(root=old, **static)
    harness.settled(a)
    newer = harness.start()
    epoch = harness.settled(a, newer)  # the older one leads
    commit(newer, 1)
    commit(a, 2)
    a.leave()
    again = harness.start(**static)
    assert again.wait_for("begin")["epoch"] == epoch
    commit(again, 3)
    again.leave()
    a = harness.start(root=old, **static)
    assert a.wait_for("begin")["epoch"] == epoch
    commit(a, 4)
    assert newer.count("hand_over") == newer.count("drop") == 0
    assert harness.store.state(harness.group)[harness.topic, 0].ranges.pairs() == [(1, 4)]


def test_a_newer_member_leads_older_ones(harness: GroupHarness, tmp_path: Path) -> None:
    """Their answers are what they read, and so are the rows of its epoch."""
    old = versions.unpacked(kept.BEFORE.revision, tmp_path / "old")
    newer = harness.start()
    harness.settled(newer)
    older = harness.start(root=old)
    harness.settled(newer, older)
    commit(newer, 1)
    commit(older, 2)
    newer.leave()
    harness.settled(older)
    commit(older, 3)
    assert harness.store.state(harness.group)[harness.topic, 0].ranges.pairs() == [(1, 3)]
