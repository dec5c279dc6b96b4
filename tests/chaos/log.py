"""``python -m tests.chaos.log``: rounds of disturbances of three fenced writers, in both modes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from coopconsume.testing.local.broker import LocalKafka
from tests.chaos.frame import Report, run
from tests.chaos.log_rounds import KINDS, Rounds


def play(folder: Path, count: int, seed: int, report: Report, kinds: Sequence[str]) -> bool:
    """Plays the rounds in both visibilities; returns whether both logs are right."""
    well = True
    for visibility in ("read_committed", "filter"):
        with LocalKafka(folder / visibility) as kafka:
            kafka.create_topic("t", 1)
            rounds = Rounds(kafka, "t", visibility, seed)
            rounds.play(rounds.draw(count, kinds or KINDS), report)
            found = rounds.verdict()
        counts = {e: rounds.count(e) for e in ("acked", "refused", "unknown", "owner", "fenced")}
        report(f"{visibility}: {counts}")
        if rounds.ended:
            report(f"markers that Kafka omitted, written by the test: {rounds.ended}")
        for problem in found:
            report(f"WRONG: {problem}")
        well = well and not found
    return well


if __name__ == "__main__":
    sys.exit(run("chaos.log", __doc__, 20, play, KINDS))
