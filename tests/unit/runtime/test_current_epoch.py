"""The work on an assignment begins once, also if Kafka does not answer at first."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any
from unittest import mock

from coopconsume.errors import BrokerUnreachable
from coopconsume.runtime.events import AssignmentReceived
from tests.bench.idle import idle_job


def turn(job: Any) -> None:
    """A turn of the loop without its wait."""
    with mock.patch.object(job._events, "take", return_value=()):
        job._turn()


def test_an_assignment_that_could_not_begin_does_not_end_the_next_one() -> None:
    """It is tried again only until another one comes."""
    job: Any = idle_job(1)
    first, job._current.state = job._current.state.assignment, None
    first.primary.note_unanswered = lambda: None
    second = copy.copy(first)
    second.cluster = SimpleNamespace(
        log_ends=first.cluster.log_ends, record_bytes=lambda _: None, refresh=dict
    )
    first.cluster = SimpleNamespace(
        log_ends=mock.Mock(side_effect=BrokerUnreachable("localhost:1", "no answer"))
    )
    job._membership.assignment = first
    job._handle(AssignmentReceived(first))
    assert job._current.unbegun is first
    job._membership.assignment = second
    job._handle(AssignmentReceived(second))
    assert job.partitions
    turn(job)
    assert job._current.begun.assignment is second
    job._end_epoch()
    job._dispatcher.close()
