"""What a session must be and can do; the one module that touches ``sparkContext``.

On a classic session a slot's report reaches the driver as its *task* ends, through an accumulator.
Spark Connect has none; reports then come with the job's result.
"""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from coopconsume.errors import SessionUnusable
from coopconsume.spark_versions import check_connector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    Send = Callable[[bytes], None]

log = logging.getLogger(__name__)

#: Spark's Kafka source, and the logger that warns of ``kafka.group.id``.
_KAFKA_SOURCE = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
#: In the manifest of Spark's own jar; a jar of an application has another title and version.
_SOURCE_TITLE = "Kafka 0.10+ Source for Structured Streaming"
#: Jobs of a group that may run at once, and are looked at for running tasks.
_NEWEST_JOBS = 8


def is_classic(session: SparkSession) -> bool:
    """Whether the session has a driver-side JVM of its own."""
    from pyspark.sql import SparkSession as Classic

    return isinstance(session, Classic) and type(session).__module__ == "pyspark.sql.session"


def cores(session: SparkSession) -> int | None:
    """Tasks that the session runs side by side; None if it is unknown."""
    return int(session.sparkContext.defaultParallelism) if is_classic(session) else None


def usable_session(spark: SparkSession | Callable[[], SparkSession] | None) -> SparkSession:
    """Returns the given session, that of the given function, or else the active one.

    Raises:
        SessionUnusable: There is no session, its settings let Spark run handlers twice, or its
            Kafka source is of another version of Spark.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession as Session

    if spark is None:
        try:
            spark = Session.active()
        except PySparkException:
            raise SessionUnusable(
                "there is no active Spark session: make one, or give spark=…"
            ) from None
    elif callable(spark):
        spark = spark()
    refuse_second_runs(spark.conf.get, classic=is_classic(spark))
    if is_classic(spark):
        check_connector(connector_version(spark), spark.version)
    return spark


def connector_version(session: SparkSession) -> str | None:
    """Returns the version of the Kafka source of a classic session; None if it is unknown."""
    try:
        jvm: Any = session.sparkContext._jvm  # noqa: SLF001 - PySpark has no public way to ask
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        package = loader.loadClass(_KAFKA_SOURCE).getPackage()
        is_own = package.getImplementationTitle() == _SOURCE_TITLE
        found = package.getImplementationVersion() if is_own else None
    except Exception as error:  # noqa: BLE001 - no such class, or no right to the JVM
        log.debug("the version of Spark's Kafka source is unknown: %s", error)
        return None
    return None if found is None else str(found)


def refuse_second_runs(setting: Callable[[str, str], str | None], *, classic: bool) -> None:
    """Refuse settings with which Spark would run a batch's handlers twice.

    Args:
        setting: Gives a setting of Spark by its name, or the default it is given.
        classic: Whether it is the session of a driver, which knows the cluster's settings.

    Raises:
        SessionUnusable: Speculation is on; or, where executors can be lost, a stage may be tried
            again.
    """
    if str(setting("spark.speculation", "false")).lower() == "true":
        raise SessionUnusable(
            "spark.speculation is true: it runs a task, and so a handler, twice at once; "
            "set it to false"
        )
    if not classic or str(setting("spark.master", "")).startswith("local"):
        return
    attempts = setting("spark.stage.maxConsecutiveAttempts", "4")
    if attempts != "1":
        # A second attempt of a stage looks like the first in a task: PySpark's
        # TaskContext does not have its number.
        raise SessionUnusable(
            f"spark.stage.maxConsecutiveAttempts is {attempts}: after a lost executor Spark would "
            "run the rest of a batch, and so handlers, again by itself; set it to 1 as the session "
            "starts"
        )


def quiet_group_warning(session: SparkSession) -> None:
    """Has Spark's Kafka source no longer warn of ``kafka.group.id`` at each read.

    Spark warns that two queries with one group id may take records from each other. Reads of this
    library name their offsets, and have a group id of their own. The level of the source's logger
    becomes ERROR, unless the session's logging configuration names this logger. A session without
    access to its JVM, as on Spark Connect, stays as it is.
    """
    if not is_classic(session):
        return
    try:
        jvm: Any = session.sparkContext._jvm  # noqa: SLF001 - PySpark sets only the root's level
        log4j = jvm.org.apache.logging.log4j
        configured = log4j.LogManager.getContext(False).getConfiguration().getLoggers()
        if not configured.containsKey(_KAFKA_SOURCE):
            log4j.core.config.Configurator.setLevel(_KAFKA_SOURCE, log4j.Level.ERROR)
    except Exception as error:  # noqa: BLE001 - another logging library, or no right to the JVM
        log.debug("Spark goes on to warn of kafka.group.id at each read: %s", error)


def driver_address(session: SparkSession | None) -> tuple[str, str] | None:
    """Returns the address that the driver listens on, and the host name that workers use for it.

    Returns:
        None on Spark Connect, whose driver is in another process.
    """
    if session is None or not is_classic(session):
        return None
    host = session.conf.get("spark.driver.host", "localhost")
    return session.conf.get("spark.driver.bindAddress", host) or "", host or ""


def stream_id(session: SparkSession) -> str | None:
    """Returns the id of the stream whose `foreachBatch` runs in this thread, if Spark names it.

    The id is kept in the stream's checkpoint. On Spark Connect it is known if the session has one
    active stream.
    """
    if is_classic(session):
        return session.sparkContext.getLocalProperty("sql.streaming.queryId")
    active = [str(query.id) for query in session.streams.active]
    return active[0] if len(active) == 1 else None


@contextmanager
def tagged(
    session: SparkSession, tag: str, group: str = "", description: str = ""
) -> Iterator[None]:
    """Have the jobs that this thread starts carry a tag, so that `interrupt` finds them.

    Args:
        session: The session.
        tag: The tag.
        group: Their job group in Spark's user interface; not on Spark Connect.
        description: Their description there.
    """
    owner = session.sparkContext if is_classic(session) else None
    shown: dict[str, Any] = {"spark.jobGroup.id": group, "spark.job.description": description}
    if owner is not None:
        owner.addJobTag(tag)
        for name, text in shown.items():
            owner.setLocalProperty(name, text)
    else:
        session.addTag(tag)
    try:
        yield
    finally:
        if owner is not None:
            owner.removeJobTag(tag)
            for name in shown:
                # None removes a property.
                owner.setLocalProperty(name, None)  # type: ignore[arg-type]
        else:
            session.removeTag(tag)


def interrupt(session: SparkSession, tag: str) -> None:
    """End the jobs that carry a tag, whichever thread has started them; harmless where none do."""
    if is_classic(session):
        # A classic session finds only tags of the thread that asks.
        session.sparkContext.cancelJobsWithTag(tag)
    else:
        session.interruptTag(tag)


def why_ended(session: SparkSession) -> str:
    """Returns why a classic session can run no job any more; empty if it can, or on Connect."""
    from py4j.protocol import Py4JError

    if not is_classic(session):
        return ""
    context = session.sparkContext._jsc  # noqa: SLF001 - PySpark has no public way to ask
    try:
        return "it was stopped" if context is None or context.sc().isStopped() else ""
    except (Py4JError, OSError):
        return "its JVM has ended"


def running_tasks(session: SparkSession, group: str) -> int | None:
    """Returns how many tasks Spark runs of the newest jobs of a group; None if it is unknown."""
    if not is_classic(session):
        return None
    tracker = session.sparkContext.statusTracker()
    newest = sorted(tracker.getJobIdsForGroup(group))[-_NEWEST_JOBS:]
    jobs = [job for job in map(tracker.getJobInfo, newest) if job and job.status == "RUNNING"]
    stages = [tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds]
    return sum(stage.numActiveTasks for stage in stages if stage)


class _Mailbox:
    """An accumulator parameter whose additions, on the driver, go to a callback."""

    def __init__(self, receive: Callable[[bytes], None] | None) -> None:
        self._receive = receive

    def __reduce__(self) -> tuple[type[_Mailbox], tuple[None]]:
        return _Mailbox, (None,)

    def zero(self, _value: list[bytes]) -> list[bytes]:
        return []

    def addInPlace(self, held: list[bytes], more: list[bytes]) -> list[bytes]:  # noqa: N802
        if self._receive is None:
            held.extend(more)
        else:
            for payload in more:
                self._receive(payload)
        return held


class _Sender:
    """Adds a report to the accumulator; picklable, used in tasks."""

    def __init__(self, accumulator: Any) -> None:
        self._accumulator = accumulator

    def __call__(self, payload: bytes) -> None:
        self._accumulator.add([payload])


def open_mailbox(session: SparkSession, receive: Callable[[bytes], None]) -> Send | None:
    """A function for tasks whose argument reaches ``receive`` on the driver as the task ends.

    Returns:
        None on a session without accumulators.
    """
    if not is_classic(session):
        return None
    param: Any = _Mailbox(receive)
    context = session.sparkContext
    server = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = partial(_handle_error, type(server).handle_error, server)
    return _Sender(context.accumulator([], param))


def _handle_error(otherwise: Callable[..., None], server: Any, *request: Any) -> None:
    """Passes on errors of PySpark's accumulator server, except that its JVM has ended."""
    if not isinstance(sys.exc_info()[1], (EOFError, ConnectionError)):
        otherwise(server, *request)
