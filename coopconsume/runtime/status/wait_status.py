"""Keeps up to date what progress and status say that a job waits for."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

from coopconsume.runtime.status.batches import batch_facts, longest_silence, oldest_call
from coopconsume.runtime.status.waiting import JobFacts, waiting_for

if TYPE_CHECKING:
    from coopconsume.group.membership import Membership
    from coopconsume.runtime.completion import Completion
    from coopconsume.runtime.dispatch.dispatcher import Dispatcher
    from coopconsume.runtime.epoch_state import EpochState
    from coopconsume.runtime.job_context import JobContext
    from coopconsume.runtime.rebalance import Rebalance

#: Seconds between two updates of what the job waits for.
_WAITS_EVERY: Final = 0.5


class WaitStatus:
    """Says what a job waits for while it commits nothing. Only the loop calls its methods.

    Args:
        context: Of the job; its meter is given what is found.
        dispatcher: Knows what slots do.
        rebalance: Knows whether shares are handed over.
        completion: Knows whether the job is asked to stop or to pause.
        membership: Knows why the member has no shares.
    """

    def __init__(
        self,
        context: JobContext,
        dispatcher: Dispatcher,
        rebalance: Rebalance,
        completion: Completion,
        membership: Membership,
    ) -> None:
        self._spark = context.spark
        self._meter = context.meter
        self._events = context.events
        self._dispatcher = dispatcher
        self._rebalance = rebalance
        self._completion = completion
        self._membership = membership
        self._updated_at = -math.inf

    def expire(self) -> None:
        """Has the next `update` find it out again."""
        self._updated_at = -math.inf

    def update(self, epoch_state: EpochState | None) -> None:
        """Finds out what the job waits for, if that is some time ago."""
        now = time.monotonic()
        # An assignment that is about to begin is nothing to wait for.
        is_about_to_begin = epoch_state is None and not self._events.is_empty
        if now - self._updated_at < _WAITS_EVERY or is_about_to_begin:
            return
        self._updated_at = now
        batches = self._dispatcher.runs.of(epoch_state)
        self._meter.silent = longest_silence(batches, now)
        self._meter.oldest_call = oldest_call(batches, now)
        found = None
        if self._completion.rests or self._meter.is_quiet:
            found = waiting_for(self._facts(epoch_state, now), now)
        self._meter.waits(found, [] if epoch_state is None else epoch_state.ours)

    def _facts(self, epoch_state: EpochState | None, now: float) -> JobFacts:
        if epoch_state is None:
            return JobFacts(joining=self._membership.joining)
        dispatcher, hand_over = self._dispatcher, self._rebalance.hand_over
        breaker, batches = dispatcher.breaker, dispatcher.runs.of(epoch_state)
        return JobFacts(
            partitions=epoch_state.ours,
            batches=batch_facts(batches, dispatcher.leases, self._spark, self._meter.title, now),
            hand_over=None if hand_over is None else hand_over.until - now,
            is_stopping=self._completion.is_stopping,
            is_paused=self._completion.is_paused,
            breaker=breaker.until - now if breaker.state == "open" else None,
            breaker_reason=breaker.reason,
            kafka=epoch_state.log_watch.kafka_error,
            unanswered=epoch_state.assignment.store.unanswered,
            barred={slot: until - now for slot, until in dispatcher.slots.barred.items()},
            failing={slot: (at - now, why) for slot, (at, why) in dispatcher.slots.failing.items()},
            next_trigger=dispatcher.next_trigger,
            is_starting=not self._meter.has_handled,
        )
