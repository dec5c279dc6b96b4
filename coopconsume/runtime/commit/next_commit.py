"""What the next commit of a job has, and how the commit log is asked for it."""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from coopconsume.runtime.commit.outbox import pending_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from commits import AcquireRequest, OffsetRanges, Pending
    from commits.model import TopicPartition
    from coopconsume.runtime.commit.parcels import Parcel, Written
    from coopconsume.runtime.plan import Partition
    from coopconsume.worker.report import SlotReport


@dataclass(frozen=True)
class CommitRequest:
    """A commit, as the log is asked for it.

    Attributes:
        id: Its id; with a parcel, the id under which that was written.
        offsets: What is done.
        holes: What is proven never to be delivered.
        pending: What failed.
        filtered: Those of ``offsets`` that the filter dropped.
        written: Outputs that were written; they count only with this commit.
        chunks: Chunks of a cooperative epoch to acquire in the same append.
    """

    id: str
    offsets: Mapping[TopicPartition, OffsetRanges] = field(default_factory=dict)
    holes: Mapping[TopicPartition, OffsetRanges] = field(default_factory=dict)
    pending: Mapping[TopicPartition, list[Pending]] = field(default_factory=dict)
    filtered: Mapping[TopicPartition, OffsetRanges] = field(default_factory=dict)
    written: Written | None = None
    chunks: AcquireRequest | None = None


class NextCommit:
    """Failed records for the next commit, and since when it has anything.

    What is done is in the ledgers of the partitions, from where each commit takes all of it: it
    stays there until the commit is answered. Failed records are given to one commit, and come back
    if the log refuses it.

    Args:
        partitions: The partitions of the epoch.
        commit_ids: Ids for commits, unique in the group.

    Attributes:
        since: When the first of all that it has came in, on the monotonic clock; 0: nothing has.
    """

    def __init__(
        self, partitions: Mapping[TopicPartition, Partition], commit_ids: Iterator[str]
    ) -> None:
        self.since = 0.0
        self._pending: dict[TopicPartition, list[Pending]] = {}
        self._partitions = partitions
        self._ids = commit_ids
        prefix = uuid.uuid4().hex
        #: Ids of requests for chunks alone.
        self._request_ids = (f"{prefix}-{number}" for number in itertools.count(1))

    @property
    def has_open(self) -> bool:
        """Whether any partition has offsets to commit."""
        return any(p.ledger.to_commit or p.ledger.holes_to_commit for p in self._busy())

    @property
    def has_any(self) -> bool:
        """Whether anything has come in since the last commit began, or any offset is to commit."""
        return bool(self.since) or self.has_open

    def _busy(self) -> list[Partition]:
        return [p for p in self._partitions.values() if not p.ledger.is_quiet]

    # -- what comes in

    def note(self, now: float) -> None:
        """Notes that something comes in."""
        self.since = self.since or now

    def take(
        self,
        report: SlotReport,
        partitions: Sequence[Partition],
        parked: Collection[tuple[int, int]],
    ) -> None:
        """Takes the failed records of a report.

        Args:
            report: The report.
            partitions: Of its batch, by part.
            parked: Those that are parked once their dead letters are written: part and offset.
        """
        for part, outcome in report.partitions.items():
            if outcome.failed:
                p = partitions[part]
                self._pending.setdefault((p.topic, p.partition), []).extend(
                    pending_of(f)
                    for f in outcome.failed
                    if (part, f.offset) not in parked and p.has(f.key_hash)
                )

    def add(self, pending: Mapping[TopicPartition, list[Pending]], now: float) -> None:
        """Takes failed records, which are pending from now on."""
        for tp, records in pending.items():
            self._pending.setdefault(tp, []).extend(records)
        if pending:
            self.note(now)

    def amend(self, partition: Partition, holes: OffsetRanges, now: float) -> None:
        """Takes proven holes of a partition."""
        partition.slots.amend(holes)
        self.note(now)

    def find_holes(self, now: float) -> None:
        """Takes the holes that the partitions have found by themselves."""
        for partition in self._busy():
            found = partition.supply.holes()
            if found:
                self.amend(partition, found, now)

    def put_back(self, refused: Mapping[TopicPartition, list[Pending]], now: float) -> None:
        """Takes back failed records of a refused commit; later failures of them count."""
        for tp, pending in refused.items():
            self._pending.setdefault(tp, [])[:0] = pending
        self.note(now)

    # -- what goes into a commit

    def begin(self, written: Written | None, chunks: AcquireRequest | None) -> CommitRequest | None:
        """Returns the commit that begins now with all that came in; None if there is nothing.

        Args:
            written: Outputs that were written.
            chunks: The request for chunks that goes with it, without an id.
        """
        pending, self._pending, self.since = self._ours(self._pending), {}, 0.0
        if written is not None:
            written.parcel.pending = self._ours(written.parcel.pending)
        ledgers = {(p.topic, p.partition): p.ledger for p in self._busy()}
        offsets = {tp: one.to_commit for tp, one in ledgers.items() if one.to_commit}
        holes = {tp: one.holes_to_commit for tp, one in ledgers.items() if one.holes_to_commit}
        is_commit = offsets or holes or pending
        if not (is_commit or written or chunks):
            return None
        # Ids of commits are kept for ever, and take least space where none is left out.
        ids = self._ids if is_commit else self._request_ids
        commit_id = written.commit_id if written else next(ids)
        filtered = {
            tp: one.filtered_to_commit for tp, one in ledgers.items() if one.filtered_to_commit
        }
        request = None if chunks is None else replace(chunks, id=commit_id)
        return CommitRequest(
            commit_id,
            offsets,
            holes=holes,
            pending=pending,
            filtered=filtered,
            written=written,
            chunks=request,
        )

    def _ours(
        self, pending: Mapping[TopicPartition, list[Pending]]
    ) -> dict[TopicPartition, list[Pending]]:
        """Returns failed records without those whose keys have moved: their owner decides."""
        found: dict[TopicPartition, list[Pending]] = {}
        for tp, records in pending.items():
            for one in records:
                if one.key_hash is None or self._partitions[tp].has(one.key_hash):
                    found.setdefault(tp, []).append(one)
        return found


@dataclass(frozen=True)
class CommitMark:
    """What was not committed at some time.

    Attributes:
        count: `LogThread.count` once a commit that began after this time is answered.
        offsets: The offsets that were not committed, by partition.
    """

    count: int
    offsets: Mapping[TopicPartition, OffsetRanges]


def uncommitted(
    partitions: Iterable[Partition], parcels: Iterable[Parcel]
) -> dict[TopicPartition, OffsetRanges]:
    """Returns what of some partitions is not committed, or is to be parked.

    Args:
        partitions: The partitions.
        parcels: Those of outputs and dead letters that are not committed.
    """
    found = {
        (p.topic, p.partition): p.ledger.to_commit | p.ledger.holes_to_commit | p.ledger.undelivered
        for p in partitions
    }
    # A deleted record is done for the partition, and not for what it gave.
    for parcel in parcels:
        for tp, offsets in parcel.places().items():
            if tp in found:
                found[tp] |= offsets
    return found
