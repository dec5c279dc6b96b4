"""Latency of a job in real time, beside batches and Java peers, and bytes from the broker.

A process of its own sends at a fixed rate. A record that is sent late counts as late.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

import numpy as np

from coopconsume import CooperativeConsumer
from tests.bench.fetch import fetches
from tests.bench.figures import Report
from tests.bench.handlers import Stamps
from tests.bench.peers import java_peers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coopconsume.query import CooperativeQuery
    from tests.bench.harness import Harness
    from tests.bench.peers import Peer

_SLOTS = 2
_CONCURRENCY = 16
_KEYS = 1_000
#: Seconds at the beginning that do not count.
_WARM_UP = 3.0
_PATIENCE = 300.0
_SIDES = {"real time": {"realTime": "10 minutes"}, "batches": None}


def realtime(harness: Harness, say: Callable[[str], None]) -> list[Report]:
    """Milliseconds from the intended send to the handler and to the commit; broker bytes."""
    reports = [fetches(harness, say)]
    peers = {peer.name: peer for peer in java_peers(harness, say)}
    for rate in (1_000,) if harness.quick else (1_000, 10_000):
        seconds = harness.size(20, 6)
        report = Report(
            f"Real time: latency at {rate:,} records/s",
            f"One partition, {_SLOTS} slots with {_CONCURRENCY} handlers each that note the time, "
            f"{_KEYS:,} keys, 100 B; {seconds} s of sends a turn, the first {_WARM_UP:g} s left "
            "out. Times count from the intended send; a commit when the loop knows of it.",
        )
        found: dict[str, list[float]] = {}
        for turn in range(harness.turns):
            for side in [*_SIDES, *peers][:: 1 if turn % 2 else -1]:
                if side in peers:
                    values = _latencies_of(peers[side], rate, seconds)
                else:
                    values = _latencies(harness, side, rate, seconds)
                for what, value in values.items():
                    found.setdefault(f"{side}: {what}", []).append(value)
                    say(f"  turn {turn}, {side}: {what} {value:.1f} ms")
        for name in sorted(found, reverse=True):
            report.add(name, found[name], "ms")
        reports.append(report)
    return reports


def _latencies(harness: Harness, side: str, rate: int, seconds: int) -> dict[str, float]:
    """The percentiles of one run."""
    topic = harness.path("realtime").name
    harness.broker.create_topic(topic, 1)
    folder = harness.path("stamps")
    folder.mkdir()
    commits: list[tuple[int, int]] = []

    def note(event: dict[str, Any]) -> None:
        commits.append((event["partitions"][0]["stableOffset"], time.time_ns()))

    with CooperativeConsumer(harness.options(topic, slots=_SLOTS), harness.spark) as consumer:
        job = consumer.foreach(Stamps(str(folder)), concurrency=_CONCURRENCY).onProgress(note)
        words = _SIDES[side]
        query = (job if words is None else job.trigger(**words)).start()
        if words is not None:
            _wait(query, lambda: (query.lastProgress or {}).get("mode") == "realTime")
        _send_apart(harness, topic, rate, seconds)
        count = rate * seconds
        _wait(query, lambda: bool(commits) and commits[-1][0] >= count)
        query.stop()
    stamps = _warm("".join(file.read_text() for file in folder.iterdir()))
    stable, at = (list(column) for column in zip(*commits, strict=True))
    committed = [at[bisect_right(stable, offset)] for offset in stamps[:, 0].tolist()]
    to_handler = (stamps[:, 2] - stamps[:, 1]) / 1e6
    to_commit = (np.array(committed) - stamps[:, 1]) / 1e6
    return _percentiles("to the handler", to_handler) | _percentiles("to the commit", to_commit)


def _latencies_of(peer: Peer, rate: int, seconds: int) -> dict[str, float]:
    """The percentiles of a peer to the handler; its commits are not seen from outside."""
    harness = peer.harness
    topic = harness.path("realtime").name
    harness.broker.create_topic(topic, 1)
    _send(harness.broker.bootstrap_servers, topic, 1, 1)
    found = peer.stamps(
        topic, 1 + rate * seconds, _SLOTS * _CONCURRENCY,
        lambda: _send_apart(harness, topic, rate, seconds),
    )  # fmt: skip
    stamps = _warm(found.split("\n", 1)[1])
    return _percentiles("to the handler", (stamps[:, 2] - stamps[:, 1]) / 1e6)


def _warm(text: str) -> Any:
    """The notes of handlers as numbers, without those of the first seconds."""
    stamps = np.array([line.split() for line in text.splitlines()], np.int64)
    return stamps[stamps[:, 1] >= stamps[:, 1].min() + int(_WARM_UP * 1e9)]


def _send_apart(harness: Harness, topic: str, rate: int, seconds: int) -> None:
    """Sends records at a rate, in a process of its own."""
    values = json.dumps([harness.broker.bootstrap_servers, topic, rate, seconds])
    subprocess.run([sys.executable, "-m", "tests.bench.realtime", values], check=True)


def _percentiles(what: str, values: Any) -> dict[str, float]:
    return {f"{what}, p{p}": float(np.percentile(values, p)) for p in (50, 99)}


def _wait(query: CooperativeQuery, holds: Callable[[], object]) -> None:
    until = time.monotonic() + _PATIENCE
    while not holds():
        error = query.exception()
        if error is not None:
            raise error
        if time.monotonic() > until:
            raise AssertionError(f"still not so after {_PATIENCE:g} s")
        time.sleep(0.01)


def _send(servers: str, topic: str, rate: int, seconds: int) -> None:
    """Sends records at a rate; the value begins with the intended time."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0, "acks": 1})
    start = time.time_ns() + 500_000_000
    for n in range(rate * seconds):
        intended = start + n * 1_000_000_000 // rate
        while (ahead := intended - time.time_ns()) > 0:
            producer.poll(0)
            time.sleep(min(ahead / 1e9, 0.001))
        value = b"%d" % intended
        producer.produce(topic, value.ljust(100, b" "), b"key-%d" % (n % _KEYS), 0)
    producer.flush()


def _main(arguments: Sequence[str]) -> None:
    _send(*json.loads(arguments[1]))


if __name__ == "__main__":
    _main(sys.argv)
