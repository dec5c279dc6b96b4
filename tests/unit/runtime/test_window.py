"""How many offsets the next batch spans, by what the one before was."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from assignors import KeyRange
from commits import OffsetRanges
from coopconsume import Options
from coopconsume.runtime.plan import Limits, plan_batch
from coopconsume.runtime.plan.window import FIRST_WINDOW, Window
from tests.partitions import make_partition

OPTIONS = Options.parse(
    {
        "kafka.bootstrap.servers": "nowhere:1", "kafka.group.id": "g", "subscribe": "t",
        "commitTable": "/nowhere", "batchTime": 10,
    }
)  # fmt: skip


def batch(fraction: float, *, handled: int = 0, rate: float = 0.0, span: int = 10**6) -> Any:
    """A batch that is over; one without a rate has timed out."""
    plan = SimpleNamespace(fraction=fraction, span=span)
    return SimpleNamespace(plan=plan, handled=handled, filtered=0, rate=rate, timed_out=not rate)


@pytest.mark.parametrize("fraction", [1.0, 0.5, 0.25])
def test_a_part_of_a_partition_gets_as_much_to_do_as_all_of_it(fraction: float) -> None:
    """It spans more, as what is between is for others."""
    slow, fast = Window(OPTIONS, 2), Window(OPTIONS, 2)
    slow.completed(batch(fraction, handled=400))
    assert slow.offsets * fraction == 800
    fast.completed(batch(fraction, rate=10_000))
    assert fast.offsets * fraction == 10_000 * 10 / 2


def test_few_slots_shrink_the_window_of_all_by_little() -> None:
    """One may be slow by a key of its own."""
    window = Window(OPTIONS, 32)
    window.completed(batch(1.0, rate=1.0))
    assert window.offsets == FIRST_WINDOW
    window.completed(batch(1 / 32, handled=1))
    assert window.offsets == FIRST_WINDOW // 4
    window.completed(batch(1.0, handled=300))
    assert window.offsets == 600
    window.completed(batch(1.0, handled=1))
    assert window.offsets == 32


def test_slots_that_give_records_back_need_not_read_all_of_them_again() -> None:
    """The next batch spans what they handle in a time box; what made them stop says little more."""
    window = Window(OPTIONS, 2)
    window.begin(100.0)
    window.stopped(batch(0.5))
    assert window.offsets > 10**5, "nothing is known of handlers"
    window.stopped(batch(0.5, handled=1, rate=10**6))
    assert window.offsets > 10**5
    window.stopped(batch(0.5, handled=700, rate=2_000))
    assert window.offsets == 2_000 * 10 / 0.5
    window.stopped(batch(0.5, handled=1, rate=0.01))
    assert window.offsets == FIRST_WINDOW


def test_a_plan_knows_its_part_of_what_is_read() -> None:
    """Over partitions, by how much of each is read."""
    whole, quarter = KeyRange().split(2), KeyRange().split(4)[:1]
    partitions = [
        make_partition(
            number, "t", number, stable=0, committed=OffsetRanges(), ordering="key",
            slots=[(slot, (key_range,)) for slot, key_range in enumerate(ranges)],
            whole=number == 0,
        )
        for number, ranges in enumerate([whole, quarter])
    ]  # fmt: skip
    for partition, end in zip(partitions, (300, 100), strict=True):
        partition.ledger.end = end
    plan = plan_batch(partitions, [0, 1], 0.0, Limits(10**6, 10**6))
    assert plan is not None
    assert plan.span == 400
    assert plan.fraction == pytest.approx((300 + 100 / 4) / 400)
