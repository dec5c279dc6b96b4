"""Damaged, missing and unreadable commit tables: what is reported, and the three remedies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake

from commits import (
    CommitResult,
    CommitStore,
    CommitTableFormat,
    CorruptCommitLog,
    Epoch,
    FencedMember,
    PartitionCommits,
    Pending,
    RepairRefused,
    StableOffset,
    check_table,
    move_table,
    repair_table,
)
from commits.rows import SCHEMA, Event, Part, encode
from coopconsume.cli import main
from tests.commit_suite import as_written_before

if TYPE_CHECKING:
    from collections.abc import Callable

P0, P1 = ("t", 0), ("t", 1)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where a commit table may be made."""
    return str(tmp_path / "commits")


def filled(path: str, commits: int = 20, *, compact_at: int = 10) -> tuple[CommitStore, Epoch]:
    """A table with a snapshot half-way: version n + 1 commits offset 2 n."""
    store = CommitStore.open(path, cluster="c")
    epoch = store.open_epoch("g", {"m": [P0, P1]}, previous=None, topic_ids={"t": "id"})
    for n in range(commits):
        store.commit("g", epoch, "m", {P0: [(2 * n, 2 * n)]}, commit_id=f"run-{n}",
                     pending={P1: [Pending(5, n)]})  # fmt: skip
        if n == compact_at:
            store.compact()
    as_written_before(path)
    return CommitStore.open(path, cluster="c"), epoch


def file_of(path: str, version: int) -> Path:
    """The data file that a version of the table brought."""
    entry = Path(path, "_delta_log", f"{version:020d}.json").read_text()
    added = [json.loads(line)["add"]["path"] for line in entry.splitlines() if '"add"' in line]
    return Path(path, added[0])


def committed(path: str) -> set[int]:
    """The offsets of the first partition that are done."""
    found = CommitStore.open(path, cluster="c").state("g")[P0]
    return {*range(found.stable_offset), *found.ranges.offsets().tolist()}


def test_a_sound_table_is_called_sound(path: str) -> None:
    """With its version, its snapshot and its groups."""
    store, _ = filled(path)
    found = check_table(path)
    assert found.is_sound
    assert (found.version, found.readable_version, found.snapshot_version) == (22, 22, 12)
    assert (found.store, found.groups) == (store.id, (("c", "g"),))


@pytest.mark.parametrize("lost", [18, 13, 7])
def test_a_lost_file_is_named_with_what_can_still_be_read(path: str, lost: int) -> None:
    """The newest readable version is the one before it; a file before the snapshot is no loss."""
    filled(path)
    name = file_of(path, lost)
    name.unlink()
    found = check_table(path)
    if lost < 12:
        assert found.is_sound
        return
    assert name.name in found.problem
    snapshot = 12 if lost > 13 else -1  # version 13 brought it
    assert (found.readable_version, found.snapshot_version) == (lost - 1, snapshot)


@pytest.mark.parametrize(("source", "expected"), [(16, 14), (None, 11), (4, 3)])
def test_an_older_state_takes_the_place(path: str, source: int | None, expected: int) -> None:
    """From a version or the newest snapshot: no old epoch counts, numbers go on above all."""
    store, epoch = filled(path)
    nonce = store.id
    file_of(path, 18).unlink()
    version = DeltaTable(path).version()
    plan = repair_table(path, version=source)
    assert DeltaTable(path).version() == version
    (first, *_) = plan.partitions()
    assert (first.group, first.stable_offset, first.committed_above) == ("g", 1, expected - 1)
    done = repair_table(path, version=source, dry_run=False, quiet_seconds=0)
    assert done.version == version + 1
    assert committed(path) == {2 * n for n in range(expected)}
    after = CommitStore.open(path, cluster="c")
    assert after.id == done.store != nonce
    for one in (store, after):
        assert one.current_epoch("g") is None
        with pytest.raises(FencedMember):
            one.commit("g", epoch, "m", {P0: [(1, 1)]})
    new = after.open_epoch("g", {"m": [P0]}, previous=None)
    assert new.number > epoch.number + version - (source or 12)  # each may have opened one
    assert store.id == after.id
    assert after.commit("g", new, "m", {P0: [(1, 1)]})[P0].stable_offset == 3
    assert store.state("g") == after.state("g")
    assert [entry["kind"] for entry in after.history("g")] == ["epoch", "commit"]
    after.compact()
    assert CommitStore.open(path, cluster="c").id == done.store
    assert check_table(path).is_sound


