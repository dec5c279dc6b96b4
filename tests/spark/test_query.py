"""Jobs on a real broker, a real Spark and a real Delta table, judged by the history checker."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from pyspark import TaskContext

from commits import PartitionCommits
from coopconsume import (
    CooperativeConsumer,
    KeyRange,
    Reject,
    Retry,
    RetryPolicy,
    TopicPartition,
    committed_rows,
    key_hash,
    set_shareable,
)
from coopconsume.errors import HandlerFailed, InvalidOption, NotPolled, TopicRangeFetchNotAllowed
from coopconsume.kafka.cluster import Cluster
from coopconsume.options import Options
from coopconsume.testing.history import check, read_history
from coopconsume.worker.histogram import Histogram
from tests.spark.support import (
    PATIENCE,
    Recorded,
    Sleep,
    committed_frame,
    done_book,
    options,
    pending_book,
    until,
)

pytestmark = [pytest.mark.spark, pytest.mark.broker]


def verdict_of(consumer, folder, produced, dead=(), **more):
    """The checker's verdict over the history in a folder and the consumer's commit log."""
    membership = consumer._subscription.joined()
    group = consumer.options.group_id
    letters: dict = {}
    for topic, partition, offset in dead:
        letters.setdefault((topic, partition), []).append((offset, offset))
    return check(
        read_history(folder / "history"),
        produced,
        done_book(membership.store, group),
        pending_book(membership.store, group),
        letters,
        **more,
    )


def test_key_order_under_sixteen_slots_on_one_partition(spark, kafka, topic, produce, tmp_path):
    """Many slots share one partition: every record once, in the order of its key, in parallel."""
    name = topic(1)
    records = [(None if i % 50 == 0 else b"k%d" % (i % 97), b"%d" % i) for i in range(4_000)]
    offsets = produce(name, records)
    produced = {(name, 0): {o: k for o, (k, _) in zip(offsets, records, strict=True)}}
    handler = Recorded(tmp_path / "history", Sleep(0.002))
    opts = options(kafka, tmp_path, name, slots=16)
    with CooperativeConsumer(opts, spark) as consumer:
        query = consumer.foreach(handler, concurrency=2).trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE)
        verdict = verdict_of(consumer, tmp_path, produced)
        assert verdict.ok, str(verdict)
        assert (verdict.done, verdict.calls) == (4_000, 4_000)
        (lag,) = consumer.lag().collect()
        assert (lag.stable_offset, lag.lag) == (4_000, 0)
    cluster = Cluster(Options.parse(opts))
    primary = cluster.primary()
    cluster.close()
    assert primary[name, 0].offset == 4_000
    assert primary[name, 0].ours
    slots = {call.slot for call in read_history(tmp_path / "history")}
    assert slots == set(range(16))


def fail_some(record):
    """Some offsets fail twice, those that end in 9 are rejected."""
    if record.offset % 20 == 7 and record.attempt < 3:
        raise RuntimeError(f"attempt {record.attempt}")
    if record.offset % 10 == 9:
        raise Reject("nines are refused")
    return {"offset_seen": record.offset, "attempt": record.attempt}


def test_failed_records_hold_their_key_and_no_other(spark, kafka, topic, produce, tmp_path, caplog):
    """Retries keep the order of their key, dead letters carry the record, outputs count once."""
    name = topic(2)
    records = [(b"k%d" % (i % 133), b"v%d" % i) for i in range(400)]
    for partition in (0, 1):
        produce(name, records, partition)
    produced = {(name, p): {o: k for o, (k, _) in enumerate(records)} for p in (0, 1)}
    opts = options(kafka, tmp_path, name)
    dead, out = str(tmp_path / "dead"), str(tmp_path / "out")
    events = []
    with CooperativeConsumer(opts, spark) as consumer:
        query = (
            consumer.foreach(
                Recorded(tmp_path / "history", fail_some),
                concurrency=4,
                retry=RetryPolicy(max_attempts=5, backoff=0.2),
                dead_letter=dead,
                output=out,
                output_schema="offset_seen bigint, attempt int",
            )
            .queryName("failing")
            .trigger(availableNow=True)
            .onProgress(events.append)
            .start()
        )
        assert query.awaitTermination(PATIENCE)
        letters = committed_frame(spark, dead, opts["commitTable"], opts["kafka.group.id"])
        rows = letters.collect()
        verdict = verdict_of(
            consumer, tmp_path, produced,
            [(r["_topic"], r["_partition"], r["_offset"]) for r in rows], max_attempts=5,
        )  # fmt: skip
        assert verdict.ok, str(verdict)
        assert (verdict.done, verdict.dead_lettered) == (720, 80)
        progress = query.lastProgress
        # Spark's user interface shows the batches under the name of the query.
        assert spark.sparkContext.statusTracker().getJobIdsForGroup("failing")
        assert progress["totals"]["deadLetters"] == 80
        assert progress["totals"]["retries"] == 80
        assert progress["totals"]["rebalances"] == 1
        # Of `recentProgress` the first ones may be gone.
        calls = Histogram.of(event["handlerTimes"] for event in events)
        assert calls.count == progress["totals"]["handled"]
        assert calls.seconds > 0
        for field in ("startLatency", "commitLatency"):
            assert sum(event[field]["count"] for event in events) == 800
    assert {bytes(r["value"]) for r in rows} == {b"v%d" % o for o in range(9, 400, 10)}
    texts = [r.getMessage() for r in caplog.records if hasattr(r, "failure")]
    # A record that is tried again within its batch is first reported with a later attempt.
    failed = next(text for text in texts if "RuntimeError: attempt" in text and ", next in" in text)
    assert 'raise RuntimeError(f"attempt {record.attempt}")' in failed
    assert any("nines are refused (dead-lettered after attempt 1)" in text for text in texts)
    assert {r["reason"] for r in rows} == {"nines are refused"}
    output = committed_frame(spark, out, opts["commitTable"], opts["kafka.group.id"])
    assert output.count() == output.distinct().count() == 720
    assert output.where("attempt = 3").count() == 40


def first_fails(record):
    """The first record of the key b"bad" never succeeds."""
    if record.offset == 3:
        raise RuntimeError("not yet")


def succeed(record):
    """Do nothing."""


def test_pending_records_survive_a_restart_with_their_order(spark, kafka, topic, produce, tmp_path):
    """A failed record keeps its key back before and after a restart, and its attempts count on."""
    name = topic(1)
    records = [(b"bad" if i % 5 == 3 else b"k%d" % (i % 7), b"") for i in range(200)]
    produced = {(name, 0): dict(enumerate(key for key, _ in records))}
    produce(name, records)
    opts = options(kafka, tmp_path, name)
    policy = RetryPolicy(backoff=0.3, max_backoff=0.3)
    with CooperativeConsumer(opts, spark) as consumer:
        query = consumer.foreach(Recorded(tmp_path / "history", first_fails), retry=policy).start()

        def through():
            progress = query.lastProgress
            if progress is None or progress["totals"]["retries"] < 2:
                return None
            (partition,) = progress["partitions"]
            # Another slot may still be at its first records.
            blocker = partition["blocker"]
            is_through = partition["highestDone"] >= 190 and partition["stableOffset"] == 3
            is_through = is_through and (blocker["state"], blocker["behind"]) == ("failed", 39)
            return partition if is_through else None

        partition = until(through)
        assert partition["blocker"]["offset"] == 3
        assert partition["blocker"]["keyHash"] == key_hash(b"bad")
        assert partition["blocker"]["key"] == "bad"
        assert partition["pending"] == 1
        query.stop()
        gaps = consumer.gaps().collect()
        assert [(g["first"], g["last"]) for g in gaps[:2]] == [(3, 3), (8, 8)]
    tried = max(call.attempt for call in read_history(tmp_path / "history"))
    produce(name, [(b"bad", b"later")])
    produced[name, 0][200] = b"bad"
    with CooperativeConsumer(opts, spark) as consumer:
        query = consumer.foreach(Recorded(tmp_path / "history", succeed), retry=policy)
        query = query.trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE)
        verdict = verdict_of(consumer, tmp_path, produced)
        assert verdict.ok, str(verdict)
        assert verdict.done == 201
    attempts = [call.attempt for call in read_history(tmp_path / "history") if call.offset == 3]
    assert attempts == list(range(1, tried + 2))


def comes_back_in_an_hour(record):
    """One record is to be tried again much later, all others are done."""
    if record.offset == 2:
        raise Retry(3600, "the shop is closed")


def test_a_restart_does_not_try_a_record_before_it_is_due(
    spark, kafka, topic, produce, tmp_path, monkeypatch
):
    """When it is due, how often it failed and why are in the commit log, and hold after it.

    Also where the clock is set a day forward while the job runs, and a day back for its next start.
    """
    name, real = topic(1), time.time
    opts = options(kafka, tmp_path, name)
    handler = Recorded(tmp_path / "history", comes_back_in_an_hour)

    def set_clock(step):
        monkeypatch.setattr(time, "time", lambda: real() + step)

    def run(records, calls, step):
        set_clock(step)
        produce(name, records)
        with CooperativeConsumer(opts, spark) as consumer:
            query = consumer.foreach(handler).start()
            until(lambda: query.lastProgress and query.lastProgress["totals"]["handled"] >= 1)
            until(lambda: len(read_history(tmp_path / "history")) == calls)
            until(lambda: state_of_blocker(query) == "failed")
            set_clock(step + 86_400.0)
            produce(name, [(b"step", b"")])
            until(lambda: len(read_history(tmp_path / "history")) == calls + 1)
            # After the restart it is read from Kafka: there was no other attempt.
            until(lambda: query.lastProgress["partitions"][0]["blocker"]["key"] == "k2")
            query.stop()
            held = consumer._subscription.joined().store.pending(f"{name}-group")[name, 0][2]
            return query.lastProgress["partitions"][0], held

    before, first = run([(b"k%d" % i, b"") for i in range(5)], 5, 0.0)
    after, second = run([(b"more", b"")], 7, -86_400.0)
    assert first == second
    assert (first.attempts, first.error) == (1, "the shop is closed")
    for found in (before, after):
        blocker = found["blocker"]
        assert (blocker["attempts"], blocker["error"]) == (1, "the shop is closed")
        assert 3000 < blocker["dueInSeconds"] <= 3600
        assert (blocker["offset"], blocker["state"]) == (2, "failed")
        assert blocker["keyHash"] == key_hash(b"k2")
    assert [c.offset for c in read_history(tmp_path / "history")].count(2) == 1


def state_of_blocker(query):
    """The state of the record at the stable offset, from the last progress event."""
    progress = query.lastProgress
    blocker = progress and progress["partitions"][0]["blocker"]
    return blocker and blocker["state"]


class Straggler:
    """The record of one key takes until a file is there."""

    def __init__(self, until) -> None:
        self.until = str(until)

    def __call__(self, record):
        """Wait on the slow key, but not for ever."""
        give_up = time.monotonic() + PATIENCE
        while record.key == b"slow" and not os.path.exists(self.until):
            if time.monotonic() > give_up:
                raise TimeoutError("nobody came past")
            time.sleep(0.02)


def test_a_straggling_key_costs_itself_alone(spark, kafka, topic, produce, tmp_path):
    """While one record takes its time, all other keys go on, those of its slot among them."""
    name = topic(1)
    produce(name, [(b"slow", b"")] + [(b"k%d" % (i % 100), b"") for i in range(1_000)])
    opts = options(kafka, tmp_path, name, slots=8, batchTime=60, handlerTimeout=600)
    released = tmp_path / "released"
    with CooperativeConsumer(opts, spark) as consumer:
        query = consumer.foreach(Recorded(tmp_path / "history", Straggler(released))).start()

        def done():
            return query.lastProgress["totals"]["done"] if query.lastProgress else 0

        until(lambda: done() == 1_000)
        produce(name, [(b"k%d" % (i % 100), b"late") for i in range(1_000)])
        produce(name, [(b"slow", b"late")])
        until(lambda: done() == 2_000)
        released.touch()
        query.processAllAvailable()
        query.stop()
        assert done() == 2_002
    history = list(read_history(tmp_path / "history"))
    calls = {call.offset: call for call in history}
    assert len(calls) == len(history) == 2_002
    assert sum(call.slot == calls[0].slot for call in history) > 2
    ends = [call.end_ns for call in sorted(history, key=lambda call: call.end_ns)]
    assert ends[-2:] == [calls[0].end_ns, calls[2_001].end_ns]


def test_records_of_an_open_transaction_are_no_holes(spark, kafka, topic, produce, tmp_path):
    """What becomes visible late is handled; markers and aborted records are committed as holes."""
    from kafka import KafkaProducer

    name = topic(1)
    producers = [
        KafkaProducer(
            bootstrap_servers=kafka.bootstrap_servers,
            transactional_id=f"{name}-{n}",
            transaction_timeout_ms=600_000,
        )
        for n in range(3)
    ]
    produced = {(name, 0): {}}

    def send(producer, key, n):
        for _ in range(n):
            at = producer.send(name, key=key, value=b"x")
            producer.flush()
            yield at.get(PATIENCE).offset

    for producer in producers:
        producer.init_transactions()
    opened, committing, aborting = producers
    opened.begin_transaction()
    late = list(send(opened, b"late", 3))
    for _ in range(3):
        committing.begin_transaction()
        produced[name, 0] |= dict.fromkeys(send(committing, b"done", 4), b"done")
        committing.commit_transaction()
    with CooperativeConsumer(options(kafka, tmp_path, name), spark) as consumer:
        query = consumer.foreach(Recorded(tmp_path / "history")).start()
        looks = set()
        until(
            lambda: (
                looks.add(query._job._epoch_state and query._job._epoch_state.log_watch._ends_at)
                or len(looks) > 3
            )
        )
        assert not list((tmp_path / "history").glob("*")), "nothing below an open transaction"
        aborting.begin_transaction()
        list(send(aborting, b"never", 3))
        aborting.abort_transaction()
        opened.commit_transaction()
        produced[name, 0] |= dict.fromkeys(late, b"late")
        end = produce(name, [(b"end", b"")])
        produced[name, 0] |= dict.fromkeys(end, b"end")
        # A transaction's end is answered before its markers are written: wait until all is seen.
        cluster = consumer._subscription.joined().cluster
        until(lambda: cluster.ends([(name, 0)])[name, 0] > end[0])
        query.processAllAvailable()
        query.stop()
        verdict = verdict_of(consumer, tmp_path, produced)
        assert verdict.ok, str(verdict)
        assert verdict.calls == len(produced[name, 0]) == 16
        assert query.lastProgress["totals"]["done"] == 16, "holes are no work done"
        (lag,) = consumer.lag().collect()
        assert lag["lag"] == 0
        assert lag["committed_above"] == 0
    for producer in producers:
        producer.close()


class Waits:
    """Waits in one record until a file is there; one record raises SystemExit once."""

    def __init__(self, folder) -> None:
        self.folder = str(folder)

    def __call__(self, record):
        """Note the call, and the worker of the record that waits."""
        with open(f"{self.folder}/calls", "a") as file:
            file.write(f"{record.partition}:{record.offset}\n")
        if (record.partition, record.offset) == (0, 20):
            with open(f"{self.folder}/waits", "w") as file:
                file.write(str(os.getpid()))
            while not os.path.exists(f"{self.folder}/go"):
                time.sleep(0.02)
        if record.offset == 30 and record.attempt == 1:
            raise SystemExit(3)


def test_a_killed_worker_repeats_nothing_that_it_has_reported(
    spark, kafka, topic, produce, tmp_path
):
    """While a record hangs, all else is committed as it is done; its worker's death costs it alone.

    SystemExit is a failure like another.
    """
    name, quarters = topic(2), KeyRange().split(4)
    keys = [b"k%d" % (i % 9) for i in range(100)]
    for partition in range(2):
        produce(name, [(key, b"") for key in keys], partition)

    def slot_of(offset):
        return next(i for i, part in enumerate(quarters) if part.contains(key_hash(keys[offset])))

    opts = options(kafka, tmp_path, name, batchTime="1 minute")
    with CooperativeConsumer(opts, spark) as consumer:
        query = consumer.foreach(Waits(tmp_path), retry=RetryPolicy(backoff=0.1)).start()
        store, group = consumer._subscription.joined().store, opts["kafka.group.id"]

        def undone(partition):
            commits = store.state(group).get((name, partition), PartitionCommits())
            return {slot_of(offset) for offset in commits.uncommitted(0, 99).offsets().tolist()}

        until(
            lambda: (
                undone(0) == {slot_of(20)} >= undone(1)
                and store.state(group)[name, 0].stable_offset == 20
            )
        )
        os.kill(int((tmp_path / "waits").read_text()), signal.SIGKILL)
        (tmp_path / "go").touch()
        query.processAllAvailable()
        assert query.lastProgress["totals"]["lostSlots"] == 1
        assert {row["lag"] for row in consumer.lag().collect()} == {0}
    calls = Counter((tmp_path / "calls").read_text().split())
    assert {call: count for call, count in calls.items() if count > 1} == {
        "0:20": 2, "0:30": 2, "1:30": 2,
    }  # fmt: skip


def return_headers(record):
    """Give back headers, timestamp and whether there was a value."""
    names = [f"{name}={(value or b'').decode()}" for name, value in record.headers]
    return {"names": ",".join(names), "stamp": record.timestamp, "tombstone": record.value is None}


@pytest.mark.parametrize("concurrency", [1, 2])
def test_headers_reach_the_handler(spark, kafka, topic, tmp_path, concurrency):
    """With includeHeaders a record is handed over with all that Kafka keeps of it."""
    from kafka import KafkaProducer

    name = topic(1)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    headers = [("a", b"1"), ("b", b""), ("a", b"2")]
    producer.send(name, key=b"k", value=b"v", headers=headers, timestamp_ms=1_234_567)
    producer.send(name, key=b"k", value=None, timestamp_ms=1_234_568)
    producer.close()
    opts = options(kafka, tmp_path, name, includeHeaders="true")
    with CooperativeConsumer(opts, spark) as consumer:
        job = consumer.foreach(
            return_headers, concurrency=concurrency, output=str(tmp_path / "out"),
            output_schema="names string, stamp bigint, tombstone boolean",
        )  # fmt: skip
        assert job.trigger(availableNow=True).start().awaitTermination(PATIENCE)
    rows = committed_rows(
        str(tmp_path / "out"), opts["commitTable"], opts["kafka.group.id"]
    ).to_pylist()
    found = sorted((r["stamp"], r["names"], r["tombstone"]) for r in rows)
    assert found == [(1_234_567, "a=1,b=,a=2", False), (1_234_568, "", True)]


def reject(record):
    """Reject everything."""
    raise Reject("no")


class RecordingListener:
    """A rebalance listener that keeps its calls."""

    def __init__(self):
        self.events = []

    def on_assigned(self, ranges):
        """Keep it."""
        self.events.append(("assigned", ranges))

    def on_revoked(self, ranges):
        """Keep it."""
        self.events.append(("revoked", ranges))

    def on_lost(self, ranges):
        """Keep it."""
        self.events.append(("lost", ranges))


@pytest.mark.slow
def test_what_was_polled_before_a_rebalance_comes_again(spark, kafka, topic, produce, tmp_path):
    """A second consumer takes half of the keys; what the first had not committed comes again."""
    name = topic(1)
    produce(name, [(b"k%d" % i, b"") for i in range(40)])
    opts = options(
        kafka, tmp_path, name, batchTime=1, handlerTimeout=4, drainTimeout="500ms"
    )  # fmt: skip
    with CooperativeConsumer(opts, spark) as first, CooperativeConsumer(opts, spark) as second:
        listener = RecordingListener()
        first.subscribe(listener=listener)
        frame = first.poll(PATIENCE)
        assert frame.count() == 40
        set_shareable(opts, [name])
        second.subscribe()
        early = second.poll(0)
        assert early.count() == 0, "the first may still be at work on what it has"
        with pytest.raises(NotPolled):
            first.commit(frame)
        until(lambda: len(listener.events) == 3)
        whole, half = {(name, 0): [KeyRange()]}, first.assignment()
        assert listener.events == [("assigned", whole), ("revoked", whole), ("assigned", half)]
        rows = {}
        for consumer in (first, second):
            (ranges,) = consumer.assignment().values()
            again = consumer.poll(PATIENCE)
            rows[consumer] = {bytes(row["key"]) for row in again.collect()}
            assert all(ranges[0].contains(key_hash(key)) for key in rows[consumer])
            consumer.commit(again)
        assert rows[first] | rows[second] == {b"k%d" % i for i in range(40)}
        assert not rows[first] & rows[second]
        (row,) = second.lag().collect()
        assert row["lag"] == 0
        with CooperativeConsumer(opts, spark) as third:
            third.subscribe()
            until(third.assignment)
            assignment = third._subscription.joined().wait_for_assignment(PATIENCE)
            assert assignment.life_ms == 1000 * (2 + 4), "a job that follows works under leases"
            wait = assignment.in_doubt.seconds((name, 0), assignment.owned[name, 0].ranges)
            assert wait == 0, "everything that the others had polled was committed"


def test_the_order_of_a_partition_holds_over_all_members(spark, kafka, topic, produce, tmp_path):
    """Members that share a partition give it to one of them before a record is handled."""
    name = topic(1)
    keys = [b"k%d" % (i % 20) for i in range(120)]
    produce(name, [(key, b"") for key in keys])
    opts = options(kafka, tmp_path, name, batchTime=1, maxOffsetsPerTrigger=40)
    with CooperativeConsumer(opts, spark) as first, CooperativeConsumer(opts, spark) as second:
        set_shareable(opts, [name])
        first.subscribe()
        second.subscribe()
        until(lambda: [len(c.assignment()) for c in (first, second)] == [1, 1])
        handler = Recorded(tmp_path / "history", Sleep(0.01))
        a, b = (c.foreach(handler, ordering="partition").start() for c in (first, second))
        a.processAllAvailable()
        first.close()
        produce(name, [(key, b"") for key in keys])
        until(second.assignment)
        b.processAllAvailable()
        b.stop()
        store = second._subscription.joined().store
        done = done_book(store, second.options.group_id)
    produced = {(name, 0): dict(enumerate(keys * 2))}
    history = read_history(tmp_path / "history")
    verdict = check(history, produced, done, {}, {}, ordering="partition")
    assert not verdict.order_breaks, str(verdict)
    assert not verdict.overlaps, str(verdict)
    assert verdict.done == 240


class Blocker:
    """Holds a Spark task until a file is there."""

    def __init__(self, folder) -> None:
        self.folder = folder

    def __call__(self, batches):
        """Note that the task has begun, and wait."""
        (self.folder / f"begun-{TaskContext.get().partitionId()}").touch()
        until((self.folder / "go").exists, 300)
        yield from batches


class Noted:
    """Leaves a file for each record, named after the application that handles it."""

    def __init__(self, folder, name) -> None:
        self.folder, self.name = folder, name

    def __call__(self, record) -> None:
        """Leave it."""
        (self.folder / f"{self.name}-{record.offset}").touch()


def test_slots_that_had_not_begun_when_their_keys_moved_never_begin(
    spark, kafka, topic, produce, tmp_path
):
    """All of Spark's slots are taken; what was planned before a rebalance runs for keys that stay.

    Those of the keys that moved start nothing, although the job of Spark begins after that.
    """
    name = topic(1)
    keys = [b"k%d" % i for i in range(40)]
    produce(name, [(key, b"") for key in keys])
    produced = {(name, 0): dict(enumerate(keys))}
    opts = options(
        kafka, tmp_path, name, batchTime=1, handlerTimeout=1, drainTimeout="500ms"
    )  # fmt: skip
    set_shareable(opts, [name])
    tracker = spark.sparkContext.statusTracker()
    cores = spark.sparkContext.defaultParallelism

    def handler(application):
        return Recorded(tmp_path / "history", Noted(tmp_path, application))

    with (
        ThreadPoolExecutor(1) as pool,
        CooperativeConsumer(opts, spark) as first,
        CooperativeConsumer(opts, spark) as second,
    ):
        every = spark.range(0, cores, 1, cores)
        blocked = pool.submit(every.mapInArrow(Blocker(tmp_path), every.schema).collect)
        try:
            until(lambda: len(list(tmp_path.glob("begun-*"))) == cores, 180)
            before = set(tracker.getActiveJobsIds())
            queries = [first.foreach(handler("first")).start()]
            until(lambda: set(tracker.getActiveJobsIds()) - before, 180)
            # The user sees within seconds that Spark starts none of its slots, and why.
            seen = "Spark runs no task of it"  # Known once Spark has the job.
            until(lambda: (one := queries[0].status["waitingFor"]) and seen in one["message"], 180)
            assert queries[0].status["waitingFor"]["reason"] == "slots"
            until(
                lambda: (
                    (event := queries[0].lastProgress)
                    and event["waitingFor"]
                    and event["waitingFor"]["reason"] == "slots"
                )
            )
            second.subscribe()
            (moved,) = until(second.assignment).values()
            assert not list(tmp_path.glob("first-*"))
        finally:
            (tmp_path / "go").touch()
        assert len(blocked.result(300)) == cores
        stayed = {
            o for o, key in enumerate(keys) if not any(r.contains(key_hash(key)) for r in moved)
        }
        assert 0 < len(stayed) < len(keys)
        until(lambda: stayed <= {int(f.name[6:]) for f in tmp_path.glob("first-*")})
        queries.append(second.foreach(handler("second")).start())
        for query in queries:
            query.processAllAvailable()
        for query in queries:
            query.stop()
        verdict = verdict_of(second, tmp_path, produced)
    assert {int(f.name[6:]) for f in tmp_path.glob("first-*")} == stayed
    assert verdict.ok, str(verdict)
    assert (verdict.done, verdict.repeated.count) == (40, 0)


class SlowKey:
    """Holds the records of one key until a file is there, and notes each that begins."""

    def __init__(self, folder) -> None:
        self.folder = folder

    def __call__(self, record):
        """Wait, if it is of that key."""
        if record.key == b"slow":
            (self.folder / f"slow-{record.offset}").touch()
            until((self.folder / "go").exists)


def test_a_rebalance_that_moves_nothing_stops_nothing(spark, kafka, topic, produce, tmp_path):
    """Applications join and leave while a handler runs: other keys go on, nothing is repeated."""
    name = topic(1)
    some = [b"k%d" % (i % 9) for i in range(20)]
    produce(name, [(key, b"") for key in (b"slow", *some)])
    opts = options(kafka, tmp_path, name)
    with CooperativeConsumer(opts, spark) as first:
        query = first.foreach(Recorded(tmp_path / "history", SlowKey(tmp_path))).start()
        until((tmp_path / "slow-0").exists)
        store, group = first._subscription.joined().store, first.options.group_id

        def is_done(count):
            return len(store.state(group)[name, 0].ranges) == count

        def is_open(number):
            return store.assignment(group).epoch.number == number

        for round_ in (1, 2):
            # The topic is not open to sharing: there is nothing for the other one.
            with CooperativeConsumer(opts, spark) as other:
                other.subscribe()
                assert other.assignment() == {}
                assert is_open(2 * round_)
                produce(name, [(key, b"") for key in some])
                until(partial(is_done, 20 * (round_ + 1)))
            until(partial(is_open, 2 * round_ + 1))
        produce(name, [(key, b"") for key in some])
        until(partial(is_done, 80))
        (tmp_path / "go").touch()
        query.processAllAvailable()
        query.stop()
        keys = [b"slow", *some, *some, *some, *some]
        verdict = verdict_of(first, tmp_path, {(name, 0): dict(enumerate(keys))})
    assert verdict.ok, str(verdict)
    assert (verdict.done, verdict.repeated.count) == (81, 0)


def test_a_query_that_fails_ends_alone(spark, kafka, topic, produce, tmp_path):
    """A handler's fatal answer ends the query with its reason; nothing is committed."""
    name = topic(1)
    produce(name, [(b"a", b"") for _ in range(10)])
    with CooperativeConsumer(options(kafka, tmp_path, name), spark) as consumer:
        query = consumer.foreach(reject).start()
        with pytest.raises(HandlerFailed, match="dead letters have no destination"):
            query.awaitTermination(PATIENCE)
        (row,) = consumer.lag().collect()
        assert row["lag"] == 10


