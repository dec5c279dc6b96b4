"""The commit store on a table of a catalog: the same behaviour by Spark alone."""

from __future__ import annotations

import itertools
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from commits import (
    CommitLogUnavailable,
    CommitStore,
    CommitTableFormat,
    CorruptCommitLog,
    FencedMember,
    OffsetRanges,
    PartitionCommits,
    Pending,
    UnsupportedTarget,
    check_table,
    move_table,
    repair_table,
)
from commits.places import taking_turns
from commits.rows import Event, Part, encode
from commits.spark_engine import SparkEngine
from coopconsume import CooperativeConsumer, committed_rows
from coopconsume.cli import main
from coopconsume.errors import InvalidOption
from tests.commit_suite import P0, P1, check_behaviour, opened, seen
from tests.spark.support import options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from coopconsume import Record, State
    from coopconsume.testing.local.broker import LocalKafka
    from tests.conftest import TopicFactory

pytestmark = pytest.mark.spark

_names = itertools.count(1)


@pytest.fixture
def name(spark: SparkSession) -> Iterator[str]:
    """A name that no table has, in a schema of the session's catalog."""
    spark.sql("CREATE SCHEMA IF NOT EXISTS sales")
    name = f"spark_catalog.sales.commits_{next(_names)}"
    yield name
    spark.sql(f"DROP TABLE IF EXISTS {name}")


@pytest.mark.broker
def test_no_table_is_inside_one_of_a_catalog(
    spark: SparkSession, kafka: LocalKafka, topic: TopicFactory, tmp_path: Path, name: str
) -> None:
    """Its location is known once it is open: nothing is joined, and nothing is written there."""
    CommitStore.open(name, spark=spark)
    location = spark.sql(f"DESCRIBE DETAIL {name}").collect()[0]["location"]
    folder = Path(location.removeprefix("file:"))
    around, inside = str(folder.parent), str(folder / "inside")
    given = options(kafka, tmp_path, topic(1), commitTable=name)
    with (
        CooperativeConsumer({**given, "deadLetter": around}, spark) as consumer,
        pytest.raises(InvalidOption, match=r"commitTable = .*inside deadLetter"),
    ):
        consumer._subscription.joined()
    with CooperativeConsumer(given, spark) as consumer:
        for is_member in (False, True):
            if is_member:
                consumer._subscription.joined()
            assert bool(consumer.assignment()) is is_member
            with pytest.raises(InvalidOption, match=r"commitTable = .*inside output"):
                consumer.foreach(ignore, output=around, output_schema="value string").start()
            with pytest.raises(InvalidOption, match=r"state = .*inside the Delta table"):
                consumer.foreach_with_state(count, state_schema="long", state=inside)
    assert not Path(inside).exists()
    on_a_path = options(kafka, tmp_path, topic(1))
    with CooperativeConsumer(on_a_path, spark) as consumer:
        inside = f"{on_a_path['commitTable']}/inside"
        with pytest.raises(InvalidOption, match=r"state = .*inside commitTable"):
            consumer.foreach_with_state(count, state_schema="long", state=inside)
        with pytest.raises(InvalidOption, match=r"output = .*inside commitTable"):
            consumer.foreach(ignore, output=inside, output_schema="value string")
    with pytest.raises(InvalidOption, match=r"deadLetter = .*inside commitTable"):
        CooperativeConsumer({**on_a_path, "deadLetter": inside}, spark)


def ignore(record: Record) -> None:
    """Do nothing."""


def count(record: Record, state: State) -> None:
    """Counts the records of a key."""
    state.set(state.get(0) + 1)


@pytest.mark.slow
def test_a_table_of_a_catalog_behaves_as_all_do(spark: SparkSession, name: str) -> None:
    """The suite that tables on paths and in buckets pass, too."""
    check_behaviour(partial(CommitStore.open, name, spark=spark))


@pytest.mark.nightly
@pytest.mark.slow
def test_snapshots_of_a_table_of_a_catalog(spark: SparkSession, name: str) -> None:
    """By themselves, past a store that slept and past others who restore the table."""
    store = CommitStore.open(name, spark=spark, segment_versions=2, snapshot_commits=4)
    sleeper = CommitStore.open(name, spark=spark)
    epoch = opened(store)
    for n in range(4):
        store.commit("g", epoch, "m", {P0: [(2 * n, 2 * n)]}, commit_id=f"run-{n}")
    assert len(store._engine.compactions()) == 1
    look, looks = sleeper._engine._look, []
    sleeper._engine._look = lambda count: (looks.append(count), look(count))  # type: ignore[attr-defined]
    for _ in range(3):  # the history is read once
        assert sleeper.state("g") == store.state("g")
        assert len(looks) == 1
    live = spark.table(name)
    assert {row["kind"] for row in live.where("segment <= 0").collect()} == {"snapshot"}
    assert seen(CommitStore.open(name, spark=spark)) == seen(sleeper) == seen(store)
    expected = store.state("g")
    spark.sql(f"RESTORE TABLE {name} TO VERSION AS OF 3").collect()
    spark.sql(f"OPTIMIZE {name}").collect()
    assert CommitStore.open(name, spark=spark).state("g") == expected
    assert sleeper.commit("g", epoch, "m", {P0: [(1, 1)]})[P0].stable_offset == 3
    assert len(sleeper._engine.compactions()) == 2  # what others took out is saved
    assert store.vacuum() >= 0
    assert CommitStore.open(name, spark=spark).state("g") == sleeper.state("g")


