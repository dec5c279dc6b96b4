"""Headers that `Retry` adds: over restarts, between jobs and `poll`, to handlers and letters."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import functions as F

from commits import OffsetRanges
from coopconsume import CooperativeConsumer, Reject, Retry, RetryPolicy
from coopconsume.admin.dead_letters.actions import DeadLetters
from coopconsume.admin.offsets.admin import OffsetAdmin
from tests.spark.support import PATIENCE, done_book, options, until

pytestmark = [pytest.mark.spark, pytest.mark.broker]

OWN = ("h", b"own")


class Adds:
    """Fails some records, with headers; the last attempt writes what it sees to a file."""

    def __init__(self, folder, *, gives_up=False) -> None:
        self.folder = str(folder)
        self.gives_up = gives_up

    def __call__(self, record, state=None):
        """Fail, or give up."""
        if record.offset not in (2, 4):
            return None
        if not self.gives_up:
            return Retry(after=0.0, headers={"step": b"%d" % record.attempt, "none": None})
        seen = [[name, None if v is None else v.decode()] for name, v in record.headers]
        with open(f"{self.folder}/{record.offset}", "w") as file:
            json.dump(seen, file)
        if record.offset == 2:
            raise Reject("no")
        if state is not None:
            state.set(len(seen))
        return None


def sent(kafka, name):
    """Produce six records of six keys, each with a header."""
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    for i in range(6):
        producer.send(name, key=b"k%d" % i, value=b"v", headers=[OWN])
    producer.flush()
    producer.close()


def test_added_headers_outlive_restarts_and_come_to_jobs_frames_and_letters(
    spark, kafka, topic, tmp_path
):
    """A job adds them, a poll shows and adds some, and the next job and its letter have all."""
    name, dead = topic(1), topic(1)
    sent(kafka, name)
    opts = options(kafka, tmp_path, name, deadLetter=f"kafka:{dead}", includeHeaders="true")
    retry = RetryPolicy(backoff=0.1, max_backoff=0.1)
    with CooperativeConsumer(opts, spark) as consumer:
        store, group = consumer._subscription.joined().store, consumer.options.group_id
        query = consumer.foreach(Adds(tmp_path), concurrency=2, retry=retry).start()

        def failed():
            found = store.pending(group).get((name, 0), {})
            done = OffsetRanges(done_book(store, group).get((name, 0), []))
            others_are_done = done == OffsetRanges([(0, 1), (3, 3), (5, 5)])
            return others_are_done and all(o in found and found[o].attempts >= 2 for o in (2, 4))

        until(failed)
        query.stop()
        before = store.pending(group)[name, 0]
        for one in before.values():
            assert one.headers == (("step", b"%d" % one.attempts), ("none", None))

    with CooperativeConsumer(opts, spark) as consumer:
        frame = consumer.poll(PATIENCE)
        rows = {r["offset"]: [tuple(h) for h in r["headers"]] for r in frame.collect()}
        assert rows == {
            o: [OWN, ("step", b"%d" % one.attempts), ("none", None)] for o, one in before.items()
        }
        with pytest.raises(ValueError, match="is of type str: give bytes or None"):
            consumer.retry(frame, headers={"polled": "1"})
        with pytest.raises(ValueError, match="give at most 1,024"):
            consumer.retry(frame, headers={"polled": bytes(1_020)})
        consumer.retry(frame, headers=[("polled", b"1"), ("none", b"")])
        again = consumer.poll(PATIENCE)
        rows = {r["offset"]: [tuple(h) for h in r["headers"]] for r in again.collect()}
        added = {
            o: [("step", b"%d" % one.attempts), ("polled", b"1"), ("none", b"")]
            for o, one in before.items()
        }
        assert rows == {o: [OWN, *some] for o, some in added.items()}
        assert again.where(F.expr("exists(headers, one -> one.key = 'polled')")).count() == 2

    handler = Adds(tmp_path, gives_up=True)
    with OffsetAdmin(opts, group) as admin:  # The group has worked without state until now.
        admin.switch_state(execute=True)
    with CooperativeConsumer(opts, spark) as consumer:
        query = consumer.foreach_with_state(
            handler, state_schema="long", state=str(tmp_path / "state"), retry=retry
        ).trigger(availableNow=True).start()  # fmt: skip
        assert query.awaitTermination(PATIENCE)
        assert query.state(name, b"k4") == 4
    for offset, some in added.items():
        seen = [tuple(one) for one in json.loads((tmp_path / str(offset)).read_text())]
        assert seen == [(n, v.decode()) for n, v in [OWN, *some]]
    (letter,) = DeadLetters(opts).letters()
    assert letter.offset == 2
    assert letter.headers == (OWN, *added[2])


def test_added_headers_in_real_time(spark, kafka, topic, tmp_path):
    """A slot that tries a record again by itself passes them on; so does the batch before it."""
    name = topic(1)
    sent(kafka, name)
    opts = options(kafka, tmp_path, name, slots=1)
    with CooperativeConsumer(opts, spark) as consumer:
        query = consumer.foreach(
            Steps(tmp_path), concurrency=4, retry=RetryPolicy(backoff=0.1, max_backoff=0.1)
        ).trigger(realTime="10 minutes").start()  # fmt: skip
        until(lambda: query.lastProgress and query.lastProgress.get("mode") == "realTime")
        sent(kafka, name)
        query.processAllAvailable()
        query.stop()
    seen = [json.loads(line) for line in (tmp_path / "seen").read_text().splitlines()]
    for offset in range(12):
        assert [names for o, names in seen if o == offset] == [
            [], ["h1"], ["h1", "h2"]
        ], offset  # fmt: skip


class Steps:
    """Three attempts of each record; each adds a header."""

    def __init__(self, folder) -> None:
        self.file = f"{folder}/seen"

    def __call__(self, record):
        """Note the headers."""
        with open(self.file, "a") as file:
            file.write(json.dumps([record.offset, [name for name, _ in record.headers]]) + "\n")
        if record.attempt < 3:
            raise Retry(headers={f"h{record.attempt}": b"1"})
