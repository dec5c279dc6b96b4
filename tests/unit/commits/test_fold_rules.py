"""Rules of the commit log's fold and of its snapshots, each by one small case."""

from __future__ import annotations

from commits import Epoch, OffsetRanges
from commits.fold import GroupState, LogState
from commits.model import share_from_plain, share_to_plain
from commits.rows import Event, Part
from commits.snapshot import newest_snapshot, snapshot_events

SHARE = ("t", 0, 0, 2**63 - 1)


def epoch(number, previous, member="a"):
    """The row of an epoch that gives the whole partition to one member."""
    detail = {"members": {member: [SHARE]}, "topic_ids": {}, "takeover": False, "life_ms": 1000}
    return Event(
        "epoch", f"e{number}-{member}", "", "g", Epoch(number, f"n{number}{member}"),
        previous=previous, detail=detail,
    )  # fmt: skip


def commit(number, member, first, last, name="c"):
    """A commit of some offsets."""
    parts = (Part("t", 0, offsets=OffsetRanges([(first, last)])),)
    return Event(
        "commit", f"{name}{first}", "", "g", Epoch(number, f"n{number}{member}"), member=member,
        parts=parts,
    )  # fmt: skip


def test_an_epoch_counts_only_if_the_one_its_leader_noted_is_in_force():
    """A leader that slept has noted an older one: it fences nobody, whatever number it takes."""
    state = GroupState()
    assert state.fold(epoch(1, None)).counted
    assert not state.fold(epoch(2, None, "b")).counted
    assert state.fold(commit(1, "a", 0, 4)).counted
    assert state.fold(epoch(3, Epoch(1, "n1a"), "b")).counted
    assert not state.fold(commit(1, "a", 5, 9)).counted


def test_a_member_that_releases_a_share_keeps_the_others():
    """It commits on, and the next owners wait for what it left running and for nothing else."""
    low, high = ("t", 0, 0, 9), ("t", 0, 10, 2**63 - 1)
    detail = {"members": {"a": [low, high]}, "topic_ids": {}, "takeover": False, "life_ms": 1000}
    state = GroupState()
    assert state.fold(Event("epoch", "e", "", "g", Epoch(1, "n1a"), detail=detail)).counted
    released = {"running": [("t", 0, 5, 5)], "shares": [low]}
    of = Epoch(1, "n1a")
    assert state.fold(Event("release", "r", "", "g", of, member="a", detail=released)).counted
    assert state.fold(commit(1, "a", 0, 4)).counted
    assert state.in_force is not None
    assert state.in_force.assignment().handed == {"a": (share_from_plain(low),)}
    assert state.fold(epoch(2, Epoch(1, "n1a"), "b")).counted
    in_doubt = [share_to_plain(doubt.share) for doubt in state.in_force.doubts]
    assert in_doubt == [("t", 0, 5, 5), high]
    assert not state.fold(commit(1, "a", 5, 9)).counted


def test_a_snapshot_carries_what_later_rows_are_judged_by():
    """The highest number that was used, and the shares that somebody may still be at work on."""
    log = LogState(version=7)
    events = [epoch(1, None), epoch(5, None, "b"), Event("reset", "r", "", "g", parts=())]
    assert [answer.counted for _, answer in log.fold(events)] == [True, False, True]
    group = log.group("", "g")
    assert group.loose
    assert group.highest == 5
    found = newest_snapshot(snapshot_events(log, "s"))
    assert found is not None
    back = found.group("", "g")
    assert back.loose == group.loose
    assert not back.fold(epoch(5, None, "c")).counted
    assert back.fold(epoch(6, None, "c")).counted
    assert back.in_force is not None
    assert back.in_force.doubts


def test_an_incomplete_snapshot_does_not_count():
    """It names its number of groups; without one of them it does not count."""
    log = LogState(version=7)
    list(log.fold([epoch(1, None)]))
    events = snapshot_events(log, "s")
    assert newest_snapshot(events) is not None
    assert newest_snapshot(events[:-1]) is None
    assert newest_snapshot(events[1:]) is None
