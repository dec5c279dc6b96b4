"""Chunks of a partition's offsets that members of a cooperative epoch acquire (KIP-X). Pure.

KIP-X calls this cooperative fetch: members share whole partitions without key ranges, and each one
gets the next chunk of offsets that nobody else has.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from commits.offsets import MAX_COUNT, OffsetRanges

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from commits.model import Wanted
    from commits.partition_commits import PartitionCommits


_NOTHING = OffsetRanges()


@dataclass(slots=True)
class Acquisition:
    """A chunk of a partition that a member has acquired.

    Attributes:
        id: The id of the request that acquired it.
        member: The member that holds it.
        offsets: Its offsets that are not acknowledged; never empty.
        renewals: How often its holder has renewed it.
        life_ms: The longest time that a batch of the holder may run.
        watched_ms: For how long members have watched it at least since it was renewed last.
        since: The time of the request by the holder's clock, for people.
    """

    id: str
    member: str
    offsets: OffsetRanges
    renewals: int = 0
    life_ms: int = 0
    watched_ms: int = 0
    since: datetime | None = field(default=None, compare=False)


@dataclass(slots=True)
class Acquisitions:
    """The acquired chunks of one partition.

    No offset is committed and acquired, and no offset is in two chunks.

    Attributes:
        marker: The offset after the highest one that was ever acquired: new chunks start here, or
            at the stable offset if that is higher. All lower offsets were acquired, committed or
            pending.
        chunks: The chunks by id.
    """

    marker: int = 0
    chunks: dict[str, Acquisition] = field(default_factory=dict)
    _held: dict[str, OffsetRanges] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        """Collect the offsets of each member."""
        for chunk in self.chunks.values():
            self._held[chunk.member] = self.held_by(chunk.member) | chunk.offsets

    def held_by(self, member: str) -> OffsetRanges:
        """Return the offsets that a member holds."""
        return self._held.get(member, _NOTHING)

    def held_by_others(self, member: str) -> OffsetRanges:
        """Return the offsets that all members but one hold."""
        return OffsetRanges.union(held for holder, held in self._held.items() if holder != member)

    def acquire(
        self,
        request: Acquisition,
        wanted: Wanted,
        commits: PartitionCommits,
        pending: Collection[int],
    ) -> None:
        """Give the next chunk to a request: at most as many offsets as it wants.

        These are, in this order: the pending records that the request names, returned offsets, and
        offsets from the marker to the end of the partition as the request knows it. Committed
        offsets, and pending ones that it does not name, are skipped.

        Args:
            request: The new acquisition, without offsets.
            wanted: What the request wants of the partition.
            commits: The committed offsets of the partition.
            pending: The offsets of its pending records.
        """
        waiting = OffsetRanges.from_offsets(pending) if pending else _NOTHING
        held = OffsetRanges.union(self._held.values())
        offsets = (wanted.due & waiting - held).head(wanted.count)
        start = max(self.marker, commits.stable_offset)
        count = wanted.count - len(offsets)
        if count > 0 and start > commits.stable_offset:
            taken = commits.ranges | held | waiting
            offsets |= lowest_missing(taken, commits.stable_offset, start - 1, count)
            count = wanted.count - len(offsets)
        if count > 0:
            taken = commits.ranges | waiting
            new = lowest_missing(taken, start, wanted.last, count)
            if new.last is not None:
                self.marker = new.last + 1
                offsets |= new
        if offsets:
            request.offsets = offsets
            self.chunks[request.id] = request
            self._held[request.member] = self.held_by(request.member) | offsets

    def remove(self, offsets: OffsetRanges) -> None:
        """Remove offsets from all chunks: they are committed, pending or returned."""
        if not self.chunks or not offsets:
            return
        first, last = offsets.first or 0, offsets.last or 0
        for chunk in list(self.chunks.values()):
            bounds = chunk.offsets.first or 0, chunk.offsets.last or 0
            if bounds[0] <= last and first <= bounds[1]:
                self._keep(chunk, chunk.offsets - offsets)
        held = {member: found - offsets for member, found in self._held.items()}
        self._held = {member: found for member, found in held.items() if found}

    def clip(self, first: int, last: int) -> None:
        """Keep only the offsets from `first` to `last`, both included, and bound the marker."""
        held = OffsetRanges.union(self._held.values())
        self.remove(held - held.clip(first, last))
        self.marker = min(self.marker, last + 1)

    def renew(self, chunk_id: str, member: str) -> bool:
        """Renew a chunk of a member; returns whether the member still holds it."""
        chunk = self.chunks.get(chunk_id)
        if chunk is None or chunk.member != member:
            return False
        chunk.renewals, chunk.watched_ms = chunk.renewals + 1, 0
        return True

    def note(self, chunk_id: str, renewals: int, watched_ms: int) -> None:
        """Note for how long a chunk was watched, unless it was renewed more often."""
        chunk = self.chunks.get(chunk_id)
        if chunk is not None and chunk.renewals == renewals:
            chunk.watched_ms = max(chunk.watched_ms, watched_ms)

    def are_back(self, members: Collection[str]) -> None:
        """Forget for how long chunks of members were watched: these are at work again."""
        for chunk in self.chunks.values():
            if chunk.member in members:
                chunk.watched_ms = 0

    def expire(self, chunk_id: str, renewals: int) -> bool:
        """Return a chunk, unless it was renewed more often; returns whether it was returned."""
        chunk = self.chunks.get(chunk_id)
        if chunk is None or chunk.renewals != renewals:
            return False
        self.remove(chunk.offsets)
        return True

    def release(self, member: str) -> None:
        """Return all chunks of a member."""
        self.remove(self.held_by(member))

    def _keep(self, chunk: Acquisition, left: OffsetRanges) -> None:
        if left:
            chunk.offsets = left
        else:
            del self.chunks[chunk.id]


def lowest_missing(taken: OffsetRanges, first: int, last: int, count: int) -> OffsetRanges:
    """Return the lowest `count` offsets from `first` to `last` that are not in a set."""
    left, found = min(count, MAX_COUNT), []
    for start, end in taken.gaps(first, last):
        if left <= 0:
            break
        found.append((start, min(end, start + left - 1)))
        left -= end - start + 1
    return OffsetRanges(found)
