"""Commits and snapshots cost by what changes: counts of calls, rows and bytes, and no times."""

from __future__ import annotations

import json
import random
import sys
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commits import CommitIds, CommitStore, Epoch, OffsetRanges, PartitionCommits
from commits.engine import TailGone
from commits.fold import KEPT_ANSWERS, KEPT_RESULTS, LogState
from commits.rows import Event, Part
from commits.snapshot import newest_snapshot, snapshot_events
from coopconsume.runtime.decisions import Decision, decide, decided

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from commits.model import TopicPartition

EPOCH = Epoch(1, "n")


def places(count: int) -> list[TopicPartition]:
    """Partitions of one topic."""
    return [("t", number) for number in range(count)]


def grouped(partitions: int) -> LogState:
    """A log with one group, whose only member has all partitions."""
    shares = [[*at, 0, 2**63 - 1] for at in places(partitions)]
    detail = {"members": {"m": shares}, "topic_ids": {}}
    log = LogState(version=0)
    list(log.fold([Event("epoch", "e-1", "", "g", EPOCH, detail=detail)]))
    return log


def commit_of(commit_id: str, offsets: dict[TopicPartition, int], member: str = "m") -> Event:
    """A commit of one offset in each of some partitions."""
    parts = tuple(Part(*at, offsets=OffsetRanges([(n, n)])) for at, n in offsets.items())
    return Event("commit", commit_id, "", "g", EPOCH, member=member, parts=parts)


def calls_of(call: Callable[[], object]) -> int:
    """How many functions of the store a call enters."""
    found = [0]

    def note(frame: Any, event: str, _: object) -> None:
        found[0] += event == "call" and "/commits/" in frame.f_code.co_filename

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found[0]


def test_a_commit_costs_the_same_in_a_large_group(tmp_path: Path) -> None:
    """Neither more partitions nor outstanding decisions cost a commit a single call more."""
    found = []
    for size, decisions in ((2, 0), (400, 300)):
        store = CommitStore.open(tmp_path / f"commits-{size}")
        epoch = store.open_epoch("g", {"m": places(size)}, previous=None)
        store.start("g", epoch, "m", dict.fromkeys(places(size), 0))
        decide(store, "g", [Decision("t", 0, n, "replay") for n in range(decisions)])
        two: dict[TopicPartition, Any] = {("t", 0): [(0, 3)], ("t", 1): [(0, 0), (5, 6)]}
        store.commit("g", epoch, "m", {("t", 0): [(9, 9)]})
        found.append(calls_of(lambda s=store, e=epoch, o=two: s.commit("g", e, "m", o)))  # type: ignore[misc]
        expected = {
            ("t", 0): PartitionCommits(4, [(9, 9)]),
            ("t", 1): PartitionCommits(1, [(5, 6)]),
        }
        state = store.state("g")
        assert {at: state[at] for at in expected} == expected
    assert found[0] == found[1]


def test_many_settings_are_one_append(tmp_path: Path) -> None:
    """All count or none; the last on a name counts; another reader and a snapshot agree."""
    store = CommitStore.open(tmp_path / "commits")
    before = store._engine.version
    many = [Decision("t", n % 3, n, "discard" if n % 2 else "replay") for n in range(1000)]
    decide(store, "g", many)
    assert store._engine.version == before + 1
    assert set(decided(store, "g", ["t"])) == set(many)
    store.set_settings([("t", many[0].setting("g"), None), ("", "x", 1), ("", "x", 2)])
    with pytest.raises(ValueError, match="maxNumRanges"):
        store.set_settings([("", "x", 3), ("", "maxNumRanges", -1)])
    store.set_settings([])
    assert store._engine.version == before + 2
    store.compact()
    for one in (store, CommitStore.open(tmp_path / "commits")):
        assert set(decided(one, "g", ["t"])) == set(many[1:])
        assert one.settings() == {"x": 2}
    assert CommitStore.open(tmp_path / "commits", cluster="other").settings("t") == {}


