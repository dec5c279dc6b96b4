"""`CooperativeConsumer`: what users open first."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from commits import OffsetRanges
from commits.offsets import MAX_OFFSET
from coopconsume.classic import cores, is_classic
from coopconsume.errors import (
    AlreadyClosed,
    InvalidOption,
    MissingOption,
    NotPolled,
    SessionUnusable,
)
from coopconsume.membership import Membership
from coopconsume.options import Options
from coopconsume.plan import cluster
from coopconsume.query import CooperativeForeach, CooperativeQuery
from coopconsume.source import Span, Wanted, poll_frame, present_offsets

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import TracebackType

    from kafka import TopicPartition
    from pyspark.sql import DataFrame, SparkSession

    from assignors import KeyRange
    from commits import CommitResult
    from coopconsume.record import RetryPolicy
    from coopconsume.report import Ordering

log = logging.getLogger(__name__)

#: Offsets that one poll spans at most, over all partitions, unless maxOffsetsPerTrigger says less.
POLL_WINDOW = 500_000
_POLL_EVERY = 0.1
_AUDIT_SPAN = 100_000

_COMMITTED_DDL = (
    "topic string, partition int, stable_offset bigint, committed_above bigint, "
    "ranges array<struct<first: bigint, last: bigint>>"
)
_GAPS_DDL = "topic string, partition int, first bigint, last bigint, offsets bigint"
_LAG_DDL = (
    "topic string, partition int, stable_offset bigint, end_offset bigint, "
    "committed_above bigint, lag bigint"
)


@dataclass
class _Place:
    """Where polling stands in one partition."""

    position: int
    todo: OffsetRanges
    polled: OffsetRanges = field(default_factory=OffsetRanges)
    audited: OffsetRanges = field(default_factory=OffsetRanges)
    paused: bool = False


class CooperativeConsumer:
    """Consumes Kafka cooperatively: by key range, each record committed by itself.

    Either poll DataFrames and commit what was done of them, or give a handler to `foreach`.

    Args:
        options: Names and values as text, in Kafka's and Spark's words; see `coopconsume.options`.
        spark: The session; by default the active one. It is never created, stopped or changed.

    Raises:
        OptionError: An option is unknown, missing or wrong.
        SessionUnusable: There is no active session, or it runs tasks twice (speculation).
    """

    def __init__(self, options: Mapping[str, Any], spark: SparkSession | None = None) -> None:
        self.options = Options.parse(options)
        self.spark = _session(spark)
        self._lock = threading.RLock()
        self._membership: Membership | None = None
        self._places: dict[tuple[str, int], _Place] = {}
        self._query: CooperativeQuery | None = None
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    # -- what is consumed

    def subscribe(self, topics: Iterable[str] | str | None = None) -> CooperativeConsumer:
        """Take the whole of some topics, as the group's member.

        One member for now: it opens an epoch, so that an earlier one of the group is fenced.

        Args:
            topics: Names; without any, the options ``subscribe`` or ``subscribePattern`` count.

        Raises:
            InvalidOption: Topics are given here and as an option.
            MissingOption: No topics are given at all.
            TopicNotFound: One does not exist.
        """
        wanted = [topics] if isinstance(topics, str) else None if topics is None else list(topics)
        by_option = self.options.subscribe or self.options.subscribe_pattern
        if wanted is not None and by_option:
            raise InvalidOption("subscribe", "given as option and as call", "give it once")
        if wanted is None and not by_option:
            raise MissingOption("subscribe")
        with self._joining() as membership:
            membership.subscribe(wanted or self.options.subscribe, self.options.subscribe_pattern)
        return self

    def assign(
        self,
        partitions: Mapping[TopicPartition, Iterable[KeyRange]],
        *,
        takeover: bool = False,
    ) -> CooperativeConsumer:
        """Take key ranges of partitions by hand (KIP-X's standalone mode).

        Args:
            partitions: For each partition its key ranges; an empty list means all of it.
            takeover: Fence whoever holds part of it, instead of being refused.

        Raises:
            commits.ClaimConflict: Somebody holds part of it.
            TopicNotFound: A topic does not exist.
            ValueError: A partition does not exist, ranges overlap, or nothing is given.
        """
        if not partitions:
            raise ValueError("assign({}): give at least one partition")
        if self.options.subscribe or self.options.subscribe_pattern:
            raise InvalidOption("subscribe", "given beside assign()", "give one of the two")
        with self._joining() as membership:
            membership.assign(
                {(t, int(p)): list(ranges) for (t, p), ranges in partitions.items()},
                takeover=takeover,
            )
        return self

    def _joining(self) -> _Joining:
        if self._closed:
            raise AlreadyClosed("the consumer")
        if self._membership is not None:
            raise InvalidOption("subscribe", "called twice", "make a new consumer for other topics")
        return _Joining(self)

    def membership(self) -> Membership:
        """The member's place in the group; joins first where an option names the topics."""
        if self._closed:
            raise AlreadyClosed("the consumer")
        if self._membership is None:
            self.subscribe()
        assert self._membership is not None
        return self._membership

    def assignment(self) -> dict[TopicPartition, list[KeyRange]]:
        """The key ranges owned, by partition; empty before subscribe or assign."""
        from kafka import TopicPartition

        if self._membership is None:
            return {}
        return {TopicPartition(*tp): list(o.ranges) for tp, o in self._membership.owned.items()}

    def slots(self) -> int:
        """Spark tasks side by side: the option, else the cores that Spark has.

        Raises:
            MissingOption: Neither is known, as on Spark Connect.
        """
        found = self.options.slots or cores(self.spark)
        if not found:
            raise MissingOption("slots")
        return found

    # -- polling

    def poll(self, timeout: float = 1.0) -> DataFrame:
        """The next records, as a DataFrame of a fixed window of offsets.

        Columns of Spark's Kafka source and ``key_hash``. What is committed is left out, and so are
        keys of others. Looking twice shows the same rows. The position moves on: records that are
        not committed come back after a restart, a seek or a change of the assignment. Rows of a
        key lie in one Spark partition in the order of their offsets.

        Args:
            timeout: Seconds to wait for records if there are none; then the frame is empty.

        Raises:
            DataLoss: Records were deleted before they were done, and ``failOnDataLoss`` is true.
        """
        membership = self.membership()
        self._refuse_beside_query("poll")
        deadline = time.monotonic() + timeout
        with self._lock:
            membership.check_log_starts()
            while True:
                wanted = self._next_window(membership)
                if wanted or time.monotonic() >= deadline:
                    return self._frame(membership, wanted)
                time.sleep(min(_POLL_EVERY, max(0.0, deadline - time.monotonic())))

    def _next_window(self, membership: Membership) -> dict[tuple[str, int], OffsetRanges]:
        ends = membership.cluster.ends(membership.owned)
        window = min(POLL_WINDOW, self.options.max_offsets_per_trigger or POLL_WINDOW)
        open_places = {tp: p for tp, p in self._places.items() if not p.paused}
        backlog = {tp: len(p.todo) + max(0, ends[tp] - p.position) for tp, p in open_places.items()}
        total = sum(backlog.values())
        found: dict[tuple[str, int], OffsetRanges] = {}
        for tp, place in open_places.items():
            if not backlog[tp]:
                continue
            room = max(1, window * backlog[tp] // total)
            owned = membership.owned[tp]
            place.position = max(place.position, owned.stable)
            todo = place.todo.clip(owned.stable, MAX_OFFSET) - owned.committed
            reads, rest = cluster(todo, room)
            taken = todo.clip(0, reads[-1][1]) if rest else todo
            place.todo = todo - taken
            room -= sum(last - first + 1 for first, last in reads)
            if not rest and room > 0 and place.position < ends[tp]:
                stop = min(ends[tp], place.position + room)
                taken |= OffsetRanges([(place.position, stop - 1)]) - owned.committed
                place.position = stop
            if taken:
                place.polled |= taken
                found[tp] = taken
        return found

    def _frame(
        self, membership: Membership, found: Mapping[tuple[str, int], OffsetRanges]
    ) -> DataFrame:
        tasks = range(self.slots())
        if not found:
            # An empty window of a partition that is ours gives the same columns, and no rows.
            tp, owned = next(iter(membership.owned.items()))
            nothing = Span(*tp, owned.stable, owned.stable - 1)
            wanted = [Wanted(*tp, OffsetRanges(), _dealt(owned.ranges, len(tasks)))]
            return poll_frame(self.spark, self.options, [nothing], wanted, tasks, 1)
        spans, wanted = [], []
        for tp, offsets in found.items():
            reads, _ = cluster(offsets, 2**62)
            spans += [Span(*tp, first, last) for first, last in reads]
            ranges = membership.owned[tp].ranges
            wanted.append(Wanted(*tp, offsets, _dealt(ranges, len(tasks))))
        slices = self.options.min_partitions or len(tasks)
        return poll_frame(self.spark, self.options, spans, wanted, tasks, slices)

    def commit(
        self, done: DataFrame | Mapping[TopicPartition, OffsetRanges | Iterable[tuple[int, int]]]
    ) -> dict[TopicPartition, CommitResult]:
        """Commit polled records one by one; in any order, repeated ones are harmless.

        Args:
            done: A frame with the columns topic, partition and offset, or ranges (first, last) of
                offsets by partition.

        Returns:
            For each partition what the commit log answered.

        Raises:
            NotPolled: An offset was not handed out by `poll`; nothing is committed.
            commits.FencedMember: Another member holds the group; nothing counts.
            commits.MaxIndividualCommitsReached: Too many ranges; nothing is committed.
        """
        from kafka import TopicPartition

        membership = self.membership()
        self._refuse_beside_query("commit")
        offsets = {tp: ranges for tp, ranges in _offsets_of(done).items() if ranges}
        with self._lock:
            for tp, ranges in offsets.items():
                place = self._places.get(tp)
                known = OffsetRanges()
                if place is not None:
                    owned = membership.owned[tp]
                    known = place.polled | owned.committed
                    ranges = ranges.clip(owned.stable, MAX_OFFSET)  # noqa: PLW2901
                strange = ranges - known
                if strange:
                    first, last = next(iter(strange))
                    raise NotPolled(*tp, first, last)
            results = membership.commit(offsets)
            for tp, ranges in offsets.items():
                self._places[tp].polled -= ranges
            self._commit_holes(membership)
            membership.mirror()
        return {TopicPartition(*tp): result for tp, result in results.items()}

    def _commit_holes(self, membership: Membership) -> None:
        """Offsets that hold a stable offset back although no record is there are amended."""
        holes: dict[tuple[str, int], OffsetRanges] = {}
        for tp, place in self._places.items():
            owned = membership.owned[tp]
            first = owned.stable
            if first >= place.position or not owned.owns_first or first in place.audited:
                continue
            last = min(place.position, first + _AUDIT_SPAN) - 1
            span = Span(*tp, first, last)
            looked = OffsetRanges([(first, last)])
            place.audited = looked
            absent = looked - present_offsets(self.spark, self.options, span, 1)
            if absent:
                holes[tp] = absent
        if holes:
            membership.commit({}, holes=holes)
            for tp, absent in holes.items():
                self._places[tp].polled -= absent
                self._places[tp].todo -= absent

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Poll from an offset on next; what is committed stays committed and is left out.

        Raises:
            ValueError: The partition is not ours, or the offset is negative.
        """
        place = self._place(partition)
        if offset < 0:
            raise ValueError(f"seek to offset {offset}: give 0 or more")
        with self._lock:
            place.position = offset
            place.todo = OffsetRanges()
            place.audited = OffsetRanges()

    def pause(self, *partitions: TopicPartition) -> None:
        """Leave partitions out of `poll` until `resume`; without any, all."""
        for partition in partitions or self.assignment():
            self._place(partition).paused = True

    def resume(self, *partitions: TopicPartition) -> None:
        """Take paused partitions up again; without any, all."""
        for partition in partitions or self.assignment():
            self._place(partition).paused = False

    def _place(self, partition: TopicPartition) -> _Place:
        self.membership()
        place = self._places.get((partition[0], partition[1]))
        if place is None:
            raise ValueError(f"partition {partition[0]}-{partition[1]} is not assigned to us")
        return place

    # -- what is known

    def committed(self) -> DataFrame:
        """One row a partition: its stable offset and the ranges committed above it.

        Columns: topic, partition, stable_offset, committed_above (offsets), ranges.
        """
        rows = [
            (t, p, c.stable_offset, len(c.ranges), c.ranges.pairs())
            for (t, p), c in sorted(self._state().items())
        ]
        return self.spark.createDataFrame(rows, _COMMITTED_DDL)

    def gaps(self) -> DataFrame:
        """One row a gap: offsets not done although something above them is.

        Columns: topic, partition, first, last, offsets.
        """
        rows = []
        for (t, p), c in sorted(self._state().items()):
            top = c.ranges.last
            if top is not None:
                open_ranges = c.ranges.complement(c.stable_offset, top)
                rows += [(t, p, first, last, last - first + 1) for first, last in open_ranges]
        return self.spark.createDataFrame(rows, _GAPS_DDL)

    def lag(self) -> DataFrame:
        """One row a partition: how many offsets are not done yet, gaps counted.

        Columns: topic, partition, stable_offset, end_offset, committed_above, lag.
        """
        membership = self.membership()
        state = self._state()
        ends = membership.cluster.ends(membership.owned)
        rows = []
        for tp, end in sorted(ends.items()):
            c = state[tp]
            lag = end - c.stable_offset - len(c.ranges)
            rows.append((*tp, c.stable_offset, end, len(c.ranges), lag))
        return self.spark.createDataFrame(rows, _LAG_DDL)

    def _state(self) -> dict[tuple[str, int], Any]:
        membership = self.membership()
        state = membership.store.state(self.options.group_id)
        return {tp: commits for tp, commits in state.items() if tp in membership.owned}

    # -- handlers

    def foreach(
        self,
        handler: Any,
        *,
        concurrency: int = 1,
        ordering: Ordering = "key",
        retry: RetryPolicy | None = None,
        dead_letter: str | None = None,
        output: str | None = None,
        output_schema: Any = None,
    ) -> CooperativeForeach:
        """Call a handler with every record, in the order of its key.

        Args:
            handler: A function of a `Record`, or its name as ``module:function``. It returns
                nothing, an output row (a dictionary) or several; it raises, or answers `Retry` or
                `Reject`, when a record is not done.
            concurrency: Handlers at once in a slot, on threads; in all ``slots`` times so many.
            ordering: What is handled strictly one after another: ``key``, ``partition`` or
                ``none``.
            retry: By default a failed record is tried again for ever, 1 s to 60 s apart.
            dead_letter: Path of a Delta table for records that are given up.
            output: Path of a Delta table for rows that handlers return.
            output_schema: Their columns, as DDL, Spark or Arrow schema.

        Raises:
            HandlerNotUsable: The handler cannot be found, called or pickled.
            InvalidOption: An argument is out of its range, or lacks its counterpart.
            TableUnusable: A table has other columns.
        """
        return CooperativeForeach(
            self, handler, concurrency=concurrency, ordering=ordering, retry=retry,
            dead_letter=dead_letter, output=output, output_schema=output_schema,
        )  # fmt: skip

    def run_by(self, query: CooperativeQuery) -> None:
        """A query now works for this consumer; it has one at a time."""
        if self._query is not None and self._query.isActive:
            raise InvalidOption("foreach", "a query is running", "stop it, or use another consumer")
        self._query = query

    def _refuse_beside_query(self, what: str) -> None:
        if self._query is not None and self._query.isActive:
            raise InvalidOption(what, "a query is running", "stop it, or use another consumer")

    def close(self) -> None:
        """Stop a running query, give back what is owned and disconnect; harmless when repeated."""
        if self._closed:
            return
        self._closed = True
        if self._query is not None:
            self._query.stop()
        if self._membership is not None:
            self._membership.leave()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"CooperativeConsumer(group={self.options.group_id!r}, {state})"


class _Joining:
    """Joins as a whole or not at all: a member that could not join leaves nothing open."""

    def __init__(self, consumer: CooperativeConsumer) -> None:
        self._consumer = consumer
        self._membership = Membership(consumer.options)

    def __enter__(self) -> Membership:
        return self._membership

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if error is not None:
            self._membership.leave()
            return
        self._consumer._membership = self._membership  # noqa: SLF001 - a part of the consumer
        for tp, owned in self._membership.owned.items():
            top = owned.committed.last
            gaps = OffsetRanges() if top is None else owned.committed.complement(owned.stable, top)
            position = owned.stable if top is None else top + 1
            self._consumer._places[tp] = _Place(position, gaps)  # noqa: SLF001


def _dealt(ranges: Iterable[KeyRange], tasks: int) -> tuple[tuple[KeyRange, int], ...]:
    return tuple(
        (piece, task)
        for key_range in ranges
        for task, piece in enumerate(key_range.split(min(tasks, key_range.size)))
    )


def _offsets_of(done: Any) -> dict[tuple[str, int], OffsetRanges]:
    if hasattr(done, "items"):
        return {(t, int(p)): OffsetRanges.of(ranges) for (t, p), ranges in done.items()}
    missing = [name for name in ("topic", "partition", "offset") if name not in done.columns]
    if missing:
        raise ValueError(f"commit needs the column {missing[0]!r}; the frame has {done.columns}")
    table = done.select("topic", "partition", "offset").toArrow()
    offsets = {}
    keys = table.group_by(["topic", "partition"]).aggregate([("offset", "list")])
    for row in range(keys.num_rows):
        values = keys.column("offset_list")[row].values.to_numpy()
        tp = keys.column("topic")[row].as_py(), keys.column("partition")[row].as_py()
        offsets[tp] = OffsetRanges.from_offsets(values)
    return offsets


def _session(spark: SparkSession | None) -> SparkSession:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession as Session

    if spark is None:
        try:
            spark = Session.active()
        except PySparkException:
            raise SessionUnusable(
                "there is no active Spark session: make one, or give spark=…"
            ) from None
    if str(spark.conf.get("spark.speculation", "false")).lower() == "true":
        raise SessionUnusable(
            "spark.speculation is true: it runs a task, and so a handler, twice at once; "
            "set it to false"
        )
    local = str(spark.conf.get("spark.master", "") or "").startswith("local")
    attempts = spark.conf.get("spark.stage.maxConsecutiveAttempts", "4")
    if is_classic(spark) and not local and attempts != "1":
        log.warning(
            "spark.stage.maxConsecutiveAttempts is %s: after a lost executor Spark may start the "
            "rest "
            "of a batch again while its first run still goes on; set it to 1", attempts
        )  # fmt: skip
    return spark
