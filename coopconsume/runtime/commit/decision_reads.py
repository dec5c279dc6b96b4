"""The decisions of operators on failed and parked records, as a job reads and applies them."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

from commits import OffsetRanges
from coopconsume.runtime.decided_by import DECIDE_EVERY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from commits.model import TopicPartition
    from coopconsume.group.epoch_assignment import EpochAssignment
    from coopconsume.group.owned import Failed
    from coopconsume.runtime.decisions import Decision
    from coopconsume.runtime.events import DecisionsApplied
    from coopconsume.runtime.plan import Partition


class DecisionReads:
    """When decisions were last read, and which records they may concern.

    Args:
        assignment: What is owned.
        partitions: The partitions of the epoch.
        may_park: Whether the job parks records.
    """

    def __init__(
        self,
        assignment: EpochAssignment,
        partitions: Mapping[TopicPartition, Partition],
        *,
        may_park: bool,
    ) -> None:
        self._assignment = assignment
        self._partitions = partitions
        self._may_park = may_park
        self._read_at = -math.inf

    @property
    def is_first(self) -> bool:
        """Whether decisions were never read."""
        return self._read_at == -math.inf

    @property
    def is_missing(self) -> bool:
        """Whether decisions were never read, and there may be some."""
        return self.is_first and (self._may_park or bool(self._parked()))

    def due(self, now: float) -> list[tuple[TopicPartition, Failed]] | None:
        """Returns the parked records on which decisions are to be read now.

        Returns:
            None if decisions were just read, or no record needs any.
        """
        if self._assignment.is_between_epochs or now - self._read_at <= DECIDE_EVERY:
            return None
        parked = self._parked()
        # At the start, too: decisions that an earlier process has applied are removed.
        if parked or self._has_failed() or (self._may_park and self.is_first):
            return parked
        self._read_at = now
        return None

    def _busy(self) -> list[Partition]:
        return [p for p in self._partitions.values() if not p.ledger.is_quiet]

    def _parked(self) -> list[tuple[TopicPartition, Failed]]:
        owned = self._assignment.owned
        return [
            ((p.topic, p.partition), waiting)
            for p in self._busy()
            # All members of a cooperative epoch see them: one of them decides.
            if not p.supply.shares_chunks or owned[p.topic, p.partition].leads
            for waiting in p.supply.parked
        ]

    def _has_failed(self) -> bool:
        """Whether records have failed that an operator may decide on, or decisions are open."""
        if any(p.lanes.decided.has_any for p in self._partitions.values()):
            return True
        return any(
            p.lanes.failed.all or (p.supply.shares_chunks and p.supply.pending)
            for p in self._busy()
        )

    def applied(self, event: DecisionsApplied, now: float) -> None:
        """Takes the decisions on parked records that were applied, and those on failed records."""
        self._read_at = now
        if event.on_failed is not None:
            self._take(event.on_failed, now)
        for decision in event.decisions:
            partition = self._partitions[decision.topic, decision.partition]
            act = partition.replay if decision.action == "replay" else partition.discard
            act(decision.offset, now)
            partition.lanes.decided.forget(decision.offset)
            owned = self._assignment.owned.get((decision.topic, decision.partition))
            stable = partition.ledger.stable if owned is None else owned.stable
            partition.commit_answered(OffsetRanges(), stable, OffsetRanges())

    def _take(self, decisions: Sequence[Decision], now: float) -> None:
        """Takes the open decisions on failed records."""
        of: dict[TopicPartition, list[Decision]] = defaultdict(list)
        for decision in decisions:
            of[decision.topic, decision.partition].append(decision)
        for tp, partition in self._partitions.items():
            if tp in of or partition.lanes.decided.has_any:
                partition.decide(of[tp], now)
