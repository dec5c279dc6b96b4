"""Members that share a partition by chunks, beside key ranges; what outstanding chunks cost."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

from commits import AcquireRequest, CommitStore, Wanted
from commits.rows import Event
from commits.validation import request_events
from coopconsume.demo.processes import kill_tree
from tests.bench.figures import Ratio, Report, seconds_of, take_turns
from tests.bench.handlers import handler

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.bench.harness import Harness

_AT = ("topic", 0)
_CHUNKS, _RANGES = "shared by chunks", "shared by key range"
_THREE, _SUM = "three members, one ten times slower", "sum of their speeds alone"
_NONE, _MANY, _LIMIT = "no chunk outstanding", "10,000 chunks outstanding", "limit"
_FAST, _SLOW, _AT_ONCE = 0.01, 0.1, 10
#: Seconds in which the JVMs of the members compile what they run.
_WARM_UP = 15.0


def cooperative(harness: Harness, say: Callable[[str], None]) -> list[Report]:
    """Three members of different speeds, and commits beside many chunks."""
    return [_members(harness, say), _outstanding(harness, say)]


def chunks(harness: Harness, say: Callable[[str], None]) -> list[Report]:
    """An empty handler, by chunks and by key range."""
    records = harness.size(8_000_000, 50_000)
    harness.load("cooperative-empty", records, keys=10_000, value_bytes=100)

    def job(**options: str) -> float:
        def run() -> None:
            with harness.consumer("cooperative-empty", **options) as consumer:
                query = consumer.foreach(handler, ordering="none").trigger(availableNow=True)
                query.start().awaitTermination()

        return records / seconds_of(run)

    sides: dict[str, Callable[[int], float]] = {
        _CHUNKS: lambda _: job(sharing="cooperative"),
        _RANGES: lambda _: job(),
    }
    report = Report(
        "Empty handler without order, by chunks and by key range",
        f"{records:,} records of one partition, two slots, one member, from making the consumer to "
        "its end.",
    )
    report.add_all(take_turns(sides, harness.turns, say=say), "records/s")
    report.ratios = [Ratio("by chunks / by key range", _CHUNKS, _RANGES, at_least=1.1)]
    return [report]


def _members(harness: Harness, say: Callable[[str], None]) -> Report:
    records, seconds = harness.size(400_000, 40_000), harness.size(30, 10)
    harness.load("cooperative-members", records, keys=10_000, value_bytes=100)

    def speed(costs: list[float]) -> float:
        say(f"members that take {costs} s a record")
        options = harness.options("cooperative-members", sharing="cooperative", slots=1)
        with ExitStack() as stack:
            for cost in costs:
                config = {"options": options, "seconds": cost, "concurrency": _AT_ONCE}
                job = subprocess.Popen(
                    [sys.executable, "-m", "tests.bench.cooperative_member", json.dumps(config)],
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
                )  # fmt: skip
                stack.callback(kill_tree, job)
            return _rate(options, len(costs), seconds)

    sides: dict[str, Callable[[int], float]] = {
        _THREE: lambda _: speed([_FAST, _FAST, _SLOW]),
        _SUM: lambda _: 2 * speed([_FAST]) + speed([_SLOW]),
    }
    report = Report(
        "Three members of one partition",
        f"Handlers that sleep {_FAST * 1000:g} ms, {_FAST * 1000:g} ms and {_SLOW * 1000:g} ms, "
        f"{_AT_ONCE} at once in each member, a process each; commits in {seconds} s once all are "
        f"at work for {_WARM_UP:g} s.",
    )
    turns = min(3, harness.turns)
    report.add_all(take_turns(sides, turns, say=say, warm_ups=0), "records/s")
    report.ratios = [Ratio("three members / sum of speeds", _THREE, _SUM, at_least=0.9)]
    return report


def _rate(options: dict[str, Any], members: int, seconds: float) -> float:
    """Committed records a second, once all members have had chunks for `_WARM_UP`."""
    group = str(options["kafka.group.id"])
    clusters: list[str] = []
    while not clusters:
        clusters = CommitStore.open(options["commitTable"]).clusters(group)
        time.sleep(0.5)
    store = CommitStore.open(options["commitTable"], cluster=clusters[0])
    while len({one.member for at in store.acquisitions(group).values() for one in at}) < members:
        time.sleep(0.1)
    time.sleep(_WARM_UP)
    began, before = time.monotonic(), _done(store, group)
    time.sleep(seconds)
    return (_done(store, group) - before) / (time.monotonic() - began)


def _done(store: CommitStore, group: str) -> int:
    return sum(one.stable_offset + len(one.ranges) for one in store.state(group).values())


def _outstanding(harness: Harness, say: Callable[[str], None]) -> Report:
    rounds = harness.size(20, 3)
    store = CommitStore.open(harness.path("chunks"))
    sides: dict[str, Callable[[int], float]] = {
        _NONE: lambda turn: _milliseconds(store, f"none-{turn}", 0, rounds),
        _MANY: lambda turn: _milliseconds(store, f"many-{turn}", 10_000, rounds),
    }
    report = Report(
        "A commit beside chunks of other members",
        "Of 1,000 offsets with the request for the next ones, from the call to the answer. Chunks "
        f"have 1 offset, in 100 members. Each value is the median of {rounds} commits.",
    )
    found = take_turns(sides, harness.turns, say=say, warm_ups=1)
    report.add_all(found, "ms")
    report.add(_LIMIT, [one + 20.0 for one in found[_NONE]], "ms")
    report.ratios = [Ratio("10,000 chunks / none and 20 ms", _MANY, _LIMIT, at_most=1.0)]
    return report


def _milliseconds(store: CommitStore, group: str, chunks: int, rounds: int) -> float:
    """The median of some commits beside so many chunks."""
    members = [f"m{number}" for number in range(100)]
    epoch = store.open_epoch(
        group, {name: [_AT] for name in members}, previous=None, sharing="cooperative"
    )
    store.start(group, epoch, "m0", {_AT: 0})
    base = Event("commit", "chunks", "", group, epoch)
    requests = [
        request_events(
            replace(base, member=members[1 + number % 99]),
            AcquireRequest(f"c{number}", {_AT: Wanted(1, 10**9)}),
        )[0]
        for number in range(chunks)
    ]
    for first in range(0, chunks, 1_000):
        # As so many members would have written them, each in an append of its own.
        store._log.append_together(requests[first : first + 1_000])
    want = {_AT: Wanted(1_000, 10**9)}
    chunk = store.acquire(group, epoch, "m0", AcquireRequest("first", want))[_AT]
    took = []
    for number in range(rounds):
        request = AcquireRequest(f"r{number}", want)
        took.append(
            seconds_of(
                lambda done=chunk, one=request: store.commit(  # type: ignore[misc]
                    group, epoch, "m0", {_AT: done}, request=one
                )
            )
        )
        chunk = store.acquired(group, request.id)[_AT]
    return 1000 * median(took)
