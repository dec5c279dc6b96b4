"""The job in YARN's cluster mode: an executor is killed at work, and then its driver."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coopconsume.demo.processes import kill_tree, process_tree
from coopconsume.testing.history import check, read_history
from coopconsume.testing.local.jars import pyspark_home, spark_jars
from tests.spark.cluster import is_there, wait_until
from tests.spark.deaths import Deaths
from tests.spark.shipping import (
    documented_commands,
    filled,
    job_folder,
    produced_orders,
    submitting,
)
from tests.spark.support import PATIENCE, done_book, pending_book
from tests.yarn import yarn

if TYPE_CHECKING:
    from tests.yarn import Yarn

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.slow, pytest.mark.nightly]

HANDLER = """
from support import Recorded, Sleep

on_order = Recorded({history!r}, Sleep(0.03))
"""


# Containers do not get the environment of this run.
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_EXECUTOR = "org.apache.spark.executor.YarnCoarseGrainedExecutorBackend"
_DRIVER = "org.apache.spark.deploy.yarn.ApplicationMaster"


def containers(cluster: Yarn, of: str) -> list[int]:
    """Returns the JVMs of the cluster's containers that run a class."""
    found = []
    for pid in process_tree(cluster.pid)[1:]:
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            if Path(words[0]).name == "java" and of in words:
                found.append(pid)
    return found


def kill_when(
    history: Path, calls: int, cluster: Yarn, of: str, job: subprocess.Popen[bytes], log: Path
) -> None:
    """SIGKILL one container once the job has called its handler so many times."""
    found: list[int] = []

    def has_called() -> bool:
        assert job.poll() is None, log.read_text()[-3000:]
        if history.is_dir() and len(read_history(history)) >= calls:
            found.extend(containers(cluster, of))
        return bool(found)

    wait_until(has_called, PATIENCE)
    victim = found[0]
    with suppress(ProcessLookupError):  # It has ended by itself.
        os.kill(victim, signal.SIGKILL)
    wait_until(lambda: not is_there(victim), PATIENCE)


def command(servers: str, topic: str, table: Path) -> str:
    """Returns the page's commands with their placeholders filled in, and small containers."""
    common = documented_commands("spark://").partition("spark-submit")[0]
    values = {
        "--packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0":
            f"--jars {','.join(map(str, spark_jars()))} "
            "--conf spark.ui.enabled=false --conf spark.driver.memory=700m "
            "--conf spark.executor.instances=1 --conf spark.executor.cores=2 "
            "--conf spark.executor.memory=512m --conf spark.executor.memoryOverhead=512m "
            f"--conf 'spark.driver.extraJavaOptions={_JAVA}' "
            f"--conf 'spark.executor.extraJavaOptions={_JAVA}' "
            # Its jars need not be copied to each container.
            f"--conf spark.yarn.jars=local:{pyspark_home()}/jars/*",
        "coopconsume.zip,shop.py": "coopconsume.zip,shop.py,support.py",
        "BROKER:9092": servers,
        "subscribe=orders": f"subscribe={topic}",
        "/shared/commits": str(table),
        "-o slots=16": "-o slots=2 -o maxOffsetsPerTrigger=200 --concurrency 2 --available-now",
    }  # fmt: skip
    return filled(common + documented_commands("spark-submit --master yarn"), values)


def test_an_executor_and_then_the_driver_are_killed(kafka, topic, produce, tmp_path):
    """By the documented command: YARN starts both again, no record is lost, keys stay in order."""
    each = 400
    name = topic(2)
    produced = produced_orders(produce, name, each, keys=40)
    history, table, out = (tmp_path / part for part in ("history", "table", "job.log"))
    folder = job_folder(tmp_path / "checkout", HANDLER.format(history=str(history)))
    with yarn(tmp_path / "yarn", nodes=1) as cluster, out.open("wb") as log:
        environment = submitting(tmp_path, sys.executable)
        environment["HADOOP_CONF_DIR"] = str(cluster.configuration)
        job = subprocess.Popen(
            ["bash", "-ec", command(kafka.bootstrap_servers, name, table)],
            env=environment, cwd=folder, stdout=log, stderr=log,
        )  # fmt: skip
        deaths = Deaths(history, str(table), "shop")
        try:
            with deaths:
                kill_when(history, 100, cluster, _EXECUTOR, job, out)
                kill_when(history, 400, cluster, _DRIVER, job, out)
                assert job.wait(PATIENCE) == 0, out.read_text()[-3000:]
        finally:
            if job.poll() is None:
                kill_tree(job)
    verdict = check(
        read_history(history), produced, done_book(deaths.store(), "shop"),
        pending_book(deaths.store(), "shop"), {}, kills=deaths.kills,
    )  # fmt: skip
    assert verdict.ok, str(verdict)
    assert verdict.done == 2 * each
