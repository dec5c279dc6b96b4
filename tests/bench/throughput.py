"""One partition, small records, an empty handler: what the machinery costs."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from assignors import KeyRange
from commits import OffsetRanges
from coopconsume import RetryPolicy
from coopconsume.runtime.read.offset_frames import WantedRows, batch_frame, read_spans
from coopconsume.runtime.read.spans import Span
from coopconsume.worker.report import BatchSpec, PartitionWork
from coopconsume.worker.slot import REPORT_SCHEMA, SlotRunner
from tests.bench.figures import Ratio, Report, seconds_of, take_turns
from tests.bench.handlers import PLAIN_COLUMNS, PlainLoop, handler, to_lists
from tests.bench.harness import SLOTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame

    from coopconsume import Options
    from tests.bench.harness import Harness

_OURS = "coopconsume, 2 slots"
_PLAIN = "plain Spark, source as it comes"
_TUNED = "plain Spark, same fetch settings"
_WARM_UPS = 5
_WHOLE, _FIXED = "windows and commits", "start and end"


def throughput(harness: Harness, say: Callable[[str], None]) -> list[Report]:
    """Records a second against plain Spark, and where a record's microseconds go."""
    records = harness.size(1_000_000, 50_000)
    topic = "throughput"
    harness.load(topic, records, keys=10_000, value_bytes=100)
    sides: dict[str, Callable[[int], float]] = {
        _OURS: lambda _: records / seconds_of(lambda: empty_job(harness, topic, records)),
        _PLAIN: lambda _: records / seconds_of(lambda: _plain(harness, topic, records, {})),
        _TUNED: lambda _: records / seconds_of(lambda: tuned_plain(harness, topic, records)),
    }
    report = Report(
        "Throughput, one partition",
        f"{records:,} records of 100 bytes, 10,000 keys, an empty Python handler. Ours: from "
        "making the consumer, on an empty commit table, to its end after an availableNow query. "
        "Plain Spark: `spark.read` and the same function in a loop in `mapInArrow`, with the same "
        f"`Record` made of each row. Here {_WARM_UPS} turns are for warmth: for so long the JVM "
        "compiles.",
    )
    report.add_all(take_turns(sides, harness.turns, say=say, warm_ups=_WARM_UPS), "records/s")
    report.ratios = [
        Ratio("ours / plain Spark as it comes", _OURS, _PLAIN, at_least=1.2),
        Ratio("ours / plain Spark, same fetch settings", _OURS, _TUNED, at_least=0.8),
    ]
    return [report, _microseconds(harness, topic, records, say)]


def empty_job(harness: Harness, topic: str, records: int) -> None:
    """A consumer of ours that handles a topic by an empty function, from its making to its end."""
    with harness.consumer(topic) as consumer:
        query = consumer.foreach(handler).trigger(availableNow=True).start()
        query.awaitTermination()
        progress = query.lastProgress
    done = progress["totals"]["done"] if progress else 0
    if done != records:
        raise AssertionError(f"{records} records were to be done, not {done}")


def tuned_plain(harness: Harness, topic: str, records: int) -> None:
    """Plain Spark with our fetch settings."""
    settings = {
        name: value
        for name, value in harness.parsed(topic).source_options().items()
        if name not in ("kafka.group.id", "kafka.isolation.level")
    }
    _plain(harness, topic, records, settings)


def _plain(harness: Harness, topic: str, records: int, settings: Mapping[str, str]) -> None:
    rows = (
        harness.spark.read.format("kafka")
        .option("kafka.bootstrap.servers", harness.broker.bootstrap_servers)
        .options(**settings)
        .option("subscribe", topic)
        .load()
        .selectExpr(*PLAIN_COLUMNS)
        .mapInArrow(PlainLoop(handler), "rows bigint")
        .collect()
    )
    handled = sum(row.rows for row in rows)
    if handled != records:
        raise AssertionError(f"{records} records were to be handled, not {handled}")


def _microseconds(harness: Harness, topic: str, records: int, say: Callable[[str], None]) -> Report:
    """Time each longer piece of the pipeline; the differences are what each step costs."""
    options, empty = harness.parsed(topic), f"{topic}-empty"
    harness.broker.create_topic(empty, 1)
    span, ranges = Span(topic, 0, 0, records - 1), KeyRange().split(SLOTS)

    def read() -> DataFrame:
        return read_spans(harness.spark, options, [span], SLOTS)

    def dealt() -> DataFrame:
        slots = tuple(zip(ranges, range(SLOTS), strict=True))
        wanted = WantedRows(topic, 0, OffsetRanges([(0, records - 1)]), slots)
        return batch_frame(
            harness.spark, options, [span], [wanted], range(SLOTS), SLOTS, headers=False
        )

    pieces: dict[str, Callable[[], object]] = {
        "read in the JVM": lambda: _sink(read().select("offset", "key", "value", "timestamp")),
        "hash, shuffle, sort": lambda: _sink(dealt()),
        "Arrow to Python lists": lambda: dealt().mapInArrow(to_lists, "rows bigint").collect(),
        "records, calls, outcomes": lambda: (
            dealt().mapInArrow(_runner(topic, records, options), REPORT_SCHEMA).collect()
        ),
        _WHOLE: lambda: empty_job(harness, topic, records),
        _FIXED: lambda: empty_job(harness, empty, 0),
    }

    def side(piece: Callable[[], object]) -> Callable[[int], float]:
        return lambda _: seconds_of(piece) * 1e6 / records

    values = take_turns({n: side(p) for n, p in pieces.items()}, harness.turns, say=say)
    report = Report(
        "Where a record's microseconds go",
        "Wall-clock time of two slots side by side, over the number of records. Each row times the "
        "pipeline up to and including its step, and shows what it takes more than the row above.",
    )
    fixed, before = values[_FIXED], [0.0] * harness.turns
    for name in list(pieces)[:-2]:
        up_to = values[name]
        report.add(name, _less(up_to, before), "µs/record")
        before = up_to
    report.add(_WHOLE, _less(values[_WHOLE], before, fixed), "µs/record")
    report.add(_FIXED, fixed, "µs/record")
    report.add("all", values[_WHOLE], "µs/record")
    report.notes.append(
        f"Start and end are a whole run on an empty topic: {median(fixed) * records / 1e6:.2f} s, "
        "however many records there are."
    )
    return report


def _less(values: list[float], *others: list[float]) -> list[float]:
    """Each turn's value less those of the others."""
    return [value - sum(rest) for value, *rest in zip(values, *others, strict=True)]


def _sink(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _runner(topic: str, records: int, options: Options) -> SlotRunner:
    work = {0: PartitionWork(((0, records - 1),))}
    spec = BatchSpec(
        batch=0,
        partitions=((topic, 0),),
        slots=tuple(range(SLOTS)),
        work=dict.fromkeys(range(SLOTS), work),
        ordering="key",
        concurrency=1,
        batch_time=600.0,
        handler_timeout=options.handler_timeout,
        headers=False,
    )
    return SlotRunner(spec, handler, RetryPolicy(), None, dead_letters=False, send=None)
