"""Handlers that wait, keys that are hot, a key that is stuck: jobs against peers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.bench.figures import Ratio, Report, take_turns
from tests.bench.handlers import AsyncWait, Sleeper, Wait
from tests.bench.peers import PARALLEL_CONSUMER, SHARE_GROUP, Peer, java_peers
from tests.bench.stuck import CONCURRENCY, SLOTS, stuck_rate

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.bench.harness import Harness

_SLOTS = 2
_OURS = "coopconsume"
_ASYNC = "coopconsume, async, 1,000 at once"
_IDEAL = "ideal"
_NO_ORDER = (
    "The share group (KIP-932, a preview in Kafka 4.1) keeps no order of keys; it is one consumer "
    "that acknowledges each record, with as many threads."
)


def processing(harness: Harness, say: Callable[[str], None]) -> list[Report]:
    """The figures of processing that need jobs."""
    peers = java_peers(harness, say)
    return [
        _waiting(harness, peers, say),
        *(_sleeping(harness, peers, say, name) for name in ("W1", "W3")),
        _stuck(harness, say),
    ]


def _seconds(
    peer: Peer, topic: str, records: int, work: str, at_once: int
) -> Callable[[int], float]:
    return lambda _: peer.seconds(topic, records, work, at_once)


def _rate(peer: Peer, topic: str, records: int, work: str, at_once: int) -> Callable[[int], float]:
    return lambda _: records / peer.seconds(topic, records, work, at_once)


def _compare(report: Report, peers: list[Peer], at_most: float) -> None:
    """Ours against each peer; the target is for the one that keeps the order, too."""
    for peer in peers:
        goal = at_most if peer.name == PARALLEL_CONSUMER else None
        report.ratios.append(Ratio(f"ours / {peer.name}", _OURS, peer.name, at_most=goal))
    _note(report, peers)


def _note(report: Report, peers: list[Peer]) -> None:
    report.notes += [_NO_ORDER] if any(peer.name == SHARE_GROUP for peer in peers) else []


def _waiting(harness: Harness, peers: list[Peer], say: Callable[[str], None]) -> Report:
    seconds = harness.size(60, 2)
    plain, coroutines = 10_000 * seconds, 30_000 * seconds
    harness.load("waiting", plain, keys=10_000, value_bytes=100)
    harness.load("waiting-async", coroutines, keys=10_000, value_bytes=100)
    sides: dict[str, Callable[[int], float]] = {
        _OURS: lambda _: plain / _job(harness, "waiting", plain, Wait(0.01), 100 // _SLOTS),
        _ASYNC: lambda _: (
            coroutines
            / _job(harness, "waiting-async", coroutines, AsyncWait(0.01), 1_000 // _SLOTS)
        ),
        _IDEAL: lambda _: 10_000.0,
    }
    sides |= {p.name: _rate(p, "waiting", plain, "sleep10", 100) for p in peers}
    report = Report(
        "Handlers of 10 ms, one partition",
        f"{plain:,} records, 10,000 keys, 100 handlers at once, in the order of each key; "
        f"{coroutines:,} for 1,000 coroutines. From the first handler's start to the last commit; "
        "one turn is for warmth.",
    )
    report.add_all(take_turns(sides, harness.turns, say=say, warm_ups=1), "records/s")
    report.ratios = [Ratio("ours / ideal", _OURS, _IDEAL, at_least=0.95)]
    report.ratios += [Ratio(f"{peer.name} / ideal", peer.name, _IDEAL) for peer in peers]
    name = "async, 1,000 at once / 10,000 a second"
    report.ratios.append(Ratio(name, _ASYNC, _IDEAL, at_least=3.0))
    _note(report, peers)
    return report


def _sleeping(harness: Harness, peers: list[Peer], say: Callable[[str], None], name: str) -> Report:
    records, topic = harness.size(10_000, 1_000), f"sleeping-{name.lower()}"
    zipf = name == "W3"
    harness.load(topic, records, keys=1_000, value_bytes=100, zipf=zipf)
    sides: dict[str, Callable[[int], float]] = {
        _OURS: lambda _: _job(harness, topic, records, _sleeper(harness), 16 // _SLOTS)
    }
    sides |= {p.name: _seconds(p, topic, records, "sleep0to5", 16) for p in peers}
    keys = "1,000 keys by Zipf's law" if zipf else "1,000 keys"
    report = Report(
        f"{name}: 0 to 5 ms, 16 at once, one partition",
        f"{records:,} records, {keys}, in the order of each key. From the first handler's start to "
        "the last commit.",
    )
    for side, values in take_turns(sides, harness.turns, say=say).items():
        report.add(side, values, "s")
    _compare(report, peers, at_most=1.0)
    return report


def _stuck(harness: Harness, say: Callable[[str], None]) -> Report:
    """The rate of all slots but one while that one is stuck, and without a stuck key."""
    records, stuck_for = harness.size(40_000, 2_000), harness.size(30, 3)
    harness.load("stuck", records, keys=1_000, value_bytes=100)
    name, free = "one key stuck", "none stuck"
    sides: dict[str, Callable[[int], float]] = {
        name: lambda _: stuck_rate(harness, "stuck", records, stuck_for),
        free: lambda _: stuck_rate(harness, "stuck", records, 0),
    }
    report = Report(
        f"A stuck key and {SLOTS} slots, one partition",
        f"{records:,} records of 1,000 keys, 5 ms each, {CONCURRENCY} at once in a slot; one key's "
        f"handler takes {stuck_for} s. A Spark of its own with more task slots than that. Records "
        "a second until what is not of the stuck slot is committed; one turn is for warmth.",
    )
    for side, values in take_turns(sides, harness.turns, say=say, warm_ups=1).items():
        report.add(side, values, "records/s")
    report.ratios = [Ratio("with a stuck key / without", name, free, at_least=0.95)]
    return report


def _sleeper(harness: Harness) -> Sleeper:
    folder = harness.path("first-starts")
    folder.mkdir()
    return Sleeper(str(folder))


def _job(
    harness: Harness, topic: str, records: int, work: Sleeper | Wait, concurrency: int
) -> float:
    """Seconds from the first handler's start to the last commit."""
    committed = [0.0]

    def note(_: object) -> None:
        committed[0] = time.time()

    if isinstance(work, Wait):
        work = work.noting(_sleeper(harness))
    with harness.consumer(topic, batchTime=60, slots=_SLOTS) as consumer:
        query = consumer.foreach(work, concurrency=concurrency).onProgress(note)
        running = query.trigger(availableNow=True).start()
        running.awaitTermination()
        progress = running.lastProgress
    if progress is None or progress["totals"]["done"] != records:
        raise AssertionError(f"{records} records were to be done: {progress}")
    return committed[0] - work.first_start()
