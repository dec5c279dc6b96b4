"""What users ask of a job's loop: to stop, to pause, and to say when records are committed."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from coopconsume.runtime.events import EndsAwaited, PauseRequested, Reply, StopRequested
from coopconsume.runtime.rebalance import HandOver
from tests.bench.idle import idle_job

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def job() -> Iterator[Any]:
    """A job with everything done, whose loop takes turns as a test says."""
    made = idle_job(1)
    made._membership.joining = ""
    made._epoch_state.assignment.primary.is_unanswered = True
    yield made
    made._end_epoch()
    made._dispatcher.close()


def turn(job: Any) -> None:
    """A turn without its wait."""
    with mock.patch.object(job._events, "take", return_value=()):
        job._turn()


@pytest.mark.parametrize("until", [math.inf, 3.0])
def test_a_hand_over_waits_no_longer_than_a_stop(job: Any, until: float) -> None:
    """The job does not end before; of two stops the earlier one counts."""
    answer: Reply[Any] = Reply(())
    job._rebalance.hand_over = HandOver(until, answer)
    job._handle(StopRequested(7.0, drain=False))
    job._handle(StopRequested(9.0, drain=False))
    assert not job._finished()
    assert job._rebalance.hand_over.until == min(until, 7.0)
    job._rebalance.handed_over()
    assert job._finished()


def test_a_thread_waits_for_records_until_they_are_committed_or_the_job_ends(job: Any) -> None:
    """The log ends at 10, and all of it is committed."""
    here, above = Reply(None), Reply(None)
    job._handle(EndsAwaited({("t", 0): 10}, here))
    job._epoch_state.partitions[0].ledger.end = 12
    job._epoch_state.log_watch._ends_at = -math.inf
    job._handle(EndsAwaited({("t", 0): 12}, above))
    assert not job._finished()
    assert here._is_given.is_set()
    assert not above._is_given.is_set()
    job._completion.answer_all()
    assert above._is_given.is_set()


def test_a_pause_is_said_in_the_next_turn(job: Any) -> None:
    """Also if it was said a moment ago what the job waits for."""
    turn(job)
    job._handle(PauseRequested(is_paused=True))
    turn(job)
    assert job._meter.waiting.reason == "paused"


def test_events_of_work_that_is_over_are_dropped(job: Any) -> None:
    """In their turn: the event before may have ended it."""
    first = job._epoch_state
    one, other, last = (EndsAwaited({}, Reply(None)) for _ in range(3))
    job._events.post(one, first)
    job._events.post(other, first)
    job._events.post(last)
    taken = job._events.take(0.0)
    assert next(taken) is one
    first.is_over = True
    assert list(taken) == [last]
    began = time.monotonic()
    assert list(job._events.take(0.01)) == []
    assert time.monotonic() - began >= 0.01
