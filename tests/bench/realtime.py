"""A job in real time beside batches and Java peers: latency, rates, idle slots, broker bytes.

A process of its own sends, at a fixed rate or all at once. A record that is sent late counts as
late.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from bisect import bisect_right
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from coopconsume import CooperativeConsumer
from coopconsume.demo.processes import process_tree
from tests.bench.fetch import fetches
from tests.bench.figures import Ratio, Report, take_turns
from tests.bench.handlers import Sleeper, Stamps, StuckStamps, Wait, handler
from tests.bench.peers import PARALLEL_CONSUMER, java_peers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from coopconsume.query import CooperativeQuery
    from tests.bench.harness import Harness
    from tests.bench.peers import Peer

_SLOTS = 2
_CONCURRENCY = 16
_KEYS = 1_000
#: So many that the halves of the key range have about as many: of 1,000 keys, one half has 53.6 %,
#: and its slot takes 7 % longer than the ideal.
_EVEN_KEYS = 10_000
#: Seconds at the beginning that do not count.
_WARM_UP = 3.0
_PATIENCE = 300.0
#: Of records that are sent at a rate; Kafka's default is 5.
_LINGER_MS = 1
#: The sides that are ours, each with its trigger of real time; None: batches.
_SIDES = {"real time": "10 minutes", "batches": None}


def realtime(harness: Harness, say: Callable[[str], None]) -> list[Report]:
    """Broker bytes, rates of handlers, a stuck key, idle slots."""
    peers = {peer.name: peer for peer in java_peers(harness, say)}
    return [
        fetches(harness, say), _waiting(harness, peers, say), _empty(harness, say),
        _stuck(harness, say), _idle(harness, say),
    ]  # fmt: skip


def latency(harness: Harness, say: Callable[[str], None]) -> list[Report]:
    """Latency from the intended send to the handler and to the commit."""
    peers = {peer.name: peer for peer in java_peers(harness, say)}
    reports = []
    for rate in (1_000,) if harness.quick else (1_000, 10_000):
        seconds = harness.size(20, 6)
        report = Report(
            f"Real time: latency at {rate:,} records/s",
            f"One partition, {_SLOTS} slots with {_CONCURRENCY} handlers each that note the time, "
            f"{_KEYS:,} keys, 100 B; {seconds} s of sends a turn, the first {_WARM_UP:g} s left "
            f"out. The producer has linger.ms={_LINGER_MS}. Times count from the intended send; a "
            "commit when the loop knows of it.",
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


class _Running(NamedTuple):
    """A job that runs.

    Attributes:
        topic: Its topic, of one partition.
        commits: The stable offsets, each with the time in nanoseconds at which it was known.
    """

    topic: str
    query: CooperativeQuery
    commits: list[tuple[int, int]]

    def wait(self, stable: int) -> float:
        """Waits for a stable offset; returns when it was reached, in seconds since the epoch."""
        _wait(self.query, lambda: bool(self.commits) and self.commits[-1][0] >= stable)
        return next(at for offset, at in self.commits if offset >= stable) / 1e9


@contextmanager
def _running(
    harness: Harness, work: Any, concurrency: int, side: str = "real time"
) -> Iterator[_Running]:
    """A job on a new topic, once it is in real time unless it is to run batches."""
    topic = harness.path("realtime").name
    harness.broker.create_topic(topic, 1)
    commits: list[tuple[int, int]] = []

    def note(event: dict[str, Any]) -> None:
        if event["partitions"]:
            commits.append((event["partitions"][0]["stableOffset"], time.time_ns()))

    with CooperativeConsumer(harness.options(topic, slots=_SLOTS), harness.spark) as consumer:
        job = consumer.foreach(work, concurrency=concurrency).onProgress(note)
        period = _SIDES[side]
        query = (job if period is None else job.trigger(realTime=period)).start()
        if period is not None:
            _wait(query, lambda: _is_in_real_time(query))
        yield _Running(topic, query, commits)
        query.stop()


def _is_in_real_time(query: CooperativeQuery) -> bool:
    progress = query.lastProgress
    return progress is not None and progress.get("mode") == "realTime"


def _latencies(harness: Harness, side: str, rate: int, seconds: int) -> dict[str, float]:
    """The percentiles of one run."""
    folder = harness.path("stamps")
    folder.mkdir()
    with _running(harness, Stamps(str(folder)), _CONCURRENCY, side) as job:
        _send_apart(harness, job.topic, rate, seconds)
        job.wait(rate * seconds)
    stamps = _warm("".join(file.read_text() for file in folder.iterdir()))
    stable, at = (list(column) for column in zip(*job.commits, strict=True))
    committed = [at[bisect_right(stable, offset)] for offset in stamps[:, 0].tolist()]
    to_handler = (stamps[:, 2] - stamps[:, 1]) / 1e6
    to_commit = (np.array(committed) - stamps[:, 1]) / 1e6
    return _percentiles("to the handler", to_handler) | _percentiles("to the commit", to_commit)


def _seconds(
    harness: Harness,
    work: Any,
    concurrency: int,
    records: int,
    *,
    keys: int = _KEYS,
    zipf: bool = False,
) -> float:
    """Seconds from the first send of records that are sent at once to the last commit."""
    with _running(harness, work, concurrency) as job:
        begun = _send_apart(harness, job.topic, 0, records, keys=keys, zipf=zipf)
        return job.wait(records) - begun


def _sleeper(harness: Harness) -> Sleeper:
    folder = harness.path("first-starts")
    folder.mkdir()
    return Sleeper(str(folder))


def _sleeping(harness: Harness, records: int, *, zipf: bool) -> Callable[[int], float]:
    return lambda _: _seconds(harness, _sleeper(harness), 16 // _SLOTS, records, zipf=zipf)


def _sleeping_peer(peer: Peer, topic: str, records: int) -> Callable[[int], float]:
    return lambda _: peer.seconds(topic, records, "sleep0to5", 16)


def _waiting(harness: Harness, peers: dict[str, Peer], say: Callable[[str], None]) -> Report:
    """Handlers that wait; the records of the peer are there before it starts."""
    records, many = harness.size(10_000, 1_000), 10_000 * harness.size(30, 1)
    report = Report(
        "Real time: handlers that wait, one partition",
        f"W1 and W3: {records:,} records of {_KEYS:,} keys (W3: by Zipf's law), 0 to 5 ms, 16 at "
        f"once. {many:,} records of {_EVEN_KEYS:,} keys, 10 ms each, 100 at once. In the order of "
        "each key. "
        "Records are sent all at once while the job runs: from the first send to the last commit. "
        "The peer's records are there before: from its first handler's start.",
    )
    for name in ("W1", "W3"):
        zipf = name == "W3"
        ours = f"{name}, real time"
        sides = {ours: _sleeping(harness, records, zipf=zipf)}
        peer = peers.get(PARALLEL_CONSUMER)
        if peer is not None:
            topic, theirs = f"sleeping-{name.lower()}", f"{name}, {peer.name}"
            harness.load(topic, records, keys=_KEYS, value_bytes=100, zipf=zipf)
            sides[theirs] = _sleeping_peer(peer, topic, records)
            report.ratios.append(Ratio(f"{ours} / {peer.name}", ours, theirs, at_most=1.0))
        report.add_all(take_turns(sides, harness.turns, say=say, warm_ups=1), "s")
    ours, ideal = "10 ms, real time", "10 ms, ideal"
    rates: dict[str, Callable[[int], float]] = {
        ours: lambda _: many / _seconds(
            harness, Wait(0.01).noting(_sleeper(harness)), 100 // _SLOTS, many, keys=_EVEN_KEYS
        ),
        ideal: lambda _: 10_000.0,
    }  # fmt: skip
    report.add_all(take_turns(rates, harness.turns, say=say, warm_ups=1), "records/s")
    report.ratios.append(Ratio("10 ms, real time / ideal", ours, ideal, at_least=0.95))
    return report


def _empty(harness: Harness, say: Callable[[str], None]) -> Report:
    records = harness.size(1_000_000, 50_000)
    report = Report(
        "Real time: an empty handler, one partition",
        f"{records:,} records that are sent all at once by a process on the same machine, "
        f"{_SLOTS} slots: from the first send to the last commit.",
    )
    ours, limit = "real time", "limit"
    sides: dict[str, Callable[[int], float]] = {
        ours: lambda _: records / _seconds(harness, handler, 1, records),
        limit: lambda _: 100_000.0,
    }
    report.add_all(take_turns(sides, harness.turns, say=say, warm_ups=1), "records/s")
    report.ratios = [Ratio("real time / limit", ours, limit, at_least=1.0)]
    return report


def _stuck(harness: Harness, say: Callable[[str], None]) -> Report:
    """How long others wait while the handler of one key hangs."""
    stuck_for = harness.size(30, 3)
    rate, seconds = 1_000, stuck_for + 10

    def p99(hangs: float) -> float:
        folder = harness.path("stamps")
        folder.mkdir()
        work = StuckStamps(str(folder), b"key-7", int(_WARM_UP) * rate, hangs)
        with _running(harness, work, _CONCURRENCY) as job:
            _send_apart(harness, job.topic, rate, seconds)
            job.wait(rate * seconds)
        stamps = _warm("".join(file.read_text() for file in folder.iterdir()))
        others = stamps[stamps[:, 0] % _KEYS != 7]
        return float(np.percentile((others[:, 2] - others[:, 1]) / 1e6, 99))

    report = Report(
        "Real time: one key is stuck",
        f"{rate:,} records/s, {_SLOTS} slots with {_CONCURRENCY} handlers each; one handler hangs "
        f"for {stuck_for} s of {seconds} s. From the intended send to the handler, p99 of all "
        "other keys.",
    )
    stuck, free = "one key stuck", "none stuck"
    sides: dict[str, Callable[[int], float]] = {
        stuck: lambda _: p99(stuck_for),
        free: lambda _: p99(0.0),
    }
    report.add_all(take_turns(sides, harness.turns, say=say, warm_ups=1), "ms")
    report.ratios = [Ratio("one key stuck / none stuck", stuck, free, at_most=1.5)]
    return report


def _idle(harness: Harness, say: Callable[[str], None]) -> Report:
    """What slots cost that have nothing to do."""
    seconds, values = harness.size(20, 3), []
    with _running(harness, handler, _CONCURRENCY):
        for turn in range(harness.turns):
            before = _worker_seconds()
            time.sleep(seconds)
            took = sum(now - before.get(pid, 0) for pid, now in _worker_seconds().items())
            values.append(100 * took / seconds / _SLOTS)
            say(f"  turn {turn}, idle slots: {values[-1]:.2f} % of a core each")
    report = Report(
        "Real time: idle slots",
        f"Processor time of the Python workers and of the fetch server in {seconds} s without "
        f"records, for each of {_SLOTS} slots.",
    )
    report.add("an idle slot", values, "% of a core")
    report.add("limit", [2.0] * len(values), "% of a core")
    report.ratios = [Ratio("an idle slot / limit", "an idle slot", "limit", at_most=1.0)]
    return report


def _worker_seconds() -> dict[int, float]:
    """Processor time so far of each Python worker and of the fetch server, by process id."""
    found: dict[int, float] = {}
    for pid in process_tree(os.getpid()):
        with suppress(OSError):  # It ended meanwhile.
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"coopconsume.worker." in words:
                fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
                found[pid] = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
    return found


def _latencies_of(peer: Peer, rate: int, seconds: int) -> dict[str, float]:
    """The percentiles of a peer to the handler; its commits are not seen from outside."""
    harness = peer.harness
    topic = harness.path("realtime").name
    harness.broker.create_topic(topic, 1)
    _send_apart(harness, topic, 1, 1)
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


def _send_apart(
    harness: Harness,
    topic: str,
    rate: int,
    count: int,
    *,
    keys: int = _KEYS,
    zipf: bool = False,
) -> float:
    """Sends records in a process of its own: see `_send`; returns when it began."""
    values = json.dumps([harness.broker.bootstrap_servers, topic, rate, count, keys, zipf])
    ran = subprocess.run(
        [sys.executable, "-m", "tests.bench.realtime", values],
        check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    return float(ran.stdout)


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


def _send(servers: str, topic: str, rate: int, count: int, keys: int, *, zipf: bool) -> float:
    """Sends records; the value begins with the intended time.

    Args:
        servers: Of the brokers.
        topic: Where to.
        rate: Records a second; 0: all at once.
        count: For how many seconds; all at once: how many records.
        keys: The number of keys.
        zipf: Whether the keys are by Zipf's law; else they come in turn.

    Returns:
        When it began, in seconds since the epoch.
    """
    from confluent_kafka import Producer

    linger, dice = (_LINGER_MS if rate else 5), random.Random(7)
    settings: dict[str, Any] = {"bootstrap.servers": servers, "linger.ms": linger, "acks": 1}
    producer = Producer(settings)
    start = time.time_ns() + (500_000_000 if rate else 0)
    for n in range(rate * count or count):
        intended = start + (n * 1_000_000_000 // rate if rate else 0)
        while rate and (ahead := intended - time.time_ns()) > 0:
            producer.poll(0)
            time.sleep(min(ahead / 1e9, 0.001))
        value = b"%d" % intended
        key = int(keys ** dice.random()) if zipf else n % keys
        while True:
            try:
                producer.produce(topic, value.ljust(100, b" "), b"key-%d" % key, 0)
                break
            except BufferError:
                producer.poll(0.01)
    producer.flush()
    return start / 1e9


def _main(arguments: Sequence[str]) -> None:
    *values, zipf = json.loads(arguments[1])
    print(_send(*values, zipf=zipf))  # noqa: T201


if __name__ == "__main__":
    _main(sys.argv)
