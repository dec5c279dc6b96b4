"""Jobs in real time: slots read a real broker themselves."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import confluent_kafka
import pytest
from kafka.admin import KafkaAdminClient, NewPartitions

from coopconsume import CooperativeConsumer, Reject, RetryPolicy, current_slot, set_shareable
from coopconsume.errors import InvalidOption, RealTimeUnavailable
from coopconsume.monitoring import QueryListener
from coopconsume.monitoring.listener import Progress
from coopconsume.runtime.realtime.checks import check_workers
from coopconsume.testing.history import Recorder, check, read_history
from coopconsume.worker.channel.spec import ChannelSpec
from coopconsume.worker.histogram import Histogram
from tests.spark.deaths import Deaths
from tests.spark.support import Recorded, done_book, options, pending_book, until

pytestmark = [pytest.mark.spark, pytest.mark.broker]


def is_live(query):
    """Whether slots read by themselves."""
    last = query.lastProgress
    return last is not None and last["mode"] == "realTime"


class Traffic:
    """Produces records in a thread of its own, some at a time."""

    def __init__(self, produce, topic, partitions=1, keys=40) -> None:
        self.produced = {(topic, p): {} for p in range(partitions)}
        self._produce, self._topic, self._keys = produce, topic, keys
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def add(self, count):
        """Produces records in all partitions."""
        for (topic, partition), known in self.produced.items():
            records = [(b"k%d" % ((len(known) + i) * 7919 % self._keys), b"") for i in range(count)]
            offsets = self._produce(topic, records, partition)
            known |= {o: key for o, (key, _) in zip(offsets, records, strict=True)}

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            self.add(5)

    @property
    def count(self):
        return sum(map(len, self.produced.values()))


def verdict_of(consumer, folder, produced, dead=(), **more):
    """The checker's verdict over the history in a folder and the consumer's commit log."""
    store, group = consumer._subscription.joined().store, consumer.options.group_id
    letters = {tp: [(o, o) for t, p, o in dead if (t, p) == tp] for tp in produced}
    return check(
        read_history(folder / "history"), produced, done_book(store, group),
        pending_book(store, group), letters, **more,
    )  # fmt: skip


class Fails:
    """Some records fail at their first attempts, some are rejected."""

    def __call__(self, record):
        """Fail or not."""
        if record.offset % 101 == 5 and record.attempt < 3:
            raise RuntimeError("not yet")
        if record.offset % 211 == 9:
            raise Reject("no")


def test_key_order_retries_and_dead_letters_hold_in_real_time(
    spark, kafka, topic, produce, tmp_path
):
    """Records arrive while slots read: each is handled once, but for its retries, in key order."""
    name = topic(2)
    traffic = Traffic(produce, name, 2)
    traffic.add(200)
    dead = str(tmp_path / "dead")
    opts = options(kafka, tmp_path, name, slots=2, deadLetter=dead)
    events: list[Progress] = []
    with CooperativeConsumer(opts, spark) as consumer:
        query = consumer.foreach(
            Recorded(tmp_path / "history", Fails()), concurrency=4,
            retry=RetryPolicy(backoff=0.1, max_backoff=0.1),
        ).onProgress(events.append).trigger(realTime="10 minutes").start()  # fmt: skip
        until(lambda: is_live(query))
        with traffic:
            until(lambda: traffic.count > 3_000)
        query.processAllAvailable()
        # Slots that are late have a batch catch up.
        until(lambda: is_live(query))
        query.stop()
        from deltalake import DeltaTable

        rows = DeltaTable(dead).to_pyarrow_table().to_pylist()
        letters = [(r["_topic"], r["_partition"], r["_offset"]) for r in rows]
        verdict = verdict_of(consumer, tmp_path, traffic.produced, letters)
        assert verdict.ok, str(verdict)
        rejected = sum(o % 211 == 9 for keys in traffic.produced.values() for o in keys)
        failed = sum(o % 101 == 5 for keys in traffic.produced.values() for o in keys)
        assert len(letters) == rejected
        assert verdict.calls == traffic.count + 2 * failed
        start, commit = (
            Histogram.of(event[field] for event in events)
            for field in ("startLatency", "commitLatency")
        )
        assert start.count == commit.count == traffic.count
        assert 0 < start.seconds < commit.seconds


class Awaits:
    """A coroutine for each record."""

    def __init__(self, folder) -> None:
        self.recorder = Recorder(str(folder))

    async def __call__(self, record):
        """Wait a moment."""
        with self.recorder.call(record, current_slot()):
            await asyncio.sleep(0.001)
        return {"n": record.offset}


class Frames:
    """Answers for each row of a frame; some fail at first."""

    def __init__(self, folder) -> None:
        self.seen = str(folder)

    def __call__(self, frame):
        """Note the offsets."""
        offsets = frame.column("offset").to_pylist()
        attempts = frame.column("attempt").to_pylist()
        with open(f"{self.seen}/{os.getpid()}", "a") as file:
            file.write("".join(f"{o}\n" for o in offsets))
        return [
            "not yet" if o % 301 == 7 and a == 1 else None
            for o, a in zip(offsets, attempts, strict=True)
        ]


def test_coroutines_and_outputs_in_real_time(spark, kafka, topic, produce, tmp_path):
    """The rows of all records are in the output, once; the fetch server keeps keys alone."""
    from coopconsume import committed_rows

    name = topic(1)
    traffic = Traffic(produce, name)
    keys_alone = {"key.range.hashing.content": "key"}
    opts = options(kafka, tmp_path, name, slots=2, **keys_alone)
    out = str(tmp_path / "out")
    with CooperativeConsumer(opts, spark) as consumer:
        query = consumer.foreach(
            Awaits(tmp_path / "history"), concurrency=50, output=out, output_schema="n bigint"
        ).trigger(realTime="10 minutes").start()  # fmt: skip
        with traffic:
            until(lambda: is_live(query) and traffic.count > 1_000)
        query.processAllAvailable()
        query.stop()
        verdict = verdict_of(consumer, tmp_path, traffic.produced)
        assert verdict.ok, str(verdict)
        assert verdict.calls == traffic.count
    rows = committed_rows(out, opts["commitTable"], opts["kafka.group.id"])
    assert sorted(rows.column("n").to_pylist()) == list(range(traffic.count))


def test_frames_that_fail_go_through_a_batch_and_return(spark, kafka, topic, produce, tmp_path):
    """What is pending is handled by batches; then slots read by themselves again."""
    name = topic(1)
    traffic = Traffic(produce, name)
    opts = options(kafka, tmp_path, name, slots=2)
    (tmp_path / "seen").mkdir()
    with CooperativeConsumer(opts, spark) as consumer:
        events = []
        query = (
            consumer.foreach_frame(
                Frames(tmp_path / "seen"), max_records=200, retry=RetryPolicy(backoff=0.1)
            )
            .trigger(realTime="10 minutes")
            .onProgress(events.append)
            .start()
        )
        until(lambda: is_live(query))
        traffic.add(20)
        query.processAllAvailable()
        until(lambda: is_live(query))
        traffic.add(600)
        query.processAllAvailable()
        traffic.add(20)
        query.processAllAvailable()
        until(lambda: is_live(query))
        query.stop()
    seen = [
        int(line) for file in (tmp_path / "seen").iterdir() for line in file.read_text().split()
    ]
    assert set(seen) == set(range(640))
    assert [seen.count(o) for o in (7, 308, 609)] == [2, 2, 2]
    # What was in a frame behind a failed record of its key is handled again behind it.
    assert {o % 40 for o in seen if seen.count(o) > 1} == {7, 28, 9}
    # A batch may be over before any event shows it.
    runs = {event["batchId"] for event in events if event["mode"] == "realTime"}
    assert set(range(min(runs), max(runs))) - runs, "no batch between two real-time runs"


def test_transactions_at_the_head_of_the_log(spark, kafka, topic, tmp_path):
    """An open one is waited for, an aborted one and all markers are holes: nothing stays open."""
    name = topic(1)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": f"{name}-tx"}
    )
    producer.init_transactions()

    def transaction(first, *, commits):
        producer.begin_transaction()
        for n in range(first, first + 10):
            producer.produce(name, key=b"k%d" % (n % 3), value=b"%d" % n, partition=0)
        producer.flush()
        if commits:
            producer.commit_transaction()
        elif commits is False:
            producer.abort_transaction()

    opts = options(kafka, tmp_path, name, slots=2)
    with CooperativeConsumer(opts, spark) as consumer:
        query = (
            consumer.foreach(Recorded(tmp_path / "history"), concurrency=2)
            .trigger(realTime="10 minutes")
            .start()
        )
        transaction(0, commits=True)
        until(lambda: is_live(query))
        store, group = consumer._subscription.joined().store, opts["kafka.group.id"]

        def stable():
            return store.state(group)[name, 0].stable_offset

        until(lambda: stable() == 11)  # The marker is a hole.
        transaction(10, commits=False)
        until(lambda: stable() == 22)
        transaction(20, commits=None)
        assert stable() == 22
        producer.commit_transaction()
        until(lambda: stable() == 33)
        until(lambda: is_live(query))
        query.stop()
    calls = [call.offset for call in read_history(tmp_path / "history")]
    assert sorted(calls) == [*range(10), *range(22, 32)]


def is_lost(query, history, killed, number):
    """Whether so many slots are lost; if not, the worker of the latest call is killed.

    That worker may have ended its slot by then, and be idle: the next one is killed as well.
    """
    if query.lastProgress["totals"]["lostSlots"] >= number:
        return True
    calls = read_history(history)
    pid = int(calls.call(len(calls) - 1).process.split("-")[0])
    if pid not in killed:
        killed.add(pid)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return False


@pytest.mark.slow
def test_a_killed_worker_costs_only_repeats_of_what_was_in_flight(
    spark, kafka, topic, produce, tmp_path
):
    """Kill -9 of a slot's worker: nothing is lost, and slots read by themselves again."""
    name = topic(1)
    traffic = Traffic(produce, name)
    opts = options(kafka, tmp_path, name, slots=2, handlerTimeout="2 seconds")
    history = tmp_path / "history"
    with CooperativeConsumer(opts, spark) as consumer:
        query = (
            consumer.foreach(Recorded(history), concurrency=4)
            .trigger(realTime="10 minutes")
            .start()
        )
        deaths = Deaths(history, opts["commitTable"], opts["kafka.group.id"])
        killed: set[int] = set()
        with traffic, deaths:
            for number in (1, 2):
                until(lambda: is_live(query) and history.exists())
                known = len(read_history(history))
                until(lambda: len(read_history(history)) > known + 200)  # noqa: B023
                until(lambda: is_lost(query, history, killed, number))  # noqa: B023
            until(lambda: is_live(query))
        query.processAllAvailable()
        query.stop()
        verdict = verdict_of(consumer, tmp_path, traffic.produced, kills=deaths.kills)
        assert verdict.ok, str(verdict)
        assert verdict.done == traffic.count


