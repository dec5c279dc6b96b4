"""How a group stands in a partition, and since when: facts in, answers out; nothing is asked here.

Times come from the history of the commit log: a gap is one since the first commit above it, and a
record holds the stable offset since that stands there. Where a snapshot has replaced the older
rows, the oldest time that the log still tells is taken, so that ages are never too great.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from commits import OffsetRanges

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from commits import Pending

TopicPartition = tuple[str, int]

#: The last millisecond that a `datetime` can tell; the log may have later due times.
_LAST_MS = 253_402_300_799_999

#: A handler has tried the record, and it failed.
FAILED = "failed"
#: Given up, and waiting for `coopconsume dead-letters`.
PARKED = "parked"
#: No handler has failed on it: it is in flight, waits behind a failed one of its key, or was not
#: tried yet.
NOT_DONE = "not done"


@dataclass(frozen=True)
class Times:
    """When what of a partition was committed, by the clocks of those who wrote it.

    Attributes:
        tops: Highest offsets done, ascending.
        reached: When each of them was first reached.
        stable_offset: The stable offset after the newest row.
        stable_since: When it came there; None if the log does not tell.
    """

    tops: tuple[int, ...] = ()
    reached: tuple[datetime, ...] = ()
    stable_offset: int = -1
    stable_since: datetime | None = None

    def passed(self, offset: int) -> datetime | None:
        """When something above an offset was first done; None if the log does not tell."""
        at = bisect_right(self.tops, offset)
        return self.reached[at] if at < len(self.tops) else None


def times_of(history: Iterable[Mapping[str, Any]]) -> dict[TopicPartition, Times]:
    """The times of each partition.

    Args:
        history: As `commits.CommitStore.history` tells it.
    """
    tops: dict[TopicPartition, list[tuple[int, datetime]]] = {}
    stable: dict[TopicPartition, tuple[int, datetime]] = {}
    for entry in history:
        at = entry["written_at"]
        for part in entry["partitions"] if entry["counted"] else ():
            tp = (part["topic"], part["partition"])
            if part["stable_offset"] is None or part["status"] == "refused":
                continue
            if entry["kind"] in ("reset", "truncation") or entry["detail"].get("follow"):
                tops[tp] = []
            if tp not in stable or stable[tp][0] != part["stable_offset"]:
                stable[tp] = part["stable_offset"], at
            known, top = tops.setdefault(tp, []), part["last"]
            done = entry["kind"] in ("commit", "reset") and part["count"]
            if done and top is not None and (not known or known[-1][0] < top):
                known.append((top, at))
    return {
        tp: Times(
            tuple(top for top, _ in tops.get(tp, ())), tuple(at for _, at in tops.get(tp, ())),
            offset, since,
        )
        for tp, (offset, since) in stable.items()
    }  # fmt: skip


@dataclass(frozen=True)
class Gap:
    """Offsets that are not done although one above them is.

    Attributes:
        first, last: Which, both included.
        since: Since when; None if the log does not tell.
    """

    first: int
    last: int
    since: datetime | None

    @property
    def offsets(self) -> int:
        """How many."""
        return self.last - self.first + 1


@dataclass(frozen=True)
class Holder:
    """The record that holds the stable offset of a partition where it is.

    Attributes:
        offset: Which.
        state: ``failed``, or ``not done`` where no handler has failed on it.
        key_hash: The hash of its key, where it failed and has one.
        attempts: How often it has failed.
        since: Since when it holds the stable offset; None if the log does not tell.
        due: When it is tried again, where it failed.
        error: What its handler said last; else empty.
        done_behind: Offsets above it that are done and cannot count for the stable offset.
        open_behind: Offsets above it, up to the highest one done, that are not done either.
    """

    offset: int
    state: str
    key_hash: int | None
    attempts: int
    since: datetime | None
    due: datetime | None
    error: str
    done_behind: int
    open_behind: int


@dataclass(frozen=True)
class PartitionStatus:
    """How a group stands in a partition.

    Attributes:
        topic, partition: Which.
        topic_id: The id of the topic that the commit log speaks of; empty if it does not say.
        stable_offset: The first offset that is not done; None if the log does not know it.
        done: What is done above it.
        pending: Records that failed and are to be tried again, by offset.
        log_start, end_offset: Where Kafka's log begins and ends; None if there is none.
        primary_offset: The group's offset in ``__consumer_offsets``, if there is one.
        primary_is_ours: Whether this library wrote it.
        times: When what was committed.
    """

    topic: str
    partition: int
    topic_id: str = ""
    stable_offset: int | None = None
    done: OffsetRanges = field(default_factory=OffsetRanges)
    pending: Mapping[int, Pending] = field(default_factory=dict)
    log_start: int | None = None
    end_offset: int | None = None
    primary_offset: int | None = None
    primary_is_ours: bool = False
    times: Times = field(default_factory=Times)

    @property
    def name(self) -> str:
        """Topic and partition in one word."""
        return f"{self.topic}-{self.partition}"

    @property
    def lag(self) -> int | None:
        """Offsets that are not done, gaps counted; None where an offset is not known."""
        if self.stable_offset is None or self.end_offset is None:
            return None
        return max(0, self.end_offset - self.stable_offset - len(self.done))

    @property
    def open_ranges(self) -> OffsetRanges:
        """The gaps as a set."""
        if self.stable_offset is None or self.done.last is None:
            return OffsetRanges()
        return self.done.complement(self.stable_offset, self.done.last)

    def gaps(self) -> Iterator[Gap]:
        """The gaps, ascending."""
        for first, last in self.open_ranges:
            yield Gap(first, last, self.times.passed(last))

    @property
    def holder(self) -> Holder | None:
        """What holds the stable offset; None if nothing is left to do."""
        offset = self.stable_offset
        if offset is None or not (self.done or offset in self.pending or self.lag):
            return None
        failed = self.pending.get(offset)
        stands = self.times.stable_offset == offset
        return Holder(
            offset,
            (PARKED if failed.is_parked else FAILED) if failed else NOT_DONE,
            failed.key_hash if failed else None,
            failed.attempts if failed else 0,
            self.times.stable_since if stands else None,
            datetime.fromtimestamp(min(failed.due_ms, _LAST_MS) / 1000, UTC)
            if failed and not failed.is_parked
            else None,
            failed.error if failed else "",
            len(self.done),
            max(0, len(self.open_ranges) - 1),
        )
