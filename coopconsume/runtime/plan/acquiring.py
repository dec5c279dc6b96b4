"""Builds the requests of a member of a cooperative epoch: chunks, failed records, expiry."""

from __future__ import annotations

import time
from bisect import bisect_right
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from commits import AcquireRequest, OffsetRanges, Wanted
from coopconsume.group.owned import Failed
from coopconsume.runtime.plan.chunk_supply import with_tail

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commits.model import TopicPartition
    from coopconsume.group.chunks import GroupChunks, PartitionChunks
    from coopconsume.runtime.plan import Partition

#: Fraction of the demand that may be missing before a job asks for more.
_MISSING: Final = 0.5
#: Fraction of what is to be acquired ahead below which a request does not wait for the next commit.
_URGENT: Final = 0.25
_NONE: Final[Mapping[TopicPartition, int]] = MappingProxyType({})


class Acquirer:
    """Builds the requests of a member from what its partitions hold and what the log has left.

    Between two reads of the log it requests no offset twice, so that members that get nothing do
    not ask again and again.

    Args:
        partitions: What the loop knows of the partitions.
        max_pending: Failed records of a partition at which nothing new is acquired.
    """

    def __init__(self, partitions: Mapping[TopicPartition, Partition], max_pending: int) -> None:
        self._partitions = partitions
        self._max_pending = max_pending
        self._seen: GroupChunks | None = None
        #: Of each partition, the new offsets that were asked for since the last look.
        self._asked: dict[TopicPartition, int] = {}
        #: Of each partition, failed records by when they are due, and which of them were asked for.
        self._due: dict[TopicPartition, tuple[list[float], list[int]]] = {}
        self._named: dict[TopicPartition, OffsetRanges] = {}
        #: Whether a request since the last look expires chunks, or has notes about them.
        self._has_noted = False
        #: Partitions for which the last request got nothing.
        self._barren: set[TopicPartition] = set()
        #: Whether slots are about to wait for the next request.
        self.is_urgent = False

    @property
    def has_any(self) -> bool:
        """Whether this member holds offsets that have no outcome."""
        return any(p.chunks.acquired for p in self._partitions.values())

    @property
    def is_only_member(self) -> bool:
        """Whether the epoch had no other member at the last look at the log."""
        return self._seen is not None and len(self._seen.members) == 1

    @property
    def acquired(self) -> int:
        """Offsets up to the ends of the logs that this member holds and that have no outcome."""
        partitions = self._partitions.values()
        return sum(len(p.chunks.acquired.clip(0, p.ledger.end - 1)) for p in partitions)

    @property
    def unstarted(self) -> int:
        """Offsets up to the ends of the logs that this member has acquired and no slot has read."""
        return sum(_unstarted(partition) for partition in self._partitions.values())

    def lacks(self, demand: int) -> bool:
        """Whether so much of the demand is missing that it requests more.

        Args:
            demand: Offsets that the job is to have for its next batches.
        """
        return demand > 0 and demand - self.unstarted >= _MISSING * demand

    def looked(self, found: GroupChunks) -> None:
        """Takes the state of the log as it was just read."""
        self._seen, self._asked, self._named = found, {}, {}
        self._has_noted, self._due = False, {}
        self._barren.clear()
        now = time.monotonic()
        for tp, chunks in found.partitions.items():
            partition = self._partitions.get(tp)
            if partition is None:
                continue
            failed = [Failed.of(one, now, found.now_ms) for one in chunks.pending.values()]
            parked = [one for one in failed if one.is_parked]
            decided = partition.lanes.decided
            waits = sorted(
                (now if decided.makes_due(one) else one.due, one.offset)
                for one in failed
                if not one.is_parked
            )
            self._due[tp] = [due for due, _ in waits], [offset for _, offset in waits]
            ours = [one for one in failed if one.offset in chunks.ours]
            partition.chunks.looked(chunks.committed, chunks.ours, ours, parked, len(failed))

    def request(
        self, demand: int, ahead: Mapping[TopicPartition, int] = _NONE
    ) -> AcquireRequest | None:
        """Returns the next request, without an id; None if there is nothing to request.

        Args:
            demand: Offsets that the job is to have for its next batches.
            ahead: Offsets of partitions that slots are to have, whether or not the logs reach that
                far.
        """
        if self._seen is None:
            return None
        expire = () if self._has_noted else self._seen.overdue
        watched = {} if self._has_noted else self._seen.watched
        wanted = self._wanted(demand, ahead) if demand else {}
        if not (wanted or expire or watched):
            return None
        return AcquireRequest("", wanted, expire=expire, watched=watched)

    def began(self, request: AcquireRequest) -> None:
        """Notes a request that is about to be written."""
        self._has_noted |= bool(request.expire or request.watched)
        for tp, wanted in request.wanted.items():
            self._asked[tp] = self._asked.get(tp, 0) + wanted.count - len(wanted.due)
            self._named[tp] = self._named.get(tp, OffsetRanges()) | wanted.due

    def answered(self, request: AcquireRequest, got: Mapping[TopicPartition, OffsetRanges]) -> None:
        """Takes the answer to a request."""
        self._barren |= {tp for tp in request.wanted if not got.get(tp)}

    def _wanted(
        self, demand: int, ahead: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, Wanted]:
        left = demand - self.unstarted if self.lacks(demand) else 0
        self.is_urgent = False
        assert self._seen is not None
        now, found = time.monotonic(), {}
        places = [
            (self._open(tp, partition, chunks), tp, partition, chunks)
            for tp, chunks in self._seen.partitions.items()
            if (partition := self._partitions.get(tp)) is not None and partition.is_ours
        ]
        for is_open, tp, partition, chunks in sorted(places, key=lambda one: (-one[0], one[1])):
            due = self._due_now(tp, partition, now).head(demand)
            count = with_tail(left, is_open)
            is_full = partition.ledger.is_at_limit or len(chunks.pending) >= self._max_pending
            last = -1 if is_full else partition.ledger.end - 1
            self.is_urgent |= count > 0
            left = max(0, left - count)
            most = 0 if is_full or tp in self._barren else ahead.get(tp, 0)
            has = _unread(partition)
            if has < _MISSING * most:
                self.is_urgent |= has < _URGENT * most
                held = partition.chunks.acquired, chunks.held
                lasts = [one.last for one in held if one.last is not None]
                count, last = max(count, most - has), max([last, *lasts]) + most
            if count or due:
                found[tp] = Wanted(count + len(due), last, due)
        return found

    def _open(self, tp: TopicPartition, partition: Partition, chunks: PartitionChunks) -> int:
        """Returns about how many offsets up to the end of the log nobody has acquired."""
        held = len(chunks.held.clip(0, partition.ledger.end - 1))
        taken = len(chunks.committed) + held + len(chunks.pending) + self._asked.get(tp, 0)
        return max(0, partition.ledger.end - chunks.stable - taken)

    def _due_now(self, tp: TopicPartition, partition: Partition, now: float) -> OffsetRanges:
        """Returns failed records that no member is known to hold."""
        dues, offsets = self._due.get(tp, ([], []))
        count = bisect_right(dues, now)
        if not count:
            return OffsetRanges()
        due = OffsetRanges.from_offsets(offsets[:count]) - self._named.get(tp, OffsetRanges())
        held = partition.chunks.acquired | partition.chunks.failing
        return due - held - partition.ledger.done


def _unstarted(partition: Partition) -> int:
    cursors = partition.cursors.values()
    slices = [cursor.todo for cursor in cursors if cursor.dispatched is None]
    slices += [cursor.unread for cursor in cursors]
    end = partition.ledger.end - 1
    return len(partition.chunks.below(end + 1)) + sum(len(one.clip(0, end)) for one in slices)


def _unread(partition: Partition) -> int:
    """Returns how many acquired offsets of a partition no slot has read."""
    return len(partition.chunks.undealt) + sum(len(s.unread) for s in partition.cursors.values())
