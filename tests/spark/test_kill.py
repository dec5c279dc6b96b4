"""kill -9 of a whole job, driver and JVM and workers, at random moments, and on again."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from commits import CommitStore
from coopconsume import counted
from coopconsume.history import Kill, check, read_history
from tests.spark.support import done_book, options, pending_book

pytestmark = [pytest.mark.spark, pytest.mark.broker]
ROOT = Path(__file__).parents[2]


def descendants(pid: int) -> list[int]:
    """All processes below one, from /proc."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, todo = [], [pid]
    while todo:
        todo += (more := children.get(todo.pop(), []))
        found += more
    return found


def kill_tree(process: subprocess.Popen) -> None:
    """SIGKILL a process and all below it, and wait until every one is gone."""
    everyone = [process.pid, *descendants(process.pid)]
    for pid in everyone:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait(10)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        alive = [p for p in everyone if Path(f"/proc/{p}/stat").exists() and not is_zombie(p)]
        if not alive:
            return
        time.sleep(0.02)
    raise AssertionError(f"still there: {alive}")


def is_zombie(pid: int) -> bool:
    """Whether a process has ended and was only not waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def start(config: dict, log) -> subprocess.Popen:
    """Start the job in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.spark.job_to_kill", json.dumps(config)],
        cwd=ROOT,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


def test_killed_at_random_moments_nothing_is_lost(kafka, topic, produce, tmp_path):
    """After each SIGKILL it goes on from the log: no loss, key order, repeats in flight only."""
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    name = topic(2)
    produced: dict = {(name, 0): {}, (name, 1): {}}
    for partition in (0, 1):
        records = [(b"k%d" % dice.randrange(120), b"%d" % i) for i in range(1_200)]
        offsets = produce(name, records, partition)
        produced[name, partition] = {o: k for o, (k, _) in zip(offsets, records, strict=True)}
    opts = options(
        kafka, tmp_path, name, batchTime="1 second", handlerTimeout="30 seconds",
        maxOffsetsPerTrigger=300,
    )  # fmt: skip
    history = tmp_path / "history"
    config = {
        "options": opts, "history": str(history), "output": str(tmp_path / "out"), "most": 0.01,
    }  # fmt: skip
    kills = []
    log_path = tmp_path / "job.log"
    cluster = ""
    with log_path.open("w") as log:
        for _ in range(2):
            seen = sum(f.stat().st_size for f in history.glob("*")) if history.exists() else 0
            job = start(config, log)
            deadline = time.monotonic() + 90
            while not history.exists() or sum(f.stat().st_size for f in history.glob("*")) <= seen:
                assert job.poll() is None, log_path.read_text()[-3000:]
                assert time.monotonic() < deadline, log_path.read_text()[-3000:]
                time.sleep(0.02)
            time.sleep(dice.uniform(0.1, 2.5))
            assert job.poll() is None, "the job was through before it could be killed"
            kill_tree(job)
            (cluster,) = CommitStore.open(opts["commitTable"]).clusters("g")
            store = CommitStore.open(opts["commitTable"], cluster=cluster)
            kills.append(Kill(time.monotonic_ns(), done_book(store, "g")))
        job = start(config, log)
        assert job.wait(120) == 0, log_path.read_text()[-3000:]
    store = CommitStore.open(opts["commitTable"], cluster=cluster)
    verdict = check(
        read_history(history), produced, done_book(store, "g"), pending_book(store, "g"), {},
        kills=kills,
    )  # fmt: skip
    assert verdict.ok, f"seed {seed}\n{verdict}"
    assert verdict.done == 2_400
    assert all(flying <= 2 * 300 for flying in verdict.in_flight_at_kill)
    rows = counted(str(tmp_path / "out"), opts["commitTable"], "g")
    assert rows.num_rows == 2_400
    assert len({(r["partition"], r["offset"]) for r in rows.to_pylist()}) == 2_400
