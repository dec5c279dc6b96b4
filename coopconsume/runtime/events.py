"""Events of a job's loop: what users, the group, Spark and commits report to it, as data.

Other threads post events; the loop handles them one at a time, in `Job._handle`. Events are data,
so that a run can be written to a file and replayed (see `coopconsume.runtime.trace`).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assignors import Share
    from commits import FencedMember, OffsetRanges, Pending
    from commits.model import TopicPartition
    from coopconsume.group.chunks import AcquiredChunks, GroupChunks
    from coopconsume.group.epoch_assignment import EpochAssignment
    from coopconsume.kafka.retention import RetentionForecast
    from coopconsume.runtime.commit.parcels import Written
    from coopconsume.runtime.decisions import Decision
    from coopconsume.worker.report import SlotReport

T = TypeVar("T")


class Reply(Generic[T]):
    """The loop's answer to a request of another thread.

    Args:
        value: The answer if the loop ends before it gives one.
    """

    def __init__(self, value: T) -> None:
        self.value = value
        self._is_given = threading.Event()

    def give(self, value: T) -> None:
        """Answers the request."""
        self.value = value
        self._is_given.set()

    def wait(self, ended: threading.Event) -> T:
        """Returns the answer once it is given, or the loop has ended."""
        while not self._is_given.wait(0.1) and not ended.is_set():
            pass
        return self.value


@dataclass(frozen=True)
class JobEvent:
    """Something that the loop handles."""


# -- from users


@dataclass(frozen=True)
class StopRequested(JobEvent):
    """The query is stopped: running handlers end until ``stop_by``, on the monotonic clock.

    With ``drain`` the records that batches have read are handled first.
    """

    stop_by: float
    drain: bool


@dataclass(frozen=True)
class AbortRequested(JobEvent):
    """The query is stopped at once, without a commit."""


@dataclass(frozen=True)
class PauseRequested(JobEvent):
    """The query is paused or resumed."""

    is_paused: bool


@dataclass(frozen=True)
class EndsAwaited(JobEvent):
    """A thread waits until all records below these offsets are committed."""

    ends: Mapping[TopicPartition, int]
    answer: Reply[None]


# -- from the group


@dataclass(frozen=True)
class AssignmentReceived(JobEvent):
    """The member owns these shares from now on."""

    assignment: EpochAssignment


@dataclass(frozen=True)
class HandOverRequested(JobEvent):
    """All shares move: no handler starts, and running ones end until ``until``.

    The answer names the parts on which handlers may still run.
    """

    until: float
    answer: Reply[Sequence[Share]]


@dataclass(frozen=True)
class SharesRevoked(JobEvent):
    """These shares move, and the work on all others goes on.

    The answer names the parts on which handlers may still run; None: hand over all shares instead.
    """

    shares: Sequence[Share]
    until: float
    answer: Reply[Sequence[Share] | None]


@dataclass(frozen=True)
class SharesGained(JobEvent):
    """The member owns more shares; the answer is false if the work must begin again with all."""

    gained: EpochAssignment
    answer: Reply[bool]


@dataclass(frozen=True)
class RebalanceBegun(JobEvent):
    """The group rebalances; the answer says whether the work goes on meanwhile."""

    until: float
    answer: Reply[bool]


@dataclass(frozen=True)
class AssignmentLost(JobEvent):
    """Other members own the shares."""


@dataclass(frozen=True)
class MembershipFailed(JobEvent):
    """The membership has failed, and the job ends."""

    error: BaseException


# -- from Spark


@dataclass(frozen=True)
class SlotReported(JobEvent):
    """A slot's task has ended: its final report."""

    report: SlotReport


@dataclass(frozen=True)
class SlotProgressed(JobEvent):
    """A slot reports what it has done so far."""

    report: SlotReport


@dataclass(frozen=True)
class CallReported(JobEvent):
    """A slot names its oldest handler call: part, offset, seconds; or None."""

    batch: int
    slot: int
    call: tuple[int, int, float] | None


