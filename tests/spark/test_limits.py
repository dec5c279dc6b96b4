"""Jobs at a small maxNumRanges, on a real broker, a real Spark and a real Delta table."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from commits import OffsetRanges
from coopconsume import CooperativeConsumer, RetryPolicy, key_hash
from coopconsume.testing.history import read_history
from tests.spark.support import PATIENCE, Recorded, options, until
from tests.spark.test_query import verdict_of

pytestmark = [pytest.mark.spark, pytest.mark.broker]
LIMIT = 10


class EvensFail:
    """Fails records of even offsets until a file is there."""

    def __init__(self, gate: Path) -> None:
        self.gate = gate

    def __call__(self, record):
        """Fail, or do nothing."""
        if record.offset % 2 == 0 and not self.gate.exists():
            raise RuntimeError("not yet")


def test_a_job_at_its_limit_commits_what_it_has_read_and_loses_nothing(
    spark, kafka, topic, produce, tmp_path, caplog
):
    """It reads nothing new, says why, stops well, and goes on when gaps are done."""
    name, gate = topic(1), tmp_path / "gate"
    records = [(b"k%d" % i, b"") for i in range(200)]
    produced = {(name, 0): dict(enumerate(key for key, _ in records))}
    produce(name, records)
    opts = options(
        kafka, tmp_path, name, slots=2, maxNumRanges=LIMIT, maxOffsetsPerTrigger=40, batchTime=1
    )
    handler = Recorded(tmp_path / "history", EvensFail(gate))
    policy = RetryPolicy(backoff=0.5, max_backoff=0.5)
    caplog.set_level(logging.WARNING, "coopconsume")
    with CooperativeConsumer(opts, spark) as consumer:
        store, group = consumer._subscription.joined().store, f"{name}-group"
        first = store.current_epoch(group)
        query = consumer.foreach(handler, retry=policy).start()
        until(lambda: store.current_epoch(group).number > first.number)
        # The slot of the first record may be the later one to start.
        (partition,) = until(
            lambda: (
                (p := query.lastProgress)["epoch"] > first.number
                and p["partitions"][0]["blocker"]["error"]
                and p["partitions"]
            )
        )
        assert partition["isCrowded"]
        blocker = partition["blocker"]
        assert (blocker["offset"], blocker["error"]) == (0, "RuntimeError: not yet")
        assert blocker["state"] in ("failed", "in flight")
        assert blocker["keyHash"] == key_hash(b"k0")
        handled = {call.offset for call in read_history(tmp_path / "history")}
        assert max(handled) < 120
        odd = OffsetRanges.from_offsets([offset for offset in handled if offset % 2])
        assert odd.range_count > LIMIT
        until(lambda: store.state(group)[name, 0].ranges == odd)
        query.stop()
        said = caplog.text
        assert f"{name}-0 has " in said
        assert "maxNumRanges is 10: nothing new is read until gaps are done" in said
        assert "asking for a rebalance: " in said
    gate.touch()
    with CooperativeConsumer(opts, spark) as consumer:
        query = consumer.foreach(handler, retry=policy).trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE)
        verdict = verdict_of(consumer, tmp_path, produced)
        assert not verdict.repeated_outside_flight.count, str(verdict)
        assert not verdict.lost.count
        assert not verdict.order_breaks.count
        assert verdict.done == 200
