"""Dead letters of real jobs: parked keys wait, over restarts too, until somebody decides."""

from __future__ import annotations

import os
import sys

import pytest

from coopconsume import CooperativeConsumer, Reject, RetryPolicy, committed_rows
from coopconsume.admin.dead_letters.actions import DeadLetters
from coopconsume.admin.dead_letters.choice import Choice
from coopconsume.errors import TopicNotFound
from coopconsume.testing.history import check, read_history
from tests.odd import ODD_ERRORS
from tests.spark.support import PATIENCE, Recorded, done_book, options, pending_book, until

pytestmark = [pytest.mark.spark, pytest.mark.broker]


class FailsUntil:
    """Fails two records until a file is there: one is rejected, one never succeeds."""

    def __init__(self, path) -> None:
        self.path = str(path)

    def __call__(self, record):
        """Fail or not."""
        sys.stdout.write(f"look at {record.offset}\n")
        if record.offset == 7 or os.path.exists(self.path):
            return
        if record.offset == 3:
            raise Reject("refused")
        if record.offset == 5:
            raise RuntimeError("no luck")


def test_parked_keys_wait_until_somebody_decides(spark, kafka, topic, tmp_path):
    """Through a restart, in order, shown in progress; then one is replayed and one discarded."""
    from kafka import KafkaProducer

    name, dead = topic(1), topic(1)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    produced: dict = {(name, 0): {}}

    def send(count):
        for _ in range(count):
            i = len(produced[name, 0])
            key = {3: b"bad", 5: b"worse"}.get(i % 10, b"k%d" % (i % 7))
            producer.send(name, key=key, value=b"v%d" % i, headers=[("h", b"%d" % i)])
            produced[name, 0][i] = key
        producer.flush()

    send(60)
    opts = options(kafka, tmp_path, name, deadLetter=f"kafka:{dead}", handlerLogLines=5)
    fixed = tmp_path / "fixed"
    handler = Recorded(tmp_path / "history", FailsUntil(fixed))
    policy = RetryPolicy(max_attempts=2, backoff=0.1)

    def job(consumer):
        return consumer.foreach(handler, concurrency=2, retry=policy, on_dead="park")

    with CooperativeConsumer(opts, spark) as consumer:
        query = job(consumer).trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE), "parked keys do not keep a job from its end"
        (partition,) = query.lastProgress["partitions"]
        assert (partition["stableOffset"], partition["parked"], partition["pending"]) == (3, 2, 2)
        assert partition["lag"] == 12
        assert partition["blocker"]["dueInSeconds"] is None
        assert query.lastProgress["totals"]["deadLetters"] == 2
    dead_letters = DeadLetters(opts)
    letters = dead_letters.letters()
    assert [(x.offset, x.status, x.attempts) for x in letters] == [
        (3, "parked", 1), (5, "parked", 2)
    ]  # fmt: skip
    assert letters[0].headers == (("h", b"3"),)
    assert (letters[0].reason, letters[0].value) == ("refused", b"v3")
    assert [x.trace.endswith(f"printed:\nlook at {x.offset}\n") for x in letters] == [True, True]

    fixed.touch()
    with CooperativeConsumer(opts, spark) as consumer:
        query = job(consumer).start()
        send(40)
        query.processAllAvailable()
        (partition,) = query.lastProgress["partitions"]
        assert (partition["stableOffset"], partition["parked"], partition["pending"]) == (3, 2, 2)
        assert partition["lag"] == 20
        dead_letters.carry_out("replay", dead_letters.plan(Choice(key=b"bad")))
        dead_letters.carry_out("discard", dead_letters.plan(Choice(reason="luck")))
        until(lambda: query.lastProgress["partitions"][0]["lag"] == 0)
        query.stop()
        store = consumer._subscription.joined().store
        group = consumer.options.group_id
        verdict = check(
            read_history(tmp_path / "history"), produced, done_book(store, group),
            pending_book(store, group), {(name, 0): [(5, 5)]},
        )  # fmt: skip
        # That a rejected record is handled again is what was decided.
        assert tuple(verdict.faults) == ("repeated_outside_flight",), str(verdict)
        assert verdict.repeated_outside_flight.count == 1
    producer.close()
    assert not dead_letters.letters()
    calls = [
        (c.offset, c.attempt) for c in read_history(tmp_path / "history") if c.offset in (3, 5)
    ]
    assert sorted(calls) == [(3, 1), (3, 1), (5, 1), (5, 2)]


def reject(record):
    """Rejects each record."""
    raise Reject("refused")


@pytest.mark.parametrize("given", ["option", "argument"])
def test_a_job_creates_the_topic_of_its_dead_letters(spark, kafka, topic, produce, tmp_path, given):
    """With `deadLetterPartitions` the job starts without it; without them, the start names it."""
    name = topic(1)
    produce(name, [(b"k", b"v")])
    place = f"kafka:{name}-dead"
    words = {"deadLetter": place} if given == "option" else {}
    more = {} if words else {"dead_letter": place}
    with (
        CooperativeConsumer(options(kafka, tmp_path, name, **words), spark) as consumer,
        pytest.raises(TopicNotFound, match=f"{name}-dead"),
    ):
        consumer.foreach(reject, **more).start()
    creating = options(kafka, tmp_path, name, deadLetterPartitions=2, **words)
    letters = DeadLetters({**creating, "deadLetter": place})
    assert letters.letters() == [], "no letter yet"
    with CooperativeConsumer(creating, spark) as consumer:
        query = consumer.foreach(reject, **more).trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE)
    assert [letter.offset for letter in letters.letters()] == [0]


def odd_by_offset(record):
    """Two rounds of odd errors, the second one returned; then rows, some do not fit."""
    kind, which = divmod(record.offset, len(ODD_ERRORS))
    if kind < 2:
        error = ODD_ERRORS[which][0]()
        if kind:
            return error
        raise error
    return {0: 7, 1: {"text": "half \ud83d"}, 2: {"text": 8}}.get(which, {"text": str(which)})


@pytest.mark.slow
def test_odd_handlers_cost_their_own_records(spark, kafka, topic, produce, tmp_path):
    """Each is tried twice and is a dead letter; all other records are done, in one run."""
    name, size = topic(1), len(ODD_ERRORS)
    produce(name, [(b"%d" % (i % 7), b"") for i in range(3 * size)])
    tables = {"output": str(tmp_path / "out"), "output_schema": "text string"}
    policy = RetryPolicy(max_attempts=2, backoff=0.05)
    opts = options(kafka, tmp_path, name, deadLetter=str(tmp_path / "dead"))
    with CooperativeConsumer(opts, spark) as consumer:
        job = consumer.foreach(odd_by_offset, concurrency=2, retry=policy, **tables)
        query = job.trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE)
        assert query.lastProgress["totals"]["failedBatches"] == 0
        (lag,) = consumer.lag().collect()
        assert lag["stable_offset"] == 3 * size
        group = consumer.options.group_id
    letters = committed_rows(tmp_path / "dead", tmp_path / "commits", group).to_pylist()
    assert sorted(x["_offset"] for x in letters) == list(range(2 * size + 3))
    assert {x["attempts"] for x in letters} == {2}
    for letter in letters:
        if letter["_offset"] < 2 * size:
            assert ODD_ERRORS[letter["_offset"] % size][1] in letter["reason"]
    rows = committed_rows(tmp_path / "out", tmp_path / "commits", group).to_pylist()
    assert sorted(int(row["text"]) for row in rows) == list(range(3, size))
