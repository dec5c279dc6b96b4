"""DataFrames over explicit offsets of Kafka: what a batch reads."""

from __future__ import annotations

import functools
import itertools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commits import OffsetRanges
from coopconsume.kafka.identity import LOG_IDENTITIES
from coopconsume.runtime.read.by_partition import (
    MOST_PIECES,
    by_part_sql,
    order_sql,
    part_sql,
    task_sql,
    wanted_sql,
)
from coopconsume.runtime.read.expressions import (
    key_column,
    needs_headers,
    with_ordering_key,
)
from coopconsume.runtime.read.hashing import (
    deal_hash_sql,
    in_ranges_sql,
    pieces_of,
    search_sql,
    slice_sql,
    task_numbers,
)
from coopconsume.runtime.read.session_settings import check_session_settings
from coopconsume.runtime.read.spans import Span
from coopconsume.runtime.read.timestamp_overflow import (
    TIMESTAMP_OVERFLOWS,
    around,
    overflow_frame,
    retried,
)
from coopconsume.worker.report import FILTERED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from assignors import KeyRange
    from coopconsume.options import Options


_FETCH = "kafka.max.partition.fetch.bytes"
_GROUP = "kafka.group.id"
#: Offsets of a short span, and reads in a batch from which on they are read in another way.
_SHORT = 300
#: Slots up to which each has a read of its own: a read costs the driver some milliseconds.
_UNIONS = 16
_SCATTERED = 3
#: Tasks of a read for each slice that is asked for. Spark's source has one for each partition.
_TASKS_A_SLICE = 4


@dataclass(frozen=True)
class WantedRows:
    """The wanted rows of one partition, and their slots.

    Attributes:
        offsets: The offsets that any slot wants.
        slots: Key ranges with the number of the slot they belong to; disjoint.
        slices: Offsets with the number of the slot they belong to, disjoint, where slots have no
            key ranges.
    """

    topic: str
    partition: int
    offsets: OffsetRanges
    slots: tuple[tuple[KeyRange, int], ...] = ()
    slices: tuple[tuple[OffsetRanges, int], ...] = ()


def read_spans(
    spark: SparkSession,
    options: Options,
    spans: Sequence[Span],
    slices: int,
    *,
    headers: bool = False,
) -> DataFrame:
    """Returns Kafka's records of some spans of offsets, in the columns of Spark's source.

    With the option ``orderingKey`` there is one more column, see `with_ordering_key`.

    ``failOnDataLoss`` is always true here: with false the source skips lost records and those that
    cannot be seen yet alike. The user's own setting is applied before a span is planned.

    Records that the source cannot read are read in another way, see `timestamp_overflow`.
    """
    frames = []
    with_headers = headers or needs_headers(options.ordering_key)
    overflows = TIMESTAMP_OVERFLOWS.within(options, spans)
    if overflows:
        spans = around(spans, overflows)
    total = max(1, sum(span.last - span.first + 1 for span in spans))
    for layer in _layers(spans):
        size = sum(span.last - span.first + 1 for span in layer)
        fetching = options.source_options()
        if is_short(layer[0]) and len(spans) >= _SCATTERED:
            fetching[_FETCH] = "1"
        if _GROUP in fetching:
            fetching[_GROUP] = LOG_IDENTITIES.read_group(fetching[_GROUP], fetching)
        reader = (
            spark.read.format("kafka")
            .options(**fetching)
            .option("assign", _json(layer, lambda _: None))
            .option("startingOffsets", _json(layer, lambda span: span.first))
            .option("endingOffsets", _json(layer, lambda span: span.last + 1))
            .option("failOnDataLoss", "true")
            .option("includeHeaders", str(with_headers).lower())
            .option("minPartitions", str(max(1, round(slices * size / total))))
        )
        frames.append(reader.load())
    if overflows:
        frames.append(overflow_frame(spark, overflows, headers=with_headers))
    frame = frames[0]
    for other in frames[1:]:
        frame = frame.unionAll(other)
    if len(spans) > _TASKS_A_SLICE * slices:
        frame = frame.coalesce(_TASKS_A_SLICE * slices)
    return with_ordering_key(frame, options.ordering_key, headers=headers)


