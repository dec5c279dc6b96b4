"""The rebalances of a running job: shares that leave, and the hand-over of all shares.

A membership asks of the loop when its group rebalances: whether the work continues meanwhile, to
give up some shares, to add some, or to hand over all. An answer may need some turns of the loop:
handlers must end, and what they did must be committed.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from assignors.shares import common

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assignors import Share
    from coopconsume.runtime.commit.next_commit import CommitMark
    from coopconsume.runtime.current_epoch import CurrentEpoch
    from coopconsume.runtime.dispatch.dispatcher import Dispatcher
    from coopconsume.runtime.epoch_state import EpochState
    from coopconsume.runtime.events import (
        HandOverRequested,
        RebalanceBegun,
        Reply,
        SharesGained,
        SharesRevoked,
    )
    from coopconsume.runtime.job_context import JobContext
    from coopconsume.runtime.plan import Partition

log = logging.getLogger(__name__)

#: Seconds that the last commit before a hand-over may take.
LAST_COMMIT: Final = 10.0


@dataclass
class HandOver:
    """The hand-over of all shares.

    Attributes:
        until: When the wait for running handlers ends, on the monotonic clock.
        answer: The parts of shares on which handlers may still run.
        is_late: Whether that wait is over; later reports do not count.
    """

    until: float
    answer: Reply[Sequence[Share]]
    is_late: bool = False


@dataclass
class Leaving:
    """The hand-over of some shares, while the work on the others goes on.

    Attributes:
        shares: The shares.
        until: When the wait for running handlers ends, on the monotonic clock.
        answer: The parts of them on which handlers may still run.
        partitions: The partitions of the shares.
        mark: What was not committed when the last handler of them had ended; None before that.
    """

    shares: Sequence[Share]
    until: float
    answer: Reply[Sequence[Share] | None]
    partitions: Sequence[Partition]
    mark: CommitMark | None = None


class Rebalance:
    """What the membership has asked of the loop and got no answer to yet. Only the loop calls it.

    Args:
        context: Of the job.
        dispatcher: Stops slots, and knows which are at work.
        current: The work of the job.

    Attributes:
        hand_over: The hand-over of all shares, if one runs.
        leaving: The hand-over of some shares, if one runs.
        question: Asks whether the work continues during the rebalance.
    """

    def __init__(self, context: JobContext, dispatcher: Dispatcher, current: CurrentEpoch) -> None:
        self._dispatcher = dispatcher
        self._current = current
        self._meter = context.meter
        self._ordering = context.job_spec.ordering
        #: With state no change of it may be left uncommitted.
        self._is_exact = context.job_spec.state is not None
        self.hand_over: HandOver | None = None
        self.leaving: Leaving | None = None
        self.question: RebalanceBegun | None = None

    @property
    def is_awaited(self) -> bool:
        """Whether the membership waits until all shares are handed over, or the work continues."""
        return self.hand_over is not None or self.question is not None

    @property
    def awaits_commit(self) -> bool:
        """Whether shares can be handed over once what is done is committed: it is not put off."""
        is_awaited = self.leaving is not None and self.leaving.mark is not None
        return self.hand_over is not None or is_awaited

    @property
    def is_late(self) -> bool:
        """Whether the time for handlers is over in a hand-over: their reports do not count.

        Each that counted would have to be committed before the hand-over ends, and handlers that
        end one after another would prolong it.
        """
        return self.hand_over is not None and self.hand_over.is_late

    # -- requests of the membership

    def ask(self, question: RebalanceBegun) -> None:
        """Answers in later turns whether the work continues while the group rebalances."""
        is_ending = self._current.unbegun is not None or self.hand_over is not None
        if self._current.state is None or is_ending:
            question.answer.give(value=False)
        else:
            self.question = question

    def hand_over_all(self, event: HandOverRequested) -> None:
        """Begins to hand over all shares."""
        if self._current.state is None:
            event.answer.give(())
        else:
            self.hand_over = HandOver(event.until, event.answer)
            self._dispatcher.stop(self._current.state)

    def leave(self, event: SharesRevoked, *, is_stopping: bool) -> None:
        """Begins to give some shares up, or has all shares handed over."""
        epoch_state = self._movable(event.shares, is_stopping=is_stopping)
        if epoch_state is None:
            event.answer.give(None)
            return
        partitions = epoch_state.leave(event.shares)
        self.leaving = Leaving(event.shares, event.until, event.answer, partitions)
        self._dispatcher.leave(epoch_state, partitions)

    def extend(self, event: SharesGained, *, is_stopping: bool) -> None:
        """Adds the gained shares, or has all shares handed over."""
        may_extend = self._movable(event.gained.shares, is_stopping=is_stopping) is not None
        if may_extend:
            self._current.extend(event.gained)
        event.answer.give(may_extend)

    def _movable(self, shares: Sequence[Share], *, is_stopping: bool) -> EpochState | None:
        """Returns the work that continues while some shares come or go.

        Returns:
            None if all shares are to be handed over.
        """
        is_ending = self.hand_over is not None or is_stopping or self._current.unbegun is not None
        is_part = self._ordering == "partition" and not all(
            share.key_range.is_full for share in shares
        )
        if is_ending or is_part or not self._dispatcher.may_leave:
            return None
        return self._current.state

    # -- answers, some turns later

    def end_by(self, instant: float) -> None:
        """Has a hand-over of all shares wait for handlers until an instant at most."""
        if self.hand_over is not None:
            self.hand_over.until = min(self.hand_over.until, instant)

    def handed_over(self) -> None:
        """Answers the hand-over of all shares, if one runs."""
        hand_over, self.hand_over = self.hand_over, None
        if hand_over is not None:
            hand_over.answer.give(hand_over.answer.value)

    def refuse(self) -> None:
        """Has all shares handed over instead of what else was asked."""
        question, self.question = self.question, None
        if question is not None:
            question.answer.give(value=False)
        leaving, self.leaving = self.leaving, None
        if leaving is not None:
            leaving.answer.give(None)

    def let_leave(self, epoch_state: EpochState) -> None:
        """Gives leaving shares up once no handler of theirs runs and what is done is committed."""
        leaving, now = self.leaving, time.monotonic()
        if leaving is None:
            return
        is_late = now > leaving.until
        if not is_late and any(partition.dealer.leaves(now) for partition in leaving.partitions):
            self._dispatcher.leave(epoch_state, leaving.partitions)
            return
        if leaving.mark is None:
            if is_late and self._is_exact:
                self._hand_over_all_instead(leaving)
                return
            self._dispatcher.leave(epoch_state, leaving.partitions, is_late=is_late)
            leaving.mark = epoch_state.committer.mark(leaving.partitions)
        is_over = epoch_state.committer.refused_for > 0 or now > leaving.until + LAST_COMMIT
        if not (epoch_state.committer.has_since(leaving.mark) or is_over):
            return
        if self._is_exact and not epoch_state.committer.is_committed(leaving.mark):
            self._hand_over_all_instead(leaving)
            return
        unsure = self._dispatcher.unsure_of(leaving.partitions)
        running = common(epoch_state.may_run(unsure), leaving.shares)
        epoch_state.has_left(leaving.partitions, leaving.shares)
        self._meter.latency.retain(epoch_state.uncommitted)
        self.leaving = None
        leaving.answer.give(running)

    def _hand_over_all_instead(self, leaving: Leaving) -> None:
        """Has all shares handed over, as changes of the state may be left that are not committed.

        The next owner of these keys looks once which changes count, so none may come to count
        later. Once all shares are handed over, the epoch prevents that.
        """
        self.leaving = None
        leaving.answer.give(None)

    def answer_question(self, epoch_state: EpochState, *, is_stopping: bool) -> None:
        """Answers whether the work continues while the group rebalances, once that is known."""
        question = self.question
        if question is None:
            return
        may_continue = False
        is_over = self.hand_over is not None or is_stopping or time.monotonic() > question.until
        if self._dispatcher.leases.spec is not None and not is_over:
            epoch_state.assignment.is_between_epochs = True
            if not epoch_state.committer.may_rebalance:
                return
            may_continue = epoch_state.may_continue and not self._dispatcher.sizes.holds_too_much(
                epoch_state
            )
        if not may_continue:
            epoch_state.assignment.is_between_epochs = False
        self.question = None
        question.answer.give(may_continue)

    def left_of(self, epoch_state: EpochState | None) -> list[Share]:
        """Returns the parts of shares on which slots are or may be at work."""
        if epoch_state is None:
            return []
        return epoch_state.may_run(self._dispatcher.unsure(epoch_state))

    def ends_hand_over(self, epoch_state: EpochState, hand_over: HandOver) -> bool:
        """Returns whether slots have reported and all is committed, so that the hand-over ends.

        Once the time for that is over, what still runs is given up.
        """
        out = self._dispatcher.runs.at_work(epoch_state)
        if out and not hand_over.is_late and time.monotonic() < hand_over.until:
            return False
        if not hand_over.is_late:
            hand_over.is_late = True
            hand_over.answer.value = self.left_of(epoch_state)
            if out:
                self._dispatcher.give_up(epoch_state)
                log.warning(
                    "slots %s did not finish within drainTimeout; new owners wait up to %.0f s and "
                    "reprocess their uncommitted records",
                    sorted(out),
                    epoch_state.assignment.runs_on_for,
                )
        committer = epoch_state.committer
        is_over = committer.refused_for > 0 or time.monotonic() > hand_over.until + LAST_COMMIT
        return committer.has_all_it_can or is_over
