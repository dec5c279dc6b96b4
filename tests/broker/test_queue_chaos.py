"""Consumers of a work queue under disturbances, also of its three replicas. One is in a table.

`make chaos-queue` plays more rounds, in random order, and disturbs the broker of the records too.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from coopconsume.testing.local.broker import LocalKafka
from tests.chaos.queue_rounds import KINDS, Rounds, TablePlace

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.nightly]


def test_a_queue_survives_its_consumers_and_a_minority_of_its_replicas(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    """Nothing is lost, nothing acknowledged comes again, and nothing is held by two."""
    with ExitStack() as stack:
        other = stack.enter_context(LocalKafka(tmp_path / "kafka"))
        places = [other, kafka, TablePlace(tmp_path / "table")]
        rounds = Rounds(
            kafka, places, "queue-chaos", seed=1, folder=tmp_path, may_disturb_home=False
        )
        rounds.play(KINDS)
        assert rounds.verdict() == []
    assert rounds.counts()["again"] > 0
