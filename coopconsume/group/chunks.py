"""What the commit log says of the chunks of a cooperative epoch, as one of its members reads it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from commits import AcquisitionId, AcquisitionWatch, OffsetRanges
from coopconsume.group.owned import Failed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commits import AcquireRequest, CommitStore, Epoch, Pending
    from commits.model import TopicPartition


@dataclass(frozen=True)
class PartitionChunks:
    """What the commit log says of one partition of a cooperative epoch.

    Attributes:
        stable: The stable offset.
        committed: What is committed above it, by any member.
        pending: Failed records, by offset.
        ours: Offsets that this member holds.
        held: Offsets that any member holds.
        chunks: The chunks of this member.
        leads: Whether this member takes decisions on its parked records.
    """

    stable: int
    committed: OffsetRanges = field(default_factory=OffsetRanges)
    pending: Mapping[int, Pending] = field(default_factory=dict)
    ours: OffsetRanges = field(default_factory=OffsetRanges)
    held: OffsetRanges = field(default_factory=OffsetRanges)
    chunks: tuple[AcquisitionId, ...] = ()
    leads: bool = False


@dataclass(frozen=True)
class GroupChunks:
    """What the commit log says of the partitions of a cooperative epoch.

    Attributes:
        partitions: The partitions.
        overdue: Chunks of members that the epoch does not have, whose handlers have ended by now.
        members: The members of the epoch that may commit, ascending.
        now_ms: When it was read by this process's clock, in milliseconds since 1970.
        watched: Of other chunks of such members, for how many milliseconds they were watched, if
            that is to be noted now.
    """

    partitions: Mapping[TopicPartition, PartitionChunks]
    overdue: tuple[AcquisitionId, ...]
    members: tuple[str, ...]
    now_ms: int
    watched: Mapping[AcquisitionId, int] = field(default_factory=dict)


@dataclass(frozen=True)
class AcquiredChunks:
    """What a member got of the partitions of a cooperative epoch.

    Attributes:
        offsets: The offsets of each partition.
        failed: The last failures of those that failed before, see `failures_in`.
    """

    offsets: Mapping[TopicPartition, OffsetRanges] = field(default_factory=dict)
    failed: Mapping[TopicPartition, list[Failed]] = field(default_factory=dict)


def failures_in(
    offsets: Mapping[TopicPartition, OffsetRanges],
    pending: Mapping[TopicPartition, Mapping[int, Pending]],
    now: float,
    now_ms: int,
) -> dict[TopicPartition, list[Failed]]:
    """Returns the failures of some offsets, as ``ChunkSupply.acquire`` takes them.

    Args:
        offsets: The offsets.
        pending: All failures.
        now: The time, on the monotonic clock.
        now_ms: The time by this process's clock, in milliseconds since 1970.
    """
    return {
        tp: [Failed.of(one, now, now_ms) for one in pending[tp].values() if one.offset in found]
        for tp, found in offsets.items()
        if tp in pending
    }


class ChunkReader:
    """Reads the chunks of a group, and watches those of members that are gone.

    The members of the epoch in force are alive, as Kafka's coordinator says. A member that is not
    among them commits nothing, and its slots start nothing once their leases have ended. Its chunks
    are overdue once members have watched them for the longest time that its batches may run.

    Args:
        store: The commit store.
        group: The group.
    """

    def __init__(self, store: CommitStore, group: str) -> None:
        self._store = store
        self._group = group
        self._watch = AcquisitionWatch()

    def read(self, epoch: Epoch, member: str) -> GroupChunks | None:
        """Returns what the log says now; None if the epoch is not in force any more.

        Args:
            epoch: The epoch of this member.
            member: Its id in it.

        Raises:
            commits.CommitLogUnavailable: The log cannot be read.
        """
        row = self._store.assignment(self._group)
        if row is None or row.epoch != epoch:
            return None
        members = tuple(sorted(one for one in row.members if one not in row.fenced))
        chunks = self._store.acquisitions(self._group)
        pending = self._store.pending(self._group)
        found = {}
        for tp, commits in self._store.state(self._group).items():
            here = chunks.get(tp, [])
            ours = [chunk for chunk in here if chunk.member == member]
            found[tp] = PartitionChunks(
                commits.stable_offset,
                commits.ranges,
                pending=pending.get(tp, {}),
                ours=OffsetRanges.union(chunk.offsets for chunk in ours),
                held=OffsetRanges.union(chunk.offsets for chunk in here),
                chunks=tuple(AcquisitionId(*tp, one.id, one.renewals) for one in ours),
                leads=bool(members) and members[tp[1] % len(members)] == member,
            )
        gone = {
            tp: [chunk for chunk in here if chunk.member not in members]
            for tp, here in chunks.items()
        }
        now = time.monotonic()
        overdue = self._watch.overdue(gone, now)
        notes = self._watch.notes(now)
        return GroupChunks(found, overdue, members, int(time.time() * 1000), notes)

    def acquired(self, request: AcquireRequest) -> AcquiredChunks:
        """Returns what a request got and its member still holds.

        Raises:
            commits.CommitLogUnavailable: The log cannot be read.
        """
        offsets = self._store.acquired(self._group, request.id)
        if not any(wanted.due for wanted in request.wanted.values()):
            return AcquiredChunks(offsets)
        # Nobody else writes the failures of what is held, so these are the last ones.
        pending = self._store.pending(self._group)
        now, now_ms = time.monotonic(), int(time.time() * 1000)
        return AcquiredChunks(offsets, failures_in(offsets, pending, now, now_ms))

    def last_notes(self) -> dict[AcquisitionId, int]:
        """Returns for how many milliseconds chunks were watched, as this member leaves."""
        return self._watch.notes(time.monotonic(), is_last=True)
