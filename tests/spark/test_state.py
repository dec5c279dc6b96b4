"""Handlers with state: what they see, what counts, and what a restart finds."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from coopconsume import CooperativeConsumer, RetryPolicy
from tests.spark.support import options

pytestmark = [pytest.mark.spark, pytest.mark.broker]


class Totals:
    """Adds up the values of a key, and notes what it saw and left."""

    def __init__(self, folder, fails_at=()):
        self.folder = str(folder)
        self.fails_at = fails_at

    def __call__(self, record, state):
        """Fails once at some offsets, after it has set the state."""
        before = state.get(0)
        state.set(before + int(record.value))
        mark = Path(self.folder, f"failed-{record.partition}-{record.offset}")
        if record.offset in self.fails_at and not mark.exists():
            mark.touch()
            raise RuntimeError("once")
        with Path(self.folder, f"calls-{record.partition}-{record.key.decode()}").open("a") as out:
            out.write(json.dumps([record.offset, before, state.get()]) + "\n")
        return {"key": record.key.decode(), "total": state.get()}


def totals_of(records):
    """What the handlers must have added up."""
    totals = defaultdict(int)
    for key, value in records:
        totals[key.decode()] += int(value)
    return dict(totals)


def chains(folder):
    """The (offset, saw, left) of the calls of each key."""
    return {
        file.name.rsplit("-", 1)[1]: [json.loads(line) for line in file.read_text().splitlines()]
        for file in Path(folder).glob("calls-*")
    }


def run(spark, kafka, folder, name, handler, **more):
    """Handle all that is there."""
    consumer = CooperativeConsumer(options(kafka, folder, name, **more), spark)
    with consumer:
        query = (
            consumer.foreach_with_state(
                handler, state_schema="long", state=str(folder / "state"),
                retry=RetryPolicy(backoff=0.1), concurrency=4,
                output=str(folder / "totals"), output_schema="key string, total long",
            ).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()


def test_running_totals(spark, kafka, topic, produce, tmp_path, monkeypatch):
    """Each record sees what the one before it left, over batches, failures and restarts."""
    monkeypatch.setenv("COOPCONSUME_STATE_DIR", str(tmp_path / "stores"))
    name = topic(2)
    calls = tmp_path / "calls"
    calls.mkdir()
    records = [(b"k%d" % (i % 7), b"%d" % i) for i in range(300)]
    produce(name, records[:200])
    handler = Totals(calls, fails_at=(3, 50))
    run(spark, kafka, tmp_path, name, handler, maxOffsetsPerTrigger="40")
    produce(name, records[200:])
    run(spark, kafka, tmp_path, name, handler)
    for key, calls_of in chains(calls).items():
        assert [saw for _, saw, _ in calls_of] == [0, *(left for *_, left in calls_of[:-1])], key
    assert {key: one[-1][2] for key, one in chains(calls).items()} == totals_of(records)
