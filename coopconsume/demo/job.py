"""The demo's job, as a separate process that can be killed with all its descendants.

``python -m coopconsume.demo.job SLOTS SCRATCH`` starts Spark, reads its settings from standard
input meanwhile, loads the topic if the settings say so, and runs the queries one after another.
It writes events to standard output, one JSON object per line, with these values of ``event``:

==========  =================================================================
session     Spark has started
loading     ``records`` of ``all`` are in the topic
loaded      the topic is loaded
started     query ``run`` has started
progress    query ``run`` reports ``progress``
ended       query ``run`` has drained the topic
failed      the job has failed with ``error``
==========  =================================================================

It ends when its standard input closes, so it does not outlive the program that started it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from commits import CommitStore
from coopconsume.consumer import CooperativeConsumer
from coopconsume.demo.commit_snapshot import CommitSnapshot
from coopconsume.demo.flights import flight_table
from coopconsume.demo.handlers import OUTPUT_SCHEMA, DemoHandler
from coopconsume.demo.lost_slots import LostSlotWriter
from coopconsume.demo.topic import load_topic
from coopconsume.errors import CoopConsumeError
from coopconsume.record import RetryPolicy
from coopconsume.runtime.settle import lost_slots
from coopconsume.testing.local.session import local_session, stop_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Query:
    """One pass over the topic by one group.

    Attributes:
        group: The group.
        folder: The folder of its tables ``commits``, ``rows`` and ``dead``, of its history and of
            the file of its lost slots.
        window: The maximum number of offsets in a batch.
        batch_time: Seconds after which a batch starts no more handlers.
        concurrency: The number of concurrent handlers in a slot.
        poison_every: As for `DemoHandler`.
        always_fail_every: As for `DemoHandler`.
        slow_tail: As for `DemoHandler`.
        slow_seconds: As for `DemoHandler`.
        handler_timeout: Seconds that a running handler may take beyond that. After a kill the
            next owner waits that long.
        session_timeout: The session timeout in seconds; brokers allow at least 6 by default.
    """

    group: str
    folder: str
    window: int
    batch_time: float
    concurrency: int = 1
    poison_every: int = 0
    always_fail_every: int = 0
    slow_tail: str | None = None
    slow_seconds: float = 0.0
    handler_timeout: float = 60.0
    session_timeout: float = 45.0

    def handler(self) -> DemoHandler:
        """Returns the handler of its records."""
        return DemoHandler(
            self.path("history"),
            poison_every=self.poison_every,
            always_fail_every=self.always_fail_every,
            slow_tail=self.slow_tail,
            slow_seconds=self.slow_seconds,
        )

    def path(self, name: Literal["commits", "rows", "dead", "history", "lost-slots.jsonl"]) -> str:
        """Returns the path of a table, of the calls' history or of the lost slots."""
        return str(Path(self.folder, name))


@dataclass(frozen=True)
class JobSettings:
    """The settings of a job process.

    Attributes:
        servers: The bootstrap servers of the cluster.
        topic: The topic.
        partitions: The number of its partitions.
        slots: The number of slots of each query.
        records: The number of flights in the topic.
        load: Whether to load the topic first.
        queries: The queries, which run one after another.
    """

    servers: str
    topic: str
    partitions: int
    slots: int
    records: int
    load: bool
    queries: tuple[Query, ...]

    def line(self) -> str:
        """Returns the settings as a line of JSON."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def parse(cls, line: str) -> JobSettings:
        """Parses the result of `line`."""
        values = json.loads(line)
        queries = tuple(Query(**query) for query in values.pop("queries"))
        return cls(**values, queries=queries)

    @property
    def kafka(self) -> dict[str, str]:
        """The options of the cluster."""
        return {"kafka.bootstrap.servers": self.servers}


class SettingsReader:
    """Reads the settings, and prepares the flights while Spark starts."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._settings = self._pool.submit(sys.stdin.readline)
        self._flights = self._pool.submit(self._prepare)

    def settings(self) -> JobSettings | None:
        """Returns the settings; None if the parent process has ended."""
        line = self._settings.result()
        return JobSettings.parse(line) if line else None

    def flights(self) -> pa.Table | None:
        """Returns the flights to load; None if the topic is not loaded."""
        return self._flights.result()

    def _prepare(self) -> pa.Table | None:
        settings = self.settings()
        return flight_table(settings.records) if settings and settings.load else None


