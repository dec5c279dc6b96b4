"""The local session: its jars are not on the Python path, its JVM does not outlive its program."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyspark
import pytest

from coopconsume.classic import connector_version
from coopconsume.spark_versions import minor_of
from coopconsume.testing.local import class_data, jars
from coopconsume.testing.local.session import build_conf, local_session
from tests.spark.support import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import SparkSession

    from coopconsume.testing.local.broker import LocalKafka

pytestmark = pytest.mark.spark


def _exists(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_workers_are_lean_and_like_the_driver(spark: SparkSession) -> None:
    """A worker runs on the driver's interpreter and PySpark, without our jars on its path."""

    def look(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        list(batches)
        import pyspark

        row = {"program": sys.executable, "path": sys.path, "pyspark": pyspark.__file__}
        yield pa.RecordBatch.from_pylist([row])

    schema = "program string, path array<string>, pyspark string"
    (seen,) = spark.range(1).coalesce(1).mapInArrow(look, schema).collect()
    assert seen.program == sys.executable
    # Not that of the archive, which Python compiles at each start.
    assert seen.pyspark == pyspark.__file__
    names = {jar.name for jar in jars.spark_jars()}
    for path in (seen.path, sys.path):
        assert not [entry for entry in path if Path(entry).name in names]


def test_workers_keep_archive_indexes(spark: SparkSession) -> None:
    """On the Pythons where it is dear, invalidating an archive's index costs a worker nothing."""

    def look(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        list(batches)
        import zipimport

        name = zipimport.zipimporter.invalidate_caches.__module__
        yield pa.RecordBatch.from_pylist([{"lazy": name != "zipimport"}])

    (seen,) = spark.range(1).coalesce(1).mapInArrow(look, "lazy boolean").collect()
    assert seen.lazy is (sys.version_info < (3, 12))


def test_workers_share_what_was_loaded_before_they_were_forked(spark: SparkSession) -> None:
    """Their daemon has one thread, as a fork has no other; their random numbers differ."""

    def look(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        list(batches)
        import numpy as np

        drawn = float(np.random.random())  # noqa: NPY002
        np.random.seed(7)  # noqa: NPY002
        end, start = os.pipe()
        if not os.fork():
            os.write(start, repr(float(np.random.random())).encode())  # noqa: NPY002
            os._exit(0)
        os.wait()
        daemon = Path(f"/proc/{os.getppid()}")
        row = {
            "loaded": "/pandas/" in (daemon / "maps").read_text(),
            "threads": len(list((daemon / "task").iterdir())),
            "drawn": drawn,
            "of_fork": float(os.read(end, 100)),
        }
        yield pa.RecordBatch.from_pylist([row])

    schema = "loaded boolean, threads long, drawn double, of_fork double"
    # Tasks of a barrier run at once, each in a worker of its own.
    seen = spark.range(4, numPartitions=4).mapInArrow(look, schema, barrier=True).collect()
    assert {row.loaded for row in seen} == {True}
    assert {row.threads for row in seen} == {1}
    assert len({row.drawn for row in seen}) == len(seen) == 4
    # What a worker forks keeps its numbers, whatever other threads do with the generator.
    assert {row.of_fork for row in seen} == {np.random.RandomState(7).random()}


def test_kafka_to_delta_and_back(
    spark: SparkSession,
    kafka: LocalKafka,
    topic: Callable[..., str],
    produce: Callable[..., list[int]],
    tmp_path: Path,
) -> None:
    """Records of a topic, written to a Delta table and read again, are the records."""
    name = topic(partitions=2)
    records = [(b"k%d" % (i % 7), b"v%d" % i) for i in range(500)]
    assert produce(name, records, partition=1) == list(range(500))
    read = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        .option("subscribe", name)
        .load()
    )
    table = str(tmp_path / "table")
    read.select("partition", "offset", "key", "value").write.format("delta").save(table)
    rows = spark.read.format("delta").load(table).orderBy("offset").collect()
    assert [(row.partition, row.offset) for row in rows] == [(1, i) for i in range(500)]
    assert [(bytes(row.key), bytes(row.value)) for row in rows] == records


def test_settings_hold(spark: SparkSession) -> None:
    """A second call gives the same session, and what was promised is set."""
    assert local_session(conf={"spark.sql.shuffle.partitions": "6"}) is spark
    assert spark.sparkContext.master == "local[6,4]"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.uiWebUrl is None
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_jvm_takes_classes_from_the_archive(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``make`` has written it; where none is, and where it lies in a folder with a blank."""
    jvm: Any = spark.sparkContext._jvm
    bean = jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()
    assert f"-XX:SharedArchiveFile={class_data.archive_path()}" in list(bean.getInputArguments())
    mapped = Path(f"/proc/{bean.getPid()}/maps").read_text()
    assert str(class_data.archive_path()) in mapped
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "a folder"))
    assert class_data.java_options() == []
    class_data.archive_path().parent.mkdir(parents=True)
    class_data.archive_path().touch()
    assert class_data.java_options()[0] == f'"-XX:SharedArchiveFile={class_data.archive_path()}"'


def test_conf_is_joined_where_it_is_a_list(tmp_path: Path) -> None:
    """A caller's setting wins, but what is a list is added to."""
    theirs = {
        "spark.driver.extraClassPath": "/their.jar",
        "spark.driver.extraJavaOptions": "-Dtheirs=1",
        "spark.sql.extensions": "org.example.Theirs",
        "spark.driver.memory": "1g",
    }
    conf = build_conf(cores=2, conf=theirs, work_dir=tmp_path)
    assert conf["spark.driver.memory"] == "1g"
    assert conf["spark.driver.extraClassPath"].split(os.pathsep)[-1] == "/their.jar"
    assert "delta-spark" in conf["spark.driver.extraClassPath"]
    assert conf["spark.driver.extraJavaOptions"].endswith(".properties -Dtheirs=1")
    assert conf["spark.sql.extensions"].split(",")[1] == "org.example.Theirs"
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="cores=0: expected at least 1"):
        build_conf(cores=0, work_dir=tmp_path)


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        ({}, "false"),
        ({"spark.master": "local[3]"}, "false"),
        ({"spark.master": "local-cluster[2,1,1024]"}, "false"),
        ({"spark.master": "spark://host:7077"}, None),
        ({"spark.master": "yarn"}, None),
        ({"spark.master": "yarn", "spark.shuffle.compress": "false"}, "false"),
        ({"spark.shuffle.compress": "true"}, "true"),
    ],
)
def test_what_is_shuffled_between_machines_is_compressed(
    theirs: dict[str, str], expected: str | None, tmp_path: Path
) -> None:
    """As Spark does it by default; on one machine it would only cost time."""
    assert build_conf(conf=theirs, work_dir=tmp_path).get("spark.shuffle.compress") == expected


