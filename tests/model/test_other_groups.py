"""Logs that set aside the rows of groups that nobody asks for, beside one that folds every row.

Several groups have random histories in one real table, with settings, snapshots, a repair, entries
without rows, and limits of what is kept. What each log answers is what the fold of all rows says.
"""

from __future__ import annotations

import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import commits.log
from commits import (
    CommitStore,
    PartitionCommits,
    committing,
    entry_rows,
    other_groups,
    path_engine,
)
from commits.entries import ROWS
from commits.errors import CommitLogUnavailable, CommitTableFormat, CorruptCommitLog
from commits.log import CommitLog
from commits.other_groups import OtherGroups
from commits.rows import Event, encode
from commits.rows_file import RowFiles
from commits.snapshot import snapshot_events
from commits.table import open_table
from commits.table_files import entry_name
from tests.examples import examples
from tests.model.test_commits_fold import STEP, Naive, event_of

if TYPE_CHECKING:
    from pathlib import Path

_GROUPS, _LOGS = ["a", "b", "c"], 2
_SEGMENT = 4

WHO, GROUP = st.integers(0, _LOGS - 1), st.sampled_from(_GROUPS)
APPEND = st.tuples(st.just("append"), WHO, GROUP, STEP, st.sampled_from([True, True, True, False]))
TURN = st.one_of(
    APPEND, APPEND.map(tuple), APPEND.map(tuple), APPEND.map(tuple), APPEND.map(tuple),
    st.tuples(st.just("ask"), WHO, GROUP),
    st.tuples(st.sampled_from(["look", "compact", "all", "restart", "repair"]), WHO),
    st.tuples(st.just("setting"), WHO, st.integers(0, 3)),
)  # fmt: skip


def _opened(path: str) -> CommitLog:
    return CommitLog(open_table(path, None, _SEGMENT), _SEGMENT)


class World:
    """The logs, one that sets nothing aside, and the histories of the groups."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.eager = _opened(path)
        for group in _GROUPS:
            self.eager.group("", group)
        self.logs = [_opened(path) for _ in range(_LOGS)]
        self.naive = {group: Naive() for group in _GROUPS}
        self.seen: dict[str, list[Event]] = {group: [] for group in _GROUPS}
        self.number = self.aside = self.behind = 0

    def append(self, who: int, group: str, step: tuple[object, ...], *, in_entry: bool) -> None:
        """One log appends, and its answer is that of the log that folds all."""
        self.number += 1
        naive = self.naive[group]
        event = replace(event_of(step, self.number, self.seen[group], naive), group=group)
        if not naive.knows(event):
            naive.apply(event)
        self.seen[group].append(event)
        with ExitStack() as stack:
            if not in_entry:
                stack.enter_context(mock.patch.object(entry_rows, "MOST_BYTES", 0))
            (answer,) = self.logs[who].append_together([event], is_synced=False)
        version = self.logs[who].refresh()
        folded = self.eager._catch_up(version)
        assert [one for found, one in folded if found.id == event.id][-1:] in ([answer], [])
        assert self.logs[who].group("", group) == self.eager.group("", group)

    def turn(self, kind: str, who: int, *about: Any) -> None:
        log = self.logs[who]
        if kind == "append":
            self.append(who, about[0], about[1], in_entry=about[2])
        elif kind == "setting":
            detail = {"name": "n", "topic": "", "value": about[0] or None}
            self.number += 1
            event = Event("setting", f"s{self.number}", detail=detail)
            log.append_together([event], is_synced=False)
        elif kind == "restart":
            self.logs[who] = _opened(self.path)
        elif kind == "compact":
            log.compact()
        elif kind == "repair":
            log.refresh()
            new = replace(deepcopy(log.state), store=f"store-{self.number}")
            rows = encode(
                snapshot_events(new, f"r{self.number}", repair=True),
                log._engine.version // _SEGMENT,
            )
            log._engine.replace(rows, at=log._engine.version, closed=None)
        elif kind == "ask":
            log.refresh()
            self.eager.refresh()
            assert log.group("", about[0]) == self.eager.group("", about[0])
        elif kind == "all":
            self.compare(log)
        else:
            log.refresh()
        self.aside += bool(log._others._groups)
        self.behind += log._others.is_behind

    def compare(self, log: CommitLog) -> None:
        """Both have read all: the same settings, counts and groups, whatever was set aside."""
        log.refresh()
        self.eager.refresh()
        assert log.settings == self.eager.settings
        assert log.store == self.eager.store
        assert log.since.commits == self.eager.since.commits
        assert log._changed_at == self.eager._changed_at
        assert log.state == self.eager.state


# Shrinking takes minutes: each example writes a table.
@settings(max_examples=examples(90), deadline=None, suppress_health_check=list(HealthCheck),
          phases=[Phase.explicit, Phase.reuse, Phase.generate])  # fmt: skip
@given(
    st.lists(TURN, min_size=10, max_size=40),
    st.sampled_from([1, 4, 1000]),
    st.sampled_from([1, 2, 16]),
    st.sampled_from([2, 500]),
)
def test_what_was_set_aside_folds_to_the_same_state(
    turns: list[Any], most: int, portion: int, behind: int
) -> None:
    """In every order of appends, looks, questions, snapshots, repairs and openings.

    Who has more versions to read than `behind` opens the table from its last checkpoint.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(other_groups, "MOST_ENTRIES", most),
        mock.patch.object(commits.log, "_PORTION", portion),
        mock.patch.object(path_engine, "_MANY", behind),
        mock.patch.object(path_engine, "CHECKPOINT_VERSIONS", 3),
    ):
        world = World(folder + "/commits")
        for turn in turns:
            world.turn(*turn)
        for log in [*world.logs, _opened(world.path)]:
            world.compare(log)


