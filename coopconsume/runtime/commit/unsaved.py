"""One commit of a job: what comes into it, and how it is written."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from commits import MaxIndividualCommitsReached, OffsetRanges, Pending
from coopconsume.runtime.events import CommitAnswered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commits import AcquireRequest, CommitResult
    from commits.model import TopicPartition
    from coopconsume.group.epoch_assignment import EpochAssignment
    from coopconsume.runtime.commit.parcels import Written


@dataclass
class Unsaved:
    """What has come in since the last commit, beside the offsets that are done.

    Attributes:
        since: When the first of it came, on the monotonic clock; 0: nothing has.
        pending: Records that failed, for the commit log.
    """

    since: float = 0.0
    pending: dict[TopicPartition, list[Pending]] = field(default_factory=dict)

    def put_back(self, kept: Mapping[TopicPartition, list[Pending]]) -> None:
        """Takes back failed records that could not be written; later failures of them count."""
        for tp, pending in kept.items():
            self.pending.setdefault(tp, [])[:0] = pending

    def add(self, pending: Mapping[TopicPartition, list[Pending]], now: float) -> None:
        """Takes failed records, which are pending from now on."""
        for tp, records in pending.items():
            self.pending.setdefault(tp, []).extend(records)
        if pending:
            self.since = self.since or now


@dataclass(frozen=True)
class CommitMark:
    """What was not committed at some time.

    Attributes:
        count: `Committer.count` once a commit that began after this time is answered.
        offsets: The offsets that were not committed, by partition.
    """

    count: int
    offsets: Mapping[TopicPartition, OffsetRanges]


def save(
    assignment: EpochAssignment,
    offsets: Mapping[TopicPartition, OffsetRanges],
    holes: Mapping[TopicPartition, OffsetRanges],
    pending: Mapping[TopicPartition, list[Pending]],
    commit_id: str,
    written: Written | None = None,
    filtered: Mapping[TopicPartition, OffsetRanges] | None = None,
    request: AcquireRequest | None = None,
) -> CommitAnswered:
    """Commits offsets that are done; reports those that the limit on ranges leaves out.

    Args:
        assignment: What is owned.
        offsets: What is done.
        holes: What is proven never to be delivered.
        pending: What failed.
        commit_id: The id of the commit; with a parcel, the id under which it was written.
        written: Outputs that were written; they count only with this commit, so all of their
            records are committed.
        filtered: Those of ``offsets`` that the filter dropped.
        request: Chunks of a cooperative epoch to acquire in the same append.

    Raises:
        commits.FencedMember: Another member holds the group.
        commits.CommitLogUnavailable: The log did not answer.
    """
    started = time.monotonic()
    fit = assignment.affordable(offsets, holes)
    left = {tp: done - fit[tp] for tp, done in offsets.items()}
    reported = {tp: list(records) for tp, records in pending.items()}
    if written is not None:
        for tp, done in written.parcel.offsets.items():
            fit[tp] = fit.get(tp, OffsetRanges()) | done
        for tp, records in written.parcel.pending.items():
            reported.setdefault(tp, []).extend(records)
    dropped = {tp: len(fit[tp] & some) for tp, some in (filtered or {}).items() if tp in fit}
    results: Mapping[TopicPartition, CommitResult] = {}
    try:
        if fit or reported or holes or request is None:
            results = assignment.commit(
                fit, pending=reported, holes=holes, filtered=dropped, commit_id=commit_id,
                limited=written is None, request=request,
            )  # fmt: skip
        else:
            assignment.acquire(request)
    except MaxIndividualCommitsReached as error:
        # Other members were quicker.
        results = error.results or {}
    refused = {tp for tp, result in results.items() if result.status == "refused"}
    answered = {
        tp: (fit.get(tp, OffsetRanges()), result.stable_offset)
        for tp, result in results.items()
        if tp not in refused
    }
    over_limit = frozenset(refused | {tp for tp, some in left.items() if some})
    later = {tp: records for tp, records in reported.items() if tp in refused}
    failed = {
        tp: OffsetRanges.from_offsets([one.offset for one in records])
        for tp, records in reported.items()
        if tp not in refused
    }
    not_held = {tp: result.not_held for tp, result in results.items() if result.not_held}
    took = (written.took if written else 0.0, time.monotonic() - started)
    acquired = None if request is None else assignment.acquired(request)
    return CommitAnswered(
        answered, holes, took, over_limit, later, time.time(), failed, not_held, acquired
    )
