"""A run of a job: a batch, or a real-time run. It is one Spark job and what comes back."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final

from commits import OffsetRanges
from coopconsume.runtime.dispatch.slot_task import SlotTask
from coopconsume.runtime.plan.attempts import attempts_in
from coopconsume.runtime.status.waiting import OldestCall

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from assignors import KeyRange
    from coopconsume.runtime.epoch_state import EpochState
    from coopconsume.runtime.plan import BatchPlan, Partition
    from coopconsume.state.slot_state import StateSpec
    from coopconsume.worker.channel.spec import ChannelSpec
    from coopconsume.worker.report import SlotReport


#: For so many seconds after Spark has started a slot its batch is young, see `BATCHES_AT_ONCE`.
_YOUNG: Final = 2.0


class RunKind(ABC):
    """What batches and real-time runs do differently. The loop calls all but `execute`.

    A run begins, its slots report, give back what they are asked for, and end. Requests to slots
    are the same for both (`SlotRequests`), and so is what is taken of their reports (`Reports`).

    Attributes:
        is_real_time: Whether slots read Kafka by themselves.
    """

    is_real_time: ClassVar[bool]

    def begins(self, run: Run) -> None:  # noqa: B027 - there may be nothing to note
        """Notes that a run is about to be given to Spark."""

    @abstractmethod
    def execute(self, run: Run, send: Callable[[bytes], None] | None) -> dict[int, bytes | None]:
        """Runs the Spark job of a run, in a thread of its own; returns as its last slot has ended.

        Args:
            run: The run.
            send: Takes reports as tasks end; None: they come back as rows.

        Returns:
            For each slot that had records, its report; None if something else has sent it, or if it
            is lost.
        """

    @abstractmethod
    def reported(self, run: Run, report: SlotReport) -> None:
        """Takes the final report of a slot, after what it says of records."""

    def lost(self, run: Run, slot: int) -> None:  # noqa: B027 - likewise
        """Takes the end of a slot without a report of what it did."""

    @abstractmethod
    def ended(self, run: Run, end: RunEnd) -> None:
        """Takes the end of the Spark job of a run.

        Raises:
            BaseException: The job cannot go on.
        """


@dataclass(frozen=True)
class RunEnd:
    """How the Spark job of a run has ended.

    Attributes:
        unreported: The slots that had made no final report.
        error: Why it has failed; None: it has not.
        counts: Whether what was done in its epoch may still be committed.
        deserted: Whether a worker was ended as it had not heard of this process.
    """

    unreported: Sequence[int]
    error: BaseException | None
    counts: bool
    deserted: bool


@dataclass
class Run:
    """A batch, or a real-time run, that Spark works on, and what its slots have reported so far.

    Times are on the monotonic clock, unless they say otherwise.
    """

    number: int
    kind: RunKind
    plan: BatchPlan
    epoch_state: EpochState
    started: float
    #: When its slots get their leases and may start records: later than `started` if an earlier
    #: owner may be at work on the records until then.
    begins_at: float
    #: The tag of its Spark job.
    tag: str
    #: Identifies the run of the job, see `BatchSpec`.
    run_id: str = ""
    #: Whether it is the trial of a circuit breaker.
    trial: bool = False
    #: Failures in a row, and gates of rate limits, with which slots begin; see `BatchSpec`.
    streaks: Mapping[int, int] = field(default_factory=dict)
    gates: Mapping[int, Mapping[int | None, float]] = field(default_factory=dict)
    #: When the first final report came, and the first of a slot that had rows left as its time box
    #: closed.
    first_report: float | None = None
    first_timeout: float | None = None
    #: Handler calls and filtered records in all reports.
    handled: int = 0
    filtered: int = 0
    #: Handler calls a second, of all slots that have ended.
    rate: float = 0.0
    #: After which its slots start nothing, on the workers' clocks, in seconds since the epoch.
    latest_start: float = math.inf
    #: Name of the query or of its group, for people.
    title: str = ""
    #: When Spark is next asked to end it; None: it may go on.
    interrupt_at: float | None = None
    #: Where its slots reach the driver; None: they have no channel, and no leases.
    channel: ChannelSpec | None = None
    #: What its slots need to know of the state per key; None: the handler has none.
    state: StateSpec | None = None
    #: Why a real-time run ends; empty: it goes on, or its time is over.
    ending: str = ""
    #: Of its slots, the partitions whose holes they report, by index.
    finders: Mapping[int, Collection[int]] = field(default_factory=dict)
    #: Where the logs end from which slots read chunks, by partition; None: slots have key ranges.
    ends: Mapping[int, int] | None = None
    #: The error with which a slot has failed last; empty: none has.
    failure: str = ""
    #: When a slot was last seen to read a partition, by (partition, slot), where that is not now.
    read_at: dict[tuple[int, int], float] = field(default_factory=dict)
    #: Its slots, by number.
    tasks: dict[int, SlotTask] = field(init=False)

    def __post_init__(self) -> None:
        self.tasks = {slot: SlotTask(slot) for slot in self.plan.slots}

    @property
    def is_real_time(self) -> bool:
        """Whether it is a real-time run."""
        return self.kind.is_real_time

    def oldest_call(self, now: float) -> OldestCall | None:
        """Returns the handler call that has run for longest; None: none takes long."""
        calls = [task.call for task in self.unfinished if task.call is not None]
        if not calls:
            return None
        part, offset, since = min(calls, key=lambda one: one[2])
        return OldestCall(*self.names[part], offset, now - since)

    @property
    def unfinished(self) -> list[SlotTask]:
        """Slots without a final report."""
        return [task for task in self.tasks.values() if not task.has_ended]

    @property
    def active(self) -> list[SlotTask]:
        """Slots without a final report that have not given records back."""
        return [task for task in self.tasks.values() if task.is_active]

    def is_young(self, now: float) -> bool:
        """Whether none of its slots has reported, or has worked for a moment."""
        met = (task.met_at for task in self.tasks.values() if task.met_at is not None)
        return self.first_report is None and now - min(met, default=now) < _YOUNG

    @property
    def timed_out(self) -> bool:
        """Whether the time box of a slot ended before its rows did."""
        return self.first_timeout is not None

    @property
    def is_withdrawn(self) -> bool:
        """Whether no slot is left that may start anything."""
        left = self.unfinished
        return bool(left) and all(task.is_withdrawn for task in left)

    @property
    def names(self) -> list[tuple[str, int]]:
        """(topic, partition) by part."""
        return [(p.topic, p.partition) for p in self.partitions]

    @property
    def connections(self) -> set[tuple[int, int]]:
        """(batch, slot) of those that still work and have a channel."""
        return {self.at(task) for task in self.unfinished if self.channel is not None}

    def at(self, task: SlotTask) -> tuple[int, int]:
        """Returns how the channel names one of its slots."""
        return self.number, task.slot

    @property
    def partitions(self) -> list[Partition]:
        """Its partitions by part, see `BatchPlan.indexes`."""
        return [self.epoch_state.partitions[index] for index in self.plan.indexes]

    def rests(self, task: SlotTask, now: float) -> bool:
        """Whether a real-time slot waits for records, or for the next attempt of one.

        Other records that it has read wait behind that one: a call that takes long is reported, and
        others end at once.
        """
        if not self.is_real_time or task.call is not None:
            return False
        slot = task.slot
        own = [partition for partition in self.partitions if slot in partition.cursors]
        return not any(partition.cursors[slot].reading for partition in own) or any(
            attempts_in(partition, slot, now) for partition in own
        )

    def given(self, slot: int) -> dict[int, OffsetRanges]:
        """Offsets that a slot may start, by partition; in a real-time run, those it has read.

        Chunks that it has got may be read by now, as far as the log reaches.
        """
        if self.is_real_time:
            partitions = {
                index: self.epoch_state.partitions[index] for index in self.plan.work[slot]
            }
            return {
                index: (one.cursors[slot].dispatched or OffsetRanges()).clip(0, one.ledger.end - 1)
                for index, one in partitions.items()
            }
        return {index: OffsetRanges(work.ranges) for index, work in self.plan.work[slot].items()}

    def left(self, task: SlotTask) -> dict[int, OffsetRanges]:
        """The offsets of `given` that no report has named yet, by partition."""
        nothing, partitions = OffsetRanges(), self.epoch_state.partitions
        if task.kept is not None:
            return {index: o - partitions[index].ledger.done for index, o in task.kept.items()}
        return {
            index: offsets & (partitions[index].cursors[task.slot].dispatched or nothing)
            for index, offsets in self.given(task.slot).items()
        }

    @property
    def key_ranges(self) -> dict[int, dict[tuple[str, int], tuple[KeyRange, ...]]]:
        """Returns the key ranges of each slot, by topic and partition."""
        return {
            slot: {
                (p.topic, p.partition): p.cursors[slot].staying
                for p in self.partitions
                if p.index in self.plan.work[slot]
            }
            for slot in self.plan.slots
        }

    @property
    def reports_more(self) -> bool:
        """Whether some slots have reported, and others are about to.

        Those of a real-time run report just before a commit: it need not wait for them.
        """
        has_reports = bool(self.first_report) or any(task.seq for task in self.tasks.values())
        return has_reports and bool(self.active) and not self.is_real_time
