"""What `poll` hands out: where it stands in each partition, the next window, and its frame."""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from commits import OffsetRanges
from commits.offsets import MAX_OFFSET
from coopconsume.plan import cluster, covering, reach_of
from coopconsume.polling.held import Held
from coopconsume.reading.hashing import in_ranges_sql
from coopconsume.reading.source import Span, Wanted, empty_poll_frame, poll_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame, SparkSession

    from assignors import KeyRange, Share
    from coopconsume.group.holding import Holding
    from coopconsume.group.owned import Owned, TopicPartition
    from coopconsume.options import Options

#: Offsets that one poll spans at most, over all partitions, unless maxOffsetsPerTrigger says less.
POLL_WINDOW = 500_000
#: Keys that may wait in a partition; with more of them nothing new is handed out.
MOST_KEYS = 10_000


@dataclass
class Place:
    """Where polling stands in one partition.

    Attributes:
        position: Offsets below it were handed out, are done, or are in ``todo``.
        todo: Offsets below the position to hand out first: gaps found at the start.
        polled: What was handed out and is not committed.
        paused: Whether to hand out nothing for now.
        held: What comes again later, with its keys.
    """

    position: int
    todo: OffsetRanges
    polled: OffsetRanges = field(default_factory=OffsetRanges)
    paused: bool = False
    held: Held = field(default_factory=Held)

    @classmethod
    def at_start(cls, owned: Owned) -> Place:
        """The place of a partition of which nothing was handed out yet."""
        top = owned.committed.last
        open_ = [record for record in owned.pending if record[0] not in owned.committed]
        held = Held(record for record in open_ if record[0] >= owned.stable)
        if top is None:
            return cls(owned.stable, OffsetRanges(), held=held)
        return cls(top + 1, owned.committed.complement(owned.stable, top), held=held)

    def backlog(self, end: int) -> int:
        """Offsets that are left to hand out, up to the end of the log."""
        return len(self.todo) + max(0, end - self.position)

    def take(self, owned: Owned, end: int, room: int) -> OffsetRanges:
        """Hand out the next offsets, reads of at most ``room`` offsets and at least one."""
        self.position = max(self.position, owned.stable)
        todo = self.todo.clip(owned.stable, MAX_OFFSET) - owned.committed
        reads, rest = cluster(todo, room, reach_of(todo))
        taken = todo.clip(0, reads[-1][1]) if rest else todo
        self.todo = todo - taken
        room -= sum(last - first + 1 for first, last in reads)
        if not rest and room > 0 and self.position < end:
            stop = min(end, self.position + room)
            taken |= OffsetRanges([(self.position, stop - 1)]) - owned.committed
            self.position = stop
        self.polled |= taken
        self.held.pass_over(taken)
        return taken

    def take_again(self, owned: Owned, now: float) -> dict[int, OffsetRanges]:
        """Hand out the keys that are due again: offsets to look for them at, by key hash."""
        self.held.forget_below(owned.stable)
        again = {}
        for key_hash, offsets in self.held.release(now).items():
            left = offsets.clip(owned.stable, MAX_OFFSET) - owned.committed
            if left:
                again[key_hash] = left
                self.polled |= left
        return again

    def strange(self, owned: Owned, offsets: OffsetRanges) -> OffsetRanges:
        """Those of some offsets that were neither handed out nor are committed."""
        return offsets.clip(owned.stable, MAX_OFFSET) - (self.polled | owned.committed)

    def settle(self, offsets: OffsetRanges) -> None:
        """These offsets are committed."""
        self.polled -= offsets
        self.todo -= offsets
        self.held.settle(offsets, 0.0)

    def seek(self, offset: int) -> None:
        """Go on from an offset; what was handed out may still be committed."""
        self.position = offset
        self.todo = OffsetRanges()


class Handout:
    """What polling has handed out of what is held; the membership's worker while no job runs.

    A user who polls again is through with the earlier frame, as with Kafka's own consumer.
    """

    def __init__(self) -> None:
        self.lock = threading.Condition(threading.RLock())
        self.places: dict[TopicPartition, Place] = {}
        self._holding: Holding | None = None
        self._polls = 0

    @property
    def holding(self) -> Holding | None:
        """What to poll from; None while shares change hands."""
        with self.lock:
            return self._holding

    def polled(self) -> None:
        """The user polls: what was handed out before is not worked on any more."""
        with self.lock:
            self._polls += 1
            self.lock.notify_all()

    def settle(self, tp: TopicPartition, offsets: OffsetRanges) -> None:
        """These offsets are committed."""
        with self.lock:
            if tp in self.places:
                self.places[tp].settle(offsets)
            self.lock.notify_all()

    # -- the membership's worker

    def begin(self, holding: Holding) -> None:
        """Hand out from this from now on."""
        with self.lock:
            self._holding = holding
            self.places = {tp: Place.at_start(owned) for tp, owned in holding.owned.items()}
            self.lock.notify_all()

    def drain(self, timeout: float) -> list[Share]:
        """Hand out nothing more; wait until what is out is committed, or the user polls again."""
        with self.lock:
            holding, self._holding = self._holding, None
            polls = self._polls
            is_back = self.lock.wait_for(
                lambda: self._polls != polls or not any(p.polled for p in self.places.values()),
                timeout,
            )
            if is_back or holding is None:
                return []
            out = [tp for tp, place in self.places.items() if place.polled]
            return [s for s in holding.shares if (s.topic, s.partition) in out]

    def drop(self) -> None:
        """What was handed out belongs to others."""
        with self.lock:
            self._holding = None
            self.places = {}

    def fail(self, _error: BaseException) -> None:
        """The user hears of it with the next call."""
        self.drop()


