"""Local Spark sessions with Kafka and Delta, for the command line, the demo, notebooks and tests.

The library itself takes the session it is given or finds the active one; only these make theirs.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from coopconsume.errors import SparkSessionConflict
from coopconsume.testing.local import class_data
from coopconsume.testing.local.jars import pyspark_home, spark_jars
from coopconsume.testing.local.java import find_java

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from py4j.java_gateway import JVMView
    from pyspark.sql import SparkSession

_TASK_FAILURES: Final = 4
_JVM_END_TIMEOUT: Final = 30.0
_NEWEST_JAVA: Final = 21
#: Read by the bash scripts that start the JVM. They end with `exec`, here a function: it leaves out
#: a module for which Java writes a warning at each start. Of Spark, only MLlib's BLAS uses it, and
#: works without it. A signal that bash ignores stays ignored.
_START_SCRIPT: Final = """\
trap '' TERM
exec() {
  local word words=()
  for word; do
    [[ $word == --add-modules=jdk.incubator.vector ]] || words+=("$word")
  done
  [[ ${1##*/} == spark-class ]] || unset BASH_ENV
  builtin exec "${words[@]}"
}
"""
_LOGGING: Final = Path(__file__).with_name("conf") / "spark-log4j2.properties"

_DELTA: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Delta's 50 suit tables of millions of files.
    "spark.databricks.delta.snapshotPartitions": "2",
}

# Settings that are lists: what a caller gives is added to ours. The value is what joins them.
_JOINED: Final = {
    "spark.driver.extraClassPath": os.pathsep,
    "spark.executor.extraClassPath": os.pathsep,
    "spark.driver.extraJavaOptions": " ",
    "spark.sql.extensions": ",",
}


def build_conf(
    app_name: str = "coopconsume",
    *,
    cores: int | None = None,
    conf: Mapping[str, str] | None = None,
    work_dir: str | os.PathLike[str],
) -> dict[str, str]:
    """Return the settings of a local session, fetching its jars if need be.

    The jars go on the JVM's class path and not into ``spark.jars``, from where Spark would put
    every one of them on the Python path of the driver and of each worker too.

    Args:
        app_name: Name of the application.
        cores: Tasks that run side by side, at least 1; all processors' worth if None.
        conf: More settings; they win, but class paths, Java options and SQL extensions are joined.
        work_dir: Folder for the warehouse and for Spark's scratch files.

    Raises:
        ValueError: ``cores`` is below 1.
        SparkNotFound: PySpark is not installed.
        SparkVersionUnsupported: The installed PySpark is too old.
        JarsUnavailable: The jars cannot be fetched.
        JavaNotFound: There is no Java.
        JavaVersionUnsupported: Java is not of a release that Spark runs on.
    """
    cores = _processors() if cores is None else cores
    if cores < 1:
        raise ValueError(f"cores={cores}: expected at least 1, or None for all processors")
    find_java(needed_by="Spark 4", newest=_NEWEST_JAVA)
    jars = spark_jars()
    merged = _settings(app_name, cores, os.pathsep.join(map(str, jars)), Path(work_dir).absolute())
    if any(jar.name.startswith("delta-spark") for jar in jars):
        merged |= _DELTA
    for key, value in (conf or {}).items():
        joint = _JOINED.get(key) if key in merged else None
        merged[key] = value if joint is None else f"{merged[key]}{joint}{value}"
    if merged["spark.master"].startswith("local"):
        # What is shuffled there never leaves the machine.
        merged.setdefault("spark.shuffle.compress", "false")
    return merged


def _settings(app_name: str, cores: int, class_path: str, work: Path) -> dict[str, str]:
    """Returns the settings that a local session has if its user gives no others."""
    return {
        "spark.app.name": app_name,
        "spark.master": f"local[{cores},{_TASK_FAILURES}]",
        "spark.api.mode": "classic",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.driver.extraClassPath": class_path,
        "spark.executor.extraClassPath": class_path,
        "spark.driver.extraJavaOptions": " ".join(
            [*class_data.java_options(), f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"]
        ),
        "spark.local.dir": str(work / "scratch"),
        "spark.sql.warehouse.dir": (work / "warehouse").as_uri(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # The worker must be the driver's interpreter, which has what the driver has.
        "spark.pyspark.python": sys.executable,
        "spark.pyspark.driver.python": sys.executable,
        "spark.python.daemon.module": "coopconsume.worker.daemon",
        # Needed where executors can be lost, that is with another master.
        "spark.stage.maxConsecutiveAttempts": "1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(cores),
        # Spark's Kafka source keeps fetched records for five minutes, for a next read that goes on
        # where this one ended. Batches read in slices, so most of that would only fill the heap.
        "spark.kafka.consumer.fetchedData.cache.timeout": "5s",
        "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "5s",
    }


def local_session(
    app_name: str = "coopconsume",
    *,
    cores: int | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start a local Spark session that can read Kafka and write Delta, or return the running one.

    It is quiet (errors alone are logged), keeps its files in a temporary folder that goes when its
    JVM ends, and its JVM ends with this program, however that ends. PySpark's handler for Ctrl-C,
    which would cancel all jobs, is not left in place: the one from before the call is.

    Args:
        app_name: Name of the application.
        cores: Tasks that run side by side, at least 1; all processors' worth if None.
        conf: More Spark settings; they win over the built-in ones.

    Returns:
        The session. If one made by this function runs already, that one, with those of the
        settings that can be changed while it runs.

    Raises:
        ValueError: ``cores`` is below 1.
        SparkSessionConflict: Another Spark without our jars runs in this process.
        SparkNotFound: PySpark is not installed.
        SparkVersionUnsupported: The installed PySpark is too old.
        JarsUnavailable: The jars cannot be fetched.
        JavaNotFound: There is no Java.
        JavaVersionUnsupported: Java is not of a release that Spark runs on.
    """
    home = pyspark_home()
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._gateway is not None:  # noqa: SLF001
        _check_class_path(SparkContext._gateway.jvm)  # noqa: SLF001
    if SparkContext._active_spark_context is not None:  # noqa: SLF001
        return SparkSession.builder.config(map=dict(conf or {})).getOrCreate()
    work = tempfile.mkdtemp(prefix="coopconsume-spark-")
    try:
        settings = build_conf(app_name, cores=cores, conf=conf, work_dir=work)
        with _environment(home, work), _interrupt_handler_kept():
            session = SparkSession.builder.config(map=dict(settings)).getOrCreate()
        # By the JVM, as it is the last to use it and outlives a program that is killed.
        jvm: Any = session.sparkContext._jvm  # noqa: SLF001
        hooks = jvm.org.apache.spark.util.ShutdownHookManager
        hooks.registerShutdownDeleteDir(jvm.java.io.File(work))
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return session


def stop_session(session: SparkSession, *, timeout: float = _JVM_END_TIMEOUT) -> None:
    """Stop a session and end its JVM, which PySpark alone would keep until the program ends.

    Args:
        session: The session.
        timeout: Seconds until a JVM that does not end is killed, above 0.
    """
    from py4j.protocol import Py4JError
    from pyspark import SparkContext

    with suppress(Py4JError, OSError):  # the JVM may have ended
        session.stop()
    gateway = SparkContext._gateway  # noqa: SLF001
    if gateway is None:
        return
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    with suppress(Py4JError, OSError):
        gateway.shutdown()
    if process is None:
        return
    if process.stdin is not None:
        process.stdin.close()  # what the JVM waits for
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _check_class_path(jvm: JVMView) -> None:
    """Refuse a JVM that was started without our jars."""
    found = jvm.java.lang.System.getProperty("java.class.path").split(os.pathsep)
    missing = tuple(jar.name for jar in spark_jars() if str(jar) not in found)
    if missing:
        raise SparkSessionConflict(missing)


@contextmanager
def _environment(home: Path, work: str) -> Iterator[None]:
    """Have Spark start from the installed PySpark, as a classic session, on this interpreter.

    Its JVM ignores SIGTERM, which systemd and ``timeout`` send to a whole process group: it ends
    when this program, which gets the signal, too, has ended.
    """
    script = Path(work, "start.sh")
    script.write_text(_START_SCRIPT)
    wanted = {
        "BASH_ENV": str(script),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_REMOTE": None,
        "SPARK_CONNECT_MODE_ENABLED": None,
    }
    before = {name: os.environ.get(name) for name in wanted}
    _set_environment(wanted)
    try:
        yield
    finally:
        _set_environment(before)


def _set_environment(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextmanager
def _interrupt_handler_kept() -> Iterator[None]:
    """Put the handler of Ctrl-C back that PySpark replaces."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        # Only the main thread may, and PySpark, too, sets its own only there.
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def _processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
