"""The last heartbeat that the coordinator of a group has accepted from a member."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commits import Epoch
    from coopconsume.group.core import GroupCore


class AcceptedHeartbeats:
    """Proves by the heartbeats of a generation that its epoch is in force.

    Args:
        core: Knows the generation of the member's epoch.
    """

    def __init__(self, core: GroupCore) -> None:
        self._core = core
        #: Generation, and when it was sent.
        self._last = -1, -math.inf

    def accepted(self, generation: int, sent: float) -> None:
        """Notes that a heartbeat was accepted.

        Args:
            generation: The generation that it named.
            sent: When it was sent, on the clock of `coopconsume.worker.process_timer`.
        """
        self._last = generation, sent

    def heard(self, epoch: Epoch) -> float:
        """Returns when the last heartbeat was sent that was accepted in the generation of an epoch.

        The epoch was in force then: the leader of a later generation opens the next one. Minus
        infinity: none is known.
        """
        (under, generation), (accepted_in, sent) = self._core.generation_of, self._last
        return sent if under == epoch and generation == accepted_in else -math.inf