def is_short(span: Span) -> bool:
    """Whether a span, where there are several, is better read a batch of records at a time.

    A broker answers with whole batches of records, at least one, and the client asks for more
    before it knows that it needs none. So a short read asks for little: it costs two batches, not
    twice what suits a long read.
    """
    return span.last - span.first < _SHORT


def _layers(spans: Sequence[Span]) -> list[list[Span]]:
    short = [span for span in spans if is_short(span)]
    return _in_layers([s for s in spans if not is_short(s)]) + _in_layers(short)


def _in_layers(spans: Sequence[Span]) -> list[list[Span]]:
    # Spark's source takes one span a partition: the n-th ones go together.
    layers: list[list[Span]] = []
    seen: dict[tuple[str, int], int] = {}
    for span in spans:
        n = seen.get((span.topic, span.partition), 0)
        seen[span.topic, span.partition] = n + 1
        if n == len(layers):
            layers.append([])
        layers[n].append(span)
    return layers


def _json(spans: Iterable[Span], value: object) -> str:
    offsets: dict[str, dict[str, int]] = {}
    for span in spans:
        number = value(span)  # type: ignore[operator]
        offsets.setdefault(span.topic, {})[str(span.partition)] = number
    if all(number is None for ps in offsets.values() for number in ps.values()):
        return json.dumps({topic: sorted(map(int, ps)) for topic, ps in offsets.items()})
    return json.dumps(offsets)


def part_of_sql(wanted: Sequence[WantedRows]) -> str:
    """Returns SQL of the index of a row's partition in what is wanted."""
    return part_sql([(one.topic, one.partition) for one in wanted])


def task_of_sql(wanted: Sequence[WantedRows], tasks: Sequence[int], deal: str, part: str) -> str:
    """Returns SQL of the number that `task_numbers` sends to a row's slot; null: none wants it.

    Args:
        wanted: The wanted rows.
        tasks: The slots, by the index of the task they get.
        deal: SQL of the hash that a row is dealt by.
        part: SQL of the index of its partition.
    """
    numbers = task_numbers(len(tasks))
    number_of = {slot: numbers[i] for i, slot in enumerate(tasks)}
    value = "`offset`" if any(w.slices for w in wanted) else deal
    pieces = [
        pieces_of(
            [(r.first, r.last, number_of.get(slot)) for r, slot in w.slots]
            + [(*pair, number_of.get(slot)) for some, slot in w.slices for pair in some.pairs()]
        )
        for w in wanted
    ]
    if all(of == pieces[0] for of in pieces) and not (
        wanted[0].slices and len(pieces[0]) > MOST_PIECES
    ):
        return search_sql(value, pieces[0])
    if max(map(len, pieces)) <= MOST_PIECES:
        return task_sql(part, value, pieces)
    each = [
        slice_sql([(some, number_of[slot]) for some, slot in w.slices if slot in number_of])
        if w.slices and len(of) > MOST_PIECES
        else search_sql(value, of)
        for w, of in zip(wanted, pieces, strict=True)
    ]
    return by_part_sql(part, each)


def wanted_frame(
    frame: DataFrame, spans: Sequence[Span], wanted: Sequence[WantedRows]
) -> DataFrame:
    """Rows at offsets that are wanted, where not all that are read are."""
    if all(w.offsets.range_count <= 1 for w in wanted):
        return frame
    if len(wanted) == 1:
        return frame.where(in_ranges_sql(wanted[0].offsets))
    read: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for span in spans:
        read.setdefault((span.topic, span.partition), []).append((span.first, span.last))
    each = [sorted(read[w.topic, w.partition]) for w in wanted]
    return frame.where(wanted_sql(part_of_sql(wanted), each, [w.offsets for w in wanted]))


