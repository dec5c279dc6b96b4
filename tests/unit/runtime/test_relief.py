"""Which slots are asked for the records that they have not started."""

from __future__ import annotations

from types import SimpleNamespace

from coopconsume.runtime.dispatch.relief import SLOW, SLOW_WHILE_BUSY, slow_slots
from coopconsume.runtime.dispatch.slot_task import SlotTask


def batch(*, started, met_at, heard_at=()):
    """A batch of two slots with a channel."""
    return SimpleNamespace(
        channel=True, trial=False, interrupt_at=None, is_real_time=False, started=started,
        active=[
            SlotTask(slot, met_at=dict(met_at).get(slot), heard_at=dict(heard_at).get(slot))
            for slot in (0, 1)
        ],
    )  # fmt: skip


def slow(one, now, *, has_idle=False):
    """The slots that are asked."""
    return [task.slot for _, task in slow_slots([one], now, has_idle=has_idle)]


def test_a_slot_has_its_time_from_when_it_is_connected_on():
    """Spark may have read and sorted for long before, and does so for slots that are not there."""
    one = batch(started=0.0, met_at={1: 100.0})
    assert slow(one, 100.0 + SLOW_WHILE_BUSY) == []
    assert slow(one, 100.1 + SLOW_WHILE_BUSY) == [1]
    assert slow(one, 100.1 + SLOW) == []
    assert slow(one, 100.1 + SLOW, has_idle=True) == [1]


def test_a_slot_that_reports_is_not_asked():
    """It makes progress."""
    one = batch(started=0.0, met_at={0: 1.0, 1: 1.0}, heard_at={1: 50.0})
    assert slow(one, 51.0) == [0]
