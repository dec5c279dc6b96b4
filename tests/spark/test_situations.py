"""Every part that reads records or keeps offsets, in every situation of a log."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from coopconsume import LocalKafka
from tests.situations.logs import SITUATIONS, Logs
from tests.situations.parts import PARTS, Part, Run

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.situations.logs import Seen

# All turns are taken before the first test.
pytestmark = [
    pytest.mark.spark, pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(3600)
]  # fmt: skip


@dataclass(frozen=True)
class Turn:
    """A turn of a part, and what was in each log at its end, by situation."""

    run: Run
    topics: Mapping[str, str]
    kept: Mapping[str, set[Seen]]
    ends: Mapping[str, Mapping[tuple[str, int], int]]


Turns = dict[tuple[str, int], Turn | Exception]


def taken(part: Part, turn: int, logs: Logs, folder: Path, spark: SparkSession) -> Turn | Exception:
    """Run a turn; its error is raised by its tests."""
    try:
        run = part.run(logs, folder, spark, turn)
    except Exception as error:  # noqa: BLE001
        return error
    used = logs.to_write if part.writes else logs.to_read
    return Turn(
        run,
        {name: log.topic for name, log in used.items()},
        {name: logs.kept(log) for name, log in used.items()},
        {name: logs.ends(log) for name, log in used.items()},
    )


@pytest.fixture(scope="module")
def turns(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Turns:
    """Run the parts whose tests were chosen."""
    chosen = {
        item.callspec.params["part"].name
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    }
    parts = [part for part in PARTS if part.name in chosen]
    folder, found = tmp_path_factory.mktemp("situations"), Turns()
    config = {"log.cleaner.backoff.ms": 200, "group.initial.rebalance.delay.ms": 0}
    with LocalKafka(data_dir=folder / "kafka", config=config) as broker:
        logs = Logs(broker, folder / "kafka")
        logs.begin()
        for turn in (0, 1):
            if turn:
                logs.change()
            for part in parts:
                found[part.name, turn] = taken(part, turn, logs, folder, spark)
    return found


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_each_record_is_seen_once(turns: Turns, part: Part, situation: str) -> None:
    """In both turns; what is seen is committed, and nothing that is not in the log is."""
    before: set[Seen] = set()
    for number in (0, 1):
        turn = turns[part.name, number]
        if isinstance(turn, Exception):
            raise turn
        run, topic, kept = turn.run, turn.topics[situation], turn.kept[situation]
        if topic in run.errors:
            raise run.errors[topic]
        seen = Counter(run.seen.get(topic, ()))
        missing = run.expected.get(topic, kept - before) - set(seen)
        assert not missing, f"turn {number}: not seen"
        twice = [one for one, count in seen.items() if count > 1 or one in before]
        assert not twice, f"turn {number}: seen twice"
        if situation != "compaction" and topic not in run.expected:
            assert not set(seen) - kept, f"turn {number}: not in the log"
        ends = turn.ends[situation]
        if run.stable:
            assert {at: run.stable.get(at) for at in ends} == ends, f"turn {number}"
        before |= set(seen)
