"""The image's entry point: it runs commands, and executors as Kubernetes' scheduler starts them."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import coopconsume
from coopconsume.demo.processes import kill_tree, process_tree
from coopconsume.testing.local.jars import spark_jars
from tests.jvm import JVM_OPTIONS
from tests.spark.cluster import standalone_cluster, wait_until
from tests.spark.support import PATIENCE

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.slow]

ENTRYPOINT = Path(coopconsume.__file__).parents[1] / "docs" / "deploy" / "entrypoint.sh"

JOB = """
import json, os, sys
from pathlib import Path
from coopconsume import CooperativeConsumer, local_session

master, servers, topic, folder = sys.argv[1:]
# No executor of the cluster: it has no workers.
spark = local_session("job", conf={{"spark.master": master}})
place = {{"url": "spark://CoarseGrainedScheduler@127.0.0.1:" + spark.conf.get("spark.driver.port"),
          "app": spark.sparkContext.applicationId,
          "options": spark.sparkContext.getConf().get("spark.executor.extraJavaOptions")}}
Path(folder, "made").write_text(json.dumps(place))
Path(folder, "made").rename(Path(folder, "driver"))

def handle(record):
    with Path(folder, "parents").open("a") as out:
        out.write(f"{{os.getppid()}}\\n")

options = {{"kafka.bootstrap.servers": servers, "kafka.group.id": "g", "subscribe": topic,
            "commitTable": folder + "/commits", "slots": "2"}}
with CooperativeConsumer(options, spark) as consumer:
    query = consumer.foreach(handle).trigger(availableNow=True).start()
    query.awaitTermination()
spark.stop()
"""


def environment(**more: str) -> dict[str, str]:
    """Returns the environment of a container: this interpreter and its packages."""
    path = sysconfig.get_path("scripts") + os.pathsep + os.environ["PATH"]
    return os.environ | {"PATH": path, "JDK_JAVA_OPTIONS": JVM_OPTIONS} | more


def test_commands_run():
    """With their arguments and their exit codes."""
    found = subprocess.run(
        [ENTRYPOINT, "--version"], env=environment(), capture_output=True, text=True, check=True
    )
    assert found.stdout.split()[-1] == coopconsume.__version__
    wrong = subprocess.run(
        [ENTRYPOINT, "lag", "--nothing"], env=environment(), capture_output=True, check=False
    )
    assert wrong.returncode == 2


def test_an_executor_does_a_drivers_work(kafka, topic, produce, tmp_path):
    """By Spark's class for pods, with what its scheduler gives them; it ends with its driver."""
    name = topic(2)
    count = len(produce(name, [(b"k%d" % (i % 20), b"v") for i in range(200)]))
    (tmp_path / "job.py").write_text(JOB.format())
    with standalone_cluster(tmp_path / "cluster", workers=0) as cluster:
        words = [cluster.master, kafka.bootstrap_servers, name, str(tmp_path)]
        with (tmp_path / "job.log").open("wb") as log:
            job = subprocess.Popen(
                [sys.executable, tmp_path / "job.py", *words],
                env=environment(), stdout=log, stderr=log,
            )  # fmt: skip
        executor = None
        try:
            wait_until(lambda: (tmp_path / "driver").exists() or job.poll() is not None, PATIENCE)
            assert job.poll() is None, (tmp_path / "job.log").read_text()
            driver = json.loads((tmp_path / "driver").read_text())
            options = [*shlex.split(driver["options"]), "-Dword=first", "-Dword=two words"]
            pod = environment(
                SPARK_DRIVER_URL=driver["url"],
                SPARK_EXECUTOR_ID="1",
                SPARK_EXECUTOR_CORES="2",
                SPARK_EXECUTOR_MEMORY="512m",
                SPARK_APPLICATION_ID=driver["app"],
                SPARK_EXECUTOR_POD_IP="127.0.0.1",
                SPARK_EXECUTOR_POD_NAME="job-exec-1",
                SPARK_RESOURCE_PROFILE_ID="0",
                SPARK_CLASSPATH=os.pathsep.join(map(str, spark_jars())),
                **{f"SPARK_JAVA_OPT_{number}": option for number, option in enumerate(options)},
            )
            with (tmp_path / "executor.log").open("wb") as log:
                executor = subprocess.Popen(
                    [ENTRYPOINT, "executor"], env=pod, cwd=tmp_path, stdout=log, stderr=log
                )
            wait_until(lambda: (tmp_path / "parents").exists() or job.poll() is not None, PATIENCE)
            (daemon, *_) = (tmp_path / "parents").read_text().split()
            assert int(daemon) in process_tree(executor.pid)
            given = Path(f"/proc/{executor.pid}/cmdline").read_text().split("\0")
            assert given[1 : 1 + len(options)] == options
            assert job.wait(PATIENCE) == 0, (tmp_path / "job.log").read_text()[-3000:]
            wait_until(lambda: executor.poll() is not None, PATIENCE)
        finally:
            for process in (job, executor):
                if process is not None and process.poll() is None:
                    kill_tree(process)
    assert (tmp_path / "parents").read_text().split() == [daemon] * count