def batch_frame(
    spark: SparkSession,
    options: Options,
    spans: Sequence[Span],
    wanted: Sequence[WantedRows],
    tasks: Sequence[int],
    slices: int,
    *,
    headers: bool,
) -> DataFrame:
    """The rows of a batch, one Spark partition a slot, ascending offsets within each partition.

    Columns: ``part`` (index into ``wanted``; only where that is more than one), ``offset``,
    ``key_hash`` (of the offset where there is no key, see `key_column`), ``key``, ``value``,
    ``timestamp`` in milliseconds and, if asked for, ``headers``; with a filter as the last one
    ``filtered``, whether the record does not pass: of such records only the offset and the hash are
    in the row. Nothing else is shuffled, and nothing is done with a row after the sort: for cheap
    handlers, that is what a record costs.

    Args:
        spark: The session.
        options: Of the consumer.
        spans: What is read.
        wanted: Which rows of it, by partition.
        tasks: The slots, by the index of the task they get.
        slices: Spark partitions that the read is cut in, at least.
        headers: Whether record headers are asked for.
    """
    from pyspark.sql import functions as F  # noqa: N812

    check_session_settings(spark, options)
    record_filter = options.record_filter
    columns = _batch_columns(options, headers=headers)
    order = ["`offset`"]
    if len(wanted) > 1:
        columns.insert(0, f"{part_of_sql(wanted)} AS part")
        order = order_sql("part", [w.offsets for w in wanted])
    headers = headers or record_filter.needs_headers
    # With such records a span takes several reads.
    has_overflows = bool(TIMESTAMP_OVERFLOWS.within(options, spans))
    by_task = None if has_overflows else _spans_by_task(spans, wanted, tasks)
    if by_task is None:
        read = read_spans(spark, options, spans, slices, headers=headers)
    else:
        reads = [read_spans(spark, options, [span], 1, headers=headers) for span in by_task]
        read = functools.reduce(lambda one, other: one.unionAll(other), reads)
    frame = wanted_frame(read, spans, wanted)
    if record_filter:
        frame = frame.selectExpr("*", f"{record_filter.sql()} AS _passes")
    if by_task is not None:
        return frame.selectExpr(*columns)
    task = F.expr(task_of_sql(wanted, tasks, "key_hash", "part"))
    return (
        frame.selectExpr(*columns)
        .where(task.isNotNull())
        .repartition(len(tasks), task)
        .sortWithinPartitions(*map(F.expr, order))
    )


def _batch_columns(options: Options, *, headers: bool) -> list[str]:
    """Returns SQL of the columns of a batch, without ``part``."""
    record_filter = options.record_filter
    shown = "CASE WHEN _passes THEN {} END" if record_filter else "{}"
    columns = [
        "`offset`", f"{deal_hash_sql(key_column(options))} AS key_hash",
        *(f"{shown.format(name)} AS {name}" for name in ("key", "value")),
        "unix_millis(timestamp) AS timestamp",
    ]  # fmt: skip
    if headers:
        # Before each row Spark asks how large its Arrow batch is, and then Arrow goes through all
        # lists since the last that was not null: with null headers that is all there are.
        none = "CAST(array() AS ARRAY<STRUCT<key: STRING, value: BINARY>>)"
        columns.append(f"coalesce({shown.format('headers')}, {none}) AS headers")
    if record_filter:
        columns.append(f"NOT _passes AS {FILTERED}")
    return columns


def _spans_by_task(
    spans: Sequence[Span], wanted: Sequence[WantedRows], tasks: Sequence[int]
) -> list[Span] | None:
    """Returns the span of each task, if slots have slices and each one's is a span of its own.

    Then each slot handles its records in the task that reads them, without a shuffle and a sort.
    """
    if len(tasks) > _UNIONS:
        return None
    found: dict[int, list[Span]] = {slot: [] for slot in tasks}
    for w in wanted:
        for offsets, slot in w.slices:
            for span in spans:
                here = (span.topic, span.partition) == (w.topic, w.partition)
                part = offsets.clip(span.first, span.last) if here else OffsetRanges()
                if part.first is not None and part.last is not None:
                    found[slot].append(Span(w.topic, w.partition, part.first, part.last))
    if any(len(own) != 1 for own in found.values()):
        return None
    each = [found[slot][0] for slot in tasks]
    ordered = sorted(each, key=lambda span: (span.topic, span.partition, span.first))
    for one, other in itertools.pairwise(ordered):
        is_same = (one.topic, one.partition) == (other.topic, other.partition)
        if is_same and one.last >= other.first:
            return None
    return each


def present_offsets(spark: SparkSession, options: Options, span: Span, slices: int) -> OffsetRanges:
    """Returns the offsets of a span that have a record, of any member."""

    def look() -> pa.Table:
        return read_spans(spark, options, [span], slices).select("offset").toArrow()

    found = retried(options, [span], look)
    return OffsetRanges.from_offsets(found.column("offset").to_numpy())
