"""The state of a group from outside: its sizes, what changed between two times, and its commands.

The commit table and the changelog are real; the broker and the handlers are not needed.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from click.testing import CliRunner

from assignors import MAX_KEY_HASH, key_hash
from commits import CommitStore
from coopconsume import committed_state
from coopconsume.cli import main
from coopconsume.errors import StateNotReadable
from coopconsume.state.changelog import Changelog
from coopconsume.state.reading import CommittedState
from coopconsume.state.rows import Origin
from coopconsume.state.schema import StateSchema
from coopconsume.state.table import StateTable

if TYPE_CHECKING:
    from deltalake import DeltaTable

ORIGIN = Origin("id-of-t", 0)
PLACE = ("t", 0)


class Job:
    """A group with a state: writes changes and commits as a job does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = CommitStore.open(str(folder / "commits"))
        self.changelog = Changelog(str(folder / "state"), StateSchema(pa.int64()))
        self.changelog.belong_to("c/g")
        self.open_epoch()

    def open_epoch(self) -> None:
        """The job begins, or begins again."""
        self.epoch = self.store.open_epoch(
            "g", {"m": [PLACE]}, previous=self.store.current_epoch("g"),
            topic_ids={"t": ORIGIN.topic_id},
        )  # fmt: skip
        commits = self.store.state("g").get(PLACE)
        self.offset = commits.stable_offset if commits else 0

    def change(self, commit: str, *, counts: bool = True, **values: int | None) -> int:
        """Some records change the state; returns the version of the commit table after that."""
        rows = [
            {
                "key": key.encode(), "value": value, "expires_at": None, "_topic": "t",
                "_topic_id": ORIGIN.topic_id, "_partition": 0, "_offset": self.offset + i,
                "_key_hash": key_hash(key.encode()), "_commit": commit,
            }
            for i, (key, value) in enumerate(values.items())
        ]  # fmt: skip
        self.changelog.append(pa.Table.from_pylist(rows, self.changelog.schema.changelog))
        if counts:
            last = self.offset + len(values) - 1
            self.store.commit(
                "g", self.epoch, "m", {PLACE: [(self.offset, last)]}, commit_id=commit,
                topic_ids={"t": ORIGIN.topic_id},
            )  # fmt: skip
            self.offset = last + 1
        return self.store.version()

    def snapshot(self, trim: tuple[int, int] | None = None) -> tuple[int, int]:
        """Makes a snapshot, and removes what the one before it has."""
        version = self.changelog.version
        counted = self.store.counted_commits("g")
        self.changelog.write_snapshot(
            ORIGIN, version, counted.__contains__, commits=self.store.version()
        )
        if trim is not None:
            self.changelog.trim(ORIGIN, trim[1], trim[0])
        return version, self.offset

    def committed(self) -> CommittedState:
        """The state as operators see it."""
        return CommittedState(self.changelog.path, str(self.folder / "commits"), "g")

    def command(self, name: str, *words: str) -> str:
        """What a command shows."""
        place = ["--state", self.changelog.path, "--commit-table", str(self.folder / "commits")]
        done = CliRunner().invoke(main, ["state", name, "g", *place, *words])
        assert done.exit_code == 0, done.output
        return done.stdout


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A job without records yet."""
    return Job(tmp_path)


def test_a_version_is_opened_once_and_the_newest_is_looked_up_each_time(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What removes rows does not change what a version has."""
    job.change("w-0", a=1)
    job.change("w-1", b=1)
    changelog, whole = job.changelog, [(0, MAX_KEY_HASH)]
    opened: list[int | None] = []
    open_table = StateTable.open

    def noted(self: StateTable, version: int | None = None) -> DeltaTable | None:
        opened.append(version)
        return open_table(self, version)

    monkeypatch.setattr(StateTable, "open", noted)
    version = changelog.version
    for at in (version, version - 1, version):
        assert len(changelog.files(ORIGIN, at)) == changelog.size(ORIGIN, at).files
        assert changelog.changes(ORIGIN, at, whole).num_rows == changelog.size(ORIGIN, at).rows
    assert opened == [None, version - 1]
    assert changelog.trim(ORIGIN, 1, version) == (1, 1)
    opened.clear()
    assert changelog.changes(ORIGIN, version, whole).num_rows == 2
    assert opened == []
    assert changelog.version > version
    assert changelog.changes(ORIGIN, changelog.version, whole).num_rows == 1
    assert opened == [None, None]


