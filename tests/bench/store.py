"""The commit store against bare appends: commits, size and fold, recovery, four writers at once."""

from __future__ import annotations

import functools
import random
import time
import uuid
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from commits import CommitStore, OffsetRanges, PartitionCommits
from commits.rows import SCHEMA, decode
from commits.snapshot import newest_snapshot
from tests.bench.figures import Ratio, Report, seconds_of, take_turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from commits import Epoch
    from commits.model import TopicPartition
    from tests.bench.harness import Harness

    Offsets = dict[TopicPartition, OffsetRanges]

_WRITERS = 4
_SPAN = 1_000_000  # offsets of a partition


def store(harness: Harness, say: Callable[[str], None]) -> list[Report]:
    """All figures of the store, each beside its raw counterpart."""
    return [
        _commits(harness, say),
        _spark_commits(harness, say),
        _size_and_fold(harness, say),
        _recovery(harness, say),
        _at_once(harness, say),
    ]


def _commits(harness: Harness, say: Callable[[str], None]) -> Report:
    rounds = harness.size(10, 3)  # below the limit of 1,000,000 ranges
    one, many = "100,000 offsets of one partition", "64 partitions of 1,000 offsets each"
    bare = "bare append of one row"
    members = {
        one: _Committer(CommitStore.open(harness.path("one")), 1, 100_000),
        many: _Committer(CommitStore.open(harness.path("many")), 64, 1_000),
    }
    handle = _bare_table(harness.path("bare"))
    report = Report(
        "A commit, append to answer",
        "Offsets drawn at random from twice as many, above those of the last commit; at most "
        f"{rounds * 50_000:,} ranges are in the state (the limit is 1,000,000). From the call with "
        "sets of offsets to the answer with the new stable offset. The bare side is "
        "`write_deltalake` through an open handle, to a table made the same way. Each value is the "
        f"median of {rounds} commits.",
    )
    sides: dict[str, Callable[[int], float]] = {
        name: functools.partial(member.milliseconds, rounds=rounds)
        for name, member in members.items()
    }
    sides[bare] = lambda _: 1000 * median(seconds_of(handle) for _ in range(rounds))
    report.add_all(take_turns(sides, harness.turns, say=say), "ms")
    report.ratios = [
        Ratio(f"{one} / bare", one, bare, at_most=2.5),
        Ratio(f"{many} / bare", many, bare, at_most=3.5),
    ]
    return report


def _spark_commits(harness: Harness, say: Callable[[str], None]) -> Report:
    rounds = harness.size(3, 1)
    ours, bare = "100,000 offsets of one partition", "bare append of one row"
    harness.spark.sql("CREATE SCHEMA IF NOT EXISTS bench")
    name = f"bench.commits_{uuid.uuid4().hex}"
    member = _Committer(CommitStore.open(name, spark=harness.spark), 1, 100_000)
    CommitStore.open(f"{name}_bare", spark=harness.spark)

    def append() -> None:
        frame = harness.spark.createDataFrame(_row())
        frame.write.format("delta").mode("append").saveAsTable(f"{name}_bare")

    report = Report(
        "A commit to a table of a catalog, by Spark alone",
        "As above. The bare side appends a DataFrame of one row.",
    )
    sides: dict[str, Callable[[int], float]] = {
        ours: functools.partial(member.milliseconds, rounds=rounds),
        bare: lambda _: 1000 * median(seconds_of(append) for _ in range(rounds)),
    }
    for side, values in take_turns(sides, harness.turns, say=say).items():
        report.add(side, values, "ms")
    report.ratios = [Ratio("ours / bare", ours, bare)]
    return report