def live_slots(query):
    """The slots that read by themselves, each with the number of its run."""
    runs = list(query._job._dispatcher.runs.by_number.values())
    live = [one for one in runs if one.is_real_time and not one.ending]
    return {task.slot: one.number for one in live for task in one.active if not task.is_stopped}


@pytest.mark.slow
def test_a_lost_slot_does_not_make_the_others_wait(spark, kafka, topic, produce, tmp_path):
    """Under steady traffic they read on in their run, and after a batch it does so again."""
    name, slots = topic(1), 4
    traffic = Traffic(produce, name)
    opts = options(kafka, tmp_path, name, slots=slots, handlerTimeout="2 seconds")
    history = tmp_path / "history"
    with CooperativeConsumer(opts, spark) as consumer:
        query = consumer.foreach(Recorded(history), concurrency=4).trigger(
            realTime="10 minutes"
        ).start()  # fmt: skip
        deaths = Deaths(history, opts["commitTable"], opts["kafka.group.id"])
        with traffic, deaths:
            for number in (1, 2):
                until(lambda: len(live_slots(query)) == slots and history.exists())
                known = len(read_history(history))
                until(lambda: len(read_history(history)) > known + 200)  # noqa: B023
                calls = read_history(history)
                last, before = calls.call(len(calls) - 1), live_slots(query)
                os.kill(int(last.process.split("-")[0]), signal.SIGKILL)
                until(lambda: query.lastProgress["totals"]["lostSlots"] >= number)  # noqa: B023
                until(lambda: len(live_slots(query)) == slots)
                after = live_slots(query)
                assert [slot for slot in after if after[slot] != before[slot]] == [last.slot]
        query.processAllAvailable()
        query.stop()
        verdict = verdict_of(consumer, tmp_path, traffic.produced, kills=deaths.kills)
        assert verdict.ok, str(verdict)
        assert verdict.done == traffic.count


