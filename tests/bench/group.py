"""A group of several applications: how soon shares move, and what another application adds."""

from __future__ import annotations

import os
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafka import KafkaConsumer, TopicPartition

from coopconsume import set_shareable
from coopconsume.group.membership import Membership
from coopconsume.options import Options
from tests.bench.figures import Ratio, Report, take_turns
from tests.bench.worker import IdleWorker
from tests.broker.group_harness import GroupHarness as Members
from tests.chaos.harness import Harness as Applications

if TYPE_CHECKING:
    from collections.abc import Callable

    from coopconsume.group.epoch_assignment import EpochAssignment
    from tests.bench.harness import Harness

_BARE = "two bare kafka-python consumers"
_OURS = "two of our members, one partition by key range"
_HANDLER_SECONDS = 0.005
_KEYS = 10_000
#: Records for each application, and how often, before it counts: each time is a batch of its own.
_BURST, _BURSTS = 100, 15
#: Seconds of the session of members, and of the life of a batch: its time, its handlers, the lease.
_SESSION, _LIFE = 5.0, 1.0 + 1.0 + 2.0
_HASTY: dict[str, Any] = {
    "kafka.session.timeout.ms": int(1000 * _SESSION),
    "batchTime": 1,
    "handlerTimeout": 1,
}


def group(harness: Harness, say: Callable[[str], None]) -> list[Report]:
    """Join, kill -9, and one to three applications on one partition."""
    return [_join(harness, say), _kill(harness, say), _scale(harness, say)]


# -- a member joins


class _Begun(IdleWorker):
    """A worker without work, that knows when it was given something."""

    def __init__(self) -> None:
        self.epoch = 0
        self.changed = threading.Condition()

    def begin(self, assignment: EpochAssignment) -> None:
        with self.changed:
            self.epoch = assignment.epoch.number
            self.changed.notify_all()


def _join(harness: Harness, say: Callable[[str], None]) -> Report:
    harness.broker.create_topic("join", 1)
    harness.broker.create_topic("join-bare", 2)
    report = Report(
        "A member joins",
        "One member works, a second one joins: seconds from its call until both have their shares, "
        "for ours until both may start handlers under the new epoch. Nothing was running, so no "
        "hand-over is in it. Heartbeats every second on both sides.",
    )
    sides = {_OURS: lambda _: _ours_join(harness), _BARE: lambda _: _bare_join(harness)}
    report.add_all(take_turns(sides, harness.turns, say=say), "s")
    most = max(report.figures[_OURS].values)
    report.notes.append(f"The longest of ours took {most:.1f} s; at most 5 s are wanted.")
    return report


def _ours_join(harness: Harness) -> float:
    options = harness.options("join")
    set_shareable(options, ["join"])
    workers = [_Begun(), _Begun()]
    members = [Membership(Options.parse(options), 1, worker) for worker in workers]
    try:
        members[0].subscribe(["join"], None)
        began = time.perf_counter()
        members[1].subscribe(["join"], None)
        with workers[0].changed:
            workers[0].changed.wait_for(lambda: workers[0].epoch == workers[1].epoch, 30)
        return time.perf_counter() - began
    finally:
        for member in members:
            member.leave()


def _bare_join(harness: Harness) -> float:
    name = f"bare-{uuid.uuid4().hex}"
    settled = threading.Event()
    ended = threading.Event()
    held: dict[int, set[TopicPartition]] = {}

    def consume(number: int) -> None:
        consumer = KafkaConsumer(
            "join-bare", bootstrap_servers=harness.broker.bootstrap_servers, group_id=name,
            heartbeat_interval_ms=1_000,
        )  # fmt: skip
        while not ended.is_set():
            consumer.poll(timeout_ms=100)
            held[number] = set(consumer.assignment())
            if all(len(held.get(n, ())) == 1 for n in (0, 1)):
                settled.set()
        consumer.close()

    threads = [threading.Thread(target=consume, args=(number,)) for number in (0, 1)]
    threads[0].start()
    while len(held.get(0, ())) < 2:
        time.sleep(0.01)
    began = time.perf_counter()
    threads[1].start()
    settled.wait(30)
    took = time.perf_counter() - began
    ended.set()
    for thread in threads:
        thread.join()
    return took


