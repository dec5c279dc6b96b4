"""The demo's main job as a process of its own, so that it can be killed with all it consists of.

``python -m coopconsume.demo.job SLOTS SCRATCH`` starts Spark, meanwhile waits for its settings on
its standard input, loads the topic if it is told to, and runs one query after another over it.
What happens is told on standard output, one JSON object a line with ``event``:

==========  =================================================================
session     Spark is up
loading     ``records`` of ``all`` are in the topic
loaded      the topic is loaded
started     query ``run`` handles records from now on
progress    a progress event of it, as ``progress``
ended       query ``run`` has drained the topic
failed      the job cannot go on; ``error`` says why
==========  =================================================================

It ends itself when its standard input closes: it does not outlive the program that started it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coopconsume.consumer import CooperativeConsumer
from coopconsume.demo.flights import flight_table
from coopconsume.demo.handlers import OUTPUT_SCHEMA, DemoHandler
from coopconsume.demo.topic import load_topic
from coopconsume.errors import CoopConsumeError
from coopconsume.record import RetryPolicy
from coopconsume.testing.local.session import local_session, stop_session

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Query:
    """One pass over the topic by one group.

    Attributes:
        group: The group.
        folder: Where its tables ``commits``, ``rows`` and ``dead`` are, and its history.
        window: Offsets that a batch spans at most.
        batch_time: Seconds after which no handler of a batch starts.
        concurrency: Handlers at once in a slot.
        poison_every: As for `DemoHandler`.
        fail_for_good_every: Likewise.
        slow_tail: Likewise.
        slow_seconds: Likewise.
        handler_timeout: Seconds that a handler may take beyond that. Whoever goes on after a kill
            has to wait for it.
        session_timeout: Seconds after which Kafka takes a member that is not heard of for gone;
            brokers allow no less than 6 by default.
    """

    group: str
    folder: str
    window: int
    batch_time: float
    concurrency: int = 1
    poison_every: int = 0
    fail_for_good_every: int = 0
    slow_tail: str | None = None
    slow_seconds: float = 0.0
    handler_timeout: float = 60.0
    session_timeout: float = 45.0

    def handler(self) -> DemoHandler:
        """What handles its records."""
        return DemoHandler(
            self.history,
            poison_every=self.poison_every,
            fail_for_good_every=self.fail_for_good_every,
            slow_tail=self.slow_tail,
            slow_seconds=self.slow_seconds,
        )

    @property
    def commits(self) -> str:
        """The commit table."""
        return str(Path(self.folder, "commits"))

    @property
    def rows(self) -> str:
        """The table of output rows."""
        return str(Path(self.folder, "rows"))

    @property
    def dead(self) -> str:
        """The table of dead letters."""
        return str(Path(self.folder, "dead"))

    @property
    def history(self) -> str:
        """The folder of the calls' history."""
        return str(Path(self.folder, "history"))


@dataclass(frozen=True)
class Settings:
    """What a job process does.

    Attributes:
        servers: Bootstrap servers of the cluster.
        topic: The topic.
        partitions: How many partitions it has.
        slots: Slots of the queries.
        records: Flights in the topic.
        load: Whether to load the topic first.
        queries: What to run, in turn.
    """

    servers: str
    topic: str
    partitions: int
    slots: int
    records: int
    load: bool
    queries: tuple[Query, ...]

    def line(self) -> str:
        """The settings as a line of JSON."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def parse(cls, line: str) -> Settings:
        """The settings that `line` gave."""
        values = json.loads(line)
        queries = tuple(Query(**query) for query in values.pop("queries"))
        return cls(**values, queries=queries)

    @property
    def kafka(self) -> dict[str, str]:
        """The options that lead to the cluster."""
        return {"kafka.bootstrap.servers": self.servers}


class Orders:
    """The settings as they come, and what can be done for them while Spark starts."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._settings = self._pool.submit(sys.stdin.readline)
        self._flights = self._pool.submit(self._prepare)

    def settings(self) -> Settings | None:
        """What is to be done; None where whoever started us is gone."""
        line = self._settings.result()
        return Settings.parse(line) if line else None

    def flights(self) -> pa.Table | None:
        """What is to be loaded into the topic; None if nothing is."""
        return self._flights.result()

    def _prepare(self) -> pa.Table | None:
        settings = self.settings()
        return flight_table(settings.records) if settings and settings.load else None


