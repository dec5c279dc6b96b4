"""Watches the logs of an assignment: where they begin and end, and whether topics are there."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, TypeVar

from commits import CommitLogUnavailable
from coopconsume.errors import BrokerUnreachable, TopicNotFound
from coopconsume.runtime.trace import EndsRead, StartsRead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from commits import OffsetRanges
    from commits.model import TopicPartition
    from coopconsume.errors import CoopConsumeError
    from coopconsume.group.epoch_assignment import EpochAssignment
    from coopconsume.kafka.cluster import LogEnd
    from coopconsume.runtime.job_context import JobContext
    from coopconsume.runtime.plan import Partition, Read

log = logging.getLogger(__name__)

T = TypeVar("T")

_ENDS_EVERY = 0.5
_STARTS_EVERY = 10.0
#: Seconds for which a look that is due may wait.
_MAY_WAIT = 0.5


class LogWatch:
    """Where the logs begin and end, as far as Kafka has said; only the loop calls its methods.

    What it finds goes to the partitions and to `AssignedLogs`, which the commit log follows. With
    ``availableNow`` the first end of a log that is found stays.

    Args:
        context: Of the job.
        assignment: What is owned.
        partitions: All partitions since the epoch began; more may be added.
        fixed_ends: Where to stop with ``availableNow``, by partition; it is filled once, and goes
            on to the next epoch.

    Attributes:
        kafka_error: Why the last look failed; empty: it did not.
    """

    def __init__(
        self,
        context: JobContext,
        assignment: EpochAssignment,
        partitions: Sequence[Partition],
        fixed_ends: dict[TopicPartition, int],
    ) -> None:
        self._assignment = assignment
        self._partitions = partitions
        self._fixed_ends = fixed_ends
        self._is_fixed = context.job_spec.available_now
        self._trace = context.trace
        self._ends_at = self._starts_at = -math.inf
        self._deleted: list[str] = []
        self.kafka_error = ""

    def refresh(self, *, force: bool = False, may_wait: bool = False) -> None:
        """Reads where the logs begin and end, if the last read is some time ago.

        Args:
            force: Whether to read the ends however new the last read is.
            may_wait: Whether it may be made some tenths of a second later. The loop stands still
                until the brokers answer.

        Raises:
            BrokerUnreachable, commits.CommitLogUnavailable: If forced: no broker, or not the
                commit table, answers; otherwise it is tried again later.
            DataLoss: Records were deleted before they were done, or a log was cut.
            TopicNotFound, TopicReplaced: A topic was deleted, and the job does not go on without
                it, or it was made again.
        """
        later = _MAY_WAIT if may_wait else 0.0
        try:
            if time.monotonic() - self._starts_at > _STARTS_EVERY + later:
                self._check_starts()
                self._starts_at = time.monotonic()
            # Where to stop is fixed with availableNow, but a log may be cut in the meantime.
            if not force and time.monotonic() - self._ends_at < _ENDS_EVERY + later:
                return
            found = self._read_ends()
        except (BrokerUnreachable, CommitLogUnavailable) as error:
            if isinstance(error, BrokerUnreachable):
                self.kafka_error = str(error)
                self._assignment.primary.note_unanswered()
            if force:
                raise
            log.warning("%s; trying again", error)
            return
        if found is not None:
            self._ends_at, self.kafka_error = time.monotonic(), ""
            self._take_ends({tp: end.offset for tp, end in found.items()})

    def _read_ends(self) -> dict[TopicPartition, LogEnd] | None:
        """Returns where the logs end; None if one may have been cut: the next look shows it."""
        logs = self._assignment.logs
        found = self._without_deleted(lambda: self._assignment.cluster.log_ends(logs.present))
        # After the ends: they are those of our topics if these still have their ids.
        self._check_topics()
        found = {tp: found[tp] for tp in logs.present}
        if not logs.is_cut(found):
            return found
        loss = logs.follow_cut()
        if loss is not None:
            raise loss
        return None

    def _take_ends(self, ends: dict[TopicPartition, int]) -> None:
        self._trace.write(EndsRead(ends))
        if self._is_fixed:
            # A log that was cut ends before where it was to be read to.
            fixed = {tp: min(end, ends[tp]) for tp, end in self._fixed_ends.items() if tp in ends}
            ends = ends | fixed
            self._fixed_ends |= ends
        for partition in self._partitions:
            end = ends.get((partition.topic, partition.partition), 0)
            partition.ledger.end = max(end, partition.ledger.end)

    def look_again(self) -> None:
        """Has the next `refresh` read both ends of the logs, as a slot could not read."""
        self._starts_at = self._ends_at = -math.inf

    def look_at_starts_again(self) -> None:
        """Has the next `refresh` read where the logs begin: perhaps records were deleted."""
        self._starts_at = -math.inf

    @property
    def knows_ends(self) -> bool:
        """Whether the ends of the logs are known."""
        return self._ends_at > -math.inf

    def has_looked_since(self, instant: float) -> bool:
        """Whether the ends were read after an instant of the monotonic clock."""
        return self._ends_at > instant

    def take_deleted(self) -> list[str]:
        """Returns the topics that were deleted since the last call."""
        deleted, self._deleted = self._deleted, []
        return deleted

    def has_lost(self, reads: Iterable[Read]) -> bool:
        """Reads where the logs begin; returns whether some of these offsets were deleted.

        Raises:
            DataLoss: Records were deleted before they were done, and ``failOnDataLoss`` is true.
            TopicNotFound, TopicReplaced: A topic was deleted, and perhaps created again.
        """
        try:
            self._check_starts()
            self._starts_at = time.monotonic()
        except (BrokerUnreachable, CommitLogUnavailable) as error:
            log.warning("%s; trying again", error)
            self._starts_at = -math.inf
        return any(read.first < self._partitions[read.index].ledger.stable for read in reads)

    def finds_all_topics(self) -> bool:
        """Asks Kafka; returns whether it has all topics that the assignment began with.

        Raises:
            DataLoss, TopicNotFound, TopicReplaced: A topic was deleted.
        """
        try:
            self._check_topics()
        except (BrokerUnreachable, CommitLogUnavailable):
            return False
        return len(self._assignment.logs.present) == len(self._assignment.owned)

    def can_recover_from(self, error: CoopConsumeError) -> bool:
        """Whether the job continues after such an error, see `AssignedLogs.can_recover_from`."""
        return self._assignment.logs.can_recover_from(error, self._done())

    def _done(self) -> Mapping[TopicPartition, OffsetRanges]:
        return {(p.topic, p.partition): p.ledger.done for p in self._partitions}

    def _without_deleted(self, look: Callable[[], T]) -> T:
        """Returns what a look at the logs finds, without topics that turn out to be deleted."""
        while True:
            try:
                return look()
            except TopicNotFound:
                if not self._check_topics():
                    raise

    def _check_topics(self) -> list[str]:
        """Notices deleted topics: nothing of them is left to do."""
        deleted = self._assignment.logs.check_topics(self._done())
        for partition in self._partitions:
            if partition.is_ours and partition.topic in deleted:
                owned = self._assignment.owned[partition.topic, partition.partition]
                ends = [one.offset + 1 for one in owned.pending]
                partition.log_start(
                    max(partition.ledger.end, (partition.ledger.done.last or 0) + 1, *ends)
                )
        self._deleted += deleted
        return deleted

    def _check_starts(self) -> None:
        self._check_topics()
        passed = self._without_deleted(lambda: self._assignment.logs.check_starts(self._done()))
        if passed:
            self._trace.write(StartsRead(passed))
        for partition in self._partitions:
            start = passed.get((partition.topic, partition.partition))
            if start is not None:
                partition.log_start(start)
