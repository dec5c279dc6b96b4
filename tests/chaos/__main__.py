"""``python -m tests.chaos --rounds N --seed S``: rounds of disturbances for three applications."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from coopconsume.testing.local.broker import LocalKafka
from tests.chaos import rounds
from tests.chaos.frame import Report, run
from tests.chaos.harness import CLAIMED, LONG, RECREATED, Harness

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: Kafka's default, which `LocalKafka` turns off.
_BROKER = {"group.initial.rebalance.delay.ms": 3000}
_TOPICS = {"t": 3, "u": 2, RECREATED: 1, CLAIMED: 1}


#: Records that come every now and then.
_TRICKLE = 7


#: Batches alone, real-time runs, batches whose handlers keep state per key, and batches and
#: real-time runs of chunks that members acquire.
_MODES = ("batches", "real-time", "state", "cooperative", "cooperative-real-time")


def play(
    folder: Path, count: int, seed: int, report: Report, kinds: Sequence[str] = (),
    mode: str = _MODES[0],
) -> bool:  # fmt: skip
    """Play the rounds; whether the checker finds that every promise was kept."""
    topics, sharing = dict(_TOPICS), "keyRanges"
    if mode.startswith("cooperative"):
        sharing = "cooperative"
        # With it `assign` is refused, so that there are no claims to take over.
        del topics[CLAIMED]
    with (
        LocalKafka(folder / "kafka", config=_BROKER) as kafka,
        Harness(
            kafka, topics, folder, long=LONG, trickle=_TRICKLE, with_state=mode == "state",
            real_time="20 seconds" if mode.endswith("real-time") else "", sharing=sharing,
        ) as harness,
    ):  # fmt: skip
        rounds.begin(harness, 3)
        report("three applications share three topics")
        rounds.play(harness, count, seed, report, kinds)
        rounds.finish(harness)
        verdict = harness.verdict()
    sys.stdout.write(f"{verdict}\n")
    return verdict.ok


if __name__ == "__main__":
    sys.exit(run("chaos", __doc__, 5, play, rounds.KINDS, _MODES))
