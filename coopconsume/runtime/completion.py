"""Pause and end of a job, and who waits for them; with ``availableNow`` it ends by itself."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from coopconsume.runtime import rebalance

if TYPE_CHECKING:
    from coopconsume.runtime.dispatch.dispatcher import Dispatcher
    from coopconsume.runtime.epoch_state import EpochState
    from coopconsume.runtime.events import EndsAwaited, PauseRequested, StopRequested
    from coopconsume.runtime.job_context import JobContext


class Completion:
    """What users have asked of a job: to stop, to pause, or to say when records are committed.

    Only the loop calls its methods.

    Args:
        context: Of the job.
        dispatcher: Stops slots, and knows which are at work.

    Attributes:
        is_stopping: Whether the job is asked to stop.
        stop_by: When a stop no longer waits for handlers, on the monotonic clock.
        is_paused: Whether the job is asked to start no handlers.
    """

    def __init__(self, context: JobContext, dispatcher: Dispatcher) -> None:
        self._available_now = context.job_spec.available_now
        self._meter = context.meter
        self._dispatcher = dispatcher
        #: With the instants at which they came, on the monotonic clock.
        self._waiters: list[tuple[EndsAwaited, float]] = []
        self.is_stopping = False
        self.stop_by = math.inf
        self.is_paused = False

    def stop(self, event: StopRequested, epoch_state: EpochState | None) -> None:
        """Has the job stop once its slots have ended."""
        self.is_stopping = True
        self.stop_by = min(self.stop_by, event.stop_by)
        if event.drain:
            self._dispatcher.drain(epoch_state)
        else:
            self._dispatcher.stop(epoch_state)

    def pause(self, event: PauseRequested, epoch_state: EpochState | None) -> None:
        """Pauses the job, or has it go on."""
        self.is_paused = event.is_paused
        self._meter.paused(is_paused=event.is_paused)
        if event.is_paused:
            self._dispatcher.stop(epoch_state)

    @property
    def rests(self) -> bool:
        """Whether the job starts no handlers for now: a user or the circuit breaker pauses it."""
        return self.is_paused or self._dispatcher.breaker.state == "open"

    # -- threads that wait for records

    def await_ends(self, event: EndsAwaited) -> None:
        """Answers a thread once all records below some offsets are committed."""
        self._waiters.append((event, time.monotonic()))

    def _answer_waiters(self, epoch_state: EpochState) -> None:
        if self._waiters and not epoch_state.assignment.primary.has_unpublished:
            for waiter, since in list(self._waiters):
                if epoch_state.has_processed(waiter.ends, since):
                    waiter.answer.give(None)
                    self._waiters.remove((waiter, since))

    def answer_all(self) -> None:
        """Answers all threads that wait: the job has ended."""
        for waiter, _ in self._waiters:
            waiter.answer.give(None)

    # -- the end

    def is_reached(self, epoch_state: EpochState | None) -> bool:
        """Whether the job ends now; no hand-over of all shares runs."""
        if epoch_state is None:
            return self.is_stopping
        self._answer_waiters(epoch_state)
        late = time.monotonic() - self.stop_by
        is_at_work = self._dispatcher.runs.is_at_work(epoch_state) and late < 0
        is_too_late = max(late, epoch_state.committer.refused_for) >= rebalance.LAST_COMMIT
        if is_at_work or not (epoch_state.committer.has_all_it_can or is_too_late):
            return False
        if self.is_stopping or self.is_paused:
            return self.is_stopping
        if not self.is_drained(epoch_state):
            return False
        epoch_state.committer.raise_given_up()
        return epoch_state.committer.has_all

    def is_drained(self, epoch_state: EpochState) -> bool:
        """Whether a job with ``availableNow`` has nothing left to do, except to commit."""
        return (
            self._available_now
            and epoch_state.log_watch.knows_ends
            and not self._dispatcher.slots.barred
            and all(
                p.is_drained or (p.ledger.unpublished and p.ledger.has_outputs_enough)
                for p in epoch_state.busy
            )
        )
