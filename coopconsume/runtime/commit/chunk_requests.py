"""The chunks that a job of a cooperative epoch requests, holds and gets."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from coopconsume.runtime.plan.acquiring import Acquirer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commits import AcquireRequest
    from commits.model import TopicPartition
    from coopconsume.group.chunks import GroupChunks
    from coopconsume.group.epoch_assignment import EpochAssignment
    from coopconsume.runtime.events import CommitAnswered
    from coopconsume.runtime.plan import Partition

_NONE: Final[Mapping[TopicPartition, int]] = MappingProxyType({})


class ChunkRequests:
    """What the slots of a job need of a cooperative epoch, and the requests for it.

    In another epoch it requests nothing.

    Args:
        assignment: What is owned. Between two epochs nothing is requested.
        partitions: The partitions of the epoch.

    Attributes:
        is_cooperative: Whether the epoch is cooperative.
    """

    def __init__(
        self, assignment: EpochAssignment, partitions: Mapping[TopicPartition, Partition]
    ) -> None:
        options = assignment.options
        self.is_cooperative = options.uses_chunks
        self._assignment = assignment
        self._partitions = partitions
        self._acquirer = Acquirer(partitions, options.max_pending) if options.uses_chunks else None
        self._demand = 0
        self._ahead = _NONE

    @property
    def is_only_member(self) -> bool:
        """Whether the job is cooperative, and no other member acquires chunks."""
        return self._acquirer is not None and self._acquirer.is_only_member

    @property
    def acquired(self) -> int:
        """Offsets up to the ends of the logs that a job with chunks holds without an outcome."""
        return 0 if self._acquirer is None else self._acquirer.acquired

    @property
    def has_any(self) -> bool:
        """Whether it holds offsets that have no outcome."""
        return self._acquirer is not None and self._acquirer.has_any

    @property
    def parked(self) -> int:
        """How many records are parked in a cooperative epoch; 0 in another."""
        if not self.is_cooperative:
            return 0
        return sum(len(p.supply.parked) for p in self._partitions.values())

    # -- what is requested

    def need(self, demand: int, ahead: Mapping[TopicPartition, int] | None) -> None:
        """Notes what the slots need from now on.

        Args:
            demand: Offsets for the next batches.
            ahead: Offsets of partitions that slots need in real time, see `Acquirer.request`.
        """
        self._demand, self._ahead = demand, ahead or _NONE

    def request(self) -> AcquireRequest | None:
        """Returns the next request, without an id; None if there is nothing to request."""
        if self._acquirer is None or self._assignment.is_between_epochs:
            return None
        return self._acquirer.request(self._demand, self._ahead)

    def awaits(self, *, is_asked: bool) -> bool:
        """Whether most of what is needed is missing, and is requested.

        A batch that starts now would be far smaller than its slots can handle.

        Args:
            is_asked: Whether the log has not answered an earlier request.
        """
        if self._acquirer is None or not self._acquirer.lacks(self._demand):
            return False
        if is_asked:
            return True
        request = self.request()
        return request is not None and bool(request.wanted)

    def is_urgent(self, request: AcquireRequest | None) -> bool:
        """Whether the next batch, or slots, wait for the answer to a request."""
        if request is None or self._acquirer is None:
            return False
        if self._ahead:
            return self._acquirer.is_urgent
        return self._acquirer.lacks(self._demand) and bool(request.wanted)

    def began(self, request: AcquireRequest | None) -> None:
        """Notes a request that the log is about to get."""
        if self._acquirer is not None and request is not None:
            self._acquirer.began(request)

    # -- what the log says

    def looked(self, found: GroupChunks | None) -> None:
        """Takes the state of the log as it was just read; None: it has no chunks."""
        if self._acquirer is not None and found is not None:
            self._acquirer.looked(found)

    def answered(self, request: AcquireRequest | None, answer: CommitAnswered) -> None:
        """Takes the answer to a commit, and to the request that went with it."""
        for tp, offsets in answer.failed.items():
            self._partitions[tp].supply.failures_noted(offsets)
        for tp, offsets in answer.not_held.items():
            self._partitions[tp].ledger.not_held(offsets)
        if answer.acquired is None:
            return
        if self._acquirer is not None and request is not None:
            self._acquirer.answered(request, answer.acquired.offsets)
        failed = answer.acquired.failed
        for tp, offsets in answer.acquired.offsets.items():
            if tp in self._partitions:
                self._partitions[tp].chunks.acquire(offsets, failed.get(tp, ()))
