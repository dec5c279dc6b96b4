"""Three applications on one partition, with real drivers, JVMs and workers, on bad days."""

from __future__ import annotations

import time

import pytest

from coopconsume.local.broker import LocalKafka
from tests.chaos.ground import SESSION, Ground
from tests.chaos.rounds import begin, finish, play

pytestmark = [pytest.mark.spark, pytest.mark.broker]
#: Always the same rounds; ``make chaos`` plays new ones.
_SEED = 7


def test_three_applications_share_one_partition_on_a_bad_day(tmp_path):
    """A fourth joins, one is killed whole and one alone, one sleeps, the broker restarts.

    Nothing is lost, the order of keys holds over all members, no two handlers of a key overlap,
    and only what was in flight is done again. Then two rounds more.
    """
    with LocalKafka(tmp_path / "kafka") as kafka:
        kafka.create_topic("t", 1)
        with Ground(kafka, "t", tmp_path) as ground:
            begin(ground, 3)
            first, second, third = ground.apps
            ground.start()
            ground.produce(400)
            ground.wait_for_members(4)
            ground.pause(first)
            time.sleep(SESSION + 1.0)
            ground.kill(second, driver_alone=True)
            ground.wake(first)
            ground.wait_for_members(3)
            ground.produce(400)
            ground.kill(third, driver_alone=False)
            kafka.kill()
            time.sleep(1.0)
            kafka.start()
            ground.wait_for_members(2)
            told: list[str] = []
            play(ground, 2, _SEED, told.append)
            finish(ground)
            verdict = ground.verdict()
    assert verdict.ok, f"{told}\n{verdict}\n{ground.told()}"
    assert verdict.done == len(ground.produced)
