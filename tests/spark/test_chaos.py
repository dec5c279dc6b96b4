"""Three applications on two topics, with real drivers, JVMs and workers, under disturbances."""

from __future__ import annotations

import time

import pytest

from coopconsume.local.broker import LocalKafka
from tests.chaos.ground import SESSION, Ground
from tests.chaos.rounds import begin, finish, play, restart, restart_broker

pytestmark = [pytest.mark.spark, pytest.mark.broker]
#: Always the same rounds; ``make chaos`` plays new ones.
_SEED = 7


def test_three_applications_share_two_topics_under_disturbances(tmp_path):
    """A fourth joins, one is killed whole and one alone, one sleeps, the broker restarts.

    Nothing is lost, the order of keys holds over all members, no two handlers of a key overlap.
    Only what was in flight in a disturbed process is done again, and nothing where applications
    join and a static member restarts. Then two rounds more.
    """
    with (
        LocalKafka(tmp_path / "kafka", config={"group.initial.rebalance.delay.ms": 3000}) as kafka,
        Ground(kafka, {"t": 2, "u": 1}, tmp_path, long=0.0, handler_timeout=12.0) as ground,
    ):
        begin(ground, 3)
        static, second, third = ground.apps
        ground.start()
        ground.produce(300)
        ground.wait_for_members(4)
        restart(ground, static)
        ground.wait_for_members(4)
        ground.pause(second)
        time.sleep(SESSION + 1.0)
        ground.kill(third, driver_alone=True)
        ground.wake(second)
        ground.wait_for_members(3)
        ground.produce(300)
        ground.kill(second, driver_alone=False)
        restart_broker(ground, static)
        ground.wait_for_members(2)
        told: list[str] = []
        play(ground, 2, _SEED, told.append)
        finish(ground)
        verdict = ground.verdict()
    assert verdict.ok, f"{told}\n{verdict}\n{ground.told()}"
    assert verdict.done == sum(map(len, ground.topics.produced.values()))
