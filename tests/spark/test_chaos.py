"""Applications on two topics, with real drivers, JVMs and workers, under disturbances."""

from __future__ import annotations

import pytest

from coopconsume.testing.local.broker import LocalKafka
from tests.chaos.harness import Harness
from tests.chaos.rounds import (
    begin,
    cut_channels,
    finish,
    half_open_channels,
    restart,
    restart_broker,
)

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.slow, pytest.mark.nightly]


def test_applications_share_two_topics_under_disturbances(tmp_path):
    """One joins, one is killed while a handler of it goes on, one sleeps, the broker restarts.

    Nothing is lost, the order of keys holds over all members, no two handlers of a key overlap.
    Only what was in flight in a disturbed process is done again, and nothing where an application
    joins, a static member restarts, and a driver and its slots lose their connections. ``make
    chaos`` plays longer runs, drawn by a seed.
    """
    config = {"group.initial.rebalance.delay.ms": 3000}
    with (
        LocalKafka(tmp_path / "kafka", config=config) as kafka,
        Harness(
            kafka, {"t": 2, "u": 1}, tmp_path, batch_time=0.5, handler_timeout=20.0, trickle=5
        ) as harness,
    ):
        begin(harness, 2)
        static, _ = harness.apps
        harness.start()
        harness.wait_for_members(3)
        restart(harness, static)
        harness.wait_for_members(3)
        for lose in (cut_channels, half_open_channels):
            harness.produce(200)
            lose(harness, harness.alive[0])
        harness.orphan(harness.hang())
        sleeper = next(app for app in harness.alive if app.instance is None)
        epoch = harness.epoch()
        harness.pause(sleeper)
        harness.wait(lambda: harness.epoch() > epoch, "epoch without the sleeper", 300)
        harness.wake(sleeper)
        harness.wait_for_members(2)
        restart_broker(harness, sleeper)
        harness.wait_for_members(2)
        finish(harness)
        verdict = harness.verdict()
    assert verdict.ok, f"{verdict}\n{harness.report()}"
    assert verdict.done == sum(map(len, harness.topics.produced.values()))