AT = ("t", 0)
_PATIENCE = 120  # seconds after which a call that waits for another one hangs


class Two:
    """A store of its own group, and another one that commits to another group."""

    def __init__(self, path: Path) -> None:
        self.path = path / "commits"
        self.store, self.other = (CommitStore.open(self.path, snapshot_commits=0) for _ in "ab")
        self.mine = self.store.open_epoch("mine", {"m": [AT]}, previous=None)
        self.theirs = self.other.open_epoch("theirs", {"m": [AT]}, previous=None)
        self.other.set_setting("syncCommits", value=False)
        self.offset = 0

    def commit(self, times: int) -> int:
        """The other group commits; returns the version."""
        for _ in range(times):
            self.other.commit("theirs", self.theirs, "m", {AT: [(self.offset, self.offset)]})
            self.offset += 1
        return self.other.version()

    def damage(self, version: int, name: str, values: list[Any]) -> None:
        """Changes a column of the rows in an entry."""
        entry = self.path / entry_name(version)
        lines = [json.loads(line) for line in entry.read_text().splitlines()]
        lines[0]["commitInfo"][ROWS]["columns"][name] = values
        entry.write_text("\n".join(map(json.dumps, lines)))


def test_rows_that_were_set_aside_are_folded_in_the_order_of_the_log(tmp_path: Path) -> None:
    """Also after the table was opened again, which reads the entries after a checkpoint first."""
    two = Two(tmp_path)
    with (
        mock.patch.object(path_engine, "CHECKPOINT_VERSIONS", 4),
        mock.patch.object(path_engine, "_MANY", 2),
    ):
        two.commit(14)
        two.theirs = two.other.open_epoch("theirs", {"m": [AT]}, previous=two.theirs)
        two.commit(4)
        two.store.version()
    kept = two.store._log._others._entries
    assert len(kept) > commits.log._PORTION
    two.store.compact()
    assert CommitStore.open(two.path).state("theirs") == {AT: PartitionCommits(18)}


def test_rows_of_another_group_are_folded_once_somebody_asks(tmp_path: Path) -> None:
    """Until then they are not decoded; from then on they are folded as they are read."""
    two = Two(tmp_path)
    two.commit(5)
    with mock.patch.object(other_groups, "decode", side_effect=AssertionError):
        two.store.commit("mine", two.mine, "m", {AT: [(0, 2)]})
        assert two.store.state("mine")[AT].stable_offset == 3
        assert two.store.growth().appends == 9
    assert two.store.groups() == ["mine", "theirs"]
    assert two.store.state("theirs")[AT].stable_offset == 5
    two.commit(1)
    with mock.patch.object(other_groups, "decode", side_effect=AssertionError):
        assert two.store.state("theirs")[AT].stable_offset == 6