def fetch_servers():
    """The process ids of the fetch servers of this process's session."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if b"worker.realtime.fetch_server" in (path / "cmdline").read_bytes():
                pid = int(path.name)
                while pid > 1 and pid != os.getpid():
                    pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
                if pid > 1:
                    found.append(int(path.name))
    return found


@pytest.fixture
def one_run(monkeypatch):
    """Leases that no loaded host lets pass: the end of a lease of 2 s is that of its run."""
    for module in ("group.work_life", "runtime.dispatch.slot_leases"):
        monkeypatch.setattr(f"coopconsume.{module}.lease_of", lambda _options: 60.0)


@pytest.mark.slow
@pytest.mark.usefixtures("one_run")
def test_a_fetch_server_that_is_killed_or_stopped_costs_nothing(
    spark, kafka, topic, produce, tmp_path, caplog
):
    """Slots read on, another server takes over, and each record is handled once, in key order."""
    name = topic(1)
    traffic = Traffic(produce, name)
    opts = options(kafka, tmp_path, name, slots=3)
    caplog.set_level(logging.INFO, "coopconsume.runtime")  # Why a run has ended.
    # Those of earlier jobs end some seconds after their last slot.
    until(lambda: not fetch_servers())
    with CooperativeConsumer(opts, spark) as consumer:
        query = (
            consumer.foreach(Recorded(tmp_path / "history"), concurrency=4)
            .trigger(realTime="10 minutes")
            .start()
        )
        with traffic:
            until(lambda: is_live(query))
            batch, known = query.lastProgress["batchId"], set()
            for how in (signal.SIGKILL, signal.SIGSTOP, signal.SIGKILL):
                (server,) = until(lambda: set(fetch_servers()) - known)
                known.add(server)
                count = traffic.count
                until(lambda: traffic.count > count + 200)  # noqa: B023
                os.kill(server, how)
                count = traffic.count
                until(lambda: traffic.count > count + 200)  # noqa: B023
            until(lambda: set(fetch_servers()) - known)
        query.processAllAvailable()
        last = query.lastProgress
        query.stop()
        verdict = verdict_of(consumer, tmp_path, traffic.produced)
        assert verdict.ok, str(verdict)
        assert verdict.calls == traffic.count
        assert (last["mode"], last["batchId"], last["totals"]["lostSlots"]) == (
            "realTime", batch, 0
        ), caplog.text  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("one_run")
def test_a_rebalance_and_new_partitions_while_slots_read(spark, kafka, topic, produce, tmp_path):
    """Members come and go, and partitions are added: each record is handled once, in key order.

    As a member comes, the other one goes on with the keys that it keeps, in the same run.
    """
    name = topic(2)
    traffic = Traffic(produce, name, 2)
    more = {"kafka.metadata.max.age.ms": 500}
    opts = options(kafka, tmp_path, name, slots=2, **more)
    set_shareable(opts, [name])
    events: list[Progress] = []
    with CooperativeConsumer(opts, spark) as consumer:
        query = (
            consumer.foreach(Recorded(tmp_path / "history"), concurrency=4)
            .trigger(realTime="10 minutes")
            .onProgress(events.append)
            .start()
        )
        with traffic:
            until(lambda: is_live(query))
            begun = query.lastProgress["totals"]["done"]
            # All slots read by then.
            until(
                lambda: (
                    is_live(query)
                    and query.lastProgress["totals"]["done"] > begun + 500
                    and query.lastProgress["lag"] < 100
                )
            )
            run, first = query.lastProgress["batchId"], len(events)
            with CooperativeConsumer(opts, spark) as other:
                second = (
                    other.foreach(Recorded(tmp_path / "history"), concurrency=4)
                    .trigger(realTime="10 minutes")
                    .start()
                )
                until(lambda: other.assignment() and is_live(second) and is_live(query))
                count = traffic.count
                until(lambda: traffic.count > count + 500)
                meanwhile = [(event["mode"], event["batchId"]) for event in events[first:]]
                assert set(meanwhile) == {("realTime", run)}
                assert query.lastProgress["totals"]["done"] > events[first]["totals"]["done"]
                assert len(consumer.assignment()) + len(other.assignment()) > 1
                second.stop()
            until(lambda: is_live(query) and query.lastProgress["batchId"] > run)
        admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
        admin.create_partitions({name: NewPartitions(3)})
        admin.close()
        until(lambda: (name, 2) in consumer.assignment())
        # Another producer: the first one knows the topic as it was.
        late = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers})
        for n in range(200):
            late.produce(name, key=b"k%d" % (n % 7), value=b"", partition=2)
        late.flush()
        traffic.produced[name, 2] = {n: b"k%d" % (n % 7) for n in range(200)}
        until(lambda: is_live(query))
        query.processAllAvailable()
        query.stop()
        verdict = verdict_of(consumer, tmp_path, traffic.produced)
        assert verdict.ok, str(verdict)
        assert verdict.calls == traffic.count


class Later:
    """Fails at some values."""

    def __call__(self, record):
        """Fail or not."""
        if record.value == b"later":
            raise RuntimeError("not yet")


class Idles(QueryListener):
    """Notes that the job is idle."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def onQueryIdle(self, event):  # noqa: N802
        """Notes it."""
        self.event.set()


