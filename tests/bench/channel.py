"""The channel between the driver and its slots: stops, joins, and what a kill repeats."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from kafka import KafkaProducer

from commits import CommitStore
from coopconsume import CooperativeConsumer, LocalKafka, local_session, set_shareable
from coopconsume.demo.processes import kill_tree
from coopconsume.group.membership import Membership
from coopconsume.group.settings import session_ms
from coopconsume.options import Options
from coopconsume.worker.channel.spec import REPORT_EVERY
from tests.bench.figures import Ratio, Report, seconds_of, take_turns
from tests.bench.harness import SLOTS
from tests.bench.throughput import empty_job
from tests.bench.worker import IdleWorker

if TYPE_CHECKING:
    from collections.abc import Callable

    from coopconsume import Record
    from tests.bench.harness import Harness

_STOP = "stop(), handlers of 10 ms"
_JOIN = "longest time without a commit while a member joins and leaves"
_IDLE_ALONE = "stop() and close() of an idle job, broker killed"
_BUSY_ALONE = "stop() and close() of a job with a backlog, broker killed"
_REPEATED = "handler calls that a kill -9 leaves uncommitted"
_SUCCESSOR = "kill -9 to the first handler call of a successor on another host"
_STATIC = "the same as a static member"
_ON_HOST = "the same on its host"
_FIRST = "first start of a group to its first handler call"
_STOP_LIMIT, _REPEATED_LIMIT = "limit of a stop", "limit of the calls that a kill leaves"
_SUCCESSOR_LIMIT = "limit of the successor"
_STATIC_LIMIT = "limit of the static successor"
_ON_HOST_LIMIT = "limit of the successor on its host"
_WITH, _WITHOUT = "with the channel", "without"
_KILLED_SLOTS, _CONCURRENCY = 8, 8
#: Turns of each side for each turn of the others: single ones differ by a fifth.
_MORE, _WARM_UPS = 6, 4
_HANDLER_SECONDS = 0.01
#: Seconds behind the session within which a successor calls its first handler.
_AFTER_SESSION = 10.0
#: Seconds within which a static member on another host does so, without the session.
_STATIC_WITHIN = 10.0
#: Seconds that a restart on the host of a killed job may take beyond a first start.
_AFTER_FIRST = 3.0
#: Seconds that a stop may take beyond the longest handler.
_STOP_SPARE = 2.0
_PATIENCE = 300
#: Seconds for which the broker is away before a job is stopped.
_AWAY = 3.0


class Noting:
    """Takes 10 ms a record, and notes each call that has ended in a file of its process.

    Args:
        folder: Where the notes go.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, record: Record) -> None:
        """Handle one record."""
        time.sleep(_HANDLER_SECONDS)
        with Path(self.folder, str(os.getpid())).open("a") as file:
            file.write(f"{record.offset}\n")


def _wait(holds: Callable[[], object]) -> None:
    until = time.monotonic() + _PATIENCE
    while not holds():
        if time.monotonic() > until:
            raise AssertionError(f"still not so after {_PATIENCE} s")
        time.sleep(0.01)


