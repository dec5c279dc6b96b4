"""The table under the commit store: snapshots, recovery, damage, and what others do to it."""

from __future__ import annotations

import math
import random
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from commits import (
    CommitLogUnavailable,
    CommitResult,
    CommitStore,
    CommitTableFormat,
    CommitTableNotFound,
    CorruptCommitLog,
    Epoch,
    PartitionCommits,
    Pending,
    UnsupportedTarget,
    check_table,
    path_engine,
)
from commits.delta_log import DeltaLog
from commits.path_engine import PathEngine
from commits.places import log_folder, mount_kind, taking_turns
from commits.rows import SCHEMA, Event, Part, encode
from commits.snapshot import snapshot_events
from commits.table import LOG_PROPERTIES
from commits.table_files import DiskFiles
from tests.commit_suite import as_written_before

P0, P1 = ("t", 0), ("t", 1)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where a commit table may be made."""
    return str(tmp_path / "commits")


def test_calls_in_one_look_look_once(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And again after an append of this thread, or an outage; other threads look in any case."""
    store, other = CommitStore.open(path), CommitStore.open(path)
    epoch, looks, refresh = opened(store), [], store._engine.refresh
    store.commit("g", epoch, "m", {P0: [(9, 9)]})
    is_away = False

    def noted(**how: bool) -> int:
        looks.append(threading.current_thread())
        if is_away:
            raise CommitLogUnavailable(path, "read", "no answer")
        return refresh(**how)

    monkeypatch.setattr(store._engine, "refresh", noted)
    with store.one_look(), store.one_look():
        store.state("g")
    with store.one_look():
        for _ in range(3):
            assert store.current_epoch("g") == epoch
        assert len(looks) == 2
        other.commit("g", epoch, "m", {P0: [(3, 3)]})
        assert store.state("g")[P0].stable_offset == 0
        reader = threading.Thread(target=store.current_epoch, args=("g",))
        reader.start()
        reader.join()
        assert looks[2:] == [reader]
        other.commit("g", epoch, "m", {P0: [(5, 5)]})
        store.commit("g", epoch, "m", {P0: [(0, 0)]}, maintain=False)
        other.commit("g", epoch, "m", {P0: [(1, 1)]})
        assert store.state("g")[P0].stable_offset == 2
    is_away = True
    with store.one_look():
        for _ in range(2):
            with pytest.raises(CommitLogUnavailable):
                store.state("g")
        is_away = False
        other.commit("g", epoch, "m", {P0: [(2, 2)]})
        assert store.state("g")[P0].stable_offset == 4
    before = len(looks)
    store.state("g"), store.state("g")
    assert len(looks) == before + 2


