"""Handlers that wait, keys that are hot, a key that is stuck: jobs against Parallel Consumer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tests.bench.figures import Ratio, Report, seconds_of, take_turns
from tests.bench.handlers import AsyncWait, Sleeper, Wait, handler
from tests.bench.parallel_consumer import ParallelConsumer, parallel_consumer
from tests.bench.stuck import CONCURRENCY, SLOTS, stuck_rate

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.bench.ground import Ground

_SLOTS = 2
_OURS = "coopconsume"
_ASYNC = "coopconsume, async, 1,000 in flight"
_PEER = "Parallel Consumer"
_IDEAL = "ideal"


def processing(ground: Ground, say: Callable[[str], None]) -> list[Report]:
    """The figures of processing that need jobs."""
    peer = parallel_consumer(ground, say)
    return [
        *([] if peer is None else [_empty(ground, peer, say)]),
        _waiting(ground, peer, say),
        *(_sleeping(ground, peer, say, name) for name in ("W1", "W3")),
        _stuck(ground, say),
    ]


def _empty(ground: Ground, peer: ParallelConsumer, say: Callable[[str], None]) -> Report:
    ours, its = ground.size(1_000_000, 50_000), ground.size(200_000, 10_000)
    ground.load("empty-ours", ours, keys=10_000, value_bytes=100)
    ground.load("empty-its", its, keys=10_000, value_bytes=100)

    def job() -> None:
        with ground.consumer("empty-ours") as consumer:
            query = consumer.foreach(handler).trigger(availableNow=True).start()
            query.awaitTermination()
            progress = query.lastProgress
        if progress is None or progress["totals"]["done"] != ours:
            raise AssertionError(f"{ours} records were to be done: {progress}")

    sides: dict[str, Callable[[int], float]] = {
        _OURS: lambda _: ours / seconds_of(job),
        _PEER: lambda _: its / peer.seconds("empty-its", its, "none", 16),
    }
    report = Report(
        "Empty handler against Parallel Consumer, one partition",
        f"10,000 keys, in the order of each. Ours: {ours:,} records, from making the consumer to "
        f"its end. Parallel Consumer: {its:,} records, maxConcurrency 16, from the first handler's "
        "start to the last commit.",
    )
    for name, values in take_turns(sides, ground.turns, say=say).items():
        report.add(name, values, "records/s")
    report.ratios = [Ratio("ours / Parallel Consumer", _OURS, _PEER, 10.0, "at least")]
    return report


def _waiting(ground: Ground, peer: ParallelConsumer | None, say: Callable[[str], None]) -> Report:
    seconds = ground.size(60, 2)
    plain, coroutines = 10_000 * seconds, 30_000 * seconds
    ground.load("waiting", plain, keys=10_000, value_bytes=100)
    ground.load("waiting-async", coroutines, keys=10_000, value_bytes=100)
    sides: dict[str, Callable[[int], float]] = {
        _OURS: lambda _: plain / _job(ground, "waiting", plain, Wait(0.01), 100 // _SLOTS),
        _ASYNC: lambda _: (
            coroutines / _job(ground, "waiting-async", coroutines, AsyncWait(0.01), 1_000 // _SLOTS)
        ),
        _IDEAL: lambda _: 10_000.0,
    }
    if peer is not None:
        sides[_PEER] = lambda _: plain / peer.seconds("waiting", plain, "sleep10", 100)
    report = Report(
        "Handlers of 10 ms, one partition",
        f"{plain:,} records, 10,000 keys, 100 handlers in flight, in the order of each key; "
        f"{coroutines:,} for 1,000 coroutines. From the first handler's start to the last commit.",
    )
    for name, values in take_turns(sides, ground.turns, say=say).items():
        report.add(name, values, "records/s")
    report.ratios = [Ratio("ours / ideal", _OURS, _IDEAL, 0.95, "at least")]
    if peer is not None:
        report.ratios.append(Ratio("Parallel Consumer / ideal", _PEER, _IDEAL))
    name = "async, 1,000 in flight / 10,000 a second"
    report.ratios.append(Ratio(name, _ASYNC, _IDEAL, 3.0, "at least"))
    return report


def _sleeping(
    ground: Ground, peer: ParallelConsumer | None, say: Callable[[str], None], name: str
) -> Report:
    records, topic = ground.size(10_000, 1_000), f"sleeping-{name.lower()}"
    zipf = name == "W3"
    ground.load(topic, records, keys=1_000, value_bytes=100, zipf=zipf)
    sides: dict[str, Callable[[int], float]] = {
        _OURS: lambda _: _job(ground, topic, records, _sleeper(ground), 16 // _SLOTS)
    }
    if peer is not None:
        sides[_PEER] = lambda _: peer.seconds(topic, records, "sleep0to5", 16)
    keys = "1,000 keys by Zipf's law" if zipf else "1,000 keys"
    report = Report(
        f"{name}: 0 to 5 ms, 16 at once, one partition",
        f"{records:,} records, {keys}, in the order of each key. From the first handler's start to "
        "the last commit.",
    )
    for side, values in take_turns(sides, ground.turns, say=say).items():
        report.add(side, values, "s")
    if peer is not None:
        report.ratios = [Ratio("ours / Parallel Consumer", _OURS, _PEER, 1.0)]
    return report


def _stuck(ground: Ground, say: Callable[[str], None]) -> Report:
    """The rate of all slots but one while that one is stuck, and without a stuck key."""
    records, stuck_for = ground.size(40_000, 2_000), ground.size(30, 3)
    ground.load("stuck", records, keys=1_000, value_bytes=100)
    name, free = "one key stuck", "none stuck"
    sides: dict[str, Callable[[int], float]] = {
        name: lambda _: stuck_rate(ground, "stuck", records, stuck_for),
        free: lambda _: stuck_rate(ground, "stuck", records, 0),
    }
    report = Report(
        f"A stuck key and {SLOTS} slots, one partition",
        f"{records:,} records of 1,000 keys, 5 ms each, {CONCURRENCY} at once in a slot; one key's "
        f"handler takes {stuck_for} s. A Spark of its own with more task slots than that. Records "
        "a second until what is not of the stuck slot is committed.",
    )
    for side, values in take_turns(sides, ground.turns, say=say).items():
        report.add(side, values, "records/s")
    report.ratios = [Ratio("with a stuck key / without", name, free, 0.95, "at least")]
    return report


def _sleeper(ground: Ground) -> Sleeper:
    folder = ground.path("first-starts")
    folder.mkdir()
    return Sleeper(str(folder))


def _job(ground: Ground, topic: str, records: int, work: Any, concurrency: int) -> float:
    """Seconds from the first handler's start to the last commit."""
    committed = [0.0]

    def note(_: object) -> None:
        committed[0] = time.time()

    if not isinstance(work, Sleeper):
        work = work.noting(_sleeper(ground))
    with ground.consumer(topic, batchTime=60, slots=_SLOTS) as consumer:
        query = consumer.foreach(work, concurrency=concurrency).onProgress(note)
        running = query.trigger(availableNow=True).start()
        running.awaitTermination()
        progress = running.lastProgress
    if progress is None or progress["totals"]["done"] != records:
        raise AssertionError(f"{records} records were to be done: {progress}")
    return committed[0] - work.first_start()
