"""Hostile records in a real job: each costs what the table of hostile handlers says."""

from __future__ import annotations

from pathlib import Path

import pytest

from coopconsume import CooperativeConsumer, RetryPolicy, committed_rows
from tests.spark.support import options, until
from tests.unit.worker.hostile import ATTEMPTS, HOSTILE, Attack

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.slow]

#: What the handler does, by offset.
BAD = {
    27: "raises SystemExit", 43: "ends its worker", 61: "never returns", 85: "breaks json",
}  # fmt: skip
COUNT, KEYS = 120, 20


class Attacks:
    """A handler that is hostile at several records."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, record):
        """Attack, or do nothing."""
        Attack(BAD.get(record.offset, "breaks json"), self._at(record), self._folder).plain(record)

    @staticmethod
    def _at(record):
        return record.offset if record.offset in BAD else -1


@pytest.mark.parametrize("is_live", [False, True])
def test_hostile_records_cost_themselves_alone(spark, kafka, topic, produce, tmp_path, is_live):
    """All others are done, and none of them is charged; in batches and in real time."""
    name = topic(1)
    records = [(b"k%d" % (o % KEYS), b"%d" % o) for o in range(COUNT)]
    opts = options(kafka, tmp_path, name, slots=2)
    dead = str(tmp_path / "dead")
    produce(name, records[:20] if is_live else records)
    with CooperativeConsumer(opts, spark) as consumer:
        job = consumer.foreach(
            Attacks(tmp_path), concurrency=1, dead_letter=dead,
            retry=RetryPolicy(max_attempts=ATTEMPTS, backoff=0.1, timeout=3.0),
        )  # fmt: skip
        query = job.trigger(realTime="10 minutes").start() if is_live else job.start()
        if is_live:
            until(lambda: query.lastProgress and query.lastProgress["mode"] == "realTime")
            produce(name, records[20:])
        query.processAllAvailable()
        query.stop()
        (lag,) = consumer.lag().collect()
        assert lag["lag"] == 0
    letters = committed_rows(dead, opts["commitTable"], opts["kafka.group.id"]).to_pylist()
    given_up = {(letter["_offset"], letter["attempts"]) for letter in letters}
    assert given_up == {(o, ATTEMPTS) for o, of in BAD.items() if HOSTILE[of].fails}
    calls = Attack("breaks json", -1, tmp_path).calls
    of = {o: [attempt for at, attempt, _ in calls if at == o] for o in range(COUNT)}
    assert all(set(of[o]) == {1} for o in of if o not in BAD), "an innocent record is charged"
    assert of[43] == of[61] == [1, 2], "each call counts once"
    for key in range(KEYS):
        first = [
            calls.index(next(one for one in calls if one[0] == o)) for o in of if o % KEYS == key
        ]
        assert first == sorted(first), "the order of a key"