def channel(harness: Harness, say: Callable[[str], None]) -> list[Report]:
    """Seconds to stop, without commits around a join, and records that a kill repeats."""
    topic = "channel"
    harness.load(topic, harness.size(200_000, 20_000), 1_000, 100)
    report = Report(
        "The channel to the slots",
        f"Handlers of 10 ms on one partition, {SLOTS} slots; for the kill {_KILLED_SLOTS} slots "
        f"with {_CONCURRENCY} handlers each, in a process that is killed with its JVM and workers. "
        f"Its successor is another application, whose Spark runs; kafka.session.timeout.ms, the "
        f"lease and leaseGrace are those of the defaults.",
    )
    stops, gaps, repeated, successors, static = [], [], [], [], []
    idle, busy, on_host, first = [], [], [], []
    for turn in range(harness.turns):
        stop, gap = _stop_and_join(harness, topic)
        left, took = _killed(harness, topic, elsewhere=True)
        static.append(_killed(harness, topic, elsewhere=True, instance="killed")[1])
        on_host.append(_killed(harness, topic, elsewhere=False)[1])
        first.append(_first_call(harness, harness.options(topic, slots=SLOTS)))
        stops.append(stop)
        gaps.append(gap)
        repeated.append(float(left))
        successors.append(took)
        idle.append(_stopped_alone(harness, 0))
        busy.append(_stopped_alone(harness, 20_000))
        say(
            f"  turn {turn}: without a broker {idle[-1]:.2f} and {busy[-1]:.2f} s, "
            f"stop {stop:.2f} s, without commits {gap:.2f} s, repeated {left}, "
            f"successor {took:.1f} s, a static one {static[-1]:.1f} s, on its host "
            f"{on_host[-1]:.2f} s, a first start {first[-1]:.2f} s"
        )
    report.add(_STOP, stops, "s")
    report.add(_JOIN, gaps, "s")
    report.add(_IDLE_ALONE, idle, "s")
    report.add(_BUSY_ALONE, busy, "s")
    report.add(_REPEATED, repeated, "records")
    report.add(_SUCCESSOR, successors, "s")
    report.add(_STATIC, static, "s")
    report.add(_ON_HOST, on_host, "s")
    report.add(_FIRST, first, "s")
    at_once = _KILLED_SLOTS * _CONCURRENCY
    report.add(_STOP_LIMIT, [_HANDLER_SECONDS + _STOP_SPARE], "s")
    report.add(_REPEATED_LIMIT, [at_once * (1 + REPORT_EVERY / _HANDLER_SECONDS)], "records")
    session = session_ms(harness.parsed(topic)) / 1000
    report.add(_SUCCESSOR_LIMIT, [session + _AFTER_SESSION], "s")
    report.add(_STATIC_LIMIT, [_STATIC_WITHIN], "s")
    report.add(_ON_HOST_LIMIT, [took + _AFTER_FIRST for took in first], "s")
    report.ratios = [
        Ratio("stop() / its limit", _STOP, _STOP_LIMIT, at_most=1.0),
        Ratio("stop() and close(), idle, broker killed / limit", _IDLE_ALONE, _STOP_LIMIT,
              at_most=1.0),
        Ratio("stop() and close(), backlog, broker killed / limit", _BUSY_ALONE, _STOP_LIMIT,
              at_most=1.0),
        Ratio("calls left by a kill / their limit", _REPEATED, _REPEATED_LIMIT, at_most=1.0),
        Ratio("successor / its limit", _SUCCESSOR, _SUCCESSOR_LIMIT, at_most=1.0),
        Ratio("static successor / its limit", _STATIC, _STATIC_LIMIT, at_most=1.0),
        Ratio("successor on its host / its limit", _ON_HOST, _ON_HOST_LIMIT, at_most=1.0),
    ]  # fmt: skip
    report.notes.append(
        "Limits: a handler and 2 s; the handlers at work and what ends within 200 ms, the longest "
        "time between two reports; the session and 10 s, for a static member 10 s; a first start "
        "and 3 s."
    )
    return [report, _cost(harness, say)]


def _cost(harness: Harness, say: Callable[[str], None]) -> Report:
    """What the channel costs where handlers do nothing: records a second with it and without."""
    count = harness.size(1_000_000, 50_000)
    harness.load("channel-cost", count, keys=10_000, value_bytes=100)

    def with_it(_: int) -> float:
        return count / seconds_of(lambda: empty_job(harness, "channel-cost", count))

    def without(turn: int) -> float:
        # As on Spark Connect, where slots cannot reach the driver.
        with patch("coopconsume.runtime.dispatch.slot_leases.driver_address", lambda _: None):
            return with_it(turn)

    turns = _MORE * harness.turns
    found = take_turns({_WITH: with_it, _WITHOUT: without}, turns, say=say, warm_ups=_WARM_UPS)
    report = Report(
        "What the channel costs",
        f"An empty handler, {count:,} records of one partition, {turns} turns of each side.",
    )
    report.add_all(found, "records/s")
    report.ratios = [Ratio("with / without", _WITH, _WITHOUT, at_least=0.97)]
    return report