def test_a_snapshot_does_not_carry_old_answers() -> None:
    """However many partitions a commit has: some answers of partitions are kept, and no more."""
    log = grouped(300)
    for number in range(20):
        list(log.fold([commit_of(f"run-{number}", dict.fromkeys(places(300), number))]))
    group = log.groups["", "g"]
    assert sum(len(answer.results) for answer in group.answers.values()) <= KEPT_RESULTS
    assert len(group.answers["run-19"].results) == 300
    assert not group.answers["run-0"].results
    (_, event) = snapshot_events(log, "s")
    assert len(json.dumps(event.detail)) < 100 * KEPT_RESULTS
    ((_, again),) = log.fold([commit_of("run-0", dict.fromkeys(places(300), 0))])
    assert again.counted
    assert {result.status for result in again.results.values()} == {"duplicate"}


def test_a_snapshot_forgets_who_only_joined_and_left() -> None:
    """Ids of events other than commits leave nothing behind; a run leaves two numbers."""
    log = grouped(1)
    for number in range(3 * KEPT_ANSWERS):
        release = Event("release", f"w{number}-1", "", "g", Epoch(0, "x"), member="m")
        setting = Event("setting", f"w{number}-2", detail={"name": "x", "topic": "", "value": 1})
        list(log.fold([release, setting]))
    plain = json.dumps([event.detail for event in snapshot_events(log, "s")])
    assert plain.count("w") <= KEPT_ANSWERS + 10
    for run in range(500):
        for number in range(4):
            list(log.fold([commit_of(f"run{run}-{number}", {("t", 0): 4 * run + number})]))
    plain = json.dumps(snapshot_events(log, "s")[1].detail["counted"])
    assert len(plain) < 500 * 24
    assert all(f"run{run}-{number}" in log.groups["", "g"].counted
               for run in range(500) for number in range(4))  # fmt: skip


def test_a_refused_partition_is_refused_again_once_the_answer_is_forgotten() -> None:
    """A commit that counted elsewhere: a repeat is not done where it was refused."""
    log = grouped(1)
    both = {("t", 0): 0, ("u", 0): 0}
    ((_, first),) = log.fold([commit_of("run-0", both)])
    assert [one.status for one in first.results.values()] == ["committed", "refused"]
    for number in range(1, KEPT_ANSWERS + 2):
        list(log.fold([commit_of(f"run-{number}", {("t", 0): number})]))
    for state in (log, newest_snapshot(snapshot_events(log, "s"))):
        assert state is not None
        ((_, again),) = state.fold([commit_of("run-0", both)])
        assert [one.status for one in again.results.values()] == ["duplicate", "refused"]


@pytest.mark.parametrize("is_ended", [False, True])
def test_a_refused_commit_is_refused_again(*, is_ended: bool) -> None:
    """Without its results, without its answer, and after its epoch: never done."""
    log = grouped(1)
    foreign = commit_of("run-0", {("u", 0): 0})
    start = Event("start", "s", "", "g", EPOCH, member="m", parts=(Part("u", 0, first=0),))
    list(log.fold([start, foreign]))
    detail = {"members": {"m": []}, "topic_ids": {}}
    end = Event("epoch", "e-2", "", "g", Epoch(2, "n"), previous=EPOCH, detail=detail)
    other = Event("epoch", "e-3", "", "h", EPOCH, detail={"members": {}, "topic_ids": {}})
    list(log.fold([end, other] if is_ended else [other]))
    with mock.patch("commits.fold.KEPT_RESULTS", 0):
        list(log.fold([commit_of("run-1", {("t", 0): 0})]))
    assert not log.groups["", "g"].answers["run-0"].results
    forgotten = newest_snapshot(snapshot_events(log, "s"))
    assert forgotten is not None
    if not is_ended:
        for number in range(KEPT_ANSWERS):
            list(forgotten.fold([commit_of(f"more-{number}", {("t", 0): number})]))
    for state in (log, forgotten):
        ((_, again),) = state.fold([foreign])
        assert [one.status for one in again.results.values()] == ["refused"]


