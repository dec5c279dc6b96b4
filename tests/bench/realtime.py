"""Latency of a job in real time, beside its batches: from the intended send to handler and commit.

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
from tests.bench.figures import Report
from tests.bench.handlers import Stamps

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coopconsume.query import CooperativeQuery
    from tests.bench.harness import Harness

_SLOTS = 2
_CONCURRENCY = 16
_KEYS = 1_000
#: Seconds at the beginning that do not count.
_WARM_UP = 3.0
_PATIENCE = 300.0
_SIDES = {"real time": {"realTime": "10 minutes"}, "batches": None}


def realtime(harness: Harness, say: Callable[[str], None]) -> list[Report]:
    """Milliseconds from the intended send to the handler and to the commit."""
    reports = []
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
            for side in list(_SIDES)[:: 1 if turn % 2 else -1]:
                for what, value in _latencies(harness, side, rate, seconds).items():
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
        told = json.dumps([harness.broker.bootstrap_servers, topic, rate, seconds])
        subprocess.run([sys.executable, "-m", "tests.bench.realtime", told], check=True)
        count = rate * seconds
        _wait(query, lambda: bool(commits) and commits[-1][0] >= count)
        query.stop()
    stamps = np.array(
        [line.split() for file in folder.iterdir() for line in file.read_text().splitlines()],
        np.int64,
    )
    stamps = stamps[stamps[:, 1] >= stamps[:, 1].min() + int(_WARM_UP * 1e9)]
    stable, at = (list(column) for column in zip(*commits, strict=True))
    committed = [at[bisect_right(stable, offset)] for offset in stamps[:, 0].tolist()]
    to_handler = (stamps[:, 2] - stamps[:, 1]) / 1e6
    to_commit = (np.array(committed) - stamps[:, 1]) / 1e6
    return _percentiles("to the handler", to_handler) | _percentiles("to the commit", to_commit)


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
