"""The memory of a fetch server: the records that the slots of a host share. Pure.

It keeps what the server reads until every slot has it, or a limit is reached. In KIP-X a broker
does the same with records that a fetch of one key range has read and another one may need.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from assignors.ranges import MAX_KEY_HASH
from coopconsume.worker.realtime.fetch_messages import Evicted, Portion

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from commits import OffsetAndEpoch
    from coopconsume.worker.realtime.fetch_messages import Ask

#: Bytes of rows in one chunk, at most, unless one record has more.
CHUNK_BYTES: Final = 1 << 20
#: Bytes of rows that one chunk may give to an answer; with more the slot reads Kafka itself.
LARGEST_PORTION: Final = 16 << 20
#: Bytes of a chunk beside its rows.
_CHUNK_EXTRA: Final = 1 << 10
#: Chunks in one portion, at most.
_MOST_CHUNKS: Final = 256
_FULL: Final = ((0, MAX_KEY_HASH),)


@dataclass(frozen=True)
class _Chunk:
    """Records that were read at once.

    Attributes:
        number: Its place in the order in which chunks came, over all partitions.
        next: The offset that follows.
        size: Its bytes.
        before: Bytes of all earlier chunks of its partition.
        reached: How far the log reached in which leader epoch as they were read.
    """

    number: int
    first: int
    next: int
    rows: pa.RecordBatch
    holes: tuple[tuple[int, int], ...]
    size: int
    before: int
    reached: OffsetAndEpoch | None

    def matching(self, ask: Ask) -> pa.RecordBatch:
        """Returns the rows that a slot asks for."""
        rows, ranges = self.rows, ask.ranges
        if self.first < ask.offset:
            rows = rows.filter(pc.greater_equal(rows.column("offset"), ask.offset))
        if ask.last < self.next - 1:
            rows = rows.filter(pc.less_equal(rows.column("offset"), ask.last))
        if ranges == _FULL:
            return rows
        hashes = rows.column("key_hash")
        inside = [
            pc.and_(pc.greater_equal(hashes, first), pc.less_equal(hashes, last))
            for first, last in ranges
        ]
        wanted = reduce(pc.or_, inside) if inside else pa.repeat(pa.scalar(False), rows.num_rows)
        return rows.filter(wanted)


@dataclass
class _CachedPartition:
    """What is in memory of a partition.

    Attributes:
        next: The offset that is read next.
        positions: The offset that each slot has asked for last.
        joining: Slots that read Kafka themselves until they have caught up.
        total: Bytes of all chunks that came, dropped ones included.
        is_full: Whether reading is paused, see `RecordCache.full`.
    """

    next: int
    chunks: list[_Chunk] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)
    positions: dict[int, int] = field(default_factory=dict)
    joining: set[int] = field(default_factory=set)
    total: int = 0
    is_full: bool = False

    @property
    def start(self) -> int:
        """The first offset in memory."""
        return self.firsts[0] if self.firsts else self.next

    def drop_first(self) -> int:
        """Drops the oldest chunk; returns its bytes."""
        chunk = self.chunks.pop(0)
        del self.firsts[0]
        return chunk.size


class RecordCache:
    """Keeps records of some partitions, and answers fetches of key ranges.

    A record is dropped when all slots that read its partition here have passed it. While a slot
    reads the partition from Kafka itself, records are kept, so that the slot can catch up. At the
    limit the oldest records are evicted, those that a slot has passed before others.

    Attributes:
        is_starting: More slots may connect: records are dropped only at the limit.

    Args:
        limit: Bytes of records.
    """

    def __init__(self, limit: int) -> None:
        self.is_starting = True
        self._limit = limit
        self._size = 0
        self._number = 0
        self._partitions: dict[int, _CachedPartition] = {}

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return self._size

    @property
    def full(self) -> frozenset[int]:
        """The partitions to pause: too much of them was read that no slot has.

        What no slot has may take half of the limit. The other half keeps records for slower slots.
        """
        share = self._limit // 2 // max(1, len(self._partitions))
        for one in self._partitions.values():
            ahead = _ahead(one)
            one.is_full = ahead > (share // 2 if one.is_full else share)
        return frozenset(part for part, one in self._partitions.items() if one.is_full)

    def has(self, part: int) -> bool:
        """Whether the server reads a partition."""
        return part in self._partitions

    def begin(self, part: int, offset: int) -> None:
        """Adds a partition, which is read from an offset on."""
        self._partitions[part] = _CachedPartition(offset)

    def append(
        self, part: int, rows: pa.RecordBatch, end: int, holes: Sequence[tuple[int, int]] = (),
        reached: OffsetAndEpoch | None = None,
    ) -> None:  # fmt: skip
        """Adds the next records of a partition.

        Args:
            part: Index of the partition.
            rows: All its records below ``end``, ascending.
            end: The offset that is read next.
            holes: Offsets without a record, as (first, last), ascending.
            reached: How far the log reached in which leader epoch; None: not known.
        """
        one = self._partitions[part]
        for first, following, piece in _pieces(rows, one.next, end):
            inside = tuple(hole for hole in holes if first <= hole[0] < following)
            chunk = _Chunk(
                self._number, first, following, piece, inside, piece.nbytes + _CHUNK_EXTRA,
                one.total, reached,
            )  # fmt: skip
            self._number += 1
            self._size += chunk.size
            one.total += chunk.size
            one.chunks.append(chunk)
            one.firsts.append(first)
            one.next = following
        while self._size > self._limit and self._evict():
            pass

    def fetch(self, slot: int, ask: Ask, most: int) -> Portion | Evicted | None:
        """Returns the records that a slot asks for.

        Args:
            slot: The number of its connection.
            ask: What it asks for.
            most: Bytes of rows after which no more are added.

        Returns:
            `Evicted` if the offset is not in memory; None if it was not read yet.
        """
        one = self._partitions[ask.part]
        if ask.offset < one.start:
            return self._missed(one, slot, ask.part, one.start)
        one.joining.discard(slot)
        one.positions[slot] = ask.offset
        if not self.is_starting:
            self._drop_passed(one)
        if ask.offset >= one.next:
            is_next = ask.is_joining and ask.offset == one.next
            return Portion(ask.part, ask.offset, ask.offset) if is_next else None
        found: list[pa.RecordBatch] = []
        reached: OffsetAndEpoch | None = None
        holes: list[tuple[int, int]] = []
        size, following = 0, ask.offset
        at = bisect_right(one.firsts, ask.offset) - 1
        for chunk in one.chunks[at : at + _MOST_CHUNKS]:
            if chunk.first > ask.last:
                break
            rows = chunk.matching(ask)
            if size and size + rows.nbytes > most:
                break
            if rows.nbytes > LARGEST_PORTION:
                if following > ask.offset:
                    break
                return self._missed(one, slot, ask.part, chunk.next)
            size += rows.nbytes
            following = min(chunk.next, ask.last + 1)
            holes += [
                (max(first, ask.offset), min(last, ask.last))
                for first, last in chunk.holes
                if first <= ask.last and last >= ask.offset
            ]
            found.append(rows)
            reached = chunk.reached or reached
        return Portion(ask.part, ask.offset, following, joined(found), tuple(holes), reached)

    def leave(self, slot: int) -> None:
        """Forgets a slot: no record is kept for it any more."""
        for one in self._partitions.values():
            one.positions.pop(slot, None)
            one.joining.discard(slot)

    def _missed(self, one: _CachedPartition, slot: int, part: int, start: int) -> Evicted:
        one.positions.pop(slot, None)
        one.joining.add(slot)
        return Evicted(part, start)

    def _drop_passed(self, one: _CachedPartition) -> None:
        slowest = min(one.positions.values())
        while not one.joining and one.chunks and one.chunks[0].next <= slowest:
            self._size -= one.drop_first()

    def _evict(self) -> bool:
        """Drops the oldest chunk, of those that a slot has passed if there are any."""
        oldest = min(
            (one for one in self._partitions.values() if one.chunks),
            key=lambda one: (one.chunks[0].next > _fastest(one), one.chunks[0].number),
            default=None,
        )
        if oldest is None:
            return False
        self._size -= oldest.drop_first()
        return True


def _ahead(one: _CachedPartition) -> int:
    """Returns the bytes that no slot has."""
    fastest = _fastest(one)
    if not one.chunks or fastest >= one.next:
        return 0
    at = max(0, bisect_right(one.firsts, fastest) - 1)
    return one.total - one.chunks[at].before


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch | None:
    """Returns batches of one schema as one batch; None: there are no rows."""
    found = [batch for batch in batches if batch.num_rows]
    if len(found) < 2:  # noqa: PLR2004
        return found[0] if found else None
    return pa.Table.from_batches(found).combine_chunks().to_batches()[0]


def _fastest(one: _CachedPartition) -> int:
    return max(one.positions.values(), default=-1)


def _pieces(
    rows: pa.RecordBatch, first: int, end: int
) -> Iterator[tuple[int, int, pa.RecordBatch]]:
    """Cuts rows into pieces of bounded bytes, each with its first offset and the one after it."""
    count = max(1, min(rows.num_rows, -(-rows.nbytes // CHUNK_BYTES)))
    cuts = [rows.num_rows * n // count for n in range(count + 1)]
    offsets = rows.column("offset")
    for low, high in pairwise(cuts):
        following = end if high == rows.num_rows else offsets[high].as_py()
        yield first, following, rows.slice(low, high - low)
        first = following
