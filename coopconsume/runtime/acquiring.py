"""Builds the requests of a member of a cooperative epoch: chunks, failed records, expiry."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from commits import AcquireRequest, OffsetRanges, Wanted
from coopconsume.group.chunks import failures_in
from coopconsume.runtime.plan import Waiting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commits.model import TopicPartition
    from coopconsume.group.chunks import GroupChunks, PartitionChunks
    from coopconsume.runtime.plan import Partition

#: Fraction of the demand that may be missing before a job asks for more.
_MISSING: Final = 0.5


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
        self._has_expired = False

    @property
    def has_any(self) -> bool:
        """Whether this member holds offsets that have no outcome."""
        return any(p.stock is not None and p.stock.acquired for p in self._partitions.values())

    @property
    def unstarted(self) -> int:
        """Offsets that this member has acquired and that no batch has."""
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
        self._has_expired, self._due = False, {}
        now = time.monotonic()
        ours = {tp: chunks.ours for tp, chunks in found.partitions.items()}
        pending = {tp: chunks.pending for tp, chunks in found.partitions.items()}
        failed = failures_in(ours, pending, now, found.now_ms)
        for tp, chunks in found.partitions.items():
            partition = self._partitions.get(tp)
            if partition is None or partition.stock is None:
                continue
            parked = [
                Waiting(
                    one.offset,
                    one.key_hash or 0,
                    one.attempts,
                    math.inf,
                    one.error,
                    headers=one.headers,
                )
                for one in chunks.pending.values()
                if one.is_parked
            ]
            waits = sorted(
                (now + one.wait(found.now_ms), one.offset)
                for one in chunks.pending.values()
                if not one.is_parked
            )
            self._due[tp] = [due for due, _ in waits], [offset for _, offset in waits]
            partition.looked(
                chunks.committed, chunks.ours, failed.get(tp, ()), parked, len(chunks.pending)
            )

    def request(self, demand: int) -> AcquireRequest | None:
        """Returns the next request, without an id; None if there is nothing to request.

        Args:
            demand: Offsets that the job is to have for its next batches.
        """
        if self._seen is None:
            return None
        expire = () if self._has_expired else self._seen.overdue
        wanted = self._wanted(demand) if demand else {}
        return AcquireRequest("", wanted, expire=expire) if wanted or expire else None

    def began(self, request: AcquireRequest) -> None:
        """Notes a request that is about to be written."""
        self._has_expired |= bool(request.expire)
        for tp, wanted in request.wanted.items():
            self._asked[tp] = self._asked.get(tp, 0) + wanted.count - len(wanted.due)
            self._named[tp] = self._named.get(tp, OffsetRanges()) | wanted.due

    def _wanted(self, demand: int) -> dict[TopicPartition, Wanted]:
        left = demand - self.unstarted if self.lacks(demand) else 0
        assert self._seen is not None
        now, found = time.monotonic(), {}
        places = [
            (self._open(tp, partition, chunks), tp, partition, chunks)
            for tp, chunks in self._seen.partitions.items()
            if (partition := self._partitions.get(tp)) is not None and partition.is_ours
        ]
        for is_open, tp, partition, chunks in sorted(places, key=lambda one: (-one[0], one[1])):
            due = self._due_now(tp, partition, now).head(demand)
            count = min(left, is_open)
            if count or due:
                is_full = partition.is_at_limit or len(chunks.pending) >= self._max_pending
                last = -1 if is_full else partition.end - 1
                found[tp] = Wanted(count + len(due), last, due)
                left -= count
        return found

    def _open(self, tp: TopicPartition, partition: Partition, chunks: PartitionChunks) -> int:
        """Returns about how many offsets nobody has acquired."""
        taken = len(chunks.committed) + chunks.held + len(chunks.pending) + self._asked.get(tp, 0)
        return max(0, partition.end - chunks.stable - taken)

    def _due_now(self, tp: TopicPartition, partition: Partition, now: float) -> OffsetRanges:
        """Returns failed records that no member is known to hold."""
        dues, offsets = self._due.get(tp, ([], []))
        count = bisect_right(dues, now)
        if not count or partition.stock is None:
            return OffsetRanges()
        due = OffsetRanges.from_offsets(offsets[:count]) - self._named.get(tp, OffsetRanges())
        return due - partition.stock.acquired - partition.stock.failing - partition.done


def _unstarted(partition: Partition) -> int:
    if partition.stock is None:
        return 0
    slices = (len(share.todo) for share in partition.shares.values() if share.in_flight is None)
    return len(partition.stock.undealt) + sum(slices)
