"""Hostile records in a real job: each costs what the table of hostile handlers says."""

from __future__ import annotations

from pathlib import Path

import pytest

from coopconsume import CooperativeConsumer, RetryPolicy, committed_rows
from tests.spark.support import options, until
from tests.unit.worker.hostile import ATTEMPTS, HOSTILE, Attack

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.slow, pytest.mark.nightly]

#: What the handler does, by the kind of runner and by offset.
BAD = {
    "plain": {
        27: "raises SystemExit", 43: "ends its worker", 61: "never returns", 85: "breaks json",
    },
    "coroutines": {
        27: "cancels all tasks", 43: "stops its loop", 61: "ignores its cancellation",
        85: "lowers the recursion limit",
    },
    "frames": {27: "raises SystemExit", 43: "ends its worker", 85: "breaks json"},
}  # fmt: skip
COUNT, KEYS = 120, 20


class Attacks:
    """A handler that is hostile at several records.

    Args:
        kind: The kind of its runner.
        folder: Of the calls that it notes.
    """

    def __init__(self, kind: str, folder: Path) -> None:
        self._bad, self._folder = BAD[kind], folder

    def __call__(self, record):
        """Attack, or do nothing."""
        self._attack(record.offset).plain(record)

    async def awaited(self, record):
        """The same as a coroutine."""
        await self._attack(record.offset).awaited(record)

    def frame(self, frame):
        """The same for a frame, whose records are of one key or more."""
        for offset in frame.column("offset").to_pylist():
            if offset in self._bad:
                return self._attack(offset).frame(frame)
        return self._attack(-1).frame(frame)

    def _attack(self, offset):
        at = offset if offset in self._bad else -1
        return Attack(self._bad.get(offset, "breaks json"), at, self._folder)


@pytest.mark.parametrize(
    ("kind", "is_live"),
    [("plain", False), ("plain", True), ("coroutines", True), ("frames", False)],
)
def test_hostile_records_cost_themselves_alone(
    spark, kafka, topic, produce, tmp_path, kind, is_live
):
    """All others are done, and none of them is charged; in batches and in real time."""
    name, bad = topic(1), BAD[kind]
    records = [(b"k%d" % (o % KEYS), b"%d" % o) for o in range(COUNT)]
    opts = options(kafka, tmp_path, name, slots=2)
    dead = str(tmp_path / "dead")
    retry = RetryPolicy(max_attempts=ATTEMPTS, backoff=0.1, timeout=3.0)
    attacks = Attacks(kind, tmp_path)
    produce(name, records[:20] if is_live else records)
    with CooperativeConsumer(opts, spark) as consumer:
        if kind == "frames":
            job = consumer.foreach_frame(
                attacks.frame, max_records=1, dead_letter=dead, retry=retry
            )
        else:
            handler, concurrency = (attacks.awaited, 4) if kind == "coroutines" else (attacks, 1)
            job = consumer.foreach(handler, concurrency=concurrency, dead_letter=dead, retry=retry)
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
    assert given_up == {(o, ATTEMPTS) for o, of in bad.items() if HOSTILE[of].fails}
    calls = Attack("breaks json", -1, tmp_path).calls
    of = {o: [attempt for at, attempt, _ in calls if at == o] for o in range(COUNT)}
    harmed = {1, 2} if any(HOSTILE[one].harms for one in bad.values()) else {1}
    assert all(set(of[o]) <= harmed for o in of if o not in bad), "an innocent record is charged"
    assert all(of.values()), "a record is lost"
    for offset, what in bad.items():
        if HOSTILE[what].fails and (HOSTILE[what].by_time or kind != "coroutines"):
            # A worker that stood still until its time was over is charged nothing.
            assert sorted(set(of[offset])) == [1, 2], "each call counts"
    for key in range(KEYS):
        first = [
            calls.index(next(one for one in calls if one[0] == o)) for o in of if o % KEYS == key
        ]
        assert first == sorted(first), "the order of a key"