def test_a_commit_that_cannot_be_read_back_may_be_repeated(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was written; the error says that its id counts once, and it does."""
    store = CommitStore.open(path)
    epoch = opened(store)

    def away(*_: object) -> None:
        raise CommitLogUnavailable(path, "read", "no answer")

    with monkeypatch.context() as patched:
        patched.setattr(store._engine, "tail", away)
        with pytest.raises(CommitLogUnavailable, match="repeated with its id counts once"):
            store.commit("g", epoch, "m", {P0: [(0, 3)]}, commit_id="c-1")
    assert store.has_counted("g", "c-1") or store.state("g")[P0].stable_offset == 4
    assert store.commit("g", epoch, "m", {P0: [(0, 3)]}, commit_id="c-1")
    assert store.state("g")[P0].stable_offset == 4


def opened(store: CommitStore, *members: str, group: str = "g") -> Epoch:
    """An epoch in which every member has both partitions."""
    assignment = {member: [P0, P1] for member in members or ("m",)}
    return store.open_epoch(group, assignment, previous=store.current_epoch(group))


def filled(path: str, appends: int, *, segment_versions: int = 1000) -> tuple[CommitStore, Epoch]:
    """A table of so many versions, with two groups, claims, pending records and settings."""
    store = CommitStore.open(path, segment_versions=segment_versions)
    store.set_setting("x", {"y": [1]}, topic="t")
    other = opened(store, group="h")
    store.claim("k", "someone", [P0], topic_ids={"t": "id"})
    epoch = opened(store, "m", "n")
    store.release("g", epoch, "n")
    store.commit("h", other, "m", {P1: [(3, 9)]}, pending={P1: [Pending(1, 2, 3, 4, "five")]})
    while store._engine.version < appends:
        n = store._engine.version
        store.commit("g", epoch, "m", {P0: [(3 * n, 3 * n)]}, commit_id=f"run-{n}")
    return store, epoch


def seen(store: CommitStore) -> list[object]:
    """All a user can see of the state of a table."""
    return [
        [
            store.state(group), store.pending(group), store.assignment(group),
            store.claims(group), sorted(store.counted_commits(group)),
        ]
        for group in ("g", "h", "k")
    ] + [store.settings("t")]  # fmt: skip


def live_files(path: str) -> set[str]:
    """The data files of the newest version."""
    return set(DeltaTable(path).file_uris())


def vacuum(path: str) -> None:
    """Removes every file that the newest version does not need, at once."""
    DeltaTable(path).vacuum(0, dry_run=False, enforce_retention_duration=False)


def test_several_may_create_the_table_at_once(tmp_path: Path) -> None:
    """All openers of a new table succeed and have the same one, made once."""
    for round_ in range(8):
        path, barrier = tmp_path / str(round_), threading.Barrier(6)

        def create(path: Path = path, barrier: threading.Barrier = barrier) -> str:
            barrier.wait()
            return CommitStore.open(path).id

        with ThreadPoolExecutor(6) as pool:
            ids = [future.result() for future in [pool.submit(create) for _ in range(6)]]
        assert len(set(ids)) == 1
        assert DeltaTable(path).version() == 0


def test_the_table_says_what_it_is(path: str) -> None:
    """Change data feed, format, engine and segment size stand in its properties."""
    CommitStore.open(Path(path), segment_versions=7)
    found = DeltaTable(path).metadata().configuration
    assert found["delta.enableChangeDataFeed"] == "true"
    assert found["coopconsume.format"] == "1"
    assert found["coopconsume.engine"] == "path"
    assert found["coopconsume.segment.versions"] == "7"
    assert CommitStore.open(path, segment_versions=9)._log._segment_versions == 7
    with pytest.raises(ValueError, match="segment_versions"):
        CommitStore.open(path, segment_versions=0)


def test_a_mere_look_makes_no_table(path: str) -> None:
    """Where none may be created, a missing one is an error; an existing one is opened."""
    with pytest.raises(CommitTableNotFound, match="no commit table"):
        CommitStore.open(path, create=False)
    assert not Path(path).exists()
    made = CommitStore.open(path)
    assert CommitStore.open(path, create=False).id == made.id


def test_other_targets_are_refused(tmp_path: Path) -> None:
    """Names of catalog tables, files, other directories, other Delta tables: each is refused."""
    for name in ("catalog.schema.table", "my_commits", ""):
        with pytest.raises(UnsupportedTarget):
            CommitStore.open(name)
    (tmp_path / "file").write_text("x")
    for used in (tmp_path, tmp_path / "file"):
        with pytest.raises(CommitTableFormat):
            CommitStore.open(used)
    other = tmp_path / "other"
    write_deltalake(other, pa.table({"a": [1]}))
    with pytest.raises(CommitTableFormat, match="another Delta table"):
        CommitStore.open(other)
    assert DeltaTable(other).version() == 0


@pytest.mark.parametrize("name", ["a%20b", "a%2Fb", "x[1]", "a^b", "a|b", "a\\b"])
def test_names_that_deltalake_reads_as_others_are_refused(tmp_path: Path, name: str) -> None:
    """Before anything is written, also behind a link; it names what is wrong with the path."""
    link = tmp_path / "link"
    link.symlink_to(tmp_path / name)
    for target in (tmp_path / name, str(link / "commits"), (tmp_path / name).as_uri()):
        with pytest.raises(UnsupportedTarget, match="give another folder"):
            CommitStore.open(target)
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


def test_other_odd_names_are_taken(tmp_path: Path) -> None:
    """A path and its URI are one table, whatever else is in its name."""
    path = tmp_path / "50% of ü#x?y=1 (a+b)"
    store = CommitStore.open(path, segment_versions=2)
    epoch = opened(store)
    for n in range(4):
        store.commit("g", epoch, "m", {P0: [(2 * n, 2 * n)]})
    store.compact()
    for target in (str(path), path.as_uri()):
        assert CommitStore.open(target).state("g") == store.state("g")
    other = tmp_path / "a b"
    other.mkdir()
    (other / "file").write_text("x")
    with pytest.raises(CommitTableFormat, match="other files"):
        CommitStore.open(other.as_uri())


def test_a_link_into_a_place_that_is_not_safe_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies behind it counts, as a path and as a URI, and not where the link lies."""
    mounts = ["/dev/a / ext4 rw 0 0", f"x {tmp_path}/two\\040words fuse.s3fs rw 0 0"]
    (tmp_path / "two words").mkdir()
    (tmp_path / "link").symlink_to("two words")
    (tmp_path / "two words" / "out").symlink_to(tmp_path)
    assert mount_kind(str(tmp_path / "link" / "deep" / "commits"), mounts) == "fuse.s3fs"
    assert mount_kind(str(tmp_path / "two words" / "out" / "commits"), mounts) == "ext4"
    monkeypatch.setattr("commits.places._mounts", lambda: mounts)
    for place in (tmp_path / "link" / "commits", (tmp_path / "two words" / "commits").as_uri()):
        with pytest.raises(UnsupportedTarget, match=r"fuse\.s3fs"):
            CommitStore.open(place)
    assert not (tmp_path / "two words" / "commits").exists()


@pytest.mark.parametrize(
    ("properties", "schema", "says"),
    [
        ({"coopconsume.format": "2"}, SCHEMA, "format=2"),
        ({"coopconsume.engine": "spark"}, SCHEMA, "by Spark alone"),
        ({"delta.enableChangeDataFeed": "false"}, SCHEMA, "enableChangeDataFeed"),
        ({}, SCHEMA.remove(SCHEMA.get_field_index("holes")), "'holes'"),
    ],
)
def test_tables_of_another_format_are_refused(
    path: str, properties: dict[str, str], schema: pa.Schema, says: str
) -> None:
    """The error names the property or column, what was found and what was expected."""
    configuration = {
        "coopconsume.format": "1",
        "coopconsume.engine": "path",
        "coopconsume.segment.versions": "1000",
        "delta.enableChangeDataFeed": "true",
    } | properties
    DeltaTable.create(
        path, schema, partition_by=["segment"], configuration=configuration,
        raise_if_key_not_exists=False,
    )  # fmt: skip
    with pytest.raises(CommitTableFormat, match=says):
        CommitStore.open(path)


@pytest.mark.parametrize("appends", [20, 70])
def test_a_snapshot_contains_the_whole_state(path: str, appends: int) -> None:
    """Before and after, here and in a new process, the same is seen; no news, no other one."""
    store, epoch = filled(path, appends, segment_versions=20)
    before, files = seen(store), len(live_files(path))
    assert store.compact() == appends + 1
    assert store.compact() is None
    assert CommitStore.open(path).compact() is None
    assert seen(store) == seen(CommitStore.open(path)) == before
    removed = 41 if appends == 70 else 0  # versions of the segments 0 and 1, less the creation
    assert len(live_files(path)) <= files + 1 - removed + 2
    repeated = store.commit("g", epoch, "m", {P0: [(45, 45)]}, commit_id="run-15")
    reopened = CommitStore.open(path)
    assert reopened.commit("g", epoch, "m", {P0: [(45, 45)]}, commit_id="run-15") == repeated
    assert repeated[P0].committed == 1
    assert reopened.commit("g", epoch, "m", {P0: [(0, 2)]})[P0].committed == 3
    assert store.state("g")[P0].stable_offset == 3


def test_recovery_does_not_need_what_a_compaction_removed(path: str) -> None:
    """After a vacuum that keeps nothing, new and sleeping stores alike see the same state."""
    sleeper, _ = filled(path, 30, segment_versions=10)
    store = CommitStore.open(path)
    epoch = store.current_epoch("g")
    assert epoch is not None
    for n in range(30, 60):
        store.commit("g", epoch, "m", {P0: [(3 * n, 3 * n)]}, commit_id=f"run-{n}")
    before = seen(store)
    store.compact()
    vacuum(path)
    assert seen(CommitStore.open(path)) == before
    assert seen(sleeper) == before
    assert sleeper.commit("g", epoch, "m", {P0: [(0, 0)]})[P0].stable_offset == 1
    assert len(CommitStore.open(path).history("g")) >= 1
    store.compact()
    vacuum(path)
    assert CommitStore.open(path).state("g")[P0].stable_offset == 1


def test_an_append_that_a_compaction_overtook_is_written_again(path: str) -> None:
    """A store that knew nothing of a compaction commits at its first call, and only once."""
    store, epoch = filled(path, 35, segment_versions=10)
    late = CommitStore.open(path)
    store.compact()
    assert late.commit("g", epoch, "m", {P0: [(0, 0)]}, commit_id="late-1")[P0].committed == 1
    assert [e["counted"] for e in store.history("g") if e["id"] == "late-1"] == [True]


def test_rows_of_an_old_segment_are_never_removed_unread(path: str) -> None:
    """A row that lands in a closed segment meanwhile makes a compaction fold on and try again."""
    store, epoch = filled(path, 35, segment_versions=10)
    late = CommitStore.open(path)
    engine = store._engine
    replace, calls = engine.replace, []

    def overtaken(rows: pa.Table, *, at: int, closed: int) -> int:
        if not calls:
            event = Event("commit", "late-1", "", "g", epoch, member="m",
                          parts=(Part("t", 1, offsets=late.state("g")[P0].ranges),))  # fmt: skip
            late._engine.append(encode([event], closed))
        calls.append(at)
        return replace(rows, at=at, closed=closed)

    engine.replace = overtaken  # type: ignore[method-assign]
    store.compact()
    assert calls == [35, 36]
    assert "late-1" in CommitStore.open(path).counted_commits("g")
    assert CommitStore.open(path).state("g")[P1].ranges == store.state("g")[P0].ranges


@pytest.mark.slow
def test_compaction_under_four_writers_loses_nothing(path: str) -> None:
    """Every acknowledged commit of writers that never pause is there after many compactions."""
    store = CommitStore.open(path, segment_versions=10)
    epoch = opened(store, *"abcd")
    acknowledged: dict[str, list[int]] = {}
    stop = threading.Event()

    def write(member: str, lane: int) -> None:
        mine, source = CommitStore.open(path), random.Random(lane)
        done = acknowledged.setdefault(member, [])
        while not stop.is_set():
            offset = 4 * len(done) + lane
            at = source.choice([P0, P1])
            result = mine.commit("g", epoch, member, {at: [(offset, offset)]})[at]
            assert result.committed == 1
            done.append(offset if at == P0 else -offset - 1)

    writers = [threading.Thread(target=write, args=(m, n)) for n, m in enumerate("abcd")]
    for writer in writers:
        writer.start()
    landed = 0
    try:
        while landed < 6 or sum(map(len, acknowledged.values())) < 160:
            landed += store.compact() is not None
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    found = CommitStore.open(path).state("g")
    assert found == store.state("g")
    for done in acknowledged.values():
        for code in done:
            at, offset = (P0, code) if code >= 0 else (P1, -code - 1)
            commits = found[at]
            assert offset < commits.stable_offset or offset in commits.ranges
    committed = sum(commits.stable_offset + len(commits.ranges) for commits in found.values())
    assert committed == sum(map(len, acknowledged.values()))
    assert len(live_files(path)) < DeltaTable(path).version() - 20


def test_others_may_optimise_and_clean_the_table(path: str) -> None:
    """OPTIMIZE, vacuum and a restore change nothing of what counts, for nobody."""
    store, _ = filled(path, 30)
    before = seen(store)
    table = DeltaTable(path)
    table.optimize.compact()
    DeltaTable(path).vacuum(dry_run=False)
    assert seen(store) == seen(CommitStore.open(path)) == before
    stale = store.current_epoch("g")
    newer = opened(store)
    assert newer != stale
    DeltaTable(path).restore(20)
    for one in (store, CommitStore.open(path)):
        assert one.current_epoch("g") == newer
        assert one.state("g") == before[0][0]  # type: ignore[index]
    assert store.commit("g", newer, "m", {P0: [(0, 0)]})[P0] == CommitResult(
        1, 1, 0, before[0][0][P0].ranges.range_count  # type: ignore[index]
    )  # fmt: skip


def test_checkpoints_keep_a_long_log_short_to_open(path: str) -> None:
    """Every 50 versions the writer leaves a checkpoint; stores on both sides of it agree."""
    store, _ = filled(path, 120)
    checkpoints = {p.name[:20] for p in Path(path, "_delta_log").glob("*.checkpoint*.parquet")}
    assert checkpoints == {f"{50:020d}", f"{100:020d}"}
    assert seen(CommitStore.open(path)) == seen(store)


def test_a_commit_need_not_wait_for_checkpoints_and_snapshots(path: str) -> None:
    """They are left to `maintain`, which does nothing more than is due."""
    store = CommitStore.open(path, snapshot_commits=60)
    epoch = opened(store)
    for n in range(55):
        store.commit("g", epoch, "m", {P0: [(n, n)]}, maintain=False)
    assert not [*Path(path, "_delta_log").glob("*.checkpoint*.parquet")]
    store.maintain()
    checkpoints = [p.name[:20] for p in Path(path, "_delta_log").glob("*.checkpoint*.parquet")]
    assert checkpoints == [f"{store.version():020d}"]
    for n in range(55, 80):
        store.commit("g", epoch, "m", {P0: [(n, n)]}, maintain=False)
    before = store.version()
    store.maintain()
    assert store.version() == before + 1
    store.maintain()
    assert store.version() == before + 1
    assert seen(CommitStore.open(path)) == seen(store)


def test_commits_go_on_beside_a_checkpoint(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads the table by a handle of its own, which takes longer the longer the log is."""
    store = CommitStore.open(path)
    epoch = opened(store)
    for n in range(50):
        store.commit("g", epoch, "m", {P0: [(n, n)]}, maintain=False)
    begun, go_on, loaded = threading.Event(), threading.Event(), path_engine._loaded

    def slowly(*args: Any) -> Any:
        begun.set()
        assert go_on.wait(120)
        return loaded(*args)

    monkeypatch.setattr(path_engine, "_loaded", slowly)
    with ThreadPoolExecutor(2) as pool:
        maintenance = pool.submit(store.maintain)
        assert begun.wait(120)
        commit = pool.submit(store.commit, "g", epoch, "m", {P0: [(50, 50)]}, maintain=False)
        try:
            commit.result(60)
        finally:
            go_on.set()
        maintenance.result(120)
    checkpoints = [p.name[:20] for p in Path(path, "_delta_log").glob("*.checkpoint*.parquet")]
    assert checkpoints == [f"{store.version() - 1:020d}"]
    assert seen(CommitStore.open(path)) == seen(store)


def checkpoints_of(path: str) -> list[int]:
    """The versions with a checkpoint."""
    return sorted(int(p.name[:20]) for p in Path(path, "_delta_log").glob("*.checkpoint*.parquet"))


def test_one_process_of_a_host_writes_a_checkpoint_at_a_time(path: str) -> None:
    """The others commit without, and the next one is written once it has ended."""
    store, epoch = filled(path, 45)
    with taking_turns(Path(path, "_delta_log")):
        for n in range(10):
            store.commit("g", epoch, "m", {P1: [(n, n)]})
        assert checkpoints_of(path) == []
    store.commit("g", epoch, "m", {P1: [(10, 10)]})
    assert checkpoints_of(path) == [store.version()]
    assert seen(CommitStore.open(path)) == seen(store)


def test_a_checkpoint_that_others_have_written_is_not_written_again(path: str) -> None:
    """As by a process that was at it when this one was to write its own."""
    store, epoch = filled(path, 45)
    for n in range(10):
        store.commit("g", epoch, "m", {P1: [(n, n)]}, maintain=False)
    DeltaTable(path).create_checkpoint()
    before = checkpoints_of(path)
    store.commit("g", epoch, "m", {P1: [(10, 10)]})
    assert checkpoints_of(path) == before


def test_a_process_stopped_at_a_checkpoint_does_not_hold_up_others(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else openings would read all entries that come meanwhile."""
    monkeypatch.setattr(path_engine, "_LATE_VERSIONS", 60)
    store, epoch = filled(path, 45)
    with taking_turns(Path(path, "_delta_log")):
        while store.version() < 59:
            store.commit("g", epoch, "m", {P1: [(store.version(), store.version())]})
        assert checkpoints_of(path) == []
        store.commit("g", epoch, "m", {P1: [(60, 60)]})
        assert checkpoints_of(path) == [60]


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables whose log keeps no entries before the last snapshot but one."""
    monkeypatch.setitem(LOG_PROPERTIES, "delta.logRetentionDuration", "interval 0 seconds")


def overtake(path: str, epoch: Epoch) -> None:
    """Another writer commits and removes all entries that were there before."""
    other = CommitStore.open(path)
    for _ in range(2):
        for _ in range(50):
            n = other.version()
            other.commit("g", epoch, "m", {P1: [(n, n)]})
        other.compact()


@pytest.mark.usefixtures("forgetful")
def test_a_commit_of_a_process_that_was_frozen_is_unknown_and_counts_for_all_once_repeated(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its entry had been there and was removed: written again, it is one that nobody sees."""
    store, epoch = filled(path, 20, segment_versions=10)
    at, real, now = store.version(), DeltaLog.append, [0.0]

    def append(log: DeltaLog, *what: Any, **more: Any) -> int:
        now[0] = 301.0
        monkeypatch.setattr(DeltaLog, "append", real)
        overtake(path, epoch)
        assert not Path(path, f"_delta_log/{at + 1:020d}.json").exists()
        return real(log, *what, **more)

    monkeypatch.setattr(path_engine, "_now", lambda: now[0])
    monkeypatch.setattr(DeltaLog, "append", append)
    with pytest.raises(CommitLogUnavailable, match="it took 301 s"):
        store.commit("g", epoch, "m", {P0: [(1000, 1000)]}, commit_id="slow")
    assert Path(path, f"_delta_log/{at + 1:020d}.json").exists()
    assert seen(store) == seen(CommitStore.open(path))
    result = store.commit("g", epoch, "m", {P0: [(1000, 1000)]}, commit_id="slow")[P0]
    assert result.status == "committed"
    assert seen(store) == seen(CommitStore.open(path))


@pytest.mark.usefixtures("forgetful")
def test_an_entry_of_a_frozen_process_in_the_place_of_a_removed_one_is_no_damage(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To an idle store it looks as if the last version that it has read was replaced."""
    store, epoch = filled(path, 20, segment_versions=10)
    last, now = Path(path, "_delta_log", f"{store.version():020d}.json"), path_engine._now()
    overtake(path, epoch)
    monkeypatch.setattr(path_engine, "_now", lambda: now + 301.0)  # entries stay for longer
    assert not last.exists()
    last.write_text('{"commitInfo":{"operation":"WRITE"}}\n')
    assert seen(store) == seen(CommitStore.open(path))


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables that count as those of an object store."""
    monkeypatch.setattr(path_engine, "local_folder", lambda _: None)


@pytest.mark.usefixtures("forgetful", "far")
def test_looks_without_an_answer_do_not_count_as_looks(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is cut off for longer than entries are kept opens the table again."""
    monkeypatch.setattr(path_engine, "_PLACED_SECONDS", math.inf)  # which would do, too
    store, epoch = filled(path, 20, segment_versions=10)
    now = [path_engine._now()]
    monkeypatch.setattr(path_engine, "_now", lambda: now[0])
    for _ in range(4):
        now[0] += 100.0
        with monkeypatch.context() as patch:
            patch.setattr(DiskFiles, "read", _fail)
            with pytest.raises(CommitLogUnavailable, match="no answer"):
                store.state("g")
    overtake(path, epoch)
    result = store.commit("g", epoch, "m", {P0: [(1000, 1000)]})[P0]
    assert result.status == "committed"
    assert seen(store) == seen(CommitStore.open(path))


def _fail(_files: DiskFiles, name: str) -> bytes:
    raise TimeoutError(f"no answer for {name}")


@pytest.mark.usefixtures("far")
def test_a_copy_that_is_put_back_in_a_store_is_noticed_before_an_append(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store is asked now and then; a version behind a gap would ruin the table."""
    store, epoch = filled(path, 20)
    shutil.copytree(path, tmp_path / "copy")
    for n in range(5):
        store.commit("g", epoch, "m", {P1: [(n, n)]})
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "copy", path)
    version, now = DeltaTable(path).version(), path_engine._now()
    monkeypatch.setattr(path_engine, "_now", lambda: now + 6.0)
    for call in (
        lambda: store.commit("g", epoch, "m", {P1: [(9, 9)]}),
        lambda: store.state("g"),
        store.compact,
    ):
        with pytest.raises(CorruptCommitLog, match="was there before"):
            call()
    assert DeltaTable(path).version() == version
    assert seen(CommitStore.open(path)) == seen(CommitStore.open(str(tmp_path / "copy")))


def test_another_entry_in_the_place_of_the_newest_one_is_noticed_before_an_append(
    path: str, tmp_path: Path
) -> None:
    """A copy was put back, and others have written to it up to the same version."""
    store, epoch = filled(path, 20)
    shutil.copytree(path, tmp_path / "copy")
    store.commit("g", epoch, "m", {P1: [(5, 5)]})
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "copy", path)
    other = CommitStore.open(path)
    other.commit("g", epoch, "m", {P1: [(6, 6)]})
    for _ in range(2):
        with pytest.raises(CorruptCommitLog, match="is another one than it was"):
            store.commit("g", epoch, "m", {P1: [(7, 7)]})
    other.commit("g", epoch, "m", {P1: [(8, 8)]})
    assert seen(other) == seen(CommitStore.open(path))


def test_a_compaction_by_a_process_that_has_not_looked_for_long_lies_behind_the_others(
    path: str,
) -> None:
    """As the snapshot of a queue's replica does, which is written by an engine that only writes."""
    store, _ = filled(path, 2, segment_versions=10)
    late = PathEngine(path)
    epoch = store.current_epoch("g")
    assert epoch is not None
    for n in range(40):
        store.commit("g", epoch, "m", {P1: [(n, n)]})
    expected, version = seen(store), store.version()
    rows = encode(snapshot_events(store._log.state, "s"), 2)
    assert late.replace(rows, at=version, closed=2) == version + 1
    assert seen(store) == seen(CommitStore.open(path)) == expected


@pytest.mark.usefixtures("forgetful")
def test_a_table_whose_entries_go_while_it_is_opened_or_checked_is_not_damaged(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may be frozen between its look at the newest version and its reads."""
    store, epoch = filled(path, 20, segment_versions=10)
    real = PathEngine.tail

    def tail(engine: PathEngine, after: int, upto: int) -> Any:
        if engine.target == path:
            monkeypatch.setattr(PathEngine, "tail", real)
            overtake(path, epoch)
        return real(engine, after, upto)

    monkeypatch.setattr(PathEngine, "tail", tail)
    opened_store = CommitStore.open(path)
    now = path_engine._now()
    monkeypatch.setattr(path_engine, "_now", lambda: now + 301.0)  # entries stay for longer
    assert seen(opened_store) == seen(store)
    monkeypatch.setattr(PathEngine, "tail", tail)
    assert check_table(path).is_sound
    monkeypatch.setattr(PathEngine, "tail", tail)
    assert store.history("g") == []  # none since the newest snapshot


def test_a_vacuum_of_a_process_that_was_frozen_removes_nothing(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that were added since it opened the table would count as old ones."""
    store, epoch = filled(path, 20)
    now, real = [0.0], path_engine._loaded

    def opened_slowly(*args: Any) -> DeltaTable:
        table = real(*args)
        now[0] += 301.0
        for n in range(5):
            store.commit("g", epoch, "m", {P1: [(n, n)]})
        return table

    monkeypatch.setattr(path_engine, "_FILE_HOURS", 0)
    with monkeypatch.context() as patch:
        patch.setattr(path_engine, "_now", lambda: now[0])
        patch.setattr(path_engine, "_loaded", opened_slowly)
        with pytest.raises(CommitLogUnavailable, match="vacuum failed: it took"):
            store._engine.vacuum()
    assert seen(CommitStore.open(path)) == seen(store)
    store.vacuum()
    assert seen(CommitStore.open(path)) == seen(store)


@pytest.mark.parametrize("error", [OSError("full"), RuntimeError("Parquet"), MemoryError()])
def test_a_checkpoint_that_fails_is_no_error_and_tried_again(
    path: str, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """After some versions, not with each of them."""
    store = CommitStore.open(path, snapshot_commits=0)
    epoch, tries = opened(store), []

    def create_checkpoint(_table: DeltaTable) -> None:
        tries.append(1)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_checkpoint", create_checkpoint)
        for n in range(51):
            assert store.commit("g", epoch, "m", {P0: [(n, n)]})[P0].status == "committed"
        store.maintain()
        assert len(tries) == 1
    for n in range(51, 70):
        store.commit("g", epoch, "m", {P0: [(n, n)]})
    assert len([*Path(path, "_delta_log").glob("*.checkpoint*.parquet")]) == 1


def test_a_missing_file_is_reported(path: str) -> None:
    """A lost data file is an error that names it and the ways out, and changes nothing."""
    filled(path, 20)
    as_written_before(path)
    version = DeltaTable(path).version()
    Path(sorted(live_files(path))[3]).unlink()
    with pytest.raises(CorruptCommitLog, match="rows are missing") as caught:
        CommitStore.open(path)
    assert "coopconsume store repair" in str(caught.value)
    assert not caught.value.retriable
    assert DeltaTable(path).version() == version


def test_a_file_that_is_needed_by_no_tail_is_not_missed(path: str) -> None:
    """What a snapshot contains is not read again: its old files may be gone."""
    store, _ = filled(path, 20)
    before, old = seen(store), sorted(live_files(path))
    store.compact()
    for file in old:
        Path(file).unlink()
    assert seen(CommitStore.open(path)) == before


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"format": 2}, CommitTableFormat, "format 2"),
        ({"kind": "miracle"}, CommitTableFormat, "miracle"),
        ({"offsets": b"garbage"}, CorruptCommitLog, "no portable roaring bitmap"),
        ({"detail": "{"}, CorruptCommitLog, "cannot be read"),
        ({"row": 5}, CorruptCommitLog, "rows \\[5\\]"),
        ({"kind": "takeover"}, CorruptCommitLog, "is not valid"),
        ({"kind": "snapshot", "row_id": "s/0"}, CorruptCommitLog, "a snapshot is not valid"),
    ],
)
def test_rows_that_make_no_sense_stop_every_reader(
    path: str, change: dict[str, object], error: type[Exception], says: str
) -> None:
    """A reader stops at a row it cannot read, again at the next call, and never skips it."""
    store, epoch = filled(path, 12)
    event = Event("commit", "bad-1", "", "g", epoch, member="m", parts=(Part("t", 0),))
    rows = encode([event], 0).to_pylist()
    write_deltalake(path, pa.Table.from_pylist([rows[0] | change], schema=SCHEMA), mode="append")
    with pytest.raises(error, match=says):
        CommitStore.open(path)
    if change.get("kind") != "snapshot":  # a running store has no use for snapshots
        for _ in range(2):
            with pytest.raises(error):
                store.state("g")