def folder_of(spark: SparkSession, name: str) -> Path:
    """Where a table of the session's catalog lies."""
    location = spark.sql(f"DESCRIBE DETAIL {name}").collect()[0]["location"]
    return Path(location.removeprefix("file:"))


@pytest.mark.nightly
@pytest.mark.slow
def test_rows_of_a_closed_segment_are_folded_by_the_next_attempt(
    spark: SparkSession, name: str, tmp_path: Path
) -> None:
    """A row that lands there while a snapshot is written leaves the table, and not the state.

    A kill before a snapshot has its entry changes nothing. No other driver of the machine commits
    while one does.
    """
    store = CommitStore.open(name, spark=spark, segment_versions=2)
    epoch = opened(store)
    for n in range(4):
        store.commit("g", epoch, "m", {P0: [(2 * n, 2 * n)]})
    late = CommitStore.open(name, spark=spark)._engine
    engine = store._engine
    write, calls = engine._write, []

    def overtaken(writer: object, operation: str) -> None:
        if operation == "compact" and not calls:
            parts = (Part("t", 1, "id", offsets=OffsetRanges([(0, 8)])),)
            event = Event("commit", "late-1", "", "g", epoch, member="m", parts=parts)
            late.append(encode([event], 0))
        calls.append(operation)
        write(writer, operation)

    engine._write = overtaken  # type: ignore[attr-defined]
    store.compact()
    assert calls == ["compact", "compact"]
    assert CommitStore.open(name, spark=spark).state("g")[P1] == PartitionCommits(9)
    assert "late-1" in CommitStore.open(name, spark=spark).counted_commits("g")

    folder = folder_of(spark, name)
    for killed_at in engine.compactions():  # before the entry of the one snapshot, or the other
        copy = tmp_path / str(killed_at)
        shutil.copytree(folder, copy)
        for version in range(killed_at, max(engine.compactions()) + 1):
            entries = list(copy.glob(f"_delta_log/*{version:020}*"))
            assert entries
            for entry in entries:
                entry.unlink()
        spark.sql(f"CREATE TABLE {name}_{killed_at} USING DELTA LOCATION '{copy}'")
        after = CommitStore.open(f"{name}_{killed_at}", spark=spark)
        assert seen(after) == seen(store)
        assert after.commit("g", epoch, "m", {P0: [(1, 1)]})[P0].stable_offset == 3
        assert after.compact() is not None
        assert after.state("g")[P1] == PartitionCommits(9)
        spark.sql(f"DROP TABLE {name}_{killed_at}")

    class Writer:
        def saveAsTable(self, name: str) -> None:  # noqa: N802
            with pytest.raises(TimeoutError), taking_turns(folder / "_delta_log", 0):
                pytest.fail("two at once")
            written.append(name)

    written: list[str] = []
    write(Writer(), "append")
    assert written == [name]


def test_an_outage_of_a_catalog_table_is_no_damage(spark: SparkSession, name: str) -> None:
    """A folder or log that cannot be read is unavailable; a missing entry or file is damage."""
    store = CommitStore.open(name, spark=spark)
    epoch = opened(store)
    store.commit("g", epoch, "m", {P0: [(0, 0)]})
    folder = folder_of(spark, name)
    away = folder.with_name(f"{folder.name}-away")

    def commit() -> object:
        return store.commit("g", epoch, "m", {P0: [(1, 1)]}, commit_id="run-1")

    for of, back in ((folder, away), (folder / "_delta_log", folder / "away")):
        of.rename(back)
        of.symlink_to(of)  # every access is an I/O error
        for call in (commit, lambda: store.state("g"), lambda: check_table(name, spark=spark)):
            with pytest.raises(CommitLogUnavailable) as caught:
                call()
            assert "damaged" not in str(caught.value)
        of.unlink()
        back.rename(of)
    commit()
    assert store.state("g") == CommitStore.open(name, spark=spark).state("g")
    assert store.state("g") == {P0: PartitionCommits(2)}
    oldest = min(folder.glob("segment=0/*.parquet"), key=lambda file: file.stat().st_mtime)
    lost = [oldest, folder / "_delta_log" / f"{1:020d}.json"]
    for file in lost:
        saved = file.read_bytes()
        file.unlink()
        with pytest.raises((CorruptCommitLog, CommitLogUnavailable)) as caught:
            CommitStore.open(name, spark=spark).state("g")
        assert isinstance(caught.value, CorruptCommitLog), caught.value
        file.write_bytes(saved)


