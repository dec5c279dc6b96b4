"""Dead letters and outputs that cannot be written hold back their own records, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from coopconsume import CooperativeConsumer, Reject, RetryPolicy
from coopconsume.admin.dead_letters.actions import DeadLetters
from coopconsume.testing.history import read_history
from tests.spark.support import PATIENCE, Recorded, options, until

pytestmark = [pytest.mark.spark, pytest.mark.broker]

LARGE, SMALL = 3, 5


def gives(record):
    """Two records of ten are rejected; of the others every second one gives a row."""
    if record.offset in (LARGE, SMALL):
        raise Reject("not wanted")
    return {"n": record.offset} if record.offset % 2 == 0 else None


@pytest.mark.slow
def test_a_destination_holds_back_its_own_records_alone(spark, kafka, topic, produce, tmp_path):
    """A letter that is too large and rows whose table is away: all others are committed.

    No handler is called again while the job runs; the next start does again what was not written.
    """
    from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

    name, dead = topic(1), topic(1, {"max.message.bytes": 4_000})
    # The key of a rejected record has later ones: 13, 23, … and 15, 25, …
    values = [bytes(8_000) if i == LARGE else b"v" for i in range(40)]
    produce(name, [(b"k%d" % (i % 10), value) for i, value in enumerate(values)])
    back, history = tmp_path / "back", tmp_path / "history"
    given: list[int] = []

    def keep(frame, _commit_id):
        if not Path(back).exists():
            raise RuntimeError("the table is away")
        given.extend(row["n"] for row in frame.collect())

    opts = options(kafka, tmp_path, name, deadLetter=f"kafka:{dead}", batchTime="2 seconds")
    group, tp = opts["kafka.group.id"], (name, 0)

    def job(consumer):
        return consumer.foreach(
            Recorded(history, gives), retry=RetryPolicy(max_attempts=1), output=keep,
            output_schema="n long",
        )  # fmt: skip

    with CooperativeConsumer(opts, spark) as consumer:
        query = job(consumer).start()
        store = consumer._subscription.joined().store

        def pending() -> dict[int, str]:
            return {o: p.error for o, p in store.pending(group).get(tp, {}).items()}

        def done() -> set[int]:
            state = store.state(group)[tp]
            return set(range(state.stable_offset)) | set(state.ranges.offsets().tolist())

        until(lambda: LARGE in pending() and 0 in pending())
        until(lambda: SMALL in done())
        errors = pending()
        assert "MessageSizeTooLarge" in errors[LARGE]
        assert "the table is away" in errors[0]
        assert not any(o % 2 == 0 for o in done())
        # Those of its key that were done in the same batch may be committed.
        until(lambda: {o for o in range(1, 40, 2) if o % 10 != LARGE} <= done())
        back.touch()
        until(lambda: set(range(0, 40, 2)) <= done())
        produce(name, [(b"k%d" % (i % 10), b"v") for i in range(40, 60)])
        until(lambda: {o for o in range(60) if o % 10 != LARGE} <= done())
        assert not {LARGE, 43, 53} & done(), "its key waits for it"
        left = 60 - len(done())
        event = until(lambda: (p := query.lastProgress) and p["lag"] == left and p)
        (partition,) = event["partitions"]
        assert (partition["stableOffset"], partition["parked"]) == (LARGE, 1)
        assert partition["blocker"]["offset"] == LARGE
        assert "MessageSizeTooLarge" in partition["blocker"]["error"]
        query.stop()
        assert query.exception() is None
    calls = [call.offset for call in read_history(history)]
    assert len(calls) == len(set(calls)), "nothing is handled twice"
    assert sorted(given) == list(range(0, 60, 2))

    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    larger = {"max.message.bytes": "100000"}
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, dead, larger)])
    admin.close()
    with CooperativeConsumer(opts, spark) as consumer:
        query = job(consumer).trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE)
        assert consumer.lag().first()["lag"] == 0
    assert [letter.offset for letter in DeadLetters(opts).letters()] == [LARGE, SMALL]