@pytest.mark.parametrize("limit", ["MOST_ENTRIES", "MOST_BYTES"])
def test_only_so_many_rows_of_other_groups_are_kept(tmp_path: Path, limit: str) -> None:
    """Of more, the oldest are folded as others come; the table is not read again."""
    two = Two(tmp_path)
    others = two.store._log._others
    with (
        mock.patch.object(other_groups, limit, 3 if limit == "MOST_ENTRIES" else 3_000),
        mock.patch.object(commits.log, "_PORTION", 1),
        mock.patch.object(commits.log, "newest_seen", side_effect=AssertionError),
    ):
        for _ in range(4):
            two.commit(2)
            two.store.version()
            assert 0 < len(others._entries) <= 3
        assert two.store.state("theirs") == {AT: PartitionCommits(8)}
    assert not others


def test_a_snapshot_of_others_has_nothing_folded(tmp_path: Path) -> None:
    """It has rows of all groups, and says nothing about who wants them; nor is its file read."""
    two = Two(tmp_path)
    others = two.store._log._others
    two.commit(2)
    before = two.store.version()
    two.other.compact()
    with mock.patch.object(RowFiles, "_read", side_effect=AssertionError):
        two.commit(2)
        assert two.store.version() == before + 3
    assert len(others._entries) == 5, "with the epoch"
    assert two.store.state("theirs") == {AT: PartitionCommits(4)}


def test_rows_that_a_snapshot_has_are_folded_by_its_writer_alone(tmp_path: Path) -> None:
    """Of too many others drop them; a call that asks for the group reads the snapshot."""
    two = Two(tmp_path)
    others = two.store._log._others
    with (
        mock.patch.object(other_groups, "MOST_ENTRIES", 3),
        mock.patch.object(others, "fold_oldest", side_effect=AssertionError),
    ):
        two.commit(2)
        two.store.version()
        assert len(others._entries) == 3, "with the epoch"
        two.other.compact()
        for _ in range(3):
            two.commit(2)
            two.store.commit("mine", two.mine, "m", {AT: [(two.offset, two.offset)]})
        assert others.is_behind
    assert two.store.state("theirs") == {AT: PartitionCommits(8)}
    assert not others
    two.commit(1)
    assert two.store.state("theirs") == {AT: PartitionCommits(9)}


def test_a_snapshot_whose_rows_cannot_be_read_is_no_error_of_a_commit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The table of a writer that has dropped rows does not answer when it needs them."""
    two = Two(tmp_path)
    with mock.patch.object(other_groups, "MOST_ENTRIES", 3):
        two.commit(2)
        two.store.version()
        two.other.compact()
        two.commit(2)
        two.store.commit("mine", two.mine, "m", {AT: [(0, 0)]})
    assert two.store._log._others.is_behind
    two.store._snapshot_commits = 1
    unavailable = CommitLogUnavailable("t", "read", "no answer")
    with mock.patch.object(commits.log, "newest_seen", side_effect=unavailable):
        two.store.commit("mine", two.mine, "m", {AT: [(1, 1)]})
        two.store.maintain()
    assert [record.message for record in caplog.records] == [
        f"the snapshot of {two.path} failed: {unavailable}"
    ]
    assert two.store.state("theirs") == {AT: PartitionCommits(4)}


def test_damage_in_what_is_too_much_stops_who_needs_it_alone(tmp_path: Path) -> None:
    """A job goes on, however many rows come; a call that asks for the group reads it again."""
    two = Two(tmp_path)
    with mock.patch.object(other_groups, "MOST_ENTRIES", 1):
        two.damage(two.commit(2), "offsets", ["no bitmap"])
        for offset in range(2):
            two.store.commit("mine", two.mine, "m", {AT: [(offset, offset)]})
        assert two.store.state("mine")[AT].stable_offset == 2
        for _ in range(2):
            with pytest.raises(CorruptCommitLog):
                two.store.state("theirs")


@pytest.mark.parametrize("call", ["maintain", "groups", "clusters"])
def test_others_are_served_while_all_groups_are_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Leases of slots depend on looks at the log, and the rows of many groups take seconds."""
    two = Two(tmp_path)
    writer = CommitStore.open(two.path, snapshot_commits=10)
    two.commit(40)
    writer.version()
    served: list[bool] = []

    def look(_seconds: float) -> None:
        with ThreadPoolExecutor(1) as pool:
            served.append(pool.submit(writer.has_counted, "mine", "x").result(_PATIENCE))

    monkeypatch.setattr(committing.time, "sleep", look)
    if call == "maintain":
        writer.maintain()
        assert writer.growth().appends == 0
    elif call == "groups":
        assert writer.groups() == ["mine", "theirs"]
    else:
        assert writer.clusters("theirs") == [""]
    assert served == [False, False]