def _run(body: str, **settings: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", body], stdout=subprocess.PIPE, text=True, **settings
    )


def test_killed_program_leaves_neither_jvm_nor_worker(tmp_path: Path) -> None:
    """SIGKILL of the driver ends the JVM and a worker that sleeps in a task; start-up was quiet."""
    program = _run(
        "import os, time\n"
        "from coopconsume.testing.local.session import local_session\n"
        "spark = local_session(cores=1)\n"
        "def sleep(batches):\n"
        "    open(os.environ['PIDS'], 'w').write(f'{os.getpid()} {os.getppid()}\\n')\n"
        "    time.sleep(600)\n"
        "    yield from batches\n"
        "jvm = spark.sparkContext._gateway.proc.pid\n"
        "print(jvm, spark.conf.get('spark.local.dir'), flush=True)\n"
        "spark.range(1).mapInArrow(sleep, 'id long').collect()\n",
        stderr=(tmp_path / "said").open("w"),
        env={**os.environ, "PIDS": str(tmp_path / "pids")},
    )
    assert program.stdout is not None
    jvm, scratch = program.stdout.readline().split()
    pids = tmp_path / "pids"
    deadline = time.monotonic() + PATIENCE
    while not (pids.exists() and pids.read_text().endswith("\n")):
        assert time.monotonic() < deadline, (tmp_path / "said").read_text()
        time.sleep(0.1)
    processes = [int(jvm), *map(int, pids.read_text().split())]
    assert all(map(_exists, processes))
    said = (tmp_path / "said").read_text().splitlines()
    # The JVM says by itself that it has the options of the test run.
    options_of_tests = "NOTE: Picked up JDK_JAVA_OPTIONS"
    assert [line for line in said if not line.startswith(options_of_tests)] == []
    program.kill()
    program.wait()
    deadline = time.monotonic() + PATIENCE
    while any(map(_exists, processes)) or Path(scratch).parent.exists():
        assert time.monotonic() < deadline, "still there"
        time.sleep(0.1)


