"""``python -m tests.chaos --rounds N --seed S``: rounds of bad luck for three applications."""

from __future__ import annotations

import sys
from pathlib import Path

from coopconsume.local.broker import LocalKafka
from tests.chaos import rounds
from tests.chaos.frame import Tell, run
from tests.chaos.ground import CLAIMED, RECREATED, Ground

#: Kafka's default, which `LocalKafka` turns off.
_BROKER = {"group.initial.rebalance.delay.ms": 3000}
_TOPICS = {"t": 3, "u": 2, RECREATED: 1, CLAIMED: 1}


def play(folder: Path, count: int, seed: int, tell: Tell) -> bool:
    """Play the rounds; whether the checker finds that every promise was kept."""
    with (
        LocalKafka(folder / "kafka", config=_BROKER) as kafka,
        Ground(kafka, _TOPICS, folder) as ground,
    ):
        rounds.begin(ground, 3)
        tell("three applications share three topics")
        rounds.play(ground, count, seed, tell)
        rounds.finish(ground)
        verdict = ground.verdict()
    sys.stdout.write(f"{verdict}\n")
    return verdict.ok


if __name__ == "__main__":
    sys.exit(run("chaos", __doc__, 5, play))
