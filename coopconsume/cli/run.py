"""``coopconsume run MODULE:FUNCTION``."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import threading
from collections import deque
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

import click

from commits.errors import CommitLogUnavailable
from commits.places import is_named, refuse_unwritable
from coopconsume.cli.catalog import given_session, no_catalog
from coopconsume.cli.exit_codes import INTERRUPTED, OK, example, reported
from coopconsume.cli.logs import LogScreen, TextScreen, log_line
from coopconsume.cli.place import CONSUMER_OPTIONS, pairs, with_options
from coopconsume.monitoring.screen import Rate
from coopconsume.monitoring.waiting_lines import left_behind
from coopconsume.option_values import seconds_of
from coopconsume.options import TABLE, Options
from coopconsume.record import RetryPolicy
from coopconsume.texts import counted, tries

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from types import TracebackType

    from pyspark.sql import SparkSession

    from coopconsume.monitoring.listener import Progress
    from coopconsume.monitoring.screen import Screen
    from coopconsume.query import CooperativeForeach, CooperativeQuery
    from coopconsume.record import OnUndecodable

NEWEST_JAVA = 21
_SPARE_CORES = 2
_LOOK_EVERY = 0.2
_MAX_BACKOFF = 60.0
#: Events whose latencies the status line shows.
_LATENCY_OVER = 20


def _columns(_context: object, _parameter: object, given: str | None) -> tuple[str, ...]:
    """Returns the columns that an option names."""
    return tuple(name.strip() for name in given.split(",")) if given else ()


def _consumer_options() -> str:
    """Returns the names and meanings of all options of the consumer, for --help."""
    lines = [
        line
        for option in TABLE
        if option.is_listed
        for line in textwrap.wrap(
            f"{option.name}: {option.doc}", 78, initial_indent="  ", subsequent_indent="      "
        )
    ]
    head = "Options for -o (settings of Kafka clients begin with kafka.):"
    return "\n".join(["\b", head, *lines, "\n"])


@click.command(
    epilog=_consumer_options()
    + example(
        "coopconsume run shop:on_order --group shop -o subscribe=orders",
        "--bootstrap-servers localhost:9092 --commit-table /data/commits",
    )
)
@click.argument("handler", metavar="MODULE:FUNCTION")
@click.option(
    "--concurrency", type=click.IntRange(min=1), default=1, show_default=True,
    help="Concurrent handlers in a slot.",
)  # fmt: skip
@click.option(
    "--ordering",
    type=click.Choice(["key", "partition", "none"]),
    default="key",
    show_default=True,
    help="The scope in which records are processed one after another.",
)
@click.option(
    "--max-attempts", type=int, help="Attempts before a record is given up [default: no limit]."
)
@click.option(
    "--backoff", type=float, default=1.0, show_default=True, help="Seconds before the first retry."
)
@click.option(
    "--dead-letter",
    metavar="PATH|kafka:TOPIC",
    help="Delta table or topic for records that are given up; short for -o deadLetter=…",
)
@click.option(
    "--on-dead", type=click.Choice(["continue", "park"]), default="continue", show_default=True,
    help="Continue with the key of a record that is given up, or block the key until "
    "`coopconsume dead-letters` decides.",
)  # fmt: skip
@click.option(
    "--value", metavar="TYPE",
    help="What record.value is: json, text, or MODULE:NAME of a pydantic model, a dataclass, a "
    "msgspec.Struct, a function of bytes or a decoder [default: bytes].",
)  # fmt: skip
@click.option("--key", metavar="TYPE", help="What record.key is, as for --value [default: bytes].")
@click.option(
    "--undecodable", type=click.Choice(["reject", "park", "retry"]), default="reject",
    show_default=True,
    help="Of a record that does not decode: make it a dead letter, block its key as well, or retry "
    "it.",
)  # fmt: skip
@click.option(
    "--output",
    metavar="PATH|kafka:TOPIC",
    help="Delta table or topic for the rows that the handler returns.",
)
@click.option(
    "--output-schema", metavar="DDL", help="Columns of the rows, such as 'name string, count int'."
)
@click.option(
    "--output-mode",
    type=click.Choice(["append", "merge", "transactional"]),
    default="append",
    show_default=True,
    help="merge: a table has the rows of each record exactly once, without a filter; "
    "transactional: a topic has them exactly once for readers with read_committed.",
)
@click.option(
    "--output-partition-by", metavar="COLUMNS", callback=_columns,
    help="Columns, separated by commas, that partition the table if the first rows create it.",
)  # fmt: skip
@click.option("--available-now", is_flag=True, help="Process the available records, then end.")
@click.option(
    "--processing-time", metavar="TIME", help="Interval between batches, such as '10 seconds'."
)
@click.option(
    "--real-time",
    metavar="TIME",
    help="Slots read Kafka themselves for this time, such as '5 minutes', then again.",
)
@click.option("--name", help="Name of the query.")
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True,
    help="json: one object per line on standard error, progress events included.",
)  # fmt: skip
@click.option("--master", help="Spark master of a new session [default: local].")
@click.option(
    "--spark-conf",
    multiple=True,
    callback=pairs,
    metavar="KEY=VALUE",
    help="A setting of Spark; can be repeated.",
)
@reported
@with_options(CONSUMER_OPTIONS, defaults=True)
@click.option("--bootstrap-servers", help="Short for -o kafka.bootstrap.servers=…")
@click.option("--group", "consumer_group", help="Short for -o kafka.group.id=…")
@click.option("--commit-table", metavar="PATH|NAME", help="Short for -o commitTable=…")
def run(
    *,
    handler: str,
    options: dict[str, str],
    max_attempts: int | None,
    backoff: float,
    undecodable: Any,
    available_now: bool,
    processing_time: str | None,
    real_time: str | None,
    name: str | None,
    log_format: str,
    master: str | None,
    spark_conf: dict[str, str],
    **given: Any,
) -> int:
    """Call a Python function with every record of Kafka topics, in order for each key.

    The function takes a coopconsume.Record, whose key and value are bytes unless --key and --value
    say what they are. Its module may be in the current folder. The options
    kafka.bootstrap.servers, kafka.group.id, subscribe and commitTable are required.

    Ctrl-C waits for running handlers, commits what is done and leaves the group. A second Ctrl-C
    leaves at once.
    """
    from coopconsume.consumer import CooperativeConsumer
    from coopconsume.runtime.checks import check_handler, check_settings
    from coopconsume.runtime.job_spec import HandlerSettings
    from coopconsume.sinks.base import required_topics

    parsed = Options.parse(options, topics=True)
    _find_handlers_here()
    # Of dead letters the option deadLetter counts.
    settings = HandlerSettings(retry=_policy(max_attempts, backoff, undecodable), **given)
    trigger = _trigger(available_now, processing_time, real_time)
    check_handler(handler)
    check_settings(parsed, handler, settings)
    session = given_session()
    if session is None and master is None and not spark_conf and is_named(parsed.commit_table):
        raise no_catalog(parsed.commit_table)  # That of a local session ends with the command.
    required = required_topics(settings.place_of_letters(parsed), settings.output, parsed)
    _check_before_starting(parsed, session, required)
    with ExitStack() as stack:
        # First, as what Spark's JVM writes is logged, too.
        as_json = log_format == "json"
        screen = stack.enter_context((LogScreen if as_json else TextScreen)(sys.stderr))
        if session is None:
            session = _own_session(stack, screen, master, spark_conf, parsed.slots)
        if session is None:
            return OK
        stopper = stack.enter_context(_Stopper(screen))
        with CooperativeConsumer({**options, "showWaiting": "false"}, session) as consumer:
            job = _configured(consumer.foreach(handler, **vars(settings)), name, trigger, as_json)
            show = log_line if as_json else lambda line: screen.above(str(line))
            progress = _ProgressLine(screen)
            screen.status(f"joining group {parsed.group_id}", force=True)
            code = stopper.wait(job.onHandlerLine(show).onProgress(progress).start())
            progress.sum_up(stopped=code != OK or stopper.asked)
    return code


def _configured(
    job: CooperativeForeach, name: str | None, trigger: dict[str, Any], as_json: bool
) -> CooperativeForeach:
    """Returns a job with its name and its trigger, if they are given, and as JSON with a log."""
    if name is not None:
        job = job.queryName(name)
    if trigger:
        job = job.trigger(**trigger)
    if as_json:
        from coopconsume.monitoring import LoggingListener

        job = job.addListener(LoggingListener())
    return job


class _Stopper:
    """Handles Ctrl-C and SIGTERM: the first one stops a query, the second one aborts it.

    Signals that come before the first one is answered are one: `timeout` sends its signal to the
    command and to its process group.

    Args:
        screen: The screen for messages.
    """

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._signals = 0
        self._before: dict[signal.Signals, Any] = {}

    @property
    def asked(self) -> bool:
        """Whether a signal was received."""
        return self._signals > 0

    def __enter__(self) -> Self:
        # After the session has started, as PySpark installs a handler that cancels all jobs.
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._count)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def wait(self, query: CooperativeQuery) -> int:
        """Waits for the end of a query; returns the exit code.

        Raises:
            BaseException: The error that ended the query.
        """
        stopping = False
        while not query.awaitTermination(_LOOK_EVERY):
            if stopping and self._signals > 1:
                self._screen.line("leaving at once: records in flight will be processed again")
                query.abort()
                return INTERRUPTED
            if self._signals and not stopping:
                stopping, self._signals = True, 1
                self._screen.line("waiting for running handlers; Ctrl-C again leaves at once")
                threading.Thread(target=query.stop, daemon=True).start()
        return OK

    def _count(self, *_: object) -> None:
        self._signals += 1


class _ProgressLine:
    """Shows progress events.

    Args:
        screen: The screen to write to.
    """

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._rate = Rate()
        self._done = 0
        self._left = ""
        self._recent: deque[Progress] = deque(maxlen=_LATENCY_OVER)

    def __call__(self, event: Progress) -> None:
        self._done = event["totals"]["done"]
        self._left = left_behind(event)
        self._recent.append(event)
        self._screen.status(status_line(event, self._rate.at(self._done), self._recent))

    def sum_up(self, *, stopped: bool) -> None:
        """Writes the last line: what was done, and what waits for somebody."""
        how = "stopped" if stopped else "drained"
        left = f", {self._left}" if self._left else ""
        self._screen.line(f"{how}: {counted(self._done, 'record')} done{left}")


def status_line(event: Progress, rate: float, recent: Collection[Progress] = ()) -> str:
    """Returns the numbers of a progress event, why nothing runs, the oldest blocker, and dangers.

    Args:
        event: The event.
        rate: Records done per second.
        recent: Events whose latencies are shown, in real time.
    """
    totals, partitions = event["totals"], event["partitions"]
    text = "real time: " if event["mode"] == "realTime" else ""
    text += (
        f"{totals['done']:,} done, {rate:,.0f}/s, lag {event['lag']:,}, "
        f"{event['pending']:,} pending, {event['gapRanges']:,} gaps, "
        f"{totals['deadLetters']:,} dead letters"
    )
    if totals["filtered"]:
        text += f", {totals['filtered']:,} filtered"
    if event["mode"] == "realTime":
        text += _latency(recent)
    if event["waitingFor"] is not None:
        text += f"; {event['waitingFor']['message']}"
    blocked = [p for p in partitions if _is_held(p["blocker"])]
    if blocked:
        text += f"; {held_by(max(blocked, key=lambda p: p['blocker']['ageSeconds']))}"
    if event["verdict"]["level"] == "danger":
        text += f"; {event['verdict']['sentence']}"
    return text


def _is_held(blocker: Mapping[str, Any] | None) -> bool:
    from commits.model import has_failed

    return blocker is not None and has_failed(blocker["attempts"], blocker["error"])


def _latency(recent: Collection[Progress]) -> str:
    """Returns the 99th percentiles of latencies; nothing without records."""
    from coopconsume.worker.histogram import Histogram

    start, commit = (
        Histogram.of(event[field] for event in recent).quantile(0.99)
        for field in ("startLatency", "commitLatency")
    )
    if start is None or commit is None:
        return ""
    return f", p99 {start * 1000:,.0f} ms to handlers, {commit * 1000:,.0f} ms to commits"


def held_by(partition: Mapping[str, Any]) -> str:
    """Returns the failed record at the stable offset of a partition, and what it holds back."""
    blocker = partition["blocker"]
    due = blocker["dueInSeconds"]
    then = "retry in progress" if due is None else f"next in {due:.0f} s"
    if blocker["state"] == "parked":
        then = "parked"
    key = blocker["key"] if blocker["key"] is not None else f"hash {blocker['keyHash']}"
    # What is behind it may not have been read yet, as after a restart.
    behind = "nothing behind it so far"
    if blocker["behind"]:
        behind = f"{counted(blocker['behind'], 'record')} behind"
    return (
        f"{'held by ' if blocker['behind'] else ''}"
        f"{partition['topic']}-{partition['partition']}@{blocker['offset']} key={key}: "
        f"{blocker['error']} ({tries(blocker['attempts'])}, {then}, {behind})"
    )


def _policy(max_attempts: int | None, backoff: float, undecodable: OnUndecodable) -> RetryPolicy:
    if max_attempts is not None and max_attempts < 1:
        raise click.UsageError(f"--max-attempts {max_attempts}: give at least 1, or leave it out")
    try:
        most = max(_MAX_BACKOFF, backoff)
        return RetryPolicy(max_attempts, backoff, most, undecodable=undecodable)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _trigger(
    available_now: bool, processing_time: str | None, real_time: str | None
) -> dict[str, Any]:
    """Returns the arguments of `CooperativeForeach.trigger`; none if batches start at once.

    Invalid intervals are refused here, before the broker is contacted.
    """
    seconds_of("processing-time", processing_time or "0")
    seconds_of("real-time", real_time or "0")
    if available_now + (processing_time is not None) + (real_time is not None) > 1:
        raise click.UsageError("give one of --available-now, --processing-time and --real-time")
    if not (available_now or processing_time is not None or real_time is not None):
        return {}
    return {
        "availableNow": available_now, "processingTime": processing_time, "realTime": real_time,
    }  # fmt: skip


def _find_handlers_here() -> None:
    """Lets the driver and the workers import modules of the current folder."""
    here = os.getcwd()  # noqa: PTH109
    if here not in sys.path:
        sys.path.insert(0, here)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if here not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, *paths]))


def _check_before_starting(
    options: Options, session: SparkSession | None, written: Iterable[str]
) -> None:
    """Checks Java, the broker, the topics and the commit table before Spark starts.

    Args:
        options: The options of the consumer.
        session: The session, if there is one already.
        written: The topics to which the job writes, and which must exist.

    Raises:
        CoopConsumeError: Java, the broker or a topic is missing.
        CommitStoreError: The commit table cannot be used.
    """
    from commits import CommitStore
    from coopconsume.kafka.cluster import Cluster
    from coopconsume.testing.local.java import find_java

    if session is None:
        find_java(needed_by="Spark 4", newest=NEWEST_JAVA)
    cluster = Cluster(options)
    try:
        cluster.subscribed(options.subscribe, options.subscribe_pattern)
        cluster.check_topics(written)
        # A table in a catalog needs a session, so without one it is checked later.
        if session is not None or not is_named(options.commit_table):
            CommitStore.open(options.commit_table, spark=session, cluster=cluster.cluster_id)
    finally:
        cluster.close()
    if not is_named(options.commit_table):
        try:
            refuse_unwritable(options.commit_table)
        except OSError as error:
            raise CommitLogUnavailable(options.commit_table, "open", str(error)) from error


def _own_session(
    stack: ExitStack, screen: Screen, master: str | None, conf: dict[str, str], slots: int | None
) -> SparkSession | None:
    """Starts a session that ends with the stack; None: Ctrl-C came meanwhile."""
    from coopconsume.testing.local.session import stop_session

    screen.status("starting Spark", force=True)
    try:
        session = _local_session(master, conf, slots)
    except KeyboardInterrupt:
        screen.line("stopped before the job began")
        return None
    stack.callback(stop_session, session)
    return session


def _local_session(master: str | None, conf: dict[str, str], slots: int | None) -> SparkSession:
    from coopconsume.testing.local.session import local_session

    cores = None if slots is None else slots + _SPARE_CORES
    if master is not None:
        conf["spark.master"] = master
    return local_session(conf.get("spark.app.name", "coopconsume"), cores=cores, conf=conf)