def test_what_changed_between_two_commits_or_times(job: Job) -> None:
    """Changes whose commits did not count do not count here either."""
    first = job.change("w-0", a=1, b=1, c=1)
    between = datetime.now(UTC)
    job.change("x-0", counts=False, a=99)
    job.change("w-1", a=2, b=None, d=5)
    job.change("w-2", a=3, c=1)
    expected = [("a", 1, 2), ("b", 1, None), ("d", None, 5)]
    diff = job.committed().diff("w-0", "w-1").to_pylist()
    assert [(one["key"].decode(), one["before"], one["after"]) for one in diff] == expected
    assert [one["offset"] for one in diff] == [3, 4, 5]
    for start in ("w-0", str(first), between.isoformat()):
        found = json.loads(job.command("diff", "--from", start, "--json"))
        assert [(one["key"], one["before"], one["after"]) for one in found] == [
            ("a", 1, 3), ("b", 1, None), ("d", None, 5)
        ]  # fmt: skip
    assert job.command("diff", "--from", "w-0", "--to", "w-1").splitlines()[1].split() == [
        "t", "0", "a", "3", "1", "2"
    ]  # fmt: skip
    at = json.loads(job.command("dump", "--at", "w-1", "--json"))
    assert {one["key"]: one["value"] for one in at} == {"a": 2, "c": 1, "d": 5}
    then = committed_state(job.changelog.path, str(job.folder / "commits"), "g", at=first)
    assert then.column("value").to_pylist() == [1, 1, 1]
    with pytest.raises(StateNotReadable, match="has no place nothing"):
        job.committed().diff("nothing")


def test_a_time_whose_changes_were_removed_is_refused(job: Job) -> None:
    """The last two snapshots reach back; what is before them was removed."""
    job.change("w-0", a=1)
    first = job.snapshot()
    job.change("w-1", a=2, b=1)
    job.change("w-2", a=3, b=None)
    second = job.snapshot(first)
    assert len(job.committed().diff("w-0")) == 1
    assert [one["before"] for one in job.committed().diff("w-1").to_pylist()] == [2, 1]
    job.change("w-3", a=None)
    job.snapshot(second)
    assert [one["before"] for one in job.committed().diff("w-2").to_pylist()] == [3]
    with pytest.raises(StateNotReadable, match=r"were removed; the oldest state .* version"):
        job.committed().diff("w-1")
    (_, newest) = job.changelog.snapshots.of(ORIGIN)
    assert (newest.keys, newest.files) == (0, 1)
    assert job.committed().rows().num_rows == 0
    assert job.changelog.snapshots.rows(ORIGIN, [(0, MAX_KEY_HASH)]).num_rows == 0


def test_sizes_by_partition_and_key_range(job: Job) -> None:
    """Keys and bytes add up; the snapshot and the changes behind it are counted separately."""
    names = {f"key-{i}": i for i in range(200)}
    job.change("w-0", **names)
    (one,) = job.committed().stats()
    assert (one.topic, one.partition, one.keys, one.snapshot) == ("t", 0, 200, None)
    assert (one.tail_rows, one.tail_files) == (200, 1)
    job.snapshot(job.snapshot())
    job.change("w-1", **{"key-0": None, "more": 1})
    (one,) = job.committed().stats(ranges=8)
    assert one.keys == 200 == sum(part.keys for part in one.ranges)
    assert one.size == sum(part.size for part in one.ranges) > 200 * 8
    assert [part.keys for part in one.ranges] == [
        sum(part.first <= key_hash(name.encode()) <= part.last for name in [*names, "more"][1:])
        for part in one.ranges
    ]
    assert one.snapshot is not None
    assert (one.snapshot.keys, one.tail_rows) == (200, 2)
    assert abs((datetime.now(UTC) - one.snapshot.made_at).total_seconds()) < 86_400
    (shown,) = json.loads(job.command("stats", "--ranges", "8", "--json"))
    assert [part["keys"] for part in shown["ranges"]] == [part.keys for part in one.ranges]
    assert shown["snapshot"]["keys"] == 200
    lines = job.command("stats").splitlines()
    (four,) = job.committed().stats()
    assert lines[1].split()[:3] == ["t-0", "200", f"{four.size:,}"]
    assert len(lines) == 3 + 1 + 4
