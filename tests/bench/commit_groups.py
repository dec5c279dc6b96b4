"""Many groups of one commit table, each a process that commits five times a second."""

from __future__ import annotations

import multiprocessing
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from commits import CommitStore
from coopconsume.texts import counted
from tests.bench.figures import Report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection
    from pathlib import Path

    from tests.bench.harness import Harness

_EACH = 5  # commits a second of a group
_PARTITIONS = 4


def commit_groups(harness: Harness, say: Callable[[str], None]) -> list[Report]:
    """Milliseconds of a commit beside other groups of its table, and the commits a second."""
    seconds = harness.size(10, 2)
    report = Report(
        "Many groups of one table",
        f"Each group is a process that commits {_EACH} times a second, at times of its own: five "
        f"offsets of each of {_PARTITIONS} partitions. From the call to the answer, with the "
        "snapshots and checkpoints that a commit waits for left out. Processor time is that of all "
        f"processes over their commits, with both. A turn is {seconds} s.",
    )
    for groups in (1, 12, 40):
        with _processes(harness.path("groups"), groups) as members:
            _turn(members, seconds)
            values = [_turn(members, seconds) for _ in range(harness.turns)]
        of = counted(groups, "group")
        for number, (name, unit) in enumerate(
            [("p50", "ms"), ("p99", "ms"), ("processor time of a commit", "ms"), ("in sum", "/s")]
        ):
            report.add(f"{of}, {name}", [found[number] for found in values], unit)
        say(f"  {of}: {values}")
    return [report]


@contextmanager
def _processes(path: Path, groups: int) -> Iterator[list[Connection]]:
    """Starts a process for each group; yields the connections to them."""
    CommitStore.open(path)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.bench.commit_groups"])
    pipes = [context.Pipe() for _ in range(groups)]
    started = [
        context.Process(target=_member, args=(str(path), number, pipe), daemon=True)
        for number, (_, pipe) in enumerate(pipes)
    ]
    for process in started:
        process.start()
    members = [pipe for pipe, _ in pipes]
    try:
        for member in members:
            assert member.recv() == "ready"
        yield members
        for member in members:
            member.send(0)
    finally:
        for process in started:
            process.join(30)
            process.kill()


def _turn(members: list[Connection], seconds: int) -> tuple[float, float, float, float]:
    """Has all processes commit; returns p50, p99, processor time in ms, and commits a second."""
    for member in members:
        member.send(seconds)
    found = [member.recv() for member in members]
    times = np.array([one for took, _, _ in found for one in took]) * 1000
    spent = 1000 * sum(cpu for _, cpu, _ in found) / len(times)
    rate = sum(len(took) / lasted for took, _, lasted in found)
    return float(np.percentile(times, 50)), float(np.percentile(times, 99)), spent, rate


def _member(path: str, number: int, pipe: Connection) -> None:
    """Commits for so many seconds each time it is asked to."""
    group, share = f"g{number}", [("t", partition) for partition in range(_PARTITIONS)]
    store = CommitStore.open(path)
    epoch = store.open_epoch(group, {"m": share}, previous=None)
    store.start(group, epoch, "m", dict.fromkeys(share, 0))
    pipe.send("ready")
    done = 0
    while seconds := pipe.recv():
        took = []
        began, cpu = time.monotonic(), time.process_time()
        due = began + number % 20 / 100  # not all at once
        for turn in range(seconds * _EACH):
            time.sleep(max(0.0, due + turn / _EACH - time.monotonic()))
            called = time.monotonic()
            offsets = {at: [(done, done + 4)] for at in share}
            store.commit(group, epoch, "m", offsets, maintain=False)
            took.append(time.monotonic() - called)
            store.maintain()
            done += 5
        lasted = max(seconds, time.monotonic() - began)
        pipe.send((took, time.process_time() - cpu, lasted))