def test_an_idle_job_says_so_names_a_retry_and_stops_promptly(
    spark, kafka, topic, produce, tmp_path
):
    """Slots that wait for records, or for the next attempt of one, end in a moment."""
    name = topic(1)
    produce(name, [(b"k", b"v")] * 10)
    with CooperativeConsumer(options(kafka, tmp_path, name, slots=2), spark) as consumer:
        idles = Idles()
        query = consumer.foreach(
            Recorded(tmp_path / "history", Later()), concurrency=2,
            retry=RetryPolicy(backoff=1_000, max_backoff=1_000),
        ).addListener(idles).trigger(realTime="10 minutes").start()  # fmt: skip
        query.processAllAvailable()
        until(lambda: is_live(query))

        def waits_for(reason):
            waiting = query.status["waitingFor"]
            return waiting is not None and waiting["reason"] == reason

        until(lambda: waits_for("newRecords"))  # Once Spark has started the slots.
        idles.event.clear()
        until(idles.event.is_set)
        assert not query.status["isDataAvailable"]
        produce(name, [(b"k", b"later"), (b"k", b"v")])
        until(lambda: waits_for("retry"))
        (event,) = query.lastProgress["partitions"]
        assert (event["blocker"]["state"], event["pending"], event["lag"]) == ("failed", 1, 2)
        assert event["blocker"]["dueInSeconds"] > 100
        assert is_live(query)
        began = time.monotonic()
        query.stop()
        assert time.monotonic() - began < 60
    assert len(read_history(tmp_path / "history")) == 11


