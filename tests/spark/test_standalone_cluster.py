"""The job on a Spark cluster of separate processes, one of its executors is killed at work."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from coopconsume import committed_rows
from coopconsume.demo.processes import kill_tree, process_tree
from coopconsume.testing.history import check, read_history
from coopconsume.testing.local.jars import spark_jars
from coopconsume.testing.local.process import suspend
from tests.spark.cluster import is_there, standalone_cluster, wait_until
from tests.spark.deaths import Deaths
from tests.spark.shipping import (
    bare_python,
    documented_commands,
    filled,
    job_folder,
    produced_orders,
    submitting,
)
from tests.spark.support import PATIENCE, done_book, pending_book

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.slow, pytest.mark.nightly]

WINDOW = 600

# An executor's workers die with it. Here they go on as if it were only cut off, their handlers
# hang, and what ends them is the life of their batch.
HANDLER = """
import os
import signal
import time

import coopconsume
from support import Recorded, Sleep

signal.signal(signal.SIGHUP, signal.SIG_IGN)
parent = os.getppid()
sleep = Sleep(0.03)

def work(record):
    sleep(record)
    while os.getppid() != parent:
        time.sleep(1)
    return {{"partition": record.partition, "offset": record.offset, "at": coopconsume.__file__}}

on_order = Recorded({history!r}, work)
"""


@contextmanager
def submitted(folder: Path, values: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen]:
    """The documented commands for a standalone cluster, with values where it has placeholders."""
    text = filled(documented_commands("spark-submit --master spark://"), values)
    environment = submitting(folder, bare_python(folder / "bare"))
    environment["SPARK_LOCAL_DIRS"] = str(folder / "scratch")
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["bash", "-ec", text], env=environment, cwd=folder, stdout=out, stderr=out, text=True
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            kill_tree(process)


def kill_executor(executor: int, history: Path, *, at_work: bool) -> set[int]:
    """SIGKILL an executor's JVM while its Python workers run handlers, or while they run none.

    Returns:
        Its processes, once all of them are gone.
    """
    while not (tree := _killed_if(executor, history, at_work=at_work)):
        time.sleep(0.05)
    wait_until(lambda: not any(map(is_there, tree)), PATIENCE)
    return {*tree}


def _killed_if(executor: int, history: Path, *, at_work: bool) -> list[int]:
    tree = process_tree(executor)
    # Stopped, so that what their files say is so when the executor dies.
    for pid in tree:
        suspend(pid)
    running = (call for call in read_history(history) if call.end_ns is None)
    is_due = any(int(call.process.split("-")[0]) in tree for call in running) == at_work
    if is_due:
        os.kill(executor, signal.SIGKILL)
    for pid in tree:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    return tree if is_due else []


def test_a_killed_executor_costs_what_was_in_flight(kafka, topic, produce, tmp_path):
    """By spark-submit on two executors, one killed at work: no loss, key order, the job ends.

    The other one is killed between its handlers: while Spark plans, reads, or deals the rows.
    """
    each, count = 800, 1_600
    name = topic(2)
    produced = produced_orders(produce, name, each, keys=120)
    history, table, out = (tmp_path / part for part in ("history", "commits", "out"))
    folder = job_folder(tmp_path / "checkout", HANDLER.format(history=str(history)))
    log = tmp_path / "job.log"
    settings = (
        f"-o slots=2 -o maxOffsetsPerTrigger={WINDOW} -o batchTime=2 -o handlerTimeout=8 "
        f"--concurrency 2 --available-now --output {out} "
        "--output-schema 'partition int, offset long, at string'"
    )
    # As on machines of their own: what an executor has shuffled is gone with it.
    conf = "--conf spark.shuffle.readHostLocalDisk=false --conf spark.ui.enabled=false"
    # Or else one that is there first might do all of it.
    conf += (
        " --conf spark.cores.max=4 --conf spark.scheduler.minRegisteredResourcesRatio=1"
        " --conf spark.scheduler.maxRegisteredResourcesWaitingTime=300s"
    )
    with standalone_cluster(tmp_path / "cluster", cores=2) as cluster:
        values = {
            "spark://HOST:7077": cluster.master,
            "--packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0":
                f"--jars {','.join(map(str, spark_jars()))} {conf}",
            "coopconsume.zip,shop.py": "coopconsume.zip,shop.py,support.py",
            "BROKER:9092": kafka.bootstrap_servers,
            "subscribe=orders": f"subscribe={name}",
            "/shared/commits": str(table),
            "-o slots=16": settings,
        }  # fmt: skip
        deaths = Deaths(history, str(table), "shop")
        with submitted(folder, values, log) as job, deaths:

            def both_have_worked() -> bool:
                assert job.poll() is None, log.read_text()[-3000:]
                executors = cluster.executors()
                known = [e for e in executors if deaths.workers() & {*process_tree(e)}]
                return len(known) == 2

            wait_until(both_have_worked, PATIENCE)
            victim, survivor = cluster.executors()
            at_kill = {*process_tree(survivor)} | kill_executor(victim, history, at_work=True)
            at_kill |= kill_executor(survivor, history, at_work=False)
            assert job.poll() is None, log.read_text()[-3000:]
            assert job.wait(PATIENCE) == 0, log.read_text()[-3000:]
    assert "without a channel" not in log.read_text()
    verdict = check(
        read_history(history), produced, done_book(deaths.store(), "shop"),
        pending_book(deaths.store(), "shop"), {}, kills=deaths.kills,
    )  # fmt: skip
    assert verdict.ok, str(verdict)
    assert verdict.done == count
    assert verdict.calls > count
    assert verdict.repeated.count <= 3 * WINDOW
    # Nobody died of it later: what explains a repeat was at work when the executor was killed.
    last = max(call.start_ns for call in read_history(history))
    assert {pid for kill in deaths.kills if kill.at_ns < last for pid in kill.pids} <= at_kill
    rows = committed_rows(str(out), str(table), "shop").to_pylist()
    assert len(rows) == len({(r["partition"], r["offset"]) for r in rows}) == count
    assert all("coopconsume.zip" in r["at"] for r in rows)
