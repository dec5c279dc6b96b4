"""What tests on a broker may use beside the fixtures of all tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from commits import ACCEPT_RANGE_FETCH
from coopconsume import FencedWriter
from tests.broker.group_harness import GroupHarness

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
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


@pytest.fixture(params=["read_committed", "filter"])
def visibility(request: pytest.FixtureRequest) -> str:
    """Each test of a fenced log that asks for it is about both."""
    return str(request.param)


@pytest.fixture
def make(kafka: LocalKafka, visibility: str) -> Iterator[Callable[..., FencedWriter]]:
    """Return what makes fenced writers; they are closed after the test."""
    made: list[FencedWriter] = []

    def writer(topic: str, **more: Any) -> FencedWriter:
        options = {"kafka.bootstrap.servers": kafka.bootstrap_servers} | more.pop("options", {})
        made.append(FencedWriter(options, topic, visibility=visibility, **more))  # type: ignore[arg-type]
        return made[-1]

    yield writer
    for each in made:
        each.close()
