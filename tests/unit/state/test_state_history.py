"""How many changes a state keeps, and what a state without history keeps of it.

The commit table, the changelog and the local stores are real; Spark and the broker are not needed.
"""

from __future__ import annotations

import random
import shutil
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from assignors import KeyRange, key_hash
from commits.table_appender import TableAppender
from commits.table_files import DiskFiles
from coopconsume import CooperativeConsumer
from coopconsume.errors import InvalidOption, OutputNotWritten, StateNotReadable
from coopconsume.options import Options
from coopconsume.runtime.commit.state_log import _LEAST_BYTES, StateLog
from coopconsume.state.changelog import Changelog
from coopconsume.state.schema import StateSchema
from coopconsume.state.store import LocalStore
from coopconsume.state.table import StateTable
from tests.unit.state.test_state_reading import ORIGIN, PLACE, Job
from tests.unit.state.test_state_reset import Disk, Faults, begin, planned, reset, values

if TYPE_CHECKING:
    from pathlib import Path

WHOLE = [(0, KeyRange().last)]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A job that has loaded its state."""
    job = Job(tmp_path)
    begin(job)
    return job


def log_of(job: Job, history: int = 0) -> StateLog:
    """The state on the driver, by default without history."""
    return StateLog(job.changelog.path, job.changelog.schema, history=history)


def many(
    job: Job, commit: str, count: int, keys: int, *, counts: bool = True, value: Any = None
) -> None:
    """Many records change the state of keys in turn, each to its offset or to a value."""
    at = range(job.offset, job.offset + count)
    names = [b"key-%d" % (offset % keys) for offset in at]
    same = {"_topic": "t", "_topic_id": ORIGIN.topic_id, "_partition": 0, "_commit": commit}
    rows = {
        "key": names, "value": list(at) if value is None else [value] * count,
        "expires_at": [None] * count, "_offset": list(at),
        "_key_hash": [key_hash(name) for name in names],
        **{name: [value] * count for name, value in same.items()},
    }  # fmt: skip
    schema = job.changelog.schema.changelog
    job.changelog.append(pa.table({name: rows[name] for name in schema.names}, schema))
    if counts:
        job.store.commit(
            "g", job.epoch, "m", {PLACE: [(at[0], at[-1])]}, commit_id=commit,
            topic_ids={"t": ORIGIN.topic_id},
        )  # fmt: skip
        job.offset += count


def noted(log: StateLog) -> list[int | None]:
    """The numbers of keys of the snapshots that a job writes from now on."""
    written: list[int | None] = []
    write = log._changelog.write_snapshot

    def write_and_note(*given: Any, **more: Any) -> int | None:
        written.append(write(*given, **more))
        return written[-1]

    log._changelog.write_snapshot = write_and_note  # type: ignore[method-assign]
    return written


def sizes(job: Job) -> tuple[int, int]:
    """Bytes of the changelog and of the snapshots, as the newest versions have them."""
    changes = job.changelog.size(ORIGIN, job.changelog.version).size
    return changes, sum(one.size for one in job.changelog.snapshots.of(ORIGIN))


def rows_left(job: Job) -> int:
    """The number of changes in the changelog."""
    return job.changelog.size(ORIGIN, job.changelog.version).rows


def stored(job: Job, store: LocalStore, keys: list[bytes]) -> list[int | None]:
    """The values of keys that a slot sees after it has brought its store up to date."""
    counted = job.store.counted_commits("g")
    store.bring_up_to_date(WHOLE, job.changelog.version, counted.__contains__)
    return [store.get(key) for key in keys]


def store_of(job: Job, name: str = "stores") -> LocalStore:
    """A local store of a host."""
    return LocalStore(job.changelog, ORIGIN, str(job.folder / name))


@pytest.mark.parametrize("size", [1, 300, 5_000])
def test_without_history_a_state_at_rest_is_below_three_snapshots(job: Job, size: int) -> None:
    """Whether commits are large or small: after many updates of few keys and one more look."""
    log, keys = log_of(job), 1_000
    many(job, "first", keys, keys)
    assignment = begin(job, log)
    most = 0
    for at in range(60 if size == 1 else 15):
        many(job, f"w-{at}", size, keys)
        log._snapshot_if_due(assignment, PLACE)
        most = max(most, sum(sizes(job)))
    expected = {name.encode(): value for name, value in values(job).items()}
    changes, snapshots = sizes(job)
    job.snapshot()
    # Fewer bytes of changes are not removed.
    one = max(_LEAST_BYTES, job.changelog.snapshots.of(ORIGIN)[-1].size)
    assert changes + snapshots < 3 * one, (changes, snapshots, one)
    assert most < 3 * one, "nor is it larger after any other look"
    store = store_of(job)
    assert stored(job, store, list(expected)) == list(expected.values())
    store.close()


def test_changes_that_are_written_during_a_snapshot_are_new_ones(job: Job) -> None:
    """The next snapshot does not wait for others."""
    log, history = log_of(job, history=2_000), 2_000
    write, rounds = log._changelog.write_snapshot, 3

    def slowly(*given: Any, **more: Any) -> int | None:
        answer = write(*given, **more)
        many(job, f"meanwhile-{job.offset}", history, 10)
        return answer

    log._changelog.write_snapshot = slowly  # type: ignore[method-assign]
    many(job, "first", history, 10)
    assignment = begin(job, log)
    for at in range(rounds):
        log._snapshot_if_due(assignment, PLACE)
        assert len(job.changelog.snapshots.of(ORIGIN)) == min(at + 1, 2)
        assert rows_left(job) == 2 * history
    log._changelog.write_snapshot = write  # type: ignore[method-assign]
    log._snapshot_if_due(assignment, PLACE)
    assert rows_left(job) == history
    assert not log._has_history(assignment, PLACE)


def test_a_snapshot_is_worth_as_many_changes_as_it_has_bytes(job: Job) -> None:
    """With few changes nothing is written; nothing again while nothing more can be removed."""
    log = log_of(job)
    written, assignment = noted(log), begin(job, log)
    log._snapshot_if_due(assignment, PLACE)
    many(job, "w-0", 100, 100)
    log._snapshot_if_due(assignment, PLACE)
    assert written == []
    many(job, "w-1", 5_000, 5_000)
    log._snapshot_if_due(assignment, PLACE)
    assert (written, rows_left(job)) == ([5_000], 0)
    many(job, "w-2", 500, 500)
    for _ in range(2):
        log._snapshot_if_due(assignment, PLACE)
    assert (written, rows_left(job)) == ([5_000], 500)
    # A record is not done, so that the changes of later ones cannot be removed.
    job.offset += 1
    many(job, "w-3", 20_000, 5_000)
    for _ in range(2):
        log._snapshot_if_due(assignment, PLACE)
    assert (written, rows_left(job)) == ([5_000], 20_500)
    end, job.offset = job.offset, 5_600
    many(job, "w-4", 1, 1)
    job.offset = end
    for _ in range(2):
        log._snapshot_if_due(assignment, PLACE)
    assert (written, rows_left(job)) == ([5_000, 5_000], 0)


def test_with_history_so_many_changes_are_kept(job: Job) -> None:
    """The offsets of the last of them can be set back with the state."""
    log = log_of(job, history=2_000)
    assignment = begin(job, log)
    for at in range(14):
        many(job, f"w-{at}", 500, 50)
        log._snapshot_if_due(assignment, PLACE)
        back = max(job.offset - 2_000, 0)
        assert planned(job, back).moves[PLACE].below == back
    assert 2_000 <= rows_left(job) <= 5_000
    with pytest.raises(StateNotReadable, match="history"):
        planned(job, job.offset - 6_000)


def test_an_earlier_state_that_is_not_kept_is_refused_with_the_remedy(job: Job) -> None:
    """By commands, by functions and by a reset, also after the first snapshot."""
    log = log_of(job)
    job.change("w-0", a=1, b=1)
    job.change("w-1", a=2)
    log.snapshot(begin(job, log), PLACE)
    last = job.store.version()
    with pytest.raises(StateNotReadable, match=r"were removed.*history"):
        job.committed().rows(at="w-0")
    with pytest.raises(StateNotReadable, match=r"below offset 3; foreach_with_state\(history"):
        planned(job, 2)
    job.change("w-2", a=3)
    assert len(job.committed().rows(at=last)) == 2
    reset(job, 3)
    assert values(job) == {"a": 2, "b": 1}
    reset(job, 0)
    assert values(job) == {}


def test_changes_whose_commits_are_not_decided_stay(job: Job) -> None:
    """They come to count later, and are in the snapshot after that."""
    log = log_of(job)
    assignment = begin(job, log)
    many(job, "w-0", 100, 100)
    many(job, "open", 100, 100, counts=False)
    log.snapshot(assignment, PLACE)
    assert rows_left(job) == 100
    job.store.commit(
        "g", job.epoch, "m", {PLACE: [(100, 199)]}, commit_id="open",
        topic_ids={"t": ORIGIN.topic_id},
    )  # fmt: skip
    job.offset = 200
    expected = {f"key-{n}": 100 + n for n in range(100)}
    assert values(job) == expected
    # Nothing was written since, and the snapshot of this version lacks them.
    log.snapshot(assignment, PLACE)
    assert (values(job), rows_left(job)) == (expected, 0)


def test_a_snapshot_of_the_newest_version_removes_nothing_that_it_lacks(job: Job) -> None:
    """It was made before a commit counted, by a process that was killed before it removed rows."""
    many(job, "w-0", 100, 100)
    many(job, "open", 100, 100, counts=False)
    job.snapshot()
    job.store.commit(
        "g", job.epoch, "m", {PLACE: [(100, 199)]}, commit_id="open",
        topic_ids={"t": ORIGIN.topic_id},
    )  # fmt: skip
    log = log_of(job)
    log.snapshot(begin(job, log), PLACE)
    assert (values(job), rows_left(job)) == ({f"key-{n}": 100 + n for n in range(100)}, 0)
    assert len(job.changelog.snapshots.versions(ORIGIN)) == 1


def test_an_older_snapshot_removes_nothing(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writer was frozen, while another member wrote a newer one."""
    log = log_of(job)
    job.change("w-0", a=1)
    assignment = begin(job, log)
    find = Changelog.version_for_snapshot

    def slowly(self: Changelog, *given: Any) -> int:
        found = find(self, *given)
        job.snapshot()
        return found

    monkeypatch.setattr(Changelog, "version_for_snapshot", slowly)
    with pytest.raises(OutputNotWritten, match="newer"):
        log.snapshot(assignment, PLACE)
    assert (values(job), rows_left(job)) == ({"a": 1}, 1)