def test_two_standalone_members_share_a_partition_and_prove_holes(spark, kafka, topic, tmp_path):
    """Two key ranges of one partition: each its own keys; transaction markers do not stop them."""
    from kafka import KafkaProducer

    name = topic(1)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, transactional_id=name)
    producer.init_transactions()
    for n in range(4):
        producer.begin_transaction()
        for i in range(10):
            producer.send(name, key=b"k%d" % (n * 10 + i), value=b"")
        producer.commit_transaction()
    producer.close()
    tp = TopicPartition(name, 0)
    opts = options(kafka, tmp_path, name, deadLetter=str(tmp_path / "dead"))
    del opts["subscribe"]
    low, high = KeyRange().split(2)
    with CooperativeConsumer(opts, spark) as a, CooperativeConsumer(opts, spark) as b:
        with pytest.raises(TopicRangeFetchNotAllowed, match="topics alter"):
            a.assign({tp: [low]})
        set_shareable(opts, [name])
        a.assign({tp: [low]})
        b.assign({tp: [high]})
        with pytest.raises(InvalidOption, match="assign whole partitions"):
            a.foreach(Recorded(tmp_path / "history"), ordering="partition").start()
        # A transaction's end is answered before its markers are written.
        cluster = b._subscription.joined().cluster
        until(lambda: cluster.ends([(name, 0)])[name, 0] == 44)
        frame = b.poll(PATIENCE)
        mine = {bytes(row["key"]) for row in frame.collect()}
        assert mine == {k for k in (b"k%d" % i for i in range(40)) if high.contains(key_hash(k))}
        others = a.poll(PATIENCE)
        for answer in (b.commit, b.retry, partial(b.reject, reason="no")):
            for rows in (others, frame.union(others.limit(1))):
                with pytest.raises(NotPolled):
                    answer(rows)
        with pytest.raises(NotPolled):
            b.commit({tp: [(0, 43)]})
        store, group = b._subscription.joined().store, b.options.group_id
        assert store.pending(group) == {}
        assert store.state(group)[name, 0].stable_offset == 0
        assert not store.state(group)[name, 0].ranges
        b.commit({tp: 22})
        offsets = sorted(row["offset"] for row in frame.collect())
        done = store.state(group)[name, 0]
        ours = [o for o in offsets if o < 22 and (o < done.stable_offset or o in done.ranges)]
        assert ours == [o for o in offsets if o < 22]
        assert done.stable_offset + len(done.ranges) < 22, "only what b was given"
        b.commit()
        query = a.foreach(Recorded(tmp_path / "history")).start()
        query.processAllAvailable()
        query.stop()
        (lag,) = a.lag().collect()
        assert (lag["stable_offset"], lag["lag"]) == (44, 0)
    handled = {call.key for call in read_history(tmp_path / "history")}
    assert handled == {b"k%d" % i for i in range(40)} - mine
