"""What `poll` hands out next: gaps first, dealt by what is left, nothing twice."""

from __future__ import annotations

import math
import types

import numpy as np
import pytest
from kafka import OffsetAndMetadata

from assignors import KeyRange
from commits import OffsetRanges
from coopconsume.errors import InvalidOption, PollWokenUp
from coopconsume.group.owned import Owned
from coopconsume.options import Options
from coopconsume.runtime.plan import SlotCursor
from coopconsume.runtime.poll.frames import offsets_of
from coopconsume.runtime.poll.poller import Poller
from coopconsume.runtime.poll.positions import PollPosition, next_rows
from coopconsume.runtime.poll.session import PollSession

TP = ("t", 0)
OTHER = ("t", 1)


def owned(stable: int = 0, committed: list[tuple[int, int]] | None = None, part: int = 0) -> Owned:
    """A whole partition with committed offsets."""
    return Owned("t", part, (KeyRange(),), stable, OffsetRanges(committed or []))


def polled(places: dict, of: dict, ends: dict, window: int) -> dict:
    """The next window, as pairs."""
    found, _ = next_rows(places, of, ends, window, 0.0)
    for tp, offsets in found.items():
        places[tp].hand_out(offsets, are_read=False)
    return {tp: offsets.pairs() for tp, offsets in found.items()}


def test_gaps_come_before_what_is_new() -> None:
    """After a start the gaps below the highest commit are handed out, then the rest, once."""
    of = {TP: owned(2, [(4, 5), (9, 9)])}
    places = {TP: PollPosition.at_start(of[TP])}
    assert polled(places, of, {TP: 12}, 3) == {TP: [(2, 3)]}  # what lies between is read, too
    assert polled(places, of, {TP: 12}, 3) == {TP: [(6, 8)]}
    assert polled(places, of, {TP: 12}, 100) == {TP: [(10, 11)]}
    assert polled(places, of, {TP: 12}, 100) == {}
    assert places[TP].polled.pairs() == [(2, 3), (6, 8), (10, 11)]


def test_one_window_takes_gaps_and_what_is_new() -> None:
    """What the gaps leave of a window goes to new offsets."""
    of = {TP: owned(2, [(4, 5)])}
    places = {TP: PollPosition.at_start(of[TP])}
    assert polled(places, of, {TP: 100}, 5) == {TP: [(2, 3), (6, 8)]}


def test_a_window_is_dealt_by_what_is_left() -> None:
    """Partitions get their part of the window, at least one offset; paused ones nothing."""
    of = {TP: owned(), OTHER: owned(part=1)}
    places = {tp: PollPosition.at_start(of[tp]) for tp in of}
    ends = {TP: 999, OTHER: 1}
    assert polled(places, of, ends, 100) == {TP: [(0, 98)], OTHER: [(0, 0)]}
    ends[OTHER] = 5
    places[TP].paused = True
    assert polled(places, of, ends, 100) == {OTHER: [(1, 4)]}
    places[TP].paused = False
    assert polled(places, of, ends, 100) == {TP: [(99, 198)]}


def test_what_was_committed_meanwhile_is_left_out() -> None:
    """After a seek back only what is not committed comes again."""
    of = {TP: owned()}
    places = {TP: PollPosition.at_start(of[TP])}
    polled(places, of, {TP: 10}, 100)
    of[TP].stable, of[TP].committed = 3, OffsetRanges([(5, 6)])
    places[TP].seek(0)
    assert polled(places, of, {TP: 10}, 100) == {TP: [(3, 4), (7, 9)]}


def test_only_what_was_handed_out_may_be_committed() -> None:
    """Offsets below the stable offset, committed or handed out are known; others are strange."""
    one = owned(3, [(5, 6)])
    place = PollPosition(SlotCursor(0, one.ranges, 7), polled=OffsetRanges([(3, 3)]))
    assert place.strange(one, OffsetRanges([(0, 3), (5, 6)])).pairs() == []
    assert place.strange(one, OffsetRanges([(0, 7)])).pairs() == [(4, 4), (7, 7)]
    place.committed(OffsetRanges([(3, 3)]))
    assert place.strange(one, OffsetRanges([(3, 3)])).pairs() == [(3, 3)]