def test_a_commit_that_changed_nothing_never_does_later() -> None:
    """Its id is known while its epoch is in force: a late repeat adds nothing to a cut log."""
    log = grouped(1)
    list(log.fold([commit_of("run-0", {("t", 0): 0}), commit_of("late", {("t", 0): 0})]))
    for number in range(1, KEPT_ANSWERS + 2):
        list(log.fold([commit_of(f"run-{number}", {("t", 0): number})]))
    cut = Event("truncation", "cut", "", "g", EPOCH, member="m", parts=(Part("t", 0, first=0),))
    list(log.fold([cut]))
    for state in (log, newest_snapshot(snapshot_events(log, "s"))):
        assert state is not None
        list(state.fold([commit_of("late", {("t", 0): 0})]))
        assert state.group("", "g").partitions["t", 0].commits == PartitionCommits(0)


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_writer_that_slept_through_a_snapshot_gets_an_answer(
    tmp_path: Path, *, snapshot: bool
) -> None:
    """Its row is folded, and so many came after it that its id is forgotten: the state answers."""
    path = tmp_path / "commits"
    store, other = CommitStore.open(path), CommitStore.open(path)
    epoch = store.open_epoch("g", {"m": [("t", 0)], "n": [("t", 1)]}, previous=None)
    store.commit("g", epoch, "m", {("t", 0): [(0, 9)]})
    engine: Any = store._engine
    append, tail = engine.append, engine.tail

    def asleep(*args: Any, **more: Any) -> int:
        version = append(*args, **more)
        for _ in range(3):
            state = other.state("g").get(("t", 1), PartitionCommits())
            other.commit("g", epoch, "n", {("t", 1): [(state.stable_offset, state.stable_offset)]})
        if snapshot:
            other.compact()
        engine.tail = gone if snapshot else tail
        return int(version)

    def gone(*_: Any) -> None:
        engine.tail = tail
        raise TailGone("cleaned away")

    with mock.patch("commits.fold.KEPT_ANSWERS", 1):
        engine.append = asleep
        start = store.start("g", epoch, "m", {("t", 0): 5})
        assert start["t", 0].status == "duplicate"
        same = store.commit("g", epoch, "m", {("t", 0): [(3, 3)]}, too_old="report")
        assert same["t", 0].stable_offset == 10
        store.set_setting("x", 1)
        assert store.settings() == {"x": 1}
        engine.append = append


IDS = st.builds("{}-{}".format, st.sampled_from("ab"), st.integers(0, 30)) | st.sampled_from(["x"])


@settings(max_examples=200, deadline=None)
@given(st.lists(IDS, max_size=60), st.randoms(use_true_random=False))
def test_ids_are_a_set_in_any_order(ids: list[str], dice: random.Random) -> None:
    """The same ids in another order are the same ranges; JSON brings them back; copies differ."""
    found = CommitIds(ids)
    assert set(found) == set(ids)
    assert len(found) == len(set(ids))
    shuffled = list(ids)
    dice.shuffle(shuffled)
    assert CommitIds(shuffled) == found
    assert CommitIds.from_plain(json.loads(json.dumps(found.to_plain()))) == found
    for prefix, ends in found.to_plain()["numbers"].items():
        numbers = {int(one[2:]) for one in ids if one.startswith(f"{prefix}")}
        assert ends == [end for pair in OffsetRanges.from_offsets(sorted(numbers)) for end in pair]
    for number in range(-1, 32):
        for prefix in "ab":
            assert (f"{prefix}-{number}" in found) == (f"{prefix}-{number}" in set(ids))
    copy = found.copy()
    copy.add("a-99")
    assert "a-99" not in found


@pytest.mark.parametrize("seed", range(20))
def test_ids_can_be_taken_out_again(seed: int) -> None:
    """As from a plain set, whatever the order."""
    draw = random.Random(seed)
    names = [f"{writer}-{number}" for writer in "ab" for number in range(12)] + ["x", "y-01"]
    ids = CommitIds()
    plain: set[str] = set()
    for _ in range(200):
        one = draw.choice(names)
        if draw.random() < 0.6:
            ids.add(one)
            plain.add(one)
        else:
            ids.discard(one)
            plain.discard(one)
        assert set(ids) == plain
    assert ids == CommitIds(plain)
