"""The state of one partition in the fold, and the rules of its commits. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from commits.acquisitions import Acquisitions
from commits.errors import IndividualCommitTooOld
from commits.offsets import OffsetRanges
from commits.partition import CommitResult, PartitionCommits

if TYPE_CHECKING:
    from commits.model import OffsetAndEpoch, Pending
    from commits.partition import CommitStatus
    from commits.rows import Part

__all__ = ["KnownPrimary", "PartitionState", "commit_held", "commit_part"]


@dataclass(frozen=True, slots=True)
class KnownPrimary:
    """An offset in Kafka that another tool wrote and that the log has recorded.

    Attributes:
        offset: The offset.
        epoch: Number of the epoch or claim that recorded it.
        replaced: Whether a member of the group has written Kafka's offset since.
    """

    offset: int
    epoch: int
    replaced: bool = False


@dataclass(slots=True)
class PartitionState:
    """The state of one partition.

    Attributes:
        topic_id: The id of its topic; empty if it is not known yet.
        commits: The committed offsets.
        pending: The records that were read and are not done, by offset.
        primary: Kafka's offset, if another tool wrote it and the log has recorded it.
        reached: The end of the partition's log that a commit reported, with its leader epoch: the
            highest one since the commits were reset or cut; None without one.
        acquisitions: The chunks that members of a cooperative epoch have acquired.
    """

    topic_id: str = ""
    commits: PartitionCommits = field(default_factory=lambda: PartitionCommits(max_ranges=None))
    pending: dict[int, Pending] = field(default_factory=dict)
    primary: KnownPrimary | None = None
    reached: OffsetAndEpoch | None = None
    acquisitions: Acquisitions = field(default_factory=Acquisitions)

    def drop_done_pending(self) -> None:
        """Remove pending records that are committed."""
        if self.pending:
            ranges = self.commits.ranges & OffsetRanges.from_offsets(self.pending)
            stable_offset = self.commits.stable_offset
            for offset in [o for o in self.pending if o < stable_offset or o in ranges]:
                del self.pending[offset]

    def result(
        self, status: CommitStatus = "committed", reason: str = "", *, duplicates: int = 0
    ) -> CommitResult:
        """Return a result with the current state of the partition."""
        stable_offset, ranges = self.commits.stable_offset, self.commits.ranges
        return CommitResult(stable_offset, 0, duplicates, ranges.range_count, status, reason)


def commit_held(state: PartitionState, part: Part, member: str) -> CommitResult:
    """Commit what a member of a cooperative epoch holds, and what nobody has acquired."""
    others = state.acquisitions.held_by_others(member)
    taken, commits = part.offsets & others, state.commits
    before = part.offsets.clip(0, commits.stable_offset - 1) | (part.offsets & commits.ranges)
    pending = tuple(one for one in part.pending if one.offset not in others)
    is_lost = bool(taken) and len(taken) == len(part.offsets)
    part = replace(part, offsets=part.offsets - taken, pending=pending)
    result = replace(commit_part(state, part), not_held=taken | before)
    state.acquisitions.settle(OffsetRanges.from_offsets([one.offset for one in pending]))
    return replace(result, status="not_held") if is_lost else result


def commit_part(state: PartitionState, part: Part) -> CommitResult:
    """Commit a partition's part of a commit that counts."""
    commits = state.commits
    try:
        result = commits.commit(part.offsets)
    except IndividualCommitTooOld:
        result = state.result("too_old", duplicates=len(part.offsets))
    if part.holes:
        commits.amend(part.holes)
    state.pending |= {pending.offset: pending for pending in part.pending}
    state.drop_done_pending()
    state.acquisitions.settle(part.offsets | part.holes if part.holes else part.offsets)
    if not part.holes:
        return result
    stable_offset, range_count = commits.stable_offset, commits.ranges.range_count
    return replace(result, stable_offset=stable_offset, range_count=range_count)
