"""State per key beside `transformWithStateInPandas`: running totals, restores, the changelog."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assignors import KeyRange
from commits import CommitStore
from coopconsume import CooperativeConsumer
from coopconsume.runtime.commit.state_log import HISTORY
from coopconsume.state.changelog import Changelog
from coopconsume.state.store import LocalStore
from tests.bench.figures import Ratio, Report, seconds_of, take_turns
from tests.bench.handlers import SparkTotal, handler, total
from tests.bench.harness import SLOTS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coopconsume.state.rows import Origin
    from tests.bench.harness import Harness

_OURS, _STATELESS, _SPARK = "with state", "without state", "transformWithStateInPandas, RocksDB"
_ROCKS_DB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_COLUMNS = "cast(key as string) as key"
_LOOK = 11.0  # seconds; a job with state looks for due snapshots every 10


def state(harness: Harness, say: Callable[[str], None]) -> list[Report]:
    """All figures of state."""
    few, many = (harness.size(*of) for of in ((10_000, 500), (1_000_000, 20_000)))
    return [
        _totals(harness, few, harness.turns, 1, say),
        _totals(harness, many, max(1, harness.turns // 2), 0, say),
        _restore(harness, many // 2, say),
        _growth(harness, few, say),
    ]


def _totals(
    harness: Harness, keys: int, turns: int, warm_ups: int, say: Callable[[str], None]
) -> Report:
    records = harness.size(1_000_000, 20_000)
    topic = f"totals-{keys}"
    harness.load(topic, records, keys=keys, value_bytes=100)
    sides: dict[str, Callable[[int], float]] = {
        _OURS: lambda _: records / seconds_of(lambda: _job(harness, topic, records)),
        _STATELESS: lambda _: records / seconds_of(lambda: _stateless(harness, topic, records)),
        _SPARK: lambda _: records / seconds_of(lambda: _spark(harness, topic, keys, records)),
    }
    report = Report(
        f"A running total of {keys:,} keys",
        f"{records:,} records of 100 bytes in one partition, counted per key, from an empty state "
        f"to the end of an availableNow query. {turns} turns after {warm_ups} for warmth.",
    )
    report.add_all(take_turns(sides, turns, say=say, warm_ups=warm_ups), "records/s")
    report.ratios = [
        Ratio("with state / transformWithStateInPandas", _OURS, _SPARK, at_least=2.0),
        Ratio("without state / with state", _STATELESS, _OURS, at_most=2.0),
    ]
    return report


def _job(harness: Harness, topic: str, records: int) -> tuple[str, dict[str, Any]]:
    """Counts the records of each key by a job with state; returns its state and its options."""
    path, options = str(harness.path("state")), harness.options(topic)
    with CooperativeConsumer(options, harness.spark) as consumer:
        query = consumer.foreach_with_state(total, state_schema="long", state=path)
        running = query.trigger(availableNow=True).start()
        running.awaitTermination()
        progress = running.lastProgress
    done = progress["totals"]["done"] if progress else 0
    if done != records:
        raise AssertionError(f"{records} records were to be done, not {done}")
    return path, options


def _stateless(harness: Harness, topic: str, records: int) -> None:
    with harness.consumer(topic) as consumer:
        query = consumer.foreach(handler).trigger(availableNow=True).start()
        query.awaitTermination()
        progress = query.lastProgress
    if not progress or progress["totals"]["done"] != records:
        raise AssertionError(f"{records} records were to be done")


def _spark(harness: Harness, topic: str, keys: int, records: int) -> None:
    """Counts them by Spark; the last total of each key comes out."""
    spark = harness.spark
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", _ROCKS_DB)
    spark.conf.set("spark.sql.shuffle.partitions", str(SLOTS))
    rows = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", harness.broker.bootstrap_servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr(_COLUMNS)
        .groupBy("key")
        .transformWithStateInPandas(
            statefulProcessor=SparkTotal(), outputStructType="key string, total bigint",
            outputMode="Update", timeMode="None",
        )
    )  # fmt: skip
    found: list[tuple[int, int]] = []
    query = (
        rows.writeStream.outputMode("update")
        .foreachBatch(lambda frame, _: found.append(_sums(frame)))
        .option("checkpointLocation", str(harness.path("checkpoint")))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    if sum(count for count, _ in found) < keys or sum(total for _, total in found) != records:
        raise AssertionError(f"{keys} keys of {records} records were expected, not {found}")


def _sums(frame: Any) -> tuple[int, int]:
    row = frame.selectExpr("count(*) as count", "sum(total) as total").collect()[0]
    return row["count"], row["total"] or 0


def _restore(harness: Harness, keys: int, say: Callable[[str], None]) -> Report:
    """A local store is filled again, from a snapshot of twice the keys."""
    topic = "restored"
    harness.load(topic, 2 * keys, keys=2 * keys, value_bytes=100)
    path, options = _job(harness, topic, 2 * keys)
    changelog, origin, counts = _opened(path, options)
    changelog.write_snapshot(origin, changelog.version, counts)
    changelog.trim(origin, 2 * keys, changelog.version)
    whole, quarter = KeyRange(), KeyRange().split(4)[0]
    half = [(part.first, part.last) for part in KeyRange().split(2)][:1]
    values: list[float] = []
    for turn in range(harness.turns):
        store = LocalStore(changelog, origin, str(harness.path("store")))
        version = changelog.version
        values.append(
            seconds_of(lambda s=store, v=version: s.bring_up_to_date(half, v, counts))  # type: ignore[misc]
        )
        restored, _ = store.restored
        store.close()
        if not 0.9 * keys < restored < 1.1 * keys:
            raise AssertionError(f"about {keys} keys were to be restored, not {restored}")
        say(f"  turn {turn + 1}: {restored:,} keys in {values[-1]:.1f} s")
    report = Report(
        "A restore",
        f"A new owner restores half of {2 * keys:,} keys from a snapshot to its local store. Bytes "
        "are those that its process reads of the snapshot, of all ranges and of a quarter.",
    )
    report.add(f"restore of {keys:,} keys", values, "s")
    report.add("limit", [10.0], "s")
    report.add("read of all", [_read_bytes(changelog, origin, whole)], "bytes")
    report.add("a quarter of that", [report.figures["read of all"].median / 4], "bytes")
    report.add("read of a quarter", [_read_bytes(changelog, origin, quarter)], "bytes")
    report.ratios = [
        Ratio("restore / limit", f"restore of {keys:,} keys", "limit", at_most=1.0),
        Ratio("quarter / its share", "read of a quarter", "a quarter of that", at_most=1.3),
    ]
    return report


def _opened(path: str, options: dict[str, Any]) -> tuple[Changelog, Origin, Callable[[str], bool]]:
    """Opens the changelog that a job has left; returns it, its partition, and what counts."""
    from coopconsume.kafka.cluster import Cluster
    from coopconsume.options import Options

    cluster = Cluster(Options.parse(options))
    try:
        store = CommitStore.open(options["commitTable"], cluster=cluster.cluster_id)
    finally:
        cluster.close()
    changelog = Changelog(path)
    (origin,) = changelog.origins()
    return changelog, origin, store.counted_commits(options["kafka.group.id"]).__contains__


def _read_bytes(changelog: Changelog, origin: Origin, key_range: KeyRange) -> float:
    """Bytes that this process reads for the snapshot of a key range."""
    before = _bytes_so_far()
    rows = changelog.snapshots.rows(origin, [(key_range.first, key_range.last)])
    after = _bytes_so_far()
    if not rows.num_rows:
        raise AssertionError("the snapshot has no such keys")
    return float(after - before)


def _bytes_so_far() -> int:
    lines: Sequence[str] = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("rchar"))


def _growth(harness: Harness, keys: int, say: Callable[[str], None]) -> Report:
    """Many updates of few keys, and what is left of them in the changelog and its snapshots."""
    records = harness.size(10_000_000, 100_000)
    topic = "updates"
    harness.load(topic, records, keys=keys, value_bytes=20)
    first, rest, snapshot = _sizes(harness, topic, HISTORY, say)
    first_0, rest_0, snapshot_0 = _sizes(harness, topic, 0, say)
    report = Report(
        "The size of a changelog",
        f"{records:,} updates of {keys:,} keys by one job, beside one snapshot: the files that the "
        "newest versions of the changelog and its snapshots have. Delta keeps those of older "
        "versions for an hour. By default at least 200,000 changes are kept, so that offsets can "
        "be set back together with the state. Right after the last update the job has not looked "
        "yet whether a snapshot is due.",
    )
    report.add("right after the last update", [first], "MB")
    report.add("at rest", [rest], "MB")
    report.add("with history=0, right after the last update", [first_0], "MB")
    report.add("with history=0, at rest", [rest_0], "MB")
    report.add("one snapshot", [snapshot_0], "MB")
    report.add("limit of the default", [max(3 * snapshot, 32.0)], "MB")
    report.ratios = [
        Ratio("at rest / limit", "at rest", "limit of the default", at_most=1.0),
        Ratio(
            "history=0 at rest / one snapshot", "with history=0, at rest", "one snapshot",
            at_most=3.0,
        ),
    ]  # fmt: skip
    return report


def _sizes(
    harness: Harness, topic: str, history: int, say: Callable[[str], None]
) -> tuple[float, float, float]:
    """MB of a state right after the last update, at rest, and of one snapshot of it."""
    path, options = str(harness.path("state")), harness.options(topic)
    sizes: list[float] = []
    with CooperativeConsumer(options, harness.spark) as consumer:
        query = consumer.foreach_with_state(
            total, state_schema="long", state=path, history=history
        )  # fmt: skip
        running = query.start()
        running.processAllAvailable()
        sizes.append(_size(path))
        # The job makes snapshots by itself; it is done once the state has become no smaller.
        while running.isActive and (len(sizes) < 3 or sizes[-1] != sizes[-3]):
            time.sleep(_LOOK)
            sizes.append(_size(path))
            say(f"  {sizes[-1]:.2f} MB")
        running.stop()
    changelog, origin, counts = _opened(path, options)
    changelog.write_snapshot(origin, changelog.version, counts)
    return sizes[0], sizes[-1], changelog.snapshots.of(origin)[-1].size / 1e6


def _size(path: str) -> float:
    """MB of the newest versions of a changelog and its snapshots."""
    changelog = Changelog(path)
    (origin,) = changelog.origins()
    changes = changelog.size(origin, changelog.version).size
    return (changes + sum(one.size for one in changelog.snapshots.of(origin))) / 1e6
