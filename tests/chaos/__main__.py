"""``python -m tests.chaos --rounds N --seed S``: rounds of bad luck for three applications."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from coopconsume.local_kafka import LocalKafka
from tests.chaos.ground import Ground
from tests.chaos.rounds import begin, finish, play


def main() -> int:
    """Play the rounds; returns 1, and keeps the evidence, if a promise was broken."""
    parser = argparse.ArgumentParser(prog="tests.chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how many (5)")
    parser.add_argument("--seed", type=int, help="of the draws; by default a new one")
    given = parser.parse_args()
    seed = random.randrange(2**32) if given.seed is None else given.seed
    began = time.monotonic()

    def tell(text: str) -> None:
        sys.stdout.write(f"{time.monotonic() - began:7.1f} s  {text}\n")
        sys.stdout.flush()

    tell(f"{given.rounds} rounds with --seed {seed}")
    folder = Path(tempfile.mkdtemp(prefix="coopconsume-chaos-"))
    kept = True
    try:
        with LocalKafka(folder / "kafka") as kafka:
            kafka.create_topic("t", 1)
            with Ground(kafka, "t", folder) as ground:
                begin(ground, 3)
                tell("three applications share one partition")
                play(ground, given.rounds, seed, tell)
                finish(ground)
                verdict = ground.verdict()
        sys.stdout.write(f"{verdict}\n")
        kept = not verdict.ok
        return 0 if verdict.ok else 1
    finally:
        if kept:
            tell(f"--seed {seed} repeats it; histories, logs and tables are in {folder}")
        else:
            shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