def test_what_real_time_cannot_do_is_refused_at_start(spark, kafka, topic, tmp_path):
    """Each refusal says what to do instead."""
    name = topic(1)

    def start(job, match, error=InvalidOption):
        with pytest.raises(error, match=match):
            job.trigger(realTime="1 minute").start()

    def consumer(**more):
        return CooperativeConsumer(options(kafka, tmp_path, name, **more), spark)

    with consumer(where="offset > 3") as one:
        start(one.foreach(print), "only Spark evaluates")
    with consumer(slots=100) as one:
        start(one.foreach(print), "slots=5")
    with consumer(slots=6) as one:
        job = one.foreach(
            Awaits(tmp_path), output=lambda frame, _: frame.count(), output_schema="n bigint"
        )
        start(job, "the output function needs one")
    with consumer() as one:
        job = one.foreach_with_state(
            lambda _record, _state: None, state_schema="long", state=str(tmp_path / "state")
        )
        start(job, "state needs batches")
        wrong = [
            {"realTime": "0 s"}, {"realTime": "soon"}, {"realTime": "1 m", "availableNow": True},
            {"realTime": "1 m", "processingTime": "1 s"},
        ]  # fmt: skip
        for words in wrong:
            with pytest.raises(InvalidOption):
                one.foreach(print).trigger(**words)


def test_workers_without_the_package_or_a_way_to_the_driver_are_refused(spark):
    """Each by a Spark job, with the remedy."""
    here = ChannelSpec("127.0.0.1", 1, b"", 2.0)
    with pytest.raises(RealTimeUnavailable, match=r"no_such_package.*pip install coopconsume"):
        check_workers(spark, 2, here, "", packages=("no_such_package",))
    with pytest.raises(
        RealTimeUnavailable, match=r"cannot reach the driver at 127.0.0.1:1 .*spark.driver.host"
    ):
        check_workers(spark, 2, here, "")
    with pytest.raises(RealTimeUnavailable, match=r"the port is taken.*channelPort"):
        check_workers(spark, 2, None, "the port is taken")