def test_kafkas_offsets_take_the_place(path: str) -> None:
    """Nothing above them is done; what outputs count stays known, other groups stay as they are."""
    store, epoch = filled(path)
    other = store.open_epoch("h", {"m": [P0]}, previous=None)
    store.commit("h", other, "m", {P0: [(0, 6)]})
    as_written_before(path)
    store = CommitStore.open(path, cluster="c")
    file_of(path, 18).unlink()
    offsets = {("c", "g"): {P0: StableOffset(7, "id")}, ("c", "new"): {P1: StableOffset(3)}}
    repair_table(path, offsets=offsets, dry_run=False, quiet_seconds=0)
    after = CommitStore.open(path, cluster="c")
    assert after.state("g") == {P0: PartitionCommits(7)}
    assert after.pending("g") == {}
    assert after.state("new") == {P1: PartitionCommits(3)}
    assert after.state("h") == {}  # its rows came after the lost one
    assert "run-3" in after.counted_commits("g")
    with pytest.raises(FencedMember):
        store.commit("g", epoch, "m", {P0: [(7, 7)]})
    with pytest.raises(ValueError, match="not both"):
        repair_table(path, version=3, offsets=offsets)


def test_a_missing_table_begins_again_from_kafka(path: str) -> None:
    """The check says that it is missing; a new one is made from Kafka's offsets."""
    found = check_table(path)
    assert (found.is_missing, found.problem) == (True, "the table does not exist")
    with pytest.raises(RepairRefused, match="no snapshot"):
        repair_table(path)
    with pytest.raises(RepairRefused, match="nor 3"):
        repair_table(path, version=3)
    offsets = {("c", "g"): {P0: StableOffset(7, "id")}}
    plan = repair_table(path, offsets=offsets)
    assert [p.stable_offset for p in plan.partitions()] == [7]
    assert not Path(path).exists()
    repair_table(path, offsets=offsets, dry_run=False)
    store = CommitStore.open(path, cluster="c")
    epoch = store.open_epoch("g", {"m": [P0]}, previous=None, topic_ids={"t": "id"})
    assert store.commit("g", epoch, "m", {P0: [(7, 8)]}) == {P0: CommitResult(9, 2, 0, 0)}


def test_a_table_that_cannot_be_opened_is_repaired_into_another(path: str, tmp_path: Path) -> None:
    """Its newest entry is garbage: older versions can be read, but nothing added to it."""
    filled(path)
    Path(path, "_delta_log", f"{22:020d}.json").write_text("{")
    with pytest.raises(CorruptCommitLog):
        CommitStore.open(path)
    found = check_table(path)
    assert found.problem
    assert found.readable_version == 21
    with pytest.raises(RepairRefused, match="new table"):
        repair_table(path, version=21)
    new = tmp_path / "new"
    repair_table(path, version=21, into=new, dry_run=False, quiet_seconds=0)
    assert committed(str(new)) == {2 * n for n in range(19)}
    with pytest.raises(RepairRefused, match="there already"):
        repair_table(path, version=21, into=new, dry_run=False, quiet_seconds=0)


def test_a_row_of_another_format_is_no_damage(path: str) -> None:
    """It asks for another version of the library, not for a repair."""
    _, epoch = filled(path)
    event = Event("commit", "bad-1", "c", "g", epoch, member="m", parts=(Part("t", 0),))
    rows = encode([event], 0).to_pylist()
    write_deltalake(path, pa.Table.from_pylist([rows[0] | {"format": 2}], schema=SCHEMA),
                    mode="append")  # fmt: skip
    with pytest.raises(CommitTableFormat, match="format 2"):
        check_table(path)


def test_a_row_that_makes_no_sense_is_stepped_back_from(path: str) -> None:
    """The version before it is the newest that can be read."""
    _, epoch = filled(path)
    event = Event("commit", "bad-1", "c", "g", epoch, member="m", parts=(Part("t", 0),))
    rows = encode([event], 0).to_pylist()
    write_deltalake(path, pa.Table.from_pylist([rows[0] | {"detail": "{"}], schema=SCHEMA),
                    mode="append")  # fmt: skip
    found = check_table(path)
    assert "bad-1" in found.problem
    assert found.readable_version == 22
    repair_table(path, version=22, dry_run=False, quiet_seconds=0)
    assert committed(path) == {2 * n for n in range(20)}


