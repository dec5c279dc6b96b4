"""When the epoch of an assignment was in force for certain: as the commit log says, or Kafka."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from coopconsume.group.owned import LEASE
from coopconsume.worker.process_timer import clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from commits import CommitStore, Epoch
    from coopconsume.group.owned import EpochGrant


class EpochProof:
    """Until when an epoch is known to have been in force; answers of the log and of Kafka move it.

    All times are on `coopconsume.worker.process_timer.clock`.

    Args:
        store: The commit store.
        group: The group id.
        grant: Says who we are and which epoch counts now.
        heard: Returns when a heartbeat that its coordinator accepted in the generation of an epoch
            was sent.
    """

    def __init__(
        self,
        store: CommitStore,
        group: str,
        grant: Callable[[], EpochGrant],
        heard: Callable[[Epoch], float],
    ) -> None:
        self._store = store
        self._group = group
        self._grant = grant
        self._heard = heard
        self._seen = clock()
        #: Until when what was released may run on, if the log has named it to its next owners.
        self._runs_on_until = -math.inf

    def check(self, within: float = LEASE) -> float:
        """Makes sure that the epoch is still in force, if the last look is some time ago.

        Args:
            within: Seconds for which a look at the log is good enough.

        Returns:
            When the epoch was in force for certain.

        Raises:
            commits.FencedMember: It is not.
            commits.CommitLogUnavailable: The log cannot be read.
        """
        now = clock()
        if now - self._seen > within:
            grant = self._grant()
            self._store.check(self._group, grant.epoch, grant.member)
            self.saw(now)
        return self._seen

    @property
    def is_confirmed(self) -> bool:
        """Whether the log said a moment ago that the epoch is in force; asks nobody."""
        return clock() - self._seen <= LEASE

    def saw(self, asked: float) -> None:
        """Notes that the epoch was in force after an instant, as the log has answered."""
        self._seen = max(self._seen, asked)

    def released(self, runs_on_until: float) -> None:
        """Notes that all was released, and until when the log has its next owners wait for it."""
        self._runs_on_until = runs_on_until

    @property
    def in_force_at(self) -> float:
        """When no later epoch had been granted for certain.

        As the log has said, or Kafka: a leader opens an epoch in a generation of its own, and then
        no heartbeat of the one before is accepted. What was released while it ran has its time from
        its next owners, and no epoch ends that.
        """
        grant = self._grant()
        released = min(clock(), self._runs_on_until - grant.life_ms / 1000)
        return max(self._seen, self._heard(grant.epoch), released)
