"""A claim on a log in the registry: its answer as an error or a grant, and its epochs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coopconsume.errors.fenced import LogReplaced, ProducerBusy, ProducerFenced
from coopconsume.fenced.epochs import EpochSource
from coopconsume.fenced.ownership.model import Grant
from coopconsume.fenced.ownership.rules import Busy, Fenced, Outcome, Replaced

if TYPE_CHECKING:
    from collections.abc import Callable

    from coopconsume.fenced.log import LogId


def granted(outcome: Outcome, topic: str, partition: int, epoch: int = 0) -> Grant:
    """Returns the grant, or raises why it was refused.

    Raises:
        ProducerBusy: Refused for now.
        ProducerFenced: Refused permanently.
        LogReplaced: The topic was created again.
    """
    if isinstance(outcome, Grant):
        return outcome
    if isinstance(outcome, Busy):
        reason = "it is held alone, or waited for,"
        raise ProducerBusy(topic, partition, outcome.owner, reason)
    if isinstance(outcome, Replaced):
        raise LogReplaced(topic, partition, outcome.known_id, outcome.found_id)
    if isinstance(outcome, Fenced):
        raise ProducerFenced(topic, partition, epoch, outcome.fence_epoch, outcome.owner or None)
    raise TypeError(f"no answer to a claim by access mode: {outcome}")


class ClaimedEpochs(EpochSource):
    """A claim in a registry as the source of a writer's epochs.

    Args:
        next_epoch: Returns an epoch above the last one of the log if the claim holds.
        join: Checks that the claim to write beside others holds.
        check: Checks that the claim holds, or claims again under its epoch.
    """

    def __init__(
        self,
        next_epoch: Callable[[int], int],
        join: Callable[[], object],
        check: Callable[[], None],
    ) -> None:
        self._next = next_epoch
        self._join = join
        self._check = check

    def next_epoch(self, log: LogId, last: int) -> int:
        """Returns the epoch to open a log under."""
        del log
        return self._next(last)

    def join(self, log: LogId) -> None:
        """Checks that this writer may write beside others."""
        del log
        self._join()

    def check(self, log: LogId, epoch: int) -> None:
        """Checks that the log still belongs to this owner."""
        del log, epoch
        self._check()