def test_damage_in_rows_of_another_group_costs_snapshots_and_not_commits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What is due after a commit says what is damaged, and the next commit goes on."""
    two = Two(tmp_path)
    writer = CommitStore.open(two.path, snapshot_commits=1)
    two.damage(two.commit(1), "offsets", ["no bitmap"])
    for offset in range(3):
        writer.commit("mine", two.mine, "m", {AT: [(offset, offset)]}, maintain=False)
        writer.maintain()
    assert writer.state("mine")[AT].stable_offset == 3
    (warning,) = [one for one in caplog.messages if "snapshot" in one]
    assert "is damaged" in warning


def test_damage_in_rows_of_another_group_stops_who_needs_them(tmp_path: Path) -> None:
    """A job goes on; a call that asks for the group, or writes a snapshot, says what is damaged."""
    two = Two(tmp_path)
    two.damage(two.commit(1), "offsets", ["no bitmap"])
    two.store.commit("mine", two.mine, "m", {AT: [(0, 2)]})
    for ask in (lambda: two.store.state("theirs"), two.store.groups, two.store.compact):
        with pytest.raises(CorruptCommitLog):
            ask()
    two.store.commit("mine", two.mine, "m", {AT: [(3, 3)]})
    assert two.store.state("mine")[AT].stable_offset == 4
    with pytest.raises(CorruptCommitLog):
        CommitStore.open(two.path)


@pytest.mark.parametrize(("name", "value"), [("format", 2), ("kind", "of later")])
def test_rows_of_a_later_release_stop_each_reader(tmp_path: Path, name: str, value: Any) -> None:
    """Whatever group they are of: what they mean for others is not known."""
    two = Two(tmp_path)
    two.damage(two.commit(1), name, [value])
    with pytest.raises(CommitTableFormat):
        two.store.state("mine")


@pytest.mark.parametrize("name", ["group_id", "row"])
def test_rows_of_another_length_stop_each_reader(tmp_path: Path, name: str) -> None:
    """The entry is torn, or not one of this library."""
    two = Two(tmp_path)
    two.damage(two.commit(1), name, ["x", "y"])
    with pytest.raises(CorruptCommitLog):
        two.store.state("mine")


def test_rows_of_several_groups_and_settings_are_not_set_aside() -> None:
    """A setting counts for all groups at once, and so does what has no group."""
    others, columns = OtherGroups(), {"format": [1], "kind": ["commit"], "cluster_id": [""]}
    rows = {"count": 1, "columns": {**columns, "group_id": ["g"]}}
    assert others.is_aside(rows)
    several = {name: values * 2 for name, values in columns.items()}
    for group, kinds in ((["g", "h"], ["commit"] * 2), (["g", "g"], ["commit", "setting"])):
        both = {"count": 2, "columns": {**several, "group_id": group, "kind": kinds}}
        assert not others.is_aside(both)
    assert not others.is_aside({"count": 1, "columns": columns})
    others.follow(("", "g"))
    assert not others.is_aside(rows)
