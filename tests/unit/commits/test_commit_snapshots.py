"""Snapshots of the commit log: when they are written, what they may remove, and what may go wrong.

Two shortcuts look alike and are wrong; each has a test beside the one of how it is done here.
"""

from __future__ import annotations

import itertools
import logging
import random
import shutil
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from commits import (
    SNAPSHOT_COMMITS,
    CommitLogUnavailable,
    CommitStore,
    CorruptCommitLog,
    Epoch,
    FencedMember,
    PartitionCommits,
    Pending,
    check_table,
    path_engine,
)
from commits.engine import AppendConflict
from commits.entries import VersionEntry
from commits.fold import GroupState, LogState
from commits.log import VACUUM_SEGMENTS
from commits.rows import SCHEMA, Event, decode, encode
from commits.snapshot import newest_snapshot, snapshot_events
from tests.bench.year import Sizes, simulated
from tests.commit_suite import as_written_before

P0, P1 = ("t", 0), ("t", 1)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where a commit table may be made."""
    return str(tmp_path / "commits")


def started(path: str, *members: str, **options: int) -> tuple[CommitStore, Epoch]:
    """A store on a table with segments of ten versions, and an epoch of these members."""
    store = CommitStore.open(path, **({"segment_versions": 10} | options))
    shares = {member: [P0, P1] for member in members or ("m",)}
    return store, store.open_epoch("g", shares, previous=store.current_epoch("g"))


def fill(store: CommitStore, epoch: Epoch, first: int, last: int) -> None:
    """Every third offset from the first number to before the last one, a commit each."""
    for n in range(first, last):
        store.commit("g", epoch, "m", {P0: [(3 * n, 3 * n)]}, commit_id=f"run-{n}",
                     pending={P1: [Pending(7, n)]})  # fmt: skip


def seen(store: CommitStore) -> list[object]:
    """All a user can see of the state of the group."""
    return [
        store.state("g"), store.pending("g"), store.assignment("g"),
        sorted(store.counted_commits("g")), store.settings(),
    ]  # fmt: skip


def snapshots(path: str) -> list[int]:
    """The versions that brought a snapshot, oldest first."""
    return sorted(CommitStore.open(path)._engine.compactions())


def read_back(state: LogState, snapshot_id: str, **more: bool) -> list[Event]:
    """A snapshot as it is read back from the table."""
    rows = encode(snapshot_events(state, snapshot_id, **more), 0)
    rows = rows.append_column("_commit_version", pa.array([0] * len(rows), pa.int64()))
    return [event for _, event in decode(rows, "")]


def test_a_snapshot_that_comes_while_a_repair_is_written_does_not_count() -> None:
    """Of the same version or a later one, in any order; the log of the repaired store goes on."""
    old, late = LogState(7, settings={("", ""): {"x": "old"}}), LogState(8)
    repaired = LogState(7, settings={("", ""): {"x": "new"}}, store="b")
    after = LogState(12, settings={("", ""): {"x": "newer"}}, store="b")
    again = LogState(20, store="c")
    both = [*read_back(old, "1"), *read_back(repaired, "2", repair=True), *read_back(late, "3")]
    for events in (both, both[::-1]):
        assert newest_snapshot(events) == repaired
        assert newest_snapshot([*events, *read_back(after, "0")]) == after
        assert (
            newest_snapshot([*events, *read_back(after, "0"), *read_back(again, "9", repair=True)])
            == again
        )
    assert newest_snapshot([*read_back(old, "1"), *read_back(late, "3")]) == late
    head = read_back(LogState(9, {("", "g"): GroupState()}, store="d"), "4", repair=True)[:1]
    assert newest_snapshot([*both, *head]) == repaired  # of one that was not written whole
    assert newest_snapshot(head) is None


def set_properties(path: str, **properties: str) -> None:
    """Change properties of the table, as its owner may."""
    named = {f"delta.{name}": value for name, value in properties.items()}
    DeltaTable(path).alter.set_table_properties(named)


def test_commits_write_snapshots_by_themselves(path: str) -> None:
    """After so many appends by any writer, and again; a new reader then reads little."""
    store, epoch = started(path, snapshot_commits=15)
    other = CommitStore.open(path, snapshot_commits=15)
    for n in range(60):
        (store, other)[n % 2].commit("g", epoch, "m", {P0: [(3 * n, 3 * n)]})
    at = snapshots(path)
    assert 3 <= len(at) <= 4
    assert all(15 <= after - before <= 19 for before, after in zip([0, *at], at, strict=False))
    assert store._log.since.commits < 15
    assert CommitStore.open(path).state("g")[P0].ranges.range_count == 59
    assert len(DeltaTable(path).file_uris()) < 40


def test_the_writer_of_a_snapshot_writes_the_next_one(path: str) -> None:
    """Others leave it to that one, and write one if it is late; then it is theirs."""
    first, epoch = started(path, snapshot_commits=32)
    other = CommitStore.open(path, snapshot_commits=32)
    done = itertools.count()

    def writer(*stores: CommitStore) -> CommitStore:
        """Who writes the next snapshot, as these commit in turn."""
        before = len(snapshots(path))
        for number, store in enumerate(itertools.cycle(stores)):
            store.commit("g", epoch, "m", {P0: [(3 * next(done),) * 2]})
            # Before, none is due; to look takes longer than to commit.
            if number > 28 and len(snapshots(path)) > before:
                return store
        raise AssertionError

    assert writer(first) is first
    assert [writer(first, other) for _ in range(3)] == [first] * 3
    assert writer(other) is other
    assert [writer(first, other) for _ in range(3)] == [other] * 3
    at = snapshots(path)
    assert max(after - before for before, after in itertools.pairwise(at)) <= 32 * 3 // 2


def test_a_setting_says_how_often(path: str) -> None:
    """The store's setting goes before what it was opened with; 0 switches snapshots off."""
    store, epoch = started(path, snapshot_commits=5)
    store.set_setting(SNAPSHOT_COMMITS, 0)
    fill(store, epoch, 0, 30)
    assert snapshots(path) == []
    store.set_setting(SNAPSHOT_COMMITS, 10)
    fill(store, epoch, 30, 31)
    assert len(snapshots(path)) == 1
    with pytest.raises(ValueError, match="snapshot_bytes"):
        CommitStore.open(path, snapshot_bytes=-1)