def test_an_active_table_is_left_alone(path: str) -> None:
    """A member that appended within the last minute, or just now, may still be at work."""
    store, epoch = filled(path)
    with pytest.raises(RepairRefused, match="stop all members"):
        repair_table(path, dry_run=False)
    engine = type(store._engine)
    replace = engine.replace

    def raced(self: object, rows: pa.Table, *, at: int, closed: int | None) -> int:
        store.commit("g", epoch, "m", {P0: [(1, 1)]})
        return replace(self, rows, at=at, closed=closed)  # type: ignore[arg-type]

    engine.replace = raced  # type: ignore[method-assign]
    try:
        with pytest.raises(RepairRefused, match="stop all members"):
            repair_table(path, dry_run=False, quiet_seconds=0)
    finally:
        engine.replace = replace  # type: ignore[method-assign]
    assert store.state("g")[P0].stable_offset == 3


def test_a_restore_to_before_a_repair_undoes_nothing(path: str) -> None:
    """The state of the repair stays in force, as what it replaced must not count again."""
    store, _ = filled(path)
    repair_table(path, version=6, dry_run=False, quiet_seconds=0)
    expected = committed(path)
    DeltaTable(path).restore(20)
    assert committed(path) == expected == {2 * n for n in range(5)}
    assert store.state("g")[P0].ranges.last == 8


#: What an append would have to obey, by the words of the error: fields of the table's actions.
_CHANGES: dict[str, dict[str, dict[str, object]]] = {
    "the table feature deletionVectors": {
        "protocol": {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": ["deletionVectors"],
            "writerFeatures": ["appendOnly", "changeDataFeed", "deletionVectors", "invariants"],
        },
        "configuration": {"delta.enableDeletionVectors": "true"},
    },
    "the property delta.appendOnly=true": {"configuration": {"delta.appendOnly": "true"}},
}


def altered(path: str, change: dict[str, dict[str, object]]) -> None:
    """Writes what Spark's ALTER TABLE writes, as the next version."""
    log = Path(path, "_delta_log")
    actions = [json.loads(line) for line in (log / f"{0:020d}.json").read_text().splitlines()]
    protocol, meta = (
        next(action[name] for action in actions if name in action)
        for name in ("protocol", "metaData")
    )
    meta["configuration"] |= change["configuration"]
    new = {"metaData": meta, "protocol": change.get("protocol", protocol)}
    entry = log / f"{DeltaTable(path).version() + 1:020d}.json"
    entry.write_text("\n".join(json.dumps({name: action}) for name, action in new.items()))


@pytest.mark.parametrize("found", _CHANGES)
def test_a_table_with_a_feature_of_writers_is_refused_and_can_be_moved(
    path: str, tmp_path: Path, found: str
) -> None:
    """The error names the feature and the way out, also to a store that is open; nothing is lost.

    Deletion vectors are refused by their feature, with or without one in the table.
    """
    store, epoch = filled(path)
    before = store.state("g"), store.pending("g")
    altered(path, _CHANGES[found])
    entries = sorted(Path(path, "_delta_log").iterdir())
    calls: list[Callable[[], object]] = [
        lambda: CommitStore.open(path, cluster="c"),
        lambda: store.commit("g", epoch, "m", {P0: [(1, 1)]}),
        lambda: repair_table(path, version=6, dry_run=False, quiet_seconds=0),
    ]
    for call in calls:
        with pytest.raises(CommitTableFormat, match=r"by commits\.move_table") as caught:
            call()
        assert caught.value.found == found
    target = str(tmp_path / "new")
    move_table(path, target, quiet_seconds=0)
    assert sorted(Path(path, "_delta_log").iterdir()) == entries
    moved = CommitStore.open(target, cluster="c")
    assert (moved.state("g"), moved.pending("g")) == before
    assert moved.has_counted("g", "run-3")


def test_the_command_reports_the_damage_and_the_remedies(path: str) -> None:
    """In sentences and as JSON, by exit code 4; a sound table by 0."""
    filled(path)
    run = CliRunner().invoke
    sound = run(main, ["store", "check", "--commit-table", path])
    assert sound.exit_code == 0
    assert ": sound" in sound.output
    file_of(path, 18).unlink()
    result = run(main, ["store", "check", "--commit-table", path])
    assert result.exit_code == 4
    for words in ("damaged", "--from version=17", "--from snapshot", "--from kafka"):
        assert words in result.output
    found = json.loads(run(main, ["store", "check", "--commit-table", path, "--json"]).output)
    assert (found["is_sound"], found["readable_version"]) == (False, 17)
    missing = run(main, ["store", "check", "--commit-table", f"{path}-not"])
    assert (missing.exit_code, ": missing" in missing.output) == (4, True)
    wrong = run(main, ["store", "repair", "--from", "yesterday", "--commit-table", path])
    assert (wrong.exit_code, "version=NUMBER" in wrong.output) == (2, True)