def test_a_window_that_nobody_got_is_handed_out_next() -> None:
    """Gaps, position and waiting keys are as before; what was handed out earlier stays so."""
    of = {TP: owned(2, [(4, 5)])}
    places = {TP: PollPosition.at_start(of[TP])}
    polled(places, of, {TP: 100}, 2)
    places[TP].retries.hold_back(2, 7, 0.0, "no")
    assert places[TP].take_again(of[TP], 1.0).keys() == {7}
    places[TP].put_back()
    assert places[TP].retries.keys == {7}
    places[TP].retries.hold_back(2, 7, 9.0, "no")
    assert places[TP].take(of[TP], 100, 4).pairs() == [(6, 9)]
    places[TP].put_back()
    assert polled(places, of, {TP: 100}, 4) == {TP: [(6, 9)]}
    assert places[TP].retries.due(9.0, 99)[7].pairs() == [(2, 2), (6, 9)]


def test_a_wakeup_ends_one_poll() -> None:
    """The one that waits, or the next one; the poll after that works."""
    session = PollSession()
    session.calls.check_woken()
    session.calls.wake()
    session.calls.wait(1e6)  # It does not wait.
    with pytest.raises(PollWokenUp):
        session.calls.check_woken()
    session.calls.check_woken()


def test_a_mapping_names_ranges_or_the_first_offset_that_is_not_done() -> None:
    """Kafka's TopicPartition and plain pairs name a partition alike, and so do offsets."""
    assert offsets_of({("t", 0): [(1, 2), (3, 3)]}) == {TP: OffsetRanges([(1, 3)])}
    ends = {("t", 0): 7, ("t", 1): np.int64(8), ("t", 2): OffsetAndMetadata(9, "", -1)}
    assert offsets_of(ends) == {TP: 7, OTHER: 8, ("t", 2): 9}
    with pytest.raises(ValueError, match="2"):
        offsets_of({("t", 0): [(2, 1)]})
    with pytest.raises(ValueError, match="offset -1: give the first offset that is not done"):
        offsets_of({("t", 0): -1})


@pytest.mark.parametrize("done", [[], 7, {("t", 0): 3.5}, {("t", 0): True}, {("t", 0): "all"}])
def test_a_commit_of_what_names_no_offsets_is_refused(done):
    """The error says what was given, and what to give."""
    with pytest.raises(TypeError, match=r"^commit of .*: give .*ranges \(first, last\)"):
        offsets_of(done)


@pytest.mark.parametrize("wrong", [-1, math.nan, math.inf, "soon", None, True])
def test_a_wait_out_of_its_range_is_refused_before_anything_is_polled(wrong: object) -> None:
    """An invalid time is refused at once; it does not count as 0."""
    poller = Poller(
        None,
        Options.parse(
            {"kafka.bootstrap.servers": "b:1", "kafka.group.id": "g", "commitTable": "x"}
        ),
        lambda: 1,
    )
    with pytest.raises(InvalidOption, match="option timeout = "):
        poller.poll(None, wrong)


def test_a_host_does_not_know_who_works_on_polled_frames() -> None:
    """They are the user's, in any process: a crash of this one says nothing of them."""
    poller = Poller(
        None,
        Options.parse(
            {"kafka.bootstrap.servers": "b:1", "kafka.group.id": "g", "commitTable": "x"}
        ),
        lambda: 1,
    )
    withdrawn = []
    lock = types.SimpleNamespace(withdraw=lambda: withdrawn.append(True))
    poller.session.calls.wake()
    with pytest.raises(PollWokenUp):
        poller.poll(types.SimpleNamespace(driver_lock=lock), 0.0)
    assert withdrawn == [True]
