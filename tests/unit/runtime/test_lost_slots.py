"""Lost slots are logged, with the facts for programs."""

from __future__ import annotations

import logging

import pytest

from coopconsume.runtime.settle.lost_slots import log_ended_worker, log_lost_slot
from coopconsume.worker.report import SlotEnd, SlotReport

NAMES = [("orders", 1), ("orders", 2)]


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({}, "no handler was running"),
        (
            {"end": SlotEnd(crashed=True, culprits=[(1, 5)])},
            "the handler of orders-2@5 was running",
        ),
        (
            {"end": SlotEnd(crashed=True, overdue=True, culprits=[(1, 5), (0, 9)])},
            "the handler of orders-2@5, orders-1@9 did not end in time",
        ),
        (
            {"end": SlotEnd(crashed=True, suspects=[(0, offset) for offset in range(5)])},
            "the handler of orders-1@0, orders-1@1, orders-1@2, orders-1@3, … was running",
        ),
    ],
)
def test_the_end_of_a_worker_is_logged_with_what_ran(facts, reason, caplog):
    """Its process, the records at work, and that what was not reported is processed again."""
    log_ended_worker(SlotReport(0, 3, 7, **{"end": SlotEnd(crashed=True)} | facts), NAMES)
    (line,) = caplog.records
    assert line.levelno == logging.WARNING
    assert line.getMessage() == (
        f"slot 3: its worker, process 7, has ended: {reason}; what the slot had not reported is "
        "processed again"
    )
    assert line.lostSlot == {"slot": 3, "pid": 7, "reason": reason, "mayRunFor": 0.0}


def test_a_lost_slot_is_logged_with_the_wait_for_it(caplog):
    """Its handlers may still run."""
    log_lost_slot(3, 0, 7.0)
    (line,) = caplog.records
    assert line.getMessage() == (
        "slot 3 is lost: what it had not reported is processed again in 7 s"
    )
    assert line.lostSlot == {"slot": 3, "pid": 0, "reason": "it is lost", "mayRunFor": 7.0}