def _size_and_fold(harness: Harness, say: Callable[[str], None]) -> Report:
    """One partition of a million offsets, in a snapshot: its bytes, and how long it folds."""
    report = Report(
        "The state of a partition with 1,000,000 offsets",
        "In a snapshot. Bytes are those of its data file, with all columns; the fold is from its "
        "rows to the state.",
    )
    shapes = {
        "10,000 gaps, 10 % open": OffsetRanges([(n * 100, n * 100 + 89) for n in range(10_000)]),
        "offsets drawn at random, 10 % open": _drawn(_SPAN, _SPAN * 9 // 10, 0),
        "500,000 ranges, every other offset open": OffsetRanges.from_offsets(
            np.arange(0, _SPAN, 2)
        ),
    }
    for name, offsets in shapes.items():
        path = harness.path("state")
        table = CommitStore.open(path)
        epoch = table.open_epoch("g", {"m": [("t", 0)]}, previous=None)
        shifted = OffsetRanges.from_offsets(offsets.offsets() + 1)  # the first stays open
        table.commit("g", epoch, "m", {("t", 0): shifted})
        before = {*Path(path).rglob("*.parquet")}
        table.compact()
        files = [p for p in Path(path).rglob("*.parquet")
                 if p not in before and "_delta_log" not in p.parts]  # fmt: skip
        rows = table._engine.snapshots()

        def fold(rows: pa.Table = rows) -> None:
            assert newest_snapshot(event for _, event in decode(rows, "")) is not None

        taken = [1000 * seconds_of(fold) for _ in range(harness.size(20, 3))]
        report.add(f"{name}: bytes an offset", [sum(f.stat().st_size for f in files) / _SPAN],
                   "bytes")  # fmt: skip
        report.add(f"{name}: fold", taken, "ms")
        say(f"  {name}: {median(taken):.1f} ms")
    report.add("limit: bytes an offset", [0.1], "bytes")
    report.add("limit: fold", [5.0], "ms")
    report.ratios = [
        Ratio(f"{name}, {what} / limit", f"{name}: {what}", f"limit: {what}", at_most=1.0)
        for name in shapes
        for what in ("bytes an offset", "fold")
    ]
    return report


def _recovery(harness: Harness, say: Callable[[str], None]) -> Report:
    """A hundred partitions of a million offsets above the stable one: opened by a new process."""
    partitions, commits = harness.size(100, 10), harness.size(500, 50)
    path = harness.path("recovery")
    table = CommitStore.open(path, snapshot_commits=0, snapshot_bytes=0)
    places = [("t", number) for number in range(partitions)]
    epoch = table.open_epoch("g", {"m": places}, previous=None)
    for number, at in enumerate(places):
        drawn = _drawn(_SPAN * 10 // 9, _SPAN, number)
        table.commit("g", epoch, "m", {at: OffsetRanges.from_offsets(drawn.offsets() + 1)})
    table.compact()
    fresh, old = "right after a snapshot", "at the end of a snapshot interval"
    report = Report(
        f"Recovery of a group of {partitions} partitions",
        "Each with 1,000,000 committed offsets above its stable one, drawn at random, 10 % open. "
        f"`CommitStore.open` by the same process; an interval is {commits} commits of 1,000 "
        "offsets each.",
    )
    rounds = harness.size(5, 1)
    report.add(fresh, [seconds_of(lambda: CommitStore.open(path)) for _ in range(rounds)], "s")
    say(f"  {fresh}: {report.figures[fresh].median:.2f} s")
    source = random.Random(1)
    for number in range(commits):
        first = 2 * _SPAN + number * 10_000
        table.commit("g", epoch, "m", {source.choice(places): _drawn(2_000, 1_000, number, first)})
    report.add(old, [seconds_of(lambda: CommitStore.open(path)) for _ in range(rounds)], "s")
    say(f"  {old}: {report.figures[old].median:.2f} s")
    report.add("limit after a snapshot", [2.0], "s")
    report.add("limit after an interval", [4.0], "s")
    report.ratios = [
        Ratio(f"{fresh} / limit", fresh, "limit after a snapshot", at_most=1.0),
        Ratio(f"{old} / limit", old, "limit after an interval", at_most=1.0),
    ]
    return report


def _at_once(harness: Harness, say: Callable[[str], None]) -> Report:
    each = harness.size(50, 10)
    ours, bare = "four processes that commit", "four processes that append bare rows"
    report = Report(
        "Four writers at once",
        f"Four processes, {each} commits of 100 offsets each, or as many bare appends, to one "
        "table; an append that deltalake gives up after many conflicts is made again. From when "
        "all begin until the last one ends; none of the commits is lost.",
    )
    with ProcessPoolExecutor(_WRITERS, get_context("spawn")) as pool:
        list(pool.map(_warm, range(_WRITERS)))
        sides: dict[str, Callable[[int], float]] = {
            ours: lambda _: _four_commit(pool, harness.path("ours"), each),
            bare: lambda _: _four_append(pool, harness.path("four-bare"), each),
        }
        for name, values in take_turns(sides, harness.turns, say=say).items():
            report.add(name, values, "a second")
    report.ratios = [Ratio("commits / bare appends", ours, bare, at_least=0.6)]
    return report


def _four_commit(pool: ProcessPoolExecutor, path: Path, each: int) -> float:
    table = CommitStore.open(path)
    epoch = table.open_epoch("g", {str(n): [("t", 0)] for n in range(_WRITERS)}, previous=None)
    seconds = _together(pool, functools.partial(_commit_lane, str(path), each, epoch))
    offsets = _WRITERS * each * 100
    assert CommitStore.open(path).state("g") == {("t", 0): PartitionCommits(offsets)}
    return _WRITERS * each / seconds


def _four_append(pool: ProcessPoolExecutor, path: Path, each: int) -> float:
    from deltalake import DeltaTable

    CommitStore.open(path)
    seconds = _together(pool, functools.partial(_append_lane, str(path), each))
    assert DeltaTable(path).version() == _WRITERS * each
    return _WRITERS * each / seconds


def _together(pool: ProcessPoolExecutor, work: Callable[[int, float], float]) -> float:
    """Seconds until all writers have ended; each gets its number and the time to begin at."""
    at = time.time() + 1.0
    calls = [pool.submit(work, lane, at) for lane in range(_WRITERS)]
    return max(call.result() for call in calls) - at


def _warm(_: int) -> None:
    time.sleep(0.5)  # so that every process takes one


def _commit_lane(path: str, each: int, epoch: Epoch, lane: int, at: float) -> float:
    table = CommitStore.open(path)
    time.sleep(max(0.0, at - time.time()))
    for number in range(each):
        first = (number * _WRITERS + lane) * 100
        table.commit("g", epoch, str(lane), {("t", 0): [(first, first + 99)]})
    return time.time()


def _append_lane(path: str, each: int, _lane: int, at: float) -> float:
    from deltalake.exceptions import CommitFailedError

    append = _bare_handle(path)
    time.sleep(max(0.0, at - time.time()))
    for _ in range(each):
        for _ in range(100):
            try:
                append()
            except CommitFailedError:  # after so many conflicts deltalake gives an append up
                continue
            break
    return time.time()


class _Committer:
    """A member that commits scattered offsets, to a new group each turn."""

    def __init__(self, table: CommitStore, partitions: int, offsets: int) -> None:
        self._store = table
        self._places = [("t", number) for number in range(partitions)]
        self._offsets = offsets

    def milliseconds(self, turn: int, rounds: int) -> float:
        """The median of some commits."""
        group = f"bench-{turn}"
        epoch = self._store.open_epoch(group, {"m": self._places}, previous=None)
        values = []
        for number in range(rounds):
            first = 1 + number * 2 * self._offsets
            drawn: Offsets = {
                at: _drawn(2 * self._offsets, self._offsets, number, first) for at in self._places
            }
            call = functools.partial(self._store.commit, group, epoch, "m", drawn)
            values.append(1000 * seconds_of(call))
        return median(values)


def _drawn(span: int, count: int, seed: int, first: int = 0) -> OffsetRanges:
    chosen = np.random.default_rng(seed).choice(span, count, replace=False)
    return OffsetRanges.from_offsets(np.sort(chosen).astype(np.int64) + first)


def _row() -> pa.Table:
    row = {"format": 1, "kind": "commit", "row_id": uuid.uuid4().hex, "row": 0, "segment": 0,
           "cluster_id": "", "group_id": "bench"}  # fmt: skip
    return pa.Table.from_pylist([row], schema=SCHEMA)


def _bare_table(path: Path) -> Callable[[], None]:
    CommitStore.open(path)
    return _bare_handle(str(path))


def _bare_handle(path: str) -> Callable[[], None]:
    from deltalake import DeltaTable, write_deltalake

    handle = DeltaTable(path)
    return lambda: write_deltalake(handle, _row(), mode="append")