def run(
    settings: JobSettings,
    flights: pa.Table | None,
    report: Callable[..., None],
    spark: SparkSession,
) -> None:
    """Loads the topic if the settings say so, and runs the queries."""
    # There is time for a warm-up: loading uses one task only, and after a kill the group waits
    # for the end of the killed job's handlers.
    threading.Thread(target=_warm_up, args=(settings, spark), daemon=True).start()
    if flights is not None:
        load_topic(
            spark,
            settings.kafka,
            settings.topic,
            partitions=settings.partitions,
            flights=flights,
            progress=lambda records, of: report("loading", records=records, all=of),
        )
        report("loaded")
    for number, query in enumerate(settings.queries):
        _run_query(settings, query, number, report, spark)


def _run_query(
    settings: JobSettings,
    query: Query,
    number: int,
    report: Callable[..., None],
    spark: SparkSession,
) -> None:
    options = settings.kafka | {
        "kafka.group.id": query.group,
        "subscribe": settings.topic,
        "commitTable": query.path("commits"),
        "slots": settings.slots,
        "batchTime": query.batch_time,
        "handlerTimeout": query.handler_timeout,
        "kafka.session.timeout.ms": int(1000 * query.session_timeout),
        "maxOffsetsPerTrigger": query.window,
    }
    places = [(settings.topic, number) for number in range(settings.partitions)]
    with (
        _kept_lost_slots(query, places),
        CooperativeConsumer(options, spark) as consumer,
    ):
        job = (
            consumer.foreach(
                query.handler(),
                concurrency=query.concurrency,
                retry=RetryPolicy(max_attempts=3, backoff=0.3),
                dead_letter=query.path("dead"),
                output=query.path("rows"),
                output_schema=OUTPUT_SCHEMA,
            )
            .queryName(query.group)
            .trigger(availableNow=True)
            .onProgress(lambda event: report("progress", run=number, progress=event))
            .start()
        )
        report("started", run=number)
        job.awaitTermination()
    report("ended", run=number)


@contextmanager
def _kept_lost_slots(query: Query, places: list[tuple[str, int]]) -> Iterator[None]:
    """Writes lost slots to the query's file while the context is open."""

    def committed() -> dict[tuple[str, int], list[tuple[int, int]]]:
        table = query.path("commits")
        clusters = CommitStore.open(table).clusters(query.group)
        if not clusters:
            return {}
        return CommitSnapshot.of(table, query.group, clusters[0], places).committed

    writer, logger = LostSlotWriter(query.path("lost-slots.jsonl"), committed), lost_slots.log
    logger.addHandler(writer)
    try:
        yield
    finally:
        logger.removeHandler(writer)


def _warm_up(settings: JobSettings, spark: SparkSession) -> None:
    """Starts the Python workers and makes Spark compile the code of a batch."""
    rows = spark.range(settings.slots, numPartitions=settings.slots)
    if not settings.load:
        ends = json.dumps({settings.topic: dict.fromkeys(map(str, range(settings.partitions)), 1)})
        source = spark.read.format("kafka").options(**settings.kafka, endingOffsets=ends)
        rows = source.option("subscribe", settings.topic).load().selectExpr("offset as id")
    shuffled = rows.repartition(settings.slots)
    shuffled.mapInArrow(lambda batches: batches, "id bigint").collect()


def main(slots: str, scratch: str) -> int:
    """Runs the process; returns its exit code."""
    # Other output to descriptor 1 goes to standard error, so that it cannot mix with the events.
    events = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    lock = threading.Lock()

    def report(event: str, **facts: Any) -> None:
        with lock:
            events.write(json.dumps({"event": event, **facts}) + "\n")

    reader = SettingsReader()
    spark = None
    try:
        # In a JVM that runs for a minute, the optimising compiler costs as much as it saves.
        java = f"-Djava.io.tmpdir={scratch} -XX:TieredStopAtLevel=1"
        spark = local_session(
            "coopconsume-demo",
            cores=int(slots) + 2,
            conf={"spark.driver.extraJavaOptions": java},
        )
        report("session")
        settings = reader.settings()
        if settings is None:
            return 1
        threading.Thread(target=_end_with_parent, daemon=True).start()
        run(settings, reader.flights(), report, spark)
    except Exception as error:  # noqa: BLE001 - reported to the parent process
        text = str(error) if isinstance(error, CoopConsumeError) else ""
        report("failed", error=text or f"{type(error).__name__}: {error}")
        return 1
    finally:
        if spark is not None:
            stop_session(spark)
    return 0


def _end_with_parent() -> None:
    sys.stdin.read()
    # The JVM ends with this process, and the Python workers end with the JVM.
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
