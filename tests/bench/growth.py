"""Growth of a commit table and of a job: what a step costs in a large group, with a long history.

Each figure stands beside the same step in a small group, so that cost by what exists shows as a
ratio.
"""

from __future__ import annotations

import functools
import tracemalloc
import uuid
from statistics import median
from typing import TYPE_CHECKING, Any

from commits import CommitStore, OffsetRanges
from coopconsume.runtime.decisions import Decision, decide
from coopconsume.runtime.read.hashing import in_ranges_sql
from tests.bench.figures import Ratio, Report, seconds_of
from tests.bench.idle import idle_turn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from commits import Epoch
    from commits.model import TopicPartition
    from tests.bench.harness import Harness

_TOUCHED = 20  # partitions of a commit
_COMMITS = 40


def growth(harness: Harness, say: Callable[[str], None]) -> list[Report]:
    """All figures of growth."""
    return [
        _partitions(harness, say),
        _decisions(harness, say),
        _runs(harness, say),
        _filter(say),
        _idle(harness, say),
    ]


def _partitions(harness: Harness, say: Callable[[str], None]) -> Report:
    many = harness.size(10_000, 1_000)
    report = Report(
        "A group of many partitions",
        f"Commits of one offset in each of {_TOUCHED} partitions, and in all of them; a snapshot; "
        "`CommitStore.open` right after it, and after more commits.",
    )
    for count in (_TOUCHED, many):
        group = _Group(harness.path("growth"), count)
        few = group.places[:: max(1, count // _TOUCHED)]
        name = f"{count:,} partitions"
        report.add(f"{name}: commit of {_TOUCHED}", group.commits(few, _COMMITS), "ms")
        report.add(f"{name}: commit of all", group.commits(group.places, 5), "ms")
        report.add(f"{name}: snapshot", [1000 * seconds_of(group.store.compact)], "ms")
        report.add(f"{name}: recovery after a snapshot", group.recovery(), "s")
        group.commits(few, 3 * _COMMITS)
        group.commits(group.places, 10)
        report.add(f"{name}: recovery after commits", group.recovery(), "s")
        for figure in list(report.figures.values())[-5:]:
            say(f"  {figure.name}: {figure.median:.2f} {figure.unit}")
    report.add("limit of a commit", [100.0], "ms")
    report.add("limit of a recovery", [5.0], "s")
    last = f"{many:,} partitions"
    report.ratios = [
        Ratio("commit / limit", f"{last}: commit of {_TOUCHED}", "limit of a commit", at_most=1.0),
        Ratio("recovery / limit", f"{last}: recovery after commits", "limit of a recovery",
              at_most=1.0),
        Ratio("commit, many / few partitions", f"{last}: commit of {_TOUCHED}",
              f"{_TOUCHED:,} partitions: commit of {_TOUCHED}", at_most=1.5),
    ]  # fmt: skip
    return report


def _decisions(harness: Harness, say: Callable[[str], None]) -> Report:
    many = harness.size(8_000, 500)
    report = Report(
        "Decisions on parked records that nobody has taken yet",
        "Commits of one offset in each of 100 partitions.",
    )
    for count in (0, many):
        group = _Group(harness.path("growth"), 100)
        decisions = [Decision("t", n % 100, n, "replay") for n in range(count)]
        if decisions:
            write = functools.partial(decide, group.store, "g", decisions)
            report.add(f"{count:,} decisions: written in", [seconds_of(write)], "s")
        name = f"{count:,} decisions: commit"
        report.add(name, group.commits(group.places, _COMMITS), "ms")
        say(f"  {name}: {report.figures[name].median:.1f} ms")
    report.ratios = [
        Ratio("many / none", f"{many:,} decisions: commit", "0 decisions: commit", at_most=1.5)
    ]
    return report


def _runs(harness: Harness, say: Callable[[str], None]) -> Report:
    many = harness.size(30_000, 1_000)
    report = Report(
        "A group with a long history of runs",
        "Each run of a job has ids of its own for its commits. A snapshot, and `CommitStore.open` "
        "after it.",
    )
    for count in (1, many):
        group = _Group(harness.path("growth"), 1)
        state = group.store._log.state.groups["", "g"]
        for _ in range(count):
            run = uuid.uuid4().hex[:12]
            for number in range(3):
                state.counted.add(f"{run}-{number}")
        group.commits(group.places, 1)
        report.add(f"{count:,} runs: snapshot", [1000 * seconds_of(group.store.compact)], "ms")
        report.add(f"{count:,} runs: recovery", group.recovery(), "s")
        say(f"  {count:,} runs: {report.figures[f'{count:,} runs: snapshot'].median:.0f} ms")
    return report


def _filter(say: Callable[[str], None]) -> Report:
    report = Report(
        "The filter of a read of few but distant ranges",
        "The SQL text that says which offsets of a partition are wanted, and the memory of the "
        "driver that it takes to write it.",
    )
    for distance in (100, 10_000, 10_000_000):
        ranges = OffsetRanges([(n * distance, n * distance + 4) for n in range(40)])
        tracemalloc.start()
        text = in_ranges_sql(ranges)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        name = f"40 ranges, {distance:,} offsets apart"
        report.add(f"{name}: text", [len(text) / 1000], "kB")
        report.add(f"{name}: memory", [peak / 1000], "kB")
        say(f"  {name}: {len(text) / 1000:.1f} kB, {peak / 1000:.0f} kB")
    return report


def _idle(harness: Harness, say: Callable[[str], None]) -> Report:
    many = harness.size(10_000, 1_000)
    report = Report(
        "A turn of a job's loop with nothing to do",
        "All partitions are at their end. Looks for new ends are left out, as they wait for Kafka.",
    )
    for count in (100, many):
        with idle_turn(count) as turn:
            values = [1000 * seconds_of(turn) for _ in range(20)]
        report.add(f"{count:,} partitions", values, "ms")
        say(f"  {count:,} partitions: {median(values):.2f} ms")
    report.add("limit", [20.0], "ms")
    report.ratios = [Ratio("turn / limit", f"{many:,} partitions", "limit", at_most=1.0)]
    return report


class _Group:
    """A group with one member that has all partitions."""

    def __init__(self, path: Any, partitions: int) -> None:
        self.path = path
        self.store = CommitStore.open(path)
        self.places = [("t", number) for number in range(partitions)]
        self.epoch: Epoch = self.store.open_epoch("g", {"m": self.places}, previous=None)
        self.store.start("g", self.epoch, "m", dict.fromkeys(self.places, 0))
        self._next = 0

    def commits(self, places: Iterable[TopicPartition], count: int) -> list[float]:
        """Milliseconds of some commits."""
        values = []
        for _ in range(count):
            offsets = {at: [(self._next, self._next)] for at in places}
            self._next += 1
            commit = functools.partial(self.store.commit, "g", self.epoch, "m", offsets)
            values.append(1000 * seconds_of(commit))
        return values

    def recovery(self) -> list[float]:
        """Seconds of some recoveries."""
        return [seconds_of(lambda: CommitStore.open(self.path)) for _ in range(3)]
