"""``python -m tests.chaos.queue``: rounds of disturbances for consumers of a work queue."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from coopconsume.testing.local.broker import LocalKafka
from tests.chaos.frame import Report, run
from tests.chaos.queue_rounds import KINDS, Rounds, TablePlace

#: The place of each replica: the broker of the records, another broker, or a table.
REPLICAS = (("home",), ("table",), ("broker", "home", "broker"), ("table", "home", "table"))


def play(folder: Path, count: int, seed: int, report: Report, kinds: Sequence[str]) -> bool:
    """Plays the rounds with each choice of replicas; returns whether all queues are right."""
    well = True
    for places in REPLICAS:
        place = folder / "-".join(places)
        with ExitStack() as stack:

            def broker(path: Path, stack: ExitStack = stack) -> LocalKafka:
                return stack.enter_context(LocalKafka(path, heap="512m"))

            home = broker(place / "kafka")
            replicas: list[LocalKafka | TablePlace] = []
            for n, kind in enumerate(places):
                if kind == "table":
                    replicas.append(TablePlace(place / f"table-{n}"))
                else:
                    replicas.append(home if kind == "home" else broker(place / f"kafka-{n}"))
            rounds = Rounds(home, replicas, "t", seed, place)
            rounds.play(rounds.draw(count, kinds or KINDS), report)
            found = rounds.verdict()
        report(f"replicas: {', '.join(places)}, {rounds.counts()}")
        for problem in found:
            report(f"WRONG: {problem}")
        well = well and not found
    return well


if __name__ == "__main__":
    sys.exit(run("chaos.queue", __doc__, 8, play, KINDS))