@dataclass(frozen=True)
class BatchEnded(JobEvent):
    """A batch's Spark job has ended.

    Attributes:
        batch: Number of the batch.
        reports: The rows of its slots' tasks; None where the report has come before.
        error: Why the job failed; None: it did not.
        unconnected: Slots of a failed job that had no connection to the driver and get none: they
            have started nothing and start nothing.
    """

    batch: int
    reports: Mapping[int, SlotReport | None] = field(default_factory=dict)
    error: BaseException | None = None
    unconnected: frozenset[int] = frozenset()


# -- from the threads of one epoch; the loop drops those of an epoch that is over


@dataclass(frozen=True)
class CommitAnswered(JobEvent):
    """The commit log has answered a commit.

    Attributes:
        offsets: What was committed, with the stable offset after it, of each partition.
        holes: Offsets that were committed as holes.
        took: Seconds for dead letters and outputs, and for the commit log.
        answered_at: When the answer came, in seconds since the epoch.
        failed: Offsets of the failed records that were written.
        not_held: Offsets that do not count, as another member of a cooperative epoch has them.
        acquired: What the request of a cooperative epoch in the same append got.
        cost: Seconds of a processor, with the maintenance of the table after the commit before.
    """

    offsets: Mapping[TopicPartition, tuple[OffsetRanges, int]]
    holes: Mapping[TopicPartition, OffsetRanges]
    took: tuple[float, float]
    answered_at: float = 0.0
    failed: Mapping[TopicPartition, OffsetRanges] = field(default_factory=dict)
    not_held: Mapping[TopicPartition, OffsetRanges] = field(default_factory=dict)
    acquired: AcquiredChunks | None = None
    cost: float = 0.0


@dataclass(frozen=True)
class CommitFenced(JobEvent):
    """The commit log has refused a commit, as its epoch has passed."""

    error: FencedMember
    pending: Mapping[TopicPartition, list[Pending]]


@dataclass(frozen=True)
class CommitFailed(JobEvent):
    """A commit has failed permanently; the job ends."""

    error: BaseException


@dataclass(frozen=True)
class LogRead(JobEvent):
    """The commit log was read again; empty if it could not be read.

    ``chunks`` is what it says of a cooperative epoch.
    """

    stable: Mapping[TopicPartition, int]
    chunks: GroupChunks | None = None


@dataclass(frozen=True)
class DecisionsApplied(JobEvent):
    """Decisions on parked records are in the commit log.

    ``on_failed`` are the open decisions on failed records; None: they could not be read.
    """

    decisions: Sequence[Decision]
    on_failed: Sequence[Decision] | None = None


@dataclass(frozen=True)
class OffsetsMirrored(JobEvent):
    """A write of the group's offsets to Kafka has ended; an error ends the job."""

    error: BaseException | None = None


@dataclass(frozen=True)
class ParcelWritten(JobEvent):
    """Dead letters or outputs are written, and can be committed.

    Attributes:
        what: ``dead letters`` or ``outputs``.
        written: What is written.
    """

    what: str
    written: Written


@dataclass(frozen=True)
class ParcelFailed(JobEvent):
    """Dead letters or outputs could not be written."""

    what: str
    error: BaseException


@dataclass(frozen=True)
class HolesFound(JobEvent):
    """Offsets of a partition, by its index, at which the log has no record.

    None: the log could not be read.
    """

    index: int
    holes: OffsetRanges | None


@dataclass(frozen=True)
class BlockersRead(JobEvent):
    """Records of blockers were read: by partition, the offset, and the key if there is one."""

    keys: Mapping[TopicPartition, tuple[int, bytes | None]]


@dataclass(frozen=True)
class RetentionForeseen(JobEvent):
    """What retention deletes next; None: nothing soon, or it is not known."""

    forecast: RetentionForecast | None