@pytest.mark.slow
def test_a_table_moves_between_engines_and_loses_nothing(
    spark: SparkSession, name: str, tmp_path: Path
) -> None:
    """From a path to a catalog and back; each target is refused by the other's engine."""
    path, back = str(tmp_path / "commits"), str(tmp_path / "back")
    store = CommitStore.open(path)
    epoch = opened(store)
    store.commit("g", epoch, "m", {P0: [(0, 3), (7, 7)], P1: [(2**53 + 1, 2**53 + 1)]},
                 pending={P0: [Pending(5, 9, 1, 2, "x")]}, commit_id="run-1")  # fmt: skip
    store.set_setting("maxNumRanges", 17)
    expected = [store.state("g"), store.pending("g"), sorted(store.counted_commits("g")),
                store.settings()]  # fmt: skip
    move_table(path, name, spark=spark, quiet_seconds=0)
    move_table(name, back, spark=spark, quiet_seconds=0)
    for moved in (CommitStore.open(name, spark=spark), CommitStore.open(back)):
        assert [moved.state("g"), moved.pending("g"), sorted(moved.counted_commits("g")),
                moved.settings()] == expected  # fmt: skip
        with pytest.raises(FencedMember):
            moved.commit("g", epoch, "m", {P0: [(4, 4)]})
        assert opened(moved).number > epoch.number
    location = spark.sql(f"DESCRIBE DETAIL {name}").collect()[0]["location"]
    with pytest.raises(CommitTableFormat, match="written by Spark alone"):
        CommitStore.open(location.removeprefix("file:"))
    spark.sql(f"CREATE TABLE {name}_path USING DELTA LOCATION 'file:{path}'")
    with pytest.raises(CommitTableFormat, match="written by this library"):
        CommitStore.open(f"{name}_path", spark=spark)
    with pytest.raises(UnsupportedTarget, match="Spark session"):
        CommitStore.open(name)


def test_a_table_of_a_catalog_is_checked_and_repaired(
    spark: SparkSession, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older version takes the place of the newest; earlier members are fenced.

    So is who commits while it is written, which Spark lets pass. By a second name, of an external
    table at the same place, all is the same.
    """
    store = CommitStore.open(name, spark=spark)
    epoch = opened(store)
    for n in range(3):
        store.commit("g", epoch, "m", {P0: [(n, n)]})
    location = spark.sql(f"DESCRIBE DETAIL {name}").collect()[0]["location"]
    external = f"{name}_external"
    spark.sql(f"CREATE TABLE {external} USING DELTA LOCATION '{location}'")
    monkeypatch.setattr("coopconsume.cli.catalog.given_session", lambda: spark)
    checked = CliRunner().invoke(main, ["store", "check", "--commit-table", external])
    assert ": sound" in checked.output
    assert store.id in checked.output
    write, calls = SparkEngine._write, []

    def overtaken(self: SparkEngine, writer: object, operation: str) -> None:
        calls.append(operation)
        if operation == "compact":
            store.commit("g", epoch, "m", {P0: [(9, 9)]})
        write(self, writer, operation)

    monkeypatch.setattr(SparkEngine, "_write", overtaken)
    repair_table(external, version=2, dry_run=False, spark=spark, quiet_seconds=0)
    assert calls == ["compact", "append"]
    for one in (store, CommitStore.open(external, spark=spark)):
        assert one.state("g") == {P0: PartitionCommits(1)}
        with pytest.raises(FencedMember):
            one.commit("g", epoch, "m", {P0: [(1, 1)]})
    assert spark.sql(f"DESCRIBE DETAIL {external}").collect()[0]["location"] == location
    spark.sql(f"DROP TABLE {external}")


@pytest.mark.slow
@pytest.mark.broker
def test_a_job_commits_to_a_table_of_a_catalog(
    spark: SparkSession, name: str, kafka, topic, produce, tmp_path: Path
) -> None:
    """Its member joins, works and leaves; the next one goes on, and rows that count are listed."""
    place = topic(1)
    produce(place, [(b"k%d" % (i % 7), b"") for i in range(30)])
    opts = options(kafka, tmp_path, place, commitTable=name)
    out = str(tmp_path / "out")
    for done in (30, 50):
        with CooperativeConsumer(opts, spark) as consumer:
            job = consumer.foreach(row_of, output=out, output_schema="at long")
            query = job.trigger(availableNow=True).start()
            query.awaitTermination()
            (row,) = consumer.committed().collect()
        assert (row["stable_offset"], row["committed_above"]) == (done, 0)
        assert committed_rows(out, name, opts["kafka.group.id"], spark=spark).count() == done
        produce(place, [(b"k%d" % (i % 7), b"") for i in range(20)])


def row_of(record: Record) -> dict[str, int]:
    """A row of its offset."""
    return {"at": record.offset}