def _stop_and_join(harness: Harness, topic: str) -> tuple[float, float]:
    """Seconds from `stop` to the end, and the longest without a commit around a join."""
    folder = harness.path("calls")
    folder.mkdir()
    options = harness.options(topic)
    set_shareable(options, [topic])
    commits: list[float] = []
    done = [0]

    def note(progress: dict[str, Any]) -> None:
        if progress["totals"]["done"] > done[0]:
            done[0] = progress["totals"]["done"]
            commits.append(time.perf_counter())

    with CooperativeConsumer(options, harness.spark) as consumer:
        query = consumer.foreach(Noting(str(folder)), concurrency=4).onProgress(note).start()
        _wait(lambda: len(commits) > 5)
        began, seen = time.perf_counter(), len(commits)
        other = Membership(Options.parse(options), 1, IdleWorker())
        other.subscribe([topic], None)
        _wait(lambda: other.owned)
        _wait(lambda: len(commits) > seen + 5)
        other.leave()
        seen = len(commits)
        _wait(lambda: len(commits) > seen + 5)
        around = [at for at in commits if at >= began]
        gap = max(b - a for a, b in zip([began, *around], around, strict=False))
        began = time.perf_counter()
        query.stop()
        return time.perf_counter() - began, gap


def _stopped_alone(harness: Harness, backlog: int) -> float:
    """Seconds of `stop` and `close` a while after the broker of a job was killed."""
    topic, folder = harness.path("alone").name, harness.path("calls")
    folder.mkdir()
    with LocalKafka() as broker:
        broker.create_topic(topic, 1)
        with closing(KafkaProducer(bootstrap_servers=broker.bootstrap_servers)) as producer:
            for number in range(100 + backlog):
                producer.send(topic, key=b"key-%d" % (number % 100), value=b"x" * 100)
        options = harness.options(topic, maxOffsetsPerTrigger=200)
        options["kafka.bootstrap.servers"] = broker.bootstrap_servers
        consumer = CooperativeConsumer(options, harness.spark)
        query = consumer.foreach(Noting(str(folder)), concurrency=4).start()
        _wait(lambda: (query.lastProgress or {"totals": {"done": 0}})["totals"]["done"] >= 100)
        broker.kill()
        time.sleep(_AWAY)
        began = time.perf_counter()
        query.stop()
        consumer.close()
        return time.perf_counter() - began


def _killed(
    harness: Harness, topic: str, *, elsewhere: bool, instance: str = ""
) -> tuple[int, float]:
    """Kill a whole application that works.

    Args:
        harness: The harness.
        topic: What it works on.
        elsewhere: Whether its successor knows nothing of it, as on another host.
        instance: The ``kafka.group.instance.id`` of both; empty: they are no static members.

    Returns:
        How many records were handled and not committed, and the seconds until a successor works.
    """
    folder, host = harness.path("calls"), harness.path("host")
    folder.mkdir()
    host.mkdir()
    options = harness.options(topic, slots=_KILLED_SLOTS)
    if instance:
        options["kafka.group.instance.id"] = instance
    job = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.channel", json.dumps([options, str(folder)])],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        env=os.environ | ({"TMPDIR": str(host)} if elsewhere else {}),
    )  # fmt: skip
    try:
        _wait(lambda: len(_handled(folder)) > 2_000 or job.poll() is not None)
    finally:
        kill_tree(job)
    began = time.perf_counter()
    handled = _handled(folder)
    store = CommitStore.open(str(options["commitTable"]))
    (cluster,) = store.clusters(str(options["kafka.group.id"]))
    store = CommitStore.open(str(options["commitTable"]), cluster=cluster)
    commits = store.state(str(options["kafka.group.id"]))[topic, 0]
    left = sum(o >= commits.stable_offset and o not in commits.ranges for o in handled)
    looked = time.perf_counter() - began
    return left, looked + _first_call(harness, options | {"slots": SLOTS})


def _first_call(harness: Harness, options: dict[str, Any]) -> float:
    """Seconds from the start of a job to the end of its first handler call."""
    folder, began = harness.path("calls"), time.perf_counter()
    folder.mkdir()
    with CooperativeConsumer(options, harness.spark) as consumer:
        consumer.foreach(Noting(str(folder))).start()
        _wait(lambda: _handled(folder))
        return time.perf_counter() - began


def _handled(folder: Path) -> set[int]:
    """The offsets whose handler calls have ended."""
    return {int(o) for file in folder.iterdir() for o in file.read_text().splitlines()}


def _run(options: dict[str, Any], folder: str) -> None:
    spark = local_session("coopconsume-bench-channel", cores=_KILLED_SLOTS + 2)
    with CooperativeConsumer(options, spark) as consumer:
        query = consumer.foreach(Noting(folder), concurrency=_CONCURRENCY).start()
        threading.Event().wait(_PATIENCE)
        query.stop()


if __name__ == "__main__":
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    _run(*json.loads(sys.argv[1]))