def next_window(
    places: Mapping[TopicPartition, Place],
    owned: Mapping[TopicPartition, Owned],
    ends: Mapping[TopicPartition, int],
    window: int,
) -> dict[TopicPartition, OffsetRanges]:
    """The offsets to hand out next, dealt over the partitions by what they have left.

    Args:
        places: Where polling stands; they move on.
        owned: The partitions.
        ends: Their ends; a partition without one is left out.
        window: Offsets to span at most.

    Returns:
        Offsets by partition; none is empty.
    """
    active = {tp: place for tp, place in places.items() if tp in ends and not place.paused}
    backlogs = {tp: place.backlog(ends[tp]) for tp, place in active.items()}
    total = sum(backlogs.values())
    found = {}
    for tp, place in active.items():
        if backlogs[tp]:
            room = max(1, window * backlogs[tp] // total)
            taken = place.take(owned[tp], ends[tp], room)
            if taken:
                found[tp] = taken
    return found


#: By partition, SQL of which rows are wanted, from SQL of the hash that they are dealt by.
Choose = dict["TopicPartition", "Callable[[str], str]"]


def next_rows(
    places: Mapping[TopicPartition, Place],
    owned: Mapping[TopicPartition, Owned],
    ends: Mapping[TopicPartition, int],
    window: int,
    now: float,
) -> tuple[dict[TopicPartition, OffsetRanges], Choose]:
    """The rows to hand out next: keys that are due again, else the next window without others.

    Args:
        places: Where polling stands; they move on.
        owned: The partitions.
        ends: Their ends; a partition without one is left out.
        window: Offsets to span at most.
        now: The time, on the monotonic clock.

    Returns:
        Offsets by partition, none of them empty; and which of their rows, where not all.
    """
    again = {
        tp: keys
        for tp, place in places.items()
        if tp in ends and not place.paused and (keys := place.take_again(owned[tp], now))
    }
    if again:
        unions = {tp: functools.reduce(operator.or_, keys.values()) for tp, keys in again.items()}
        return unions, {tp: only(keys) for tp, keys in again.items()}
    # Keys that wait are named in the frame's filter, which cannot hold any number of them.
    crowded = {tp for tp, place in places.items() if len(place.held.keys) >= MOST_KEYS}
    free = {tp: end for tp, end in ends.items() if tp not in crowded}
    found = next_window(places, owned, free, window)
    waiting = {tp: places[tp].held.keys for tp in found if places[tp].held.keys}
    return found, {tp: without(keys) for tp, keys in waiting.items()}


def window_frame(
    spark: SparkSession,
    options: Options,
    owned: Mapping[TopicPartition, Owned],
    found: Mapping[TopicPartition, OffsetRanges],
    slots: int,
    choose: Mapping[TopicPartition, Callable[[str], str]] | None = None,
) -> DataFrame:
    """The records at some offsets, as `poll` returns them.

    Args:
        spark: The session.
        options: Of the consumer.
        owned: The partitions.
        found: The offsets by partition; without any the frame has no rows.
        slots: Spark partitions of the frame.
        choose: Of a partition, SQL of which of its rows are wanted, by SQL of the hash that they
            are dealt by; without, all.
    """
    if not found:
        return empty_poll_frame(spark, options)
    tasks = range(slots)
    spans, wanted = [], []
    for tp, offsets in found.items():
        reads = covering(offsets, reach_of(offsets))
        spans += [Span(*tp, first, last) for first, last in reads]
        wanted.append(Wanted(*tp, offsets, _dealt(owned[tp].ranges, slots)))
    slices = options.min_partitions or slots
    return poll_frame(spark, options, spans, wanted, tasks, slices, choose or {})


def without(keys: frozenset[int]) -> Callable[[str], str]:
    """SQL of which rows are not of some keys, by their hashes."""
    listed = ", ".join(f"{key}L" for key in sorted(keys))
    return lambda key_hash: f"{key_hash} NOT IN ({listed})"


def only(keys: Mapping[int, OffsetRanges]) -> Callable[[str], str]:
    """SQL of which rows are of some keys, each at its own offsets."""
    of_keys = [(key, in_ranges_sql(ranges)) for key, ranges in sorted(keys.items())]
    return lambda key_hash: " OR ".join(
        f"({key_hash} = {key}L AND {at_its_own})" for key, at_its_own in of_keys
    )


def _dealt(ranges: Iterable[KeyRange], tasks: int) -> tuple[tuple[KeyRange, int], ...]:
    return tuple(
        (piece, task)
        for key_range in ranges
        for task, piece in enumerate(key_range.split(min(tasks, key_range.size)))
    )


def offsets_of(done: Any) -> dict[TopicPartition, OffsetRanges]:
    """The offsets that a frame or a mapping of ranges names, by partition.

    Raises:
        ValueError: The frame lacks a column, or a range is none.
    """
    if isinstance(done, Mapping):
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
