"""Errors of a turn after which a job continues, with its next assignment."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commits import FencedMember
    from coopconsume.errors import CoopConsumeError
    from coopconsume.group.epoch_assignment import EpochAssignment
    from coopconsume.group.membership import Membership
    from coopconsume.runtime.current_epoch import CurrentEpoch
    from coopconsume.runtime.dispatch.dispatcher import Dispatcher
    from coopconsume.runtime.rebalance import Rebalance


class Recovery:
    """Decides whether a job continues after an error, and prepares its membership for that.

    Only the loop calls its methods.

    Args:
        membership: Gets the next assignment.
        dispatcher: Stops slots.
        rebalance: Knows whether the membership waits for the loop.
        current: The work of the job.
    """

    def __init__(
        self,
        membership: Membership,
        dispatcher: Dispatcher,
        rebalance: Rebalance,
        current: CurrentEpoch,
    ) -> None:
        self._membership = membership
        self._dispatcher = dispatcher
        self._rebalance = rebalance
        self._current = current

    def may_pass(self, error: FencedMember, assignment: EpochAssignment) -> bool:
        """Whether the log refuses an assignment because the next one is about to come.

        A hand-over must not wait for an epoch that may never come.
        """
        is_awaited = self._rebalance.is_awaited
        is_current = error.epoch == assignment.epoch
        return assignment.may_be_late(error) and not (is_awaited and is_current)

    def from_fencing(self, error: FencedMember) -> bool:
        """Whether the job continues although others have its shares.

        A member of a group joins again as a new one.
        """
        handing_over = self._rebalance.hand_over is not None
        return self._membership.fenced(str(error), handing_over=handing_over)

    def from_loss(self, error: CoopConsumeError) -> bool:
        """Whether the job continues after an error of the checks of topics and logs.

        The next assignment is without the topic, with the new one, or from where the log was cut.

        Args:
            error: `DataLoss`, `TopicNotFound` or `TopicReplaced`.
        """
        if not self._may_continue(error):
            return False
        self._dispatcher.stop(self._current.state)
        return self._membership.rejoin(str(error), self._rebalance.left_of(self._current.state))

    def _may_continue(self, error: CoopConsumeError) -> bool:
        if self._current.state is not None:
            return self._current.state.log_watch.can_recover_from(error)
        # It comes from the first look at the assignment: nothing of it has begun.
        assignment = self._membership.assignment
        lossy = not self._membership.options.fail_on_data_loss
        return lossy if assignment is None else assignment.logs.can_recover_from(error)
