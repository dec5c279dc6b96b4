"""A batch that reaches its slots too late starts nothing, whatever the clocks of hosts say."""

from __future__ import annotations

import math
import time

import pytest

from coopconsume.group.owned import STARTS_WITHIN
from coopconsume.runtime.dispatch.latest_start import LatestStart
from tests.unit.worker.slot_harness import WAYS, run


@pytest.mark.parametrize("way", WAYS)
def test_a_slot_that_gets_its_rows_too_late_starts_none(way):
    """They are planned again; in time all of them are handled."""
    seen = []
    rows = [(p, o, b"k%d" % (o % 3)) for p in (0, 1) for o in range(5)]
    report = run(lambda record: seen.append(record.offset), rows, way=way,
                 latest_start=time.time() - 5)  # fmt: skip
    assert (seen, report.stats.handled, report.stats.failures, report.end.unknown) == (
        [],
        0,
        0,
        False,
    )
    assert report.end.late >= 5
    assert {part: found.resume for part, found in report.partitions.items()} == {0: 0, 1: 0}
    report = run(lambda record: seen.append(record.offset), rows, way=way,
                 latest_start=time.time() + 3_600)  # fmt: skip
    assert (len(seen), report.stats.handled, report.end.late) == (10, 10, 0.0)


@pytest.mark.parametrize("skew", [-3_600.0, 0.0, 7_200.0])
def test_a_latest_start_is_by_the_workers_clocks(skew):
    """A report shows them, however far they are off; what comes late shows too little, never more.

    With no report yet, clocks are taken to agree.
    """
    now = 1_000_000.0
    latest = LatestStart(2, is_limited=True, clock=lambda: now)
    assert latest.of_batch() == now + STARTS_WITHIN
    for delay in (40.0, 0.5, 9.0):
        latest.heard(now - delay + skew)
    assert latest.of_batch() == now + STARTS_WITHIN + skew - 0.5
    now += 100.0
    for _ in range(20):
        latest.heard(now - 1 + skew / 2)  # a clock was set meanwhile
    assert latest.of_batch() == now + STARTS_WITHIN + skew / 2 - 1
    assert LatestStart(2, is_limited=False).of_batch() == math.inf