@pytest.mark.parametrize("history", [0, 2_000])
def test_a_new_owner_keeps_as_many_changes(job: Job, history: int) -> None:
    """A hand-over is no reason for a snapshot, which would take the place of an older one."""
    assignment: Any = None
    for at in range(12):
        many(job, f"w-{at}", 500, 50)
        log = log_of(job, history)
        assignment = begin(job, log)
        log._snapshot_if_due(assignment, PLACE)
        back = max(job.offset - history, 0)
        if history:
            assert planned(job, back).moves[PLACE].below == back
    versions = job.changelog.snapshots.versions(ORIGIN)
    assert len(versions) == (2 if history else 1)
    log._snapshot_if_due(assignment, PLACE)
    assert job.changelog.snapshots.versions(ORIGIN) == versions


def test_a_snapshot_that_is_written_while_a_slot_restores_is_not_missed(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slot reads the one before, also if that is removed meanwhile."""
    log = log_of(job)
    job.change("w-0", a=1, b=1)
    log.snapshot(assignment := begin(job, log), PLACE)
    job.change("w-1", a=2)
    table = job.changelog.snapshots.table

    def slowly() -> DeltaTable | None:
        found = StateTable.open(table)
        monkeypatch.undo()
        log.snapshot(assignment, PLACE)
        return found

    for name in ("one", "another"):
        store = store_of(job, name)
        monkeypatch.setattr(table, "open", slowly)
        assert stored(job, store, [b"a", b"b"]) == [2, 1]
        store.close()
        job.change(name, c=1)


def test_a_store_behind_what_was_removed_is_restored_and_says_so(job: Job) -> None:
    """From the snapshot; a store that has seen all of it goes on."""
    log, store = log_of(job), store_of(job)
    job.change("w-0", a=1, b=1, c=1)
    assert stored(job, store, [b"a", b"b", b"c"]) == [1, 1, 1]
    job.change("w-1", a=2, b=None)
    log.snapshot(begin(job, log), PLACE)
    assert stored(job, store, [b"a", b"b", b"c"]) == [2, None, 1]
    assert store.restored[0] == 2
    job.change("w-2", c=5)
    assert (stored(job, store, [b"a", b"b", b"c"]), store.restored[0]) == ([2, None, 5], 0)
    store.close()


@pytest.mark.parametrize("after", [False, True])
def test_a_kill_at_any_write_loses_nothing_and_the_next_owner_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, after: bool
) -> None:
    """The next owner of hash 0 removes what is left, also at rest; another history may be asked."""
    job = Job(tmp_path / "first")
    begin(job)
    many(job, "w-0", 3_000, 1_500)
    log = log_of(job)
    log.snapshot(begin(job, log), PLACE)
    many(job, "w-1", 4_000, 1_500)
    expected = values(job)
    for at in range(1, 9):
        shutil.copytree(tmp_path / "first", tmp_path / str(at))
        job = Job(tmp_path / str(at))
        log = log_of(job)
        assignment = begin(job, log)
        faults = Faults(at, after=after)
        with monkeypatch.context() as patch, suppress(Disk, OutputNotWritten):
            patch.setattr("deltalake.write_deltalake", faults.around(_write()))
            patch.setattr(TableAppender, "append", faults.around(TableAppender.append))
            patch.setattr(DeltaTable, "delete", faults.around(DeltaTable.delete))
            patch.setattr(DeltaTable, "vacuum", faults.around(DeltaTable.vacuum))
            log.snapshot(assignment, PLACE)
        assert values(job) == expected
        with suppress(StateNotReadable):
            (move,) = planned(job, 3_000).moves.values()
            assert move.keys_after == 1_500
            then = job.committed().rows(at="w-0").to_pylist()
            assert sorted(row["offset"] for row in then) == list(range(1_500, 3_000))
        log = log_of(job)
        log._snapshot_if_due(begin(job, log), PLACE)
        changes, snapshots = sizes(job)
        (one,) = job.changelog.snapshots.of(ORIGIN)
        assert changes + snapshots < 3 * one.size
        store = store_of(job)
        keys = [name.encode() for name in expected]
        assert stored(job, store, keys) == list(expected.values())
        store.close()
        if faults.left > 0:
            break
    assert faults.left > 0


def _write() -> Any:
    from deltalake import write_deltalake

    return write_deltalake


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(n, marks=[pytest.mark.slow, pytest.mark.nightly] if n > 3 else [])
        for n in range(8)
    ],
)
def test_owners_with_and_without_history_follow_one_another(job: Job, seed: int) -> None:
    """Each key has its last counted value; an earlier state is right, or refused.

    Owners are killed at any write, commits are decided late or never, records are done out of
    order, and local stores are behind.
    """
    rng = random.Random(seed)
    state: dict[str, int | None] = {"k0": 0}
    then = {job.change("c", k0=0): (job.offset, dict(state))}
    log, store = log_of(job), store_of(job)
    assignment = begin(job, log)
    for step in range(30):
        what = rng.choice(["change"] * 4 + ["refused", "snapshot", "snapshot", "owner", "look"])
        some = {f"k{rng.randrange(8)}": rng.choice([None, step]) for _ in range(rng.randint(1, 4))}
        if what == "change":
            state |= some
            version = job.change(f"c-{step}", **some)
            then[version] = job.offset, dict(state)
        elif what == "refused":
            job.change(f"c-{step}", counts=False, **some)
        elif what == "snapshot":
            faults = Faults(rng.randrange(10), after=rng.random() < 0.5)
            with pytest.MonkeyPatch.context() as patch, suppress(Disk, OutputNotWritten):
                patch.setattr("deltalake.write_deltalake", faults.around(_write()))
                patch.setattr(TableAppender, "append", faults.around(TableAppender.append))
                patch.setattr(DeltaTable, "delete", faults.around(DeltaTable.delete))
                log.snapshot(assignment, PLACE)
        elif what == "owner":
            log = log_of(job, history=rng.choice([0, 0, 1_000]))
            assignment = begin(job, log)
        elif what == "look":
            assert stored(job, store, [b"k%d" % n for n in range(8)]) == [
                state.get(f"k{n}") for n in range(8)
            ]
        alive = {key: value for key, value in state.items() if value is not None}
        if rng.random() < 0.4:
            assert values(job) == alive, (step, what)
        if rng.random() < 0.3:
            version, (offset, was) = rng.choice(list(then.items()))
            was = {key: value for key, value in was.items() if value is not None}
            with suppress(StateNotReadable):
                found = job.committed().rows(at=version).to_pylist()
                assert {row["key"].decode(): row["value"] for row in found} == was, (step, version)
            with suppress(StateNotReadable):
                assert planned(job, offset).moves[PLACE].keys_after == len(was), (step, offset)
    store.close()


def test_changes_that_are_committed_while_a_snapshot_is_made_stay(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be of a version that it does not read."""
    log, find = log_of(job), Changelog.version_for_snapshot
    job.change("w-0", a=1, b=1)

    def slowly(self: Changelog, *given: Any) -> int:
        found = find(self, *given)
        job.change("w-1", a=2, c=2)
        return found

    monkeypatch.setattr(Changelog, "version_for_snapshot", slowly)
    log.snapshot(begin(job, log), PLACE)
    assert (values(job), rows_left(job)) == ({"a": 2, "b": 1, "c": 2}, 2)


def test_wide_values_are_not_rewritten_if_nothing_can_be_removed(job: Job, tmp_path: Path) -> None:
    """Delta has statistics of the first 32 columns only, so not of their offsets."""
    kind = pa.struct([(f"c{n}", pa.int64()) for n in range(40)])
    schema = StateSchema(kind)
    log = StateLog(str(tmp_path / "wide"), schema, history=0)
    written, assignment = noted(log), begin(job, log)
    job.changelog = log._changelog
    value = {f"c{n}": n for n in range(40)}
    for at in range(2):
        many(job, f"w-{at}", 8_000, 500, value=value)
        for _ in range(2):
            log._snapshot_if_due(assignment, PLACE)
        assert (len(written), rows_left(job)) == (at + 1, 0)
    job.offset += 1
    many(job, "w-2", 8_000, 500, value=value)
    for _ in range(3):
        log._snapshot_if_due(assignment, PLACE)
    assert (len(written), rows_left(job)) == (2, 8_000)


def test_history_is_a_number_of_changes(tmp_path: Path) -> None:
    """It comes to the state; anything else is refused."""
    options = Options.parse(
        {
            "kafka.bootstrap.servers": "localhost:1", "kafka.group.id": "g", "subscribe": "t",
            "commitTable": str(tmp_path / "commits"),
        }
    )  # fmt: skip
    subscription = SimpleNamespace(options=options, spark=None)
    consumer: Any = SimpleNamespace(_subscription=subscription, _page=None)

    def made(**more: Any) -> int:
        query = CooperativeConsumer.foreach_with_state(
            consumer, lambda _record, _state: None, state_schema=pa.int64(),
            state=str(tmp_path / "state"), **more,
        )  # fmt: skip
        log: Any = query._job_spec.state
        history: int = log._history
        return history

    assert (made(), made(history=0), made(history=7)) == (200_000, 0, 7)
    for wrong in (-1, True, "10", 1.5, None):
        with pytest.raises(InvalidOption, match="history"):
            made(history=wrong)


def test_changes_are_written_beside_a_removal_of_others(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The removals come between the opening of the table and the write, which goes on behind."""
    many(job, "one", 20, 5)
    changelog, removals = job.changelog, [10, 15]
    create = DiskFiles.create

    def late(*args: Any) -> bool:
        while removals:
            Changelog(changelog.path).trim(ORIGIN, removals.pop(0), changelog.version)
        return create(*args)

    monkeypatch.setattr(DiskFiles, "create", late)
    before = changelog.version
    many(job, "two", 3, 5)
    assert not removals
    rows = changelog.changes(ORIGIN, changelog.version, WHOLE)
    assert sorted(rows.column("_offset").to_pylist()) == [15, 16, 17, 18, 19, 20, 21, 22]
    assert changelog.version > before


def test_changes_that_deltalake_writes_are_repeated_after_a_removal(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses them, as the removal comes between its opening of the table and its write."""
    many(job, "one", 20, 5)
    changelog, removals = job.changelog, [10, 15]
    create = changelog.create

    def opened() -> DeltaTable:
        table = create()
        if removals:
            Changelog(changelog.path).trim(ORIGIN, removals.pop(0), int(table.version()))
        return table

    monkeypatch.setattr(changelog, "create", opened)
    monkeypatch.setattr(TableAppender, "append", lambda *_: None)
    many(job, "two", 3, 5)
    assert not removals
    rows = changelog.changes(ORIGIN, changelog.version, WHOLE)
    assert sorted(rows.column("_offset").to_pylist()) == [15, 16, 17, 18, 19, 20, 21, 22]


def test_changes_and_snapshots_of_tables_that_exist_are_entries_of_their_logs(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their files have statistics. `deltalake` makes the tables."""
    many(job, "one", 20, 5)
    job.snapshot()
    with monkeypatch.context() as patch:
        patch.setattr("deltalake.write_deltalake", lambda *_, **__: pytest.fail("by deltalake"))
        many(job, "two", 3, 5)
        job.snapshot()
        many(job, "three", 2, 5)
    changelog = job.changelog
    assert changelog.size(ORIGIN, changelog.version, below=23).rows == 23
    (first, second) = changelog.snapshots.of(ORIGIN)
    assert (first.keys, second.keys, first.top, second.top) == (5, 5, 19, 22)
    rows = changelog.changes(ORIGIN, changelog.version, WHOLE)
    assert rows.num_rows == job.offset


def test_versions_of_snapshots_ascend(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Delta table lists its files in any order."""
    places = [{"_snapshot": version} for version in ("12", "8", "10")]
    monkeypatch.setattr(job.changelog.snapshots.table, "places", lambda *_: places)
    assert job.changelog.snapshots.versions(ORIGIN) == [8, 10, 12]
