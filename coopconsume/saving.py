"""What has come in since the last commit, and how it is written."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commits import OffsetRanges, Pending
    from coopconsume.batch import Work
    from coopconsume.membership import Membership, TopicPartition
    from coopconsume.report import DeadLetter


@dataclass
class Unsaved:
    """What has come in since the last commit, beside the offsets that are done.

    Attributes:
        since: When the first of it came, in seconds since the epoch; 0: nothing has.
        pending: Records that failed, for the commit log.
        dead: Records that were given up.
        outputs: Rows that handlers returned, with the partitions that they count by index.
    """

    since: float = 0.0
    pending: dict[TopicPartition, list[Pending]] = field(default_factory=dict)
    dead: list[DeadLetter] = field(default_factory=list)
    outputs: list[tuple[tuple[tuple[str, int], ...], bytes]] = field(default_factory=list)

    def put_back(self, earlier: Unsaved) -> None:
        """Take over what an earlier commit could not write."""
        self.since = earlier.since
        for tp, pending in earlier.pending.items():
            self.pending.setdefault(tp, [])[:0] = pending
        # Rows written beside a commit that was refused never count; they go with the next one.
        self.dead[:0] = earlier.dead
        self.outputs[:0] = earlier.outputs


@dataclass(frozen=True)
class Saved:
    """A commit that was answered.

    Attributes:
        offsets: What was committed, with the stable offset after it.
        took: Seconds for dead letters and outputs, and for the commit log.
    """

    offsets: Mapping[TopicPartition, tuple[OffsetRanges, int]]
    took: tuple[float, float]


def save(
    membership: Membership,
    work: Work,
    offsets: Mapping[TopicPartition, OffsetRanges],
    unsaved: Unsaved,
    commit_id: str,
) -> Saved:
    """Write dead letters and outputs, then the commit that they stand or fall with.

    Raises:
        commits.MaxIndividualCommitsReached: The log refused it as it has too many ranges.
        commits.FencedMember: Another member holds the group.
    """
    started = time.time()
    if unsaved.dead and work.dead_letters:
        work.dead_letters.append(unsaved.dead, membership.topic_ids, commit_id)
    if unsaved.outputs and work.outputs:
        work.outputs.append(unsaved.outputs, membership.topic_ids, commit_id)
    written = time.time()
    results = membership.commit(offsets, pending=unsaved.pending, commit_id=commit_id)
    logged = time.time()
    answered = {tp: (done, results[tp].stable_offset) for tp, done in offsets.items()}
    return Saved(answered, (written - started, logged - written))
