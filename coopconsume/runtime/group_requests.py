"""What a group asks of a job: the worker of its membership."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from coopconsume.runtime import rebalance
from coopconsume.runtime.events import (
    AssignmentLost,
    AssignmentReceived,
    HandOverRequested,
    MembershipFailed,
    RebalanceBegun,
    Reply,
    SharesGained,
    SharesRevoked,
)

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from assignors import Share
    from coopconsume.group.epoch_assignment import EpochAssignment
    from coopconsume.runtime.dispatch.dispatcher import Dispatcher
    from coopconsume.runtime.job_context import JobContext


class GroupRequests:
    """A `coopconsume.group.callbacks.Worker`: has a job work on the assignment of its member.

    Its methods are called from the membership's threads. Each request is an event; a thread
    that needs the answer of the loop waits for it, or for the end of the job.

    Args:
        context: Of the job.
        dispatcher: Knows whether slots can give up or get shares at work.
        ended: Is set once the job has ended.
    """

    def __init__(self, context: JobContext, dispatcher: Dispatcher, ended: threading.Event) -> None:
        self._events = context.events
        self._state = context.job_spec.state
        self._dispatcher = dispatcher
        self._ended = ended

    def begin(self, assignment: EpochAssignment) -> None:
        """Begins the work on an assignment."""
        self._events.post(AssignmentReceived(assignment))

    def hand_over(self, timeout: float) -> Sequence[Share]:
        """Starts no more records, lets running handlers end in time, and commits what is done.

        Returns:
            The parts of shares on which handlers may still run.
        """
        answer: Reply[Sequence[Share]] = Reply(())
        self._events.post(HandOverRequested(time.monotonic() + timeout, answer))
        return answer.wait(self._ended)

    def give_up(self, shares: Sequence[Share], timeout: float) -> Sequence[Share] | None:
        """Ends the work on some shares and commits what is done of them; the rest continues.

        Returns:
            The parts of them on which handlers may still run; None: hand over all shares instead.
        """
        answer: Reply[Sequence[Share] | None] = Reply(None)
        self._events.post(SharesRevoked(shares, time.monotonic() + timeout, answer))
        return answer.wait(self._ended)

    def extend(self, load: Callable[[], EpochAssignment]) -> EpochAssignment | None:
        """Adds shares, and continues with the others.

        Args:
            load: Returns the gained shares.

        Returns:
            The gained shares; None if all shares are to be handed over.
        """
        if not self._dispatcher.may_leave:
            return None
        gained = load()
        if self._state is not None:
            self._state.extend(gained)
        event = SharesGained(gained, Reply(value=False))
        self._events.post(event)
        return event.gained if event.answer.wait(self._ended) else None

    def continue_work(self, timeout: float) -> bool:
        """Returns whether the work can continue while the group rebalances.

        Args:
            timeout: Seconds to wait for the answer to a commit that could not be repeated.

        Returns:
            Whether it continues; if not, all shares are to be handed over.
        """
        answer = Reply(value=False)
        until = time.monotonic() + min(timeout, rebalance.LAST_COMMIT)
        self._events.post(RebalanceBegun(until, answer))
        return answer.wait(self._ended) and not self._ended.is_set()

    def drop(self) -> None:
        """Ends the work on all shares: other members own them."""
        self._events.post(AssignmentLost())

    def fail(self, error: BaseException) -> None:
        """Ends the job with an error of the membership."""
        self._events.post(MembershipFailed(error))
