"""What tests on a broker may use beside the fixtures of all tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from commits import ACCEPT_RANGE_FETCH
from tests.broker.group_harness import GroupHarness

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from coopconsume.testing.local.broker import LocalKafka
    from tests.conftest import Produce, TopicFactory


@pytest.fixture
def harness(
    kafka: LocalKafka, topic: TopicFactory, produce: Produce, tmp_path: Path
) -> Iterator[GroupHarness]:
    """A topic of one partition with ten records that is open to sharing."""
    found = GroupHarness(kafka, topic(1), tmp_path)
    produce(found.topic, [(b"%d" % i, b"") for i in range(10)])
    found.store.set_setting(ACCEPT_RANGE_FETCH, value=True, topic=found.topic)
    yield found
    for process in found.processes:
        process.end()