def run(
    settings: Settings,
    flights: pa.Table | None,
    tell: Callable[..., None],
    spark: SparkSession,
) -> None:
    """Load the topic if need be and run the queries."""
    # Loading takes one task, and after a kill the group waits until workers of the killed job
    # cannot be at work any more.
    threading.Thread(target=_warm_up, args=(settings, spark), daemon=True).start()
    if flights is not None:
        load_topic(
            spark,
            settings.kafka,
            settings.topic,
            partitions=settings.partitions,
            flights=flights,
            progress=lambda records, of: tell("loading", records=records, all=of),
        )
        tell("loaded")
    for number, query in enumerate(settings.queries):
        _run_query(settings, query, number, tell, spark)


def _run_query(
    settings: Settings,
    query: Query,
    number: int,
    tell: Callable[..., None],
    spark: SparkSession,
) -> None:
    options = settings.kafka | {
        "kafka.group.id": query.group,
        "subscribe": settings.topic,
        "commitTable": query.commits,
        "slots": settings.slots,
        "batchTime": query.batch_time,
        "handlerTimeout": query.handler_timeout,
        "kafka.session.timeout.ms": int(1000 * query.session_timeout),
        "maxOffsetsPerTrigger": query.window,
    }
    with CooperativeConsumer(options, spark) as consumer:
        job = (
            consumer.foreach(
                query.handler(),
                concurrency=query.concurrency,
                retry=RetryPolicy(max_attempts=3, backoff=0.3),
                dead_letter=query.dead,
                output=query.rows,
                output_schema=OUTPUT_SCHEMA,
            )
            .queryName(query.group)
            .trigger(availableNow=True)
            .onProgress(lambda event: tell("progress", run=number, progress=event))
            .start()
        )
        tell("started", run=number)
        job.awaitTermination()
    tell("ended", run=number)


def _warm_up(settings: Settings, spark: SparkSession) -> None:
    """Start Python workers and have Spark compile what a batch needs."""
    rows = spark.range(settings.slots, numPartitions=settings.slots)
    if not settings.load:
        ends = json.dumps({settings.topic: dict.fromkeys(map(str, range(settings.partitions)), 1)})
        source = spark.read.format("kafka").options(**settings.kafka, endingOffsets=ends)
        rows = source.option("subscribe", settings.topic).load().selectExpr("offset as id")
    dealt = rows.repartition(settings.slots)
    dealt.mapInArrow(lambda batches: batches, "id bigint").collect()


def main(slots: str, scratch: str) -> int:
    """Run the process; returns its exit code."""
    # Whatever else writes to standard output must not come between the events.
    events = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    lock = threading.Lock()

    def tell(event: str, **facts: Any) -> None:
        with lock:
            events.write(json.dumps({"event": event, **facts}) + "\n")

    orders = Orders()
    spark = None
    try:
        # A JVM that lives for a minute takes as long to optimise what it runs as it gains by that.
        java = f"-Djava.io.tmpdir={scratch} -XX:TieredStopAtLevel=1"
        spark = local_session(
            "coopconsume-demo",
            cores=int(slots) + 2,
            conf={"spark.driver.extraJavaOptions": java},
        )
        tell("session")
        settings = orders.settings()
        if settings is None:
            return 1
        threading.Thread(target=_end_with_parent, daemon=True).start()
        run(settings, orders.flights(), tell, spark)
    except Exception as error:  # noqa: BLE001 - told to the program that shows it
        text = str(error) if isinstance(error, CoopConsumeError) else ""
        tell("failed", error=text or f"{type(error).__name__}: {error}")
        return 1
    finally:
        if spark is not None:
            stop_session(spark)
    return 0


def _end_with_parent() -> None:
    sys.stdin.read()
    # The JVM notices that we are gone, and the workers that it is.
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
