"""The DataFrames that `poll` returns, and those that answers are given by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import TYPE_CHECKING, Any

from commits import OffsetRanges
from coopconsume.runtime.plan import covering, reach_of
from coopconsume.runtime.read.expressions import key_column
from coopconsume.runtime.read.hashing import deal_hash_sql
from coopconsume.runtime.read.offset_frames import WantedRows, read_spans
from coopconsume.runtime.read.poll_frames import empty_poll_frame, poll_frame, poll_offsets
from coopconsume.runtime.read.spans import Span
from coopconsume.runtime.read.timestamp_overflow import LAST_MS, retried

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from assignors import KeyRange
    from commits.model import TopicPartition
    from coopconsume.group.owned import Owned
    from coopconsume.kafka.cluster import Cluster
    from coopconsume.options import Options
    from coopconsume.record import Headers
    from coopconsume.runtime.poll.positions import Chosen
    from coopconsume.runtime.read.poll_frames import PolledRows


class FrameReader:
    """Reads records of partitions that a consumer holds.

    Args:
        spark: The session.
        options: Of the consumer.
        slots: Spark partitions of a frame.
    """

    def __init__(self, spark: SparkSession, options: Options, slots: int) -> None:
        self._spark = spark
        self._options = options
        self._slots = slots
        self._slices = options.min_partitions or slots

    def look_for_timestamp_overflows(
        self, cluster: Cluster, offsets: Mapping[TopicPartition, OffsetRanges]
    ) -> None:
        """Looks for records that Spark cannot read before the user gets a frame with them.

        Without timestamps that are too high it costs one request. Those that are too low are not
        looked for.
        """
        from pyspark.sql import functions as F  # noqa: N812

        first = cluster.first_at(offsets, LAST_MS)
        spans = [
            span
            for tp, ranges in offsets.items()
            for span in _spans(tp, ranges)
            if tp in first and span.last >= first[tp]
        ]

        def read() -> object:
            frame = read_spans(self._spark, self._options, spans, self._slices)
            return frame.agg(F.max("offset")).collect()

        if spans:
            retried(self._options, spans, read)

    def empty(self) -> DataFrame:
        """Returns a frame without rows."""
        return empty_poll_frame(self._spark, self._options)

    def rows(
        self,
        owned: Mapping[TopicPartition, Owned],
        offsets: Mapping[TopicPartition, OffsetRanges],
        chosen: Mapping[TopicPartition, Chosen],
        added: Mapping[TopicPartition, Mapping[Headers, OffsetRanges]],
    ) -> DataFrame:
        """Returns the records at some offsets, as `poll` returns them.

        Args:
            owned: The partitions.
            offsets: By partition; none is empty.
            chosen: The wanted rows of partitions where not all are wanted.
            added: Which records have added headers, and which.
        """
        spans, wanted = self._reads(owned, offsets)
        choose = {tp: chosen[tp].sql for tp in offsets if tp in chosen}
        tasks = range(self._slots)
        return poll_frame(
            self._spark,
            self._options,
            spans=spans,
            wanted=wanted,
            tasks=tasks,
            slices=self._slices,
            choose=choose,
            added=added,
        )

    def dealt(
        self,
        owned: Mapping[TopicPartition, Owned],
        offsets: Mapping[TopicPartition, OffsetRanges],
        chosen: Mapping[TopicPartition, Chosen],
        *,
        keys: bool = False,
    ) -> dict[TopicPartition, PolledRows]:
        """Reads the rows of `rows`, with those that do not pass the filter.

        Args are those of `rows`; it may have no partitions. With ``keys``, the rows have the
        keys that they are dealt by.
        """
        if not offsets:
            return {}
        spans, wanted = self._reads(owned, offsets)
        choose = {tp: chosen[tp].sql for tp in offsets if tp in chosen}
        found = poll_offsets(
            self._spark,
            self._options,
            spans=spans,
            wanted=wanted,
            slices=self._slices,
            choose=choose,
            keys=keys,
        )
        return dict(zip(offsets, found, strict=True))

    def present(
        self,
        owned: Mapping[TopicPartition, Owned],
        offsets: Mapping[TopicPartition, OffsetRanges],
    ) -> dict[TopicPartition, OffsetRanges]:
        """Reads at which offsets there are records, whether they pass the filter or not."""
        found = self.dealt(owned, offsets, {})
        return {tp: OffsetRanges.from_offsets(rows.offsets) for tp, rows in found.items()}

    def originals(self, named: Mapping[TopicPartition, Iterable[int]]) -> list[Any]:
        """Reads the records at some offsets as Kafka has them now, with headers and key hash.

        The hash is the one that a record is dealt by, also without a key.
        """
        from pyspark.sql import functions as F  # noqa: N812

        wanted = {tp: set(offsets) for tp, offsets in named.items()}
        spans = [
            span
            for tp, offsets in wanted.items()
            for span in _spans(tp, OffsetRanges.from_offsets(list(offsets)))
        ]
        dealt = F.expr(deal_hash_sql(key_column(self._options)))

        def read() -> list[Any]:
            frame = read_spans(self._spark, self._options, spans, self._slots, headers=True)
            frame = frame.withColumn("millis", F.unix_millis("timestamp")).drop("timestamp")
            rows = frame.withColumn("key_hash", dealt).toLocalIterator()
            return [row for row in rows if row["offset"] in wanted[row["topic"], row["partition"]]]

        return retried(self._options, spans, read)

    def _reads(
        self,
        owned: Mapping[TopicPartition, Owned],
        offsets: Mapping[TopicPartition, OffsetRanges],
    ) -> tuple[list[Span], list[WantedRows]]:
        spans: list[Span] = []
        wanted = []
        for tp, ranges in offsets.items():
            spans += _spans(tp, ranges)
            wanted.append(WantedRows(*tp, ranges, _dealt(owned[tp].ranges, self._slots)))
        return spans, wanted


def _spans(tp: TopicPartition, offsets: OffsetRanges) -> list[Span]:
    return [Span(*tp, first, last) for first, last in covering(offsets, reach_of(offsets))]


def _dealt(ranges: Iterable[KeyRange], tasks: int) -> tuple[tuple[KeyRange, int], ...]:
    return tuple(
        (piece, task)
        for key_range in ranges
        for task, piece in enumerate(key_range.split(min(tasks, key_range.size)))
    )


def offsets_of(done: Any) -> dict[TopicPartition, OffsetRanges | int]:
    """Returns by partition what a commit names.

    Args:
        done: A frame; or a mapping from partitions to ranges ``(first, last)``, both included, or
            to one offset, alone or with metadata as kafka-python has it: the first one that is not
            done.

    Raises:
        TypeError: It is no frame and no mapping, or what it names for a partition are no offsets.
        ValueError: The frame lacks a column, an offset is negative, or a range is not one.
    """
    if isinstance(done, Mapping):
        return {(t, int(p)): _offsets_of((t, int(p)), named) for (t, p), named in done.items()}
    if not hasattr(done, "columns"):
        raise TypeError(
            f"commit of {done!r}: give a frame, or a mapping from partitions to an offset or to "
            "ranges (first, last)"
        )
    missing = [name for name in ("topic", "partition", "offset") if name not in done.columns]
    if missing:
        raise ValueError(f"commit needs the column {missing[0]!r}; the frame has {done.columns}")
    table = done.select("topic", "partition", "offset").toArrow()
    offsets: dict[TopicPartition, OffsetRanges | int] = {}
    keys = table.group_by(["topic", "partition"]).aggregate([("offset", "list")])
    for row in range(keys.num_rows):
        values = keys.column("offset_list")[row].values.to_numpy()
        tp = keys.column("topic")[row].as_py(), keys.column("partition")[row].as_py()
        offsets[tp] = OffsetRanges.from_offsets(values)
    return offsets


def _offsets_of(tp: TopicPartition, named: Any) -> OffsetRanges | int:
    end = getattr(named, "offset", named)
    if isinstance(end, bool) or not isinstance(end, Integral | Iterable) or isinstance(end, str):
        raise TypeError(
            f"commit of {named!r} for {tp[0]}-{tp[1]}: give the first offset that is not done, or "
            "ranges (first, last) of offsets that are"
        )
    if not isinstance(end, Integral):
        return OffsetRanges.of(end)
    if end < 0:
        raise ValueError(f"commit of offset {end}: give the first offset that is not done, from 0")
    return int(end)
