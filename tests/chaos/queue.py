"""``python -m tests.chaos.queue``: rounds of disturbances for consumers of a work queue."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from coopconsume.testing.local.broker import LocalKafka
from tests.chaos.frame import Report, run
from tests.chaos.queue_rounds import KINDS, Rounds


def play(folder: Path, count: int, seed: int, report: Report, kinds: Sequence[str]) -> bool:
    """Plays the rounds with each number of replicas; returns whether both queues are right."""
    well = True
    for replicas in (1, 3):
        place = folder / f"replicas-{replicas}"
        with ExitStack() as stack:
            home, *others = [
                stack.enter_context(LocalKafka(place / f"kafka-{n}", heap="512m"))
                for n in range(replicas)
            ]
            rounds = Rounds(home, others, "t", seed, place)
            rounds.play(rounds.draw(count, kinds or KINDS), report)
            found = rounds.verdict()
        report(f"replicas: {replicas}, {rounds.counts()}")
        for problem in found:
            report(f"WRONG: {problem}")
        well = well and not found
    return well


if __name__ == "__main__":
    sys.exit(run("chaos.queue", __doc__, 8, play, KINDS))
