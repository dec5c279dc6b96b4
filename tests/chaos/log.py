"""``python -m tests.chaos.log``: rounds of bad luck for three fenced writers, in both manners."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from coopconsume.local_kafka import LocalKafka
from tests.chaos.log_rounds import Rounds


def main() -> int:
    """Play the rounds in both visibilities; returns 1 if a log is wrong."""
    parser = argparse.ArgumentParser(prog="tests.chaos.log", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="how many in each visibility (20)")
    parser.add_argument("--seed", type=int, help="of the draws; by default a new one")
    given = parser.parse_args()
    seed = random.randrange(2**32) if given.seed is None else given.seed
    began = time.monotonic()

    def tell(text: str) -> None:
        sys.stdout.write(f"{time.monotonic() - began:7.1f} s  {text}\n")
        sys.stdout.flush()

    tell(f"{given.rounds} rounds with --seed {seed}")
    wrong = False
    with tempfile.TemporaryDirectory(prefix="coopconsume-chaos-log-") as folder:
        for visibility in ("read_committed", "filter"):
            with LocalKafka(Path(folder) / visibility) as kafka:
                kafka.create_topic("t", 1)
                rounds = Rounds(kafka, "t", visibility, seed, whole_broker=True)
                rounds.play(given.rounds, tell)
                found = rounds.verdict()
            counts = {
                e: rounds.count(e) for e in ("acked", "refused", "unknown", "owner", "fenced")
            }
            tell(f"{visibility}: {counts}")
            for problem in found:
                tell(f"WRONG: {problem}")
            wrong = wrong or bool(found)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