def test_a_table_that_vanished_is_reported(path: str, tmp_path: Path) -> None:
    """With the table gone under an open store a commit is a clear error; it is not made again."""
    store, epoch = filled(path, 10)
    Path(path).rename(tmp_path / "elsewhere")
    for _ in range(2):
        with pytest.raises(CommitLogUnavailable, match="append"):
            store.commit("g", epoch, "m", {P0: [(0, 0)]})
    assert not DeltaTable.is_deltatable(path)
    Path(tmp_path / "elsewhere" / "_delta_log" / f"{0:020d}.json").write_text("{")
    with pytest.raises(CorruptCommitLog):
        CommitStore.open(tmp_path / "elsewhere")


def test_offsets_beyond_what_floats_hold_are_exact(path: str) -> None:
    """Offsets above 2**53 and at the very end pass through rows and snapshots unchanged."""
    store = CommitStore.open(path)
    epoch, far = opened(store), 2**53 + 1
    store.start("g", epoch, "m", {P0: far, P1: 2**63 - 3})
    store.commit("g", epoch, "m", {P0: [(far + 2, far + 2)], P1: [(2**63 - 3, 2**63 - 1)]})
    expected = {P0: PartitionCommits(far, [(far + 2, far + 2)]), P1: PartitionCommits(2**63)}
    assert CommitStore.open(path).state("g") == expected
    store.compact()
    assert CommitStore.open(path).state("g") == expected


def test_drivers_take_turns_on_a_local_disk(tmp_path: Path) -> None:
    """One process of the machine commits at a time; one that waits too long gets an error."""
    folder = tmp_path / "50%25 of it#1"
    (folder / "_delta_log").mkdir(parents=True)
    location = f"file:{folder}"
    turn = f"""
from commits.places import log_folder, taking_turns
with taking_turns(log_folder({location!r}), 0):
    print("mine")
"""
    log = log_folder(location)
    assert log == folder / "_delta_log"
    with taking_turns(log):
        other = [sys.executable, "-c", turn]
        refused = subprocess.run(other, capture_output=True, text=True, check=False)
        with pytest.raises(TimeoutError), taking_turns(log, 0):
            pytest.fail("two at once")
    assert (refused.returncode, refused.stdout) == (1, ""), refused.stderr
    assert "TimeoutError: others have been committing" in refused.stderr
    for free in (log, log_folder("s3://bucket/table")):
        with taking_turns(free, 0):
            pass


def test_an_unreachable_disk_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The driver is on another machine: nobody can be kept away from there."""
    assert log_folder(f"file:{tmp_path}") is None
    assert "no other Spark driver" in caplog.text