def test_a_worker_that_ends_is_one_line_of_the_log() -> None:
    """A poison record ends a worker with each attempt: traces of Java would fill the screen."""
    program = _run(
        "import os\n"
        "from coopconsume.testing.local.session import local_session\n"
        "spark = local_session(cores=1)\n"
        "def end(batches):\n"
        "    os._exit(9)\n"
        "    yield from batches\n"
        "try:\n"
        "    spark.range(1).mapInArrow(end, 'id long').collect()\n"
        "except Exception as error:\n"
        "    print(type(error).__name__)\n",
        stderr=subprocess.PIPE,
    )
    out, said = program.communicate(timeout=PATIENCE)
    assert out.splitlines() == ["Py4JJavaError"], said
    assert "\tat " not in said
    failed = [line for line in said.splitlines() if "Executor: Exception in task" in line]
    assert len(failed) == 4, said
    assert all(": Python worker exited unexpectedly" in line for line in failed)


def test_foreign_session_is_refused_until_it_is_gone() -> None:
    """A JVM without our jars is not used; once it is stopped, ours starts beside nothing."""
    program = _run(
        "from pyspark.sql import SparkSession\n"
        "from coopconsume.errors import SparkSessionConflict\n"
        "from coopconsume.testing.local.session import local_session, stop_session\n"
        "theirs = SparkSession.builder.master('local[1]').getOrCreate()\n"
        "try:\n"
        "    local_session()\n"
        "except SparkSessionConflict as error:\n"
        "    print(len(error.missing), theirs.conf.get('spark.master'))\n"
        "stop_session(theirs)\n"
        "print(local_session(cores=1).conf.get('spark.master'))\n",
        stderr=subprocess.DEVNULL,
    )
    out, _ = program.communicate(timeout=PATIENCE)
    assert out.splitlines() == [f"{len(jars.spark_jars())} local[1]", "local[1,4]"]


_REFUSED = """
import sys
from pyspark.sql import SparkSession
from coopconsume.classic import usable_session
from coopconsume.errors import SessionUnusable

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.jars", sys.argv[1]).getOrCreate()
try:
    usable_session(spark)
except SessionUnusable as error:
    print(error)
"""


def test_a_kafka_source_of_another_spark_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Its version is in its jar: a program with the jar of an older Spark does not start."""
    assert connector_version(spark) == minor_of(spark.version).connector
    (own,) = [jar for jar in jars.spark_jars() if jar.name.startswith("spark-sql-kafka")]
    other = tmp_path / "spark-sql-kafka.jar"
    with zipfile.ZipFile(own) as source, zipfile.ZipFile(other, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name == "META-INF/MANIFEST.MF":
                content = re.sub(rb"(Implementation-Version: )\S+", rb"\g<1>3.5.6", content)
            target.writestr(name, content)
    words = [sys.executable, "-c", _REFUSED, str(other)]
    found = subprocess.run(words, capture_output=True, text=True, check=True)
    assert f"has version 3.5.6, and Spark has version {spark.version}: give" in found.stdout