def test_many_bytes_make_a_snapshot_sooner(path: str) -> None:
    """Large commits are folded into a snapshot before there are many of them."""
    store, epoch = started(path, snapshot_commits=0, snapshot_bytes=50_000)
    fill(store, epoch, 0, 20)
    assert snapshots(path) == []
    source = random.Random(1)
    for n in range(1, 13):
        drawn = sorted(source.sample(range(n * 60_000, (n + 1) * 60_000), 10_000))
        store.commit("g", epoch, "m", {P1: [(offset, offset) for offset in drawn]})
    assert len(snapshots(path)) >= 2
    assert CommitStore.open(path).state("g") == store.state("g")


def test_a_snapshot_that_fails_is_no_error_of_the_commit(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The commit is answered, the failure is logged, and it is not tried at every commit."""
    store, epoch = started(path, snapshot_commits=10)
    calls = []

    def full(*_: object, **__: object) -> int:
        calls.append(store._engine.version)
        raise CommitLogUnavailable(path, "compact", "disk full")

    store._engine.replace = full  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING, "commits.log"):
        for n in range(70):
            assert store.commit("g", epoch, "m", {P0: [(n, n)]})[P0].stable_offset == n + 1
    assert 1 <= len(calls) <= 2
    assert "disk full" in caplog.text
    assert CommitStore.open(path).state("g") == {P0: PartitionCommits(70)}


def test_four_writers_that_never_pause_get_their_snapshots(path: str) -> None:
    """Snapshots by the writers themselves land while all four commit on, and nothing is lost."""
    _, epoch = started(path, *"abcd")
    acknowledged: dict[str, list[int]] = {}
    stop = threading.Event()

    def write(member: str, lane: int) -> None:
        mine = CommitStore.open(path, snapshot_commits=20)
        done = acknowledged.setdefault(member, [])
        while not stop.is_set():
            offset = 4 * len(done) + lane
            result = mine.commit("g", epoch, member, {P0: [(offset, offset)]})[P0]
            assert result.committed == 1
            done.append(offset)

    writers = [threading.Thread(target=write, args=(m, n)) for n, m in enumerate("abcd")]
    for writer in writers:
        writer.start()
    watcher = CommitStore.open(path)

    def is_cut() -> bool:
        """Whether much of what was appended is in snapshots by now."""
        table = DeltaTable(path)
        is_short = len(table.file_uris()) < table.version() - 60
        return table.version() >= 150 and is_short and len(snapshots(path)) >= 3

    try:
        while not is_cut() and all(writer.is_alive() for writer in writers):
            assert watcher.state("g") is not None  # readers go on meanwhile
            stop.wait(0.02)
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert len(snapshots(path)) >= 3
    assert len(DeltaTable(path).file_uris()) < DeltaTable(path).version() - 50
    found = CommitStore.open(path).state("g")[P0]
    assert found == watcher.state("g")[P0]
    for done in acknowledged.values():
        assert all(offset < found.stable_offset or offset in found.ranges for offset in done)
    assert found.stable_offset + len(found.ranges) == sum(map(len, acknowledged.values()))


def _late_row(path: str, store: CommitStore, epoch: Epoch) -> pa.Table:
    """A commit of somebody whose handle is older than the fold, in the last closed segment."""
    late = CommitStore.open(path)
    late.commit("g", epoch, "m", {P1: [(0, 4)]}, commit_id="late")
    rows = DeltaTable(path).to_pyarrow_table(columns=SCHEMA.names).to_pylist()
    late_row = next(row for row in rows if row["row_id"] == "late")
    assert store._engine.version == DeltaTable(path).version() - 1  # the fold does not know it
    return pa.Table.from_pylist([late_row | {"segment": 0, "row_id": "later"}], schema=SCHEMA)


def _snapshot_of(version: int) -> pa.Table:
    return encode(snapshot_events(LogState(version), "s"), 1)


def test_an_overwrite_of_the_newest_version_would_lose_commits(path: str) -> None:
    """Why a pinned handle: the shortcut removes a row that was never folded, and says nothing."""
    store, epoch = started(path)
    fill(store, epoch, 0, 30)
    store.state("g")
    at = store._engine.version
    row = _late_row(path, store, epoch)
    write_deltalake(path, row, mode="append")
    nothing = SCHEMA.empty_table()
    with pytest.raises(AppendConflict):
        store._engine.replace(_snapshot_of(at), at=at, closed=1)
    assert "later" in DeltaTable(path).to_pyarrow_table(columns=["row_id"])["row_id"].to_pylist()
    write_deltalake(path, nothing, mode="overwrite", predicate="segment <= 1")  # the shortcut
    left = DeltaTable(path).to_pyarrow_table(columns=["row_id"])["row_id"].to_pylist()
    assert "later" not in left


def test_a_snapshot_of_the_whole_table_would_never_land(path: str) -> None:
    """Why segments: any append meanwhile is in the way of a removal of all, not of closed ones."""
    store, epoch = started(path)
    fill(store, epoch, 0, 30)
    at = DeltaTable(path).version()
    pinned = DeltaTable(path)
    CommitStore.open(path).commit("g", epoch, "m", {P1: [(0, 4)]})
    with pytest.raises(CommitFailedError):
        write_deltalake(pinned, SCHEMA.empty_table(), mode="overwrite", predicate="segment <= 99")
    assert store._engine.replace(_snapshot_of(at), at=at, closed=1) > at


def test_of_closed_segments_only_the_snapshot_is_left(path: str) -> None:
    """Whatever they had; younger segments keep what they have."""
    store, epoch = started(path)
    fill(store, epoch, 0, 47)
    store.compact()
    closed = store._log._closed(store._log._snapshot_at)
    assert closed == 3
    left = pa.table(DeltaTable(path).get_add_actions(flatten=True))
    kinds = zip(left["partition.segment"].to_pylist(), left["min.kind"].to_pylist(), strict=True)
    assert [kind for segment, kind in kinds if segment <= closed] == ["snapshot"]
    assert max(left["partition.segment"].to_pylist()) > closed


def test_an_append_behind_a_snapshot_does_not_open_the_table_again(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads on, and its rows are in a segment that is not closed: all writers meet each one."""
    store, epoch = started(path)
    other = CommitStore.open(path, segment_versions=10)
    fill(store, epoch, 0, 25)
    other.commit("g", epoch, "m", {P1: [(0, 0)]})
    fill(store, epoch, 25, 47)
    store.compact()
    closed = store._log._closed(store._log._snapshot_at)
    opened: list[object] = []
    opens = path_engine.PathEngine._open
    monkeypatch.setattr(
        path_engine.PathEngine, "_open", lambda self: opened.append(self) or opens(self)
    )
    assert other.commit("g", epoch, "m", {P1: [(1, 1)]})[P1].stable_offset == 2
    assert not opened
    monkeypatch.undo()
    newest = VersionEntry.parse(max(Path(path, "_delta_log").glob("*.json")).read_bytes())
    (segment,) = (int(Path(file).parent.name.removeprefix("segment=")) for file in newest.files)
    assert segment > closed
    assert seen(CommitStore.open(path)) == seen(store) == seen(other)


def test_a_kill_at_any_step_leaves_the_same_state(path: str, tmp_path: Path) -> None:
    """After each file that a snapshot and its cleaning add or remove, the next one goes on.

    Data files, entries, checkpoints and `_last_checkpoint` appear in the order in which they were
    written; old entries go in any order.
    """
    store, epoch = started(path)
    fill(store, epoch, 0, 60)
    set_properties(path, logRetentionDuration="interval 0 seconds")
    store.compact()  # The next one removes what this one replaces.
    fill(store, epoch, 60, 62)
    expected, root = seen(store), Path(path)
    before = tmp_path / "before"
    shutil.copytree(root, before)
    assert store.compact() is not None
    old, new = ({p.relative_to(r): p for p in r.rglob("*") if p.is_file()} for r in (before, root))
    added = [p for p in new if p not in old or new[p].read_bytes() != old[p].read_bytes()]
    # On a quick machine two of them may have the same time.
    last = {".parquet": 0, ".json": 1, "": 3}
    added.sort(key=lambda p: (new[p].stat().st_mtime_ns, 2 if _is_check(p) else last[p.suffix]))
    removed = sorted(set(old) - set(new))
    assert [p.suffix for p in added] == [".parquet", ".json", ".parquet", ""]
    assert len(removed) > 40
    states = [(added[:count], removed[:0]) for count in range(len(added) + 1)]
    source = random.Random(3)
    states += [(added, source.sample(removed, count)) for count in (1, 20, len(removed))]
    for number, (there, gone) in enumerate(states):
        copy = tmp_path / str(number)
        shutil.copytree(before, copy)
        for file in there:
            (copy / file).parent.mkdir(exist_ok=True)
            shutil.copy(new[file], copy / file)
        for file in gone:
            (copy / file).unlink()
        after = CommitStore.open(copy)
        assert seen(after) == expected, number
        assert after.commit("g", epoch, "m", {P0: [(1, 2)]})[P0].stable_offset == 4
        after.compact()
        after.vacuum()
        assert CommitStore.open(copy).state("g") == after.state("g")
        shutil.rmtree(copy)


def _is_check(path: Path) -> bool:
    return path.name.endswith(".checkpoint.parquet")


def test_the_snapshot_before_the_newest_one_stays_readable(path: str) -> None:
    """A file of the newest one may be lost: the one before it and later commits have all."""
    store, epoch = started(path)
    set_properties(path, logRetentionDuration="interval 0 seconds")
    for n in range(3):
        fill(store, epoch, 50 * n, 50 * n + 50)
        at = store.compact()
    files = [file for file in Path(path).rglob("*.parquet") if "_delta_log" not in file.parts]
    max(files, key=lambda file: file.stat().st_mtime_ns).unlink()
    found = check_table(path)
    assert at is not None
    assert 0 < found.snapshot_version < at - 50
    assert found.is_sound
    assert seen(CommitStore.open(path)) == seen(store)


@pytest.mark.parametrize("step", ["replace", "refresh", "_checkpoint", "tidy", "vacuum"])
def test_an_error_at_any_step_leaves_the_same_state(path: str, step: str) -> None:
    """The store whose snapshot failed half-way goes on as well as a new one does."""
    store, epoch = started(path, segment_versions=2)
    fill(store, epoch, 0, 2 * VACUUM_SEGMENTS + 10)
    expected = seen(store)
    done = getattr(store._engine, step)

    def fail(*args: object, **kwargs: object) -> object:
        if step == "replace":
            done(*args, **kwargs)  # it is there, without an answer
        raise CommitLogUnavailable(path, "compact", "unplugged")

    setattr(store._engine, step, fail)
    store._log.compact_if_due(1, 0)
    store._log.remove_old()
    setattr(store._engine, step, done)
    assert seen(store) == seen(CommitStore.open(path)) == expected
    assert store.commit("g", epoch, "m", {P0: [(1, 2)]})[P0].stable_offset == 4
    assert CommitStore.open(path).state("g") == store.state("g")


@pytest.mark.parametrize("step", ["tidy", "vacuum"])
@pytest.mark.parametrize("call", ["maintain", "compact", "vacuum"])
def test_slots_keep_their_leases_while_old_files_are_removed(
    path: str, step: str, call: str
) -> None:
    """It takes seconds with some 100,000 versions, and a lease depends on a read of the log."""
    store, epoch = started(path, segment_versions=2, snapshot_commits=0)
    fill(store, epoch, 0, 5)
    store.compact()
    fill(store, epoch, 5, 2 * VACUUM_SEGMENTS + 10)
    store._snapshot_commits = 1
    store._log._disturbed_at = store.version()
    checked: list[bool] = []

    def remove(*_: object) -> int:
        reader = threading.Thread(target=store.check, args=("g", epoch, "m"), daemon=True)
        reader.start()
        reader.join(10.0)
        checked.append(not reader.is_alive())
        return 0

    setattr(store._engine, step, remove)
    getattr(store, call)()
    assert checked == ([] if (call, step) == ("compact", "vacuum") else [True])


def test_vacuum_keeps_what_may_be_under_way(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All young files stay; old ones go, as do those of failed appends."""
    store, epoch = started(path)
    fill(store, epoch, 0, 60)
    store.compact()
    files = len([*Path(path).glob("segment=*/*.parquet")])
    orphan = Path(path, "segment=0", "part-00000-00000000-0000-0000-0000-000000000000.parquet")
    orphan.parent.mkdir(exist_ok=True)
    orphan.write_bytes(b"of an append that is under way")
    assert store.vacuum(retention_hours=1) == 0
    assert len([*Path(path).glob("segment=*/*.parquet")]) == files + 1
    with pytest.raises(ValueError, match="running commit"):
        store.vacuum(retention_hours=0)
    assert store.vacuum() == 0
    monkeypatch.setattr(path_engine, "_FILE_HOURS", 0)
    assert store.vacuum() > 40
    assert not orphan.exists()
    assert seen(CommitStore.open(path)) == seen(store)


def test_automatic_snapshots_also_remove_old_files(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once in so many segments; so a table that only grows keeps what its retention says."""
    store, epoch = started(path, segment_versions=2, snapshot_commits=8)
    monkeypatch.setattr(path_engine, "_FILE_HOURS", 0)
    fill(store, epoch, 0, 4 * VACUUM_SEGMENTS)
    versions = DeltaTable(path).version()
    assert len([*Path(path).glob("segment=*/*.parquet")]) < versions - 2 * VACUUM_SEGMENTS + 10
    assert seen(CommitStore.open(path)) == seen(store)


def test_a_table_does_not_grow_for_ever() -> None:
    """At one commit a second a year later it takes what it took after a week."""
    sizes = Sizes(row=5600, entry=800, snapshot=8000, compaction=225, checkpoint=105)
    week, year = (simulated(days * 24 * 3600, sizes) for days in (7, 365))
    assert year.live <= 2 * 1000
    assert year.files < 1.2 * week.files
    assert year.size < 1.1 * week.size


def test_what_others_take_out_still_counts_and_is_saved(path: str) -> None:
    """After a RESTORE or DELETE the next commit writes a snapshot, before a vacuum can hurt."""
    for harm in ("restore", "delete"):
        place = f"{path}-{harm}"
        store, epoch = started(place)
        fill(store, epoch, 0, 30)
        store.compact()
        fill(store, epoch, 30, 45)
        expected, other = store.state("g"), CommitStore.open(place)
        if harm == "restore":
            DeltaTable(place).restore(12)
        else:
            DeltaTable(place).delete("segment >= 2")
        assert CommitStore.open(place).state("g") == expected
        before = snapshots(place)
        other.commit("g", epoch, "m", {P0: [(1, 2)]}, commit_id="after")
        assert len(snapshots(place)) == len(before) + 1
        DeltaTable(place).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
        found = CommitStore.open(place)
        assert found.state("g")[P0].stable_offset == 4
        assert found.state("g") == store.state("g")
        assert "after" in found.counted_commits("g")


def test_no_old_epoch_comes_back_to_life(path: str) -> None:
    """A restore to a version under an old epoch leaves the newer one in force, for everybody."""
    store, old = started(path)
    fill(store, old, 0, 12)
    new = store.open_epoch("g", {"n": [P0, P1]}, previous=old)
    store.commit("g", new, "n", {P0: [(1, 1)]})
    store.compact()
    zombie = CommitStore.open(path)
    DeltaTable(path).restore(8)
    for one in (zombie, CommitStore.open(path)):
        with pytest.raises(FencedMember):
            one.commit("g", old, "m", {P0: [(2, 2)]})
        assert one.current_epoch("g") == new
    # And if somebody also removes the newer rows permanently, nobody begins with the old ones.
    DeltaTable(path).vacuum(0, dry_run=False, enforce_retention_duration=False)
    # Entries have their rows, too; a table of an earlier version is damaged.
    assert CommitStore.open(path).current_epoch("g") == new
    with pytest.raises(FencedMember):
        zombie.commit("g", old, "m", {P0: [(2, 2)]})
    as_written_before(path)
    with pytest.raises(CorruptCommitLog, match="rows are missing"):
        CommitStore.open(path)


def test_files_that_were_put_back_are_noticed(path: str, tmp_path: Path) -> None:
    """A folder replaced by an older copy stops every open store, also once it has grown again."""
    store, epoch = started(path)
    fill(store, epoch, 0, 10)
    shutil.copytree(path, tmp_path / "backup")
    fill(store, epoch, 10, 20)
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "backup", path)
    for _ in range(2):
        with pytest.raises((CorruptCommitLog, CommitLogUnavailable)):
            store.commit("g", epoch, "m", {P0: [(1, 1)]})
    assert DeltaTable(path).version() == 11  # and nothing was added to it
    fill(CommitStore.open(path), epoch, 50, 70)
    for _ in range(2):
        with pytest.raises(CorruptCommitLog, match="replaced"):
            store.state("g")


def test_what_an_entry_of_the_tables_log_says() -> None:
    """Appends, snapshots of both engines, and changes by others are distinguished."""
    add, remove = '{"add":{"path":"a"}}', '{"remove":{"path":"a","dataChange":true}}'
    append = '{"commitInfo":{"operation":"WRITE","operationParameters":{"mode":"Append"}%s}}'
    entry = VersionEntry.parse(f"{append % ''}\n{add}\n".encode())
    assert (entry.is_append, entry.snapshot_of, entry.disturbs) == (True, -1, False)
    assert not VersionEntry.parse((append % "").encode()).is_append  # it added nothing
    for words in (',"coopconsume.folded":"7"',
                  ',"userMetadata":"{\\"coopconsume.folded\\": 7}"'):  # fmt: skip
        entry = VersionEntry.parse(f"{append % words}\n{add}\n{remove}".encode())
        assert (entry.is_append, entry.snapshot_of, entry.disturbs) == (False, 7, False)
    for words in (',"coopconsume.folded":"x"', ',"userMetadata":"by hand"',
                  ',"userMetadata":"[]"'):  # fmt: skip
        assert VersionEntry.parse(f"{append % words}\n{add}".encode()).snapshot_of == -1
    assert VersionEntry.parse(f"{add}\n{remove}".encode()).disturbs
    optimised = remove.replace("true", "false")
    # Tails are read from files that OPTIMIZE leaves for a vacuum to take.
    assert VersionEntry.parse(f"{add}\n{optimised}".encode()).disturbs
    assert VersionEntry.parse(b'{"commitInfo":{"operation":"RESTORE"}}').disturbs
    assert VersionEntry.parse(b'{"add":{"path":"a%20b"}}').files == ("a b",)
    for nonsense in (b"{", b"[]", b"7", b'{"add":{}}'):
        with pytest.raises((KeyError, ValueError)):
            VersionEntry.parse(nonsense)
