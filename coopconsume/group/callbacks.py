"""The interfaces that a membership calls: its worker, and the user's rebalance listener."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from assignors import KeyRange, Share
    from commits.model import TopicPartition
    from coopconsume.group.epoch_assignment import EpochAssignment


class Worker(Protocol):
    """Works on the assignment of a consumer; calls come one at a time, from other threads."""

    def begin(self, assignment: EpochAssignment) -> None:
        """Begins the work on an assignment; returns at once."""

    def continue_work(self, timeout: float) -> bool:
        """Returns whether the work continues while the group rebalances; else it is handed over."""

    def hand_over(self, timeout: float) -> Sequence[Share]:
        """Starts nothing more, lets what runs end within some seconds, and commits it.

        Returns:
            The parts that are still being worked on.
        """

    def give_up(self, shares: Sequence[Share], timeout: float) -> Sequence[Share] | None:
        """Hands over part of it as `hand_over` does, and goes on with the rest.

        Returns:
            The parts that are still being worked on; None if all of it is to be handed over.
        """

    def extend(self, load: Callable[[], EpochAssignment]) -> EpochAssignment | None:
        """Adds shares, and continues with the others.

        Args:
            load: Returns the gained shares.

        Returns:
            The gained shares; None if all shares are to be handed over.
        """

    def drop(self) -> None:
        """Stops what still runs: the shares belong to others."""

    def fail(self, error: BaseException) -> None:
        """Stops permanently."""


class RebalanceListener(Protocol):
    """Methods that are called on the driver when key ranges come and go, one call at a time.

    The calls are made in a thread of their own; the group waits for each to return, so keep them
    short. They may call the consumer and its query, and close them: `close` leaves the group while
    the call is still running. An exception is logged, and changes nothing.

    Key ranges are given by partition, as `CooperativeConsumer.assignment` returns them. A rebalance
    that moves none of a running job makes no call.
    """

    def on_assigned(self, ranges: Mapping[TopicPartition, Sequence[KeyRange]]) -> None:
        """Called when key ranges are assigned to this member."""

    def on_revoked(self, ranges: Mapping[TopicPartition, Sequence[KeyRange]]) -> None:
        """Called before key ranges are given back; what ran has ended and is committed.

        Also called when the consumer closes.
        """

    def on_lost(self, ranges: Mapping[TopicPartition, Sequence[KeyRange]]) -> None:
        """Called when key ranges are lost: other members may work on them already."""
