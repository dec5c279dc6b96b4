"""The work on the assignment that a job has now."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from commits import CommitLogUnavailable
from coopconsume.errors import BrokerUnreachable, StateNotReadable
from coopconsume.group.primary import WRITE_WITHIN
from coopconsume.runtime.epoch_state import EpochState
from coopconsume.runtime.trace import EpochSeen

if TYPE_CHECKING:
    from commits import Epoch
    from commits.model import TopicPartition
    from coopconsume.group.epoch_assignment import EpochAssignment
    from coopconsume.group.membership import Membership
    from coopconsume.runtime.job_context import JobContext
    from coopconsume.runtime.plan.window import Window

log = logging.getLogger(__name__)

#: Seconds that a job that is asked to stop waits for its last write of the group's offsets: the
#: commit log has them.
_LAST_WRITE: Final = 1.0


class CurrentEpoch:
    """Begins and ends the work on assignments, one at a time. Only the loop calls its methods.

    Args:
        context: Of the job.
        membership: Whose assignment it is.
        window: How many offsets a batch has.

    Attributes:
        state: The work; None: there is no assignment, or it has not begun.
        unbegun: An assignment whose work could not begin, as a broker or the commit table did not
            answer. The loop tries again.
    """

    def __init__(self, context: JobContext, membership: Membership, window: Window) -> None:
        self._context = context
        self._membership = membership
        self._window = window
        #: Where to stop with ``availableNow``.
        self._fixed_ends: dict[TopicPartition, int] = {}
        #: The epoch that progress names.
        self._noted: Epoch | None = None
        self.state: EpochState | None = None
        self.unbegun: EpochAssignment | None = None

    def take_unbegun(self) -> EpochAssignment | None:
        """Returns the assignment that could not begin, to try again."""
        unbegun, self.unbegun = self.unbegun, None
        return unbegun

    @property
    def begun(self) -> EpochState:
        """The work, which has begun: events of work that is over are dropped."""
        assert self.state is not None
        return self.state

    def begin(self, assignment: EpochAssignment) -> None:
        """Begins the work on an assignment; the work before has ended."""
        self.unbegun = None
        if self._membership.assignment is not assignment:
            return  # Given back before it was begun.
        job_spec = self._context.job_spec
        if job_spec.ordering == "partition" and assignment.is_shared:
            self._membership.rebalance("ordering='partition' needs whole partitions")
            return
        if job_spec.state is not None and job_spec.state.is_in_doubt(assignment.epoch):
            self._membership.rebalance("only the next epoch decides which changes of state count")
            return
        try:
            self.state = EpochState(self._context, assignment, self._fixed_ends)
        except (BrokerUnreachable, CommitLogUnavailable, StateNotReadable) as error:
            log.warning("%s; trying again", error)
            self.unbegun = assignment
            return
        self._context.meter.latency.retain(self.state.uncommitted)
        self._noted = None
        self.note_epoch()
        self.state.warn_of_waits()
        self._begin_window(assignment)

    def extend(self, gained: EpochAssignment) -> None:
        """Adds the gained shares to the work."""
        self.begun.extend(gained)
        self.begun.warn_of_waits()
        self._begin_window(self.begun.assignment)

    def _begin_window(self, assignment: EpochAssignment) -> None:
        if assignment.owned and not self._window.has_begun:
            self._window.begin(assignment.cluster.record_bytes(assignment.logs.present))

    def note_epoch(self) -> None:
        """Has this turn decide, and progress name, the epoch; work goes on under later ones."""
        epoch = self.begun.committer.watch.note_epoch()
        if epoch != self._noted:
            self._noted = epoch
            self._context.trace.write(EpochSeen(epoch.number))
            self._context.meter.joined(epoch.number)

    def end(self, *, well: bool, is_stopping: bool) -> None:
        """Ends the work, if there is any.

        Args:
            well: Whether the job goes on or ends without an error.
            is_stopping: Whether the job is asked to stop: it does not wait for Kafka for long.
        """
        state, self.state = self.state, None
        if state is not None:
            within = WRITE_WITHIN
            if is_stopping:
                is_away = state.assignment.primary.is_unanswered
                within = 0.0 if is_away else _LAST_WRITE
            state.end(well=well, within=within)
