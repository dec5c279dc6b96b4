"""Three writers that fight for a log under a disturbance of each kind: I1 to I8 hold.

`make chaos-log` plays more rounds, in random order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.chaos.log_rounds import LOG_KINDS, Rounds

if TYPE_CHECKING:
    from coopconsume.testing.local.broker import LocalKafka
    from tests.conftest import TopicFactory

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.nightly]


@pytest.mark.parametrize("visibility", ["read_committed", "filter"])
def test_a_log_that_is_fought_for(kafka: LocalKafka, topic: TopicFactory, visibility: str) -> None:
    """Each acknowledged batch is there once, whole and in its place; what was refused is not."""
    rounds = Rounds(kafka, topic(), visibility, seed=1)
    rounds.play(LOG_KINDS)
    assert rounds.verdict() == []
    assert rounds.count("fenced") > 0
    assert rounds.count("acked") >= 15