# -- a member is killed


def _kill(harness: Harness, say: Callable[[str], None]) -> Report:
    report = Report(
        "A member is killed",
        f"Of two members one is killed by SIGKILL (session timeout {_SESSION:g} s, life of a batch "
        f"{_LIFE:g} s): seconds from then until the other may start handlers of its keys.",
    )
    values = []
    for turn in range(harness.turns):
        topic = f"kill-{turn}"
        harness.broker.create_topic(topic, 1)
        members = Members(harness.broker, topic, harness.path("kill"))
        set_shareable(members.options, [topic])
        one = members.start(**_HASTY)
        members.settled(one)
        other = members.start(**_HASTY)
        members.settled(one, other)
        other.popen.kill()
        killed = time.monotonic()
        begin = one.wait_for("begin")
        values.append(begin["at"] - killed + begin["wait"])
        say(f"  turn {turn + 1}: {values[-1]:.1f}")
        for process in members.processes:
            process.end()
    report.add("survivor works on all keys", values, "s")
    bound = _SESSION + _LIFE + 5
    report.notes.append(
        f"At most session timeout + life of a batch + 5 s, here {bound:g} s, are wanted; "
        f"the longest took {max(values):.1f} s."
    )
    return report


# -- more applications


def _scale(harness: Harness, say: Callable[[str], None]) -> Report:
    each = harness.size(4_000, 500)
    report = Report(
        "One to three applications on one partition",
        f"{each:,} records for each application, {_KEYS:,} keys, a handler of 5 ms, one slot with "
        "one handler at once in each, so that at most 200 records a second of each are possible: "
        "records a second from their production to the last commit, after "
        f"{_BURSTS} batches for warmth. With few keys chance would decide how many of them each "
        "member has; and each application is a driver, a JVM and a worker on the same processors, "
        "so that their handlers are the limit for as long as processors are idle: their part of "
        "the time is below.",
    )
    turns = 1 if harness.quick else 3
    found: dict[int, list[tuple[float, float]]] = {1: [], 2: [], 3: []}
    for turn in range(turns):
        for count, values in found.items():
            values.append(_rate(harness, f"scale-{turn}-{count}", count, each))
            rate, idle = values[-1]
            say(f"  turn {turn + 1}: {count} applications: {rate:,.0f}/s, {idle:.0f} % idle")
    for count, values in found.items():
        report.add(_apps(count), [rate for rate, _ in values], "records/s")
    one = report.figures[_apps(1)].median
    for count in (2, 3):
        report.add(f"{count} x 1", [count * one], "records/s")
    for count, values in found.items():
        report.add(f"processors idle, {_apps(count)}", [idle for _, idle in values], "%")
    report.ratios = [
        Ratio(f"{count} / {count} x 1", f"{_apps(count)}", f"{count} x 1", at_least=0.9)
        for count in (2, 3)
    ]
    return report


def _apps(count: int) -> str:
    return f"{count} application{'s' if count > 1 else ''}"


def _rate(harness: Harness, topic: str, count: int, each: int) -> tuple[float, float]:
    """Records a second, and how idle the machine's processors were meanwhile, in percent."""
    harness.broker.create_topic(topic, 1)
    folder = harness.path("scale")
    folder.mkdir()
    with Applications(
        harness.broker, topic, folder, slots=1, concurrency=1, seconds=_HANDLER_SECONDS,
        batch_time=10.0, fails=False, watched=False,
    ) as apps:  # fmt: skip
        for _ in range(count):
            apps.start()
        apps.wait_for_members(count)
        for records in [count * _BURST] * _BURSTS + [count * each]:  # the last of these counts
            began, idle = time.monotonic(), _idle()
            goal = apps.done + records
            apps.produce(records, keys=_KEYS)
            apps.wait_for_done(goal, every=0.2)
            took, idle = time.monotonic() - began, _idle() - idle
        for app in apps.alive:
            apps.stop(app)
    return records / took, 100 * idle / took / (os.cpu_count() or 1)


def _idle() -> float:
    """Seconds that all processors together have idled since the machine began."""
    with Path("/proc/uptime").open() as file:
        return float(file.read().split()[1])
