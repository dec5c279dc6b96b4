"""Members that share a partition by chunks: kill -9, a slow member, every way of an outcome."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from kafka.admin import KafkaAdminClient, MemberToRemove

from commits import CommitStore, OffsetRanges
from coopconsume import CooperativeConsumer, Options, Reject, RetryPolicy, committed_rows
from coopconsume.admin.dead_letters.actions import DeadLetters
from coopconsume.admin.dead_letters.choice import Choice
from coopconsume.demo.processes import kill_tree
from coopconsume.errors import GroupRefused, InvalidOption
from coopconsume.runtime.read.offset_frames import WantedRows, batch_frame
from coopconsume.runtime.read.spans import Span
from coopconsume.testing.history import Kill, check, read_history
from tests.spark.support import PATIENCE, Recorded, done_book, options, pending_book, until
from tests.spark.test_dead_letters import FailsUntil

pytestmark = [pytest.mark.spark, pytest.mark.broker]
ROOT = Path(__file__).parents[2]


def store_of(opts: dict) -> CommitStore:
    """The commit store of a consumer with these options."""
    (cluster,) = CommitStore.open(opts["commitTable"]).clusters(opts["kafka.group.id"])
    return CommitStore.open(opts["commitTable"], cluster=cluster)


def forget_member(kafka, group: str, pid: int) -> None:
    """Have the broker take the member of a killed process for gone, as its session does."""
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    members = admin.describe_groups([group])[group]["members"]
    gone = [one["member_id"] for one in members if one["client_id"].endswith(f"-{pid}")]
    assert gone, members
    admin.remove_group_members(group, [MemberToRemove(one) for one in gone])
    admin.close()


@pytest.mark.slow
def test_two_processes_share_a_partition_and_one_is_killed(kafka, topic, produce, tmp_path):
    """Nothing is lost; what comes again was in flight in the killed one.

    Each process has a job in batches and one in real time. In real time the killed one has offsets
    that have no record yet, and the other one gets them.
    """
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    count, both_work, is_over = 3_000, tmp_path / "both-work", tmp_path / "is-over"
    configs, offsets = {}, {}
    for kind in ("batches", "real-time"):
        name, live, folder = topic(1), kind == "real-time", tmp_path / kind
        offsets[kind] = produce(name, [(None, b"") for _ in range(count)])
        # Until both are at work none of them gets far, however late the other one is.
        configs[kind] = {
            "options": options(
                kafka, folder, name, sharing="cooperative", batchTime="2 seconds", slots=2,
                handlerTimeout="6 seconds", maxOffsetsPerTrigger=200,
                # The killed members are in the groups until they are forgotten.
                **{"kafka.session.timeout.ms": 300_000},
            ),
            "history": str(folder / "history"), "output": str(folder / "out"), "most": 0.02,
            "ordering": "none", "cores": 2, "gate": str(both_work), "live": live,
        } | ({"stops_at": str(is_over)} if live else {})  # fmt: skip
    batches, live = (one["options"] for one in configs.values())

    def book_of(opts):
        return done_book(store_of(opts), opts["kafka.group.id"])

    log_path = tmp_path / "job.log"
    with log_path.open("w") as log, ExitStack() as stack:
        jobs = []
        for endless in (True, False):
            given = json.dumps([one | {"endless": endless} for one in configs.values()])
            jobs.append(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.spark.job_to_kill", given],
                    cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
                )
            )  # fmt: skip
            stack.callback(lambda job=jobs[-1]: kill_tree(job) if job.poll() is None else None)
        for job in jobs:
            assert job.stdin is not None
            job.stdin.write(b"\n")
            job.stdin.close()

        def both_hold(opts):
            if any(job.poll() is not None for job in jobs):
                raise AssertionError(log_path.read_text()[-3000:])
            store, group = CommitStore.open(opts["commitTable"]), opts["kafka.group.id"]
            if not store.clusters(group):
                return False
            chunks = store_of(opts).acquisitions(group)
            return len({one.member for held in chunks.values() for one in held}) == 2

        until(lambda: both_hold(batches) and both_hold(live))
        both_work.touch()
        time.sleep(dice.uniform(0.1, 1.0))
        kill_tree(jobs[0])
        at = time.monotonic_ns()
        kills = {kind: [Kill(at, book_of(one["options"]))] for kind, one in configs.items()}
        # Some of these offsets were acquired by the killed member before.
        offsets["real-time"] += produce(live["subscribe"], [(None, b"")] * 500)
        forget_member(kafka, batches["kafka.group.id"], jobs[0].pid)
        until(lambda: covered(book_of(live)) >= count)
        forget_member(kafka, live["kafka.group.id"], jobs[0].pid)
        until(lambda: covered(book_of(live)) == len(offsets["real-time"]))
        is_over.touch()
        assert jobs[1].wait(PATIENCE) == 0, log_path.read_text()[-3000:]
    for kind, config in configs.items():
        opts = config["options"]
        store, group, name = store_of(opts), opts["kafka.group.id"], opts["subscribe"]
        verdict = check(
            read_history(config["history"]), {(name, 0): dict.fromkeys(offsets[kind])},
            done_book(store, group), pending_book(store, group), {}, kills=kills[kind],
        )  # fmt: skip
        assert verdict.ok, f"{kind}, seed {seed}\n{verdict}"
        assert verdict.done == len(offsets[kind])
        assert store.acquisitions(group) == {}
        rows = committed_rows(config["output"], opts["commitTable"], group).to_pylist()
        assert sorted(row["offset"] for row in rows) == offsets[kind]


def covered(book) -> int:
    """How many offsets are done."""
    return sum(last - first + 1 for ranges in book.values() for first, last in ranges)


class Works:
    """Takes so many seconds for each record."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, record):
        """Sleep; some records fail once, some are rejected."""
        time.sleep(self.seconds)
        if record.offset % 101 == 9:
            raise Reject("no")
        if record.offset % 101 == 5 and record.attempt < 3:
            raise RuntimeError("not yet")
        return {"n": record.offset}


@pytest.mark.slow
@pytest.mark.parametrize("live", [False, True], ids=["batches", "real-time"])
def test_a_slow_member_does_not_hold_the_others_back(spark, kafka, topic, produce, tmp_path, live):
    """It gets its part by speed; retries, dead letters and outputs of both are complete."""
    name, count = topic(2), 4_000
    produced: dict = {}
    for partition in (0, 1):
        offsets = produce(name, [(None, b"") for _ in range(count // 2)], partition)
        produced[name, partition] = dict.fromkeys(offsets)
    opts = options(
        kafka, tmp_path, name, sharing="cooperative", slots=2, batchTime="2 seconds",
        deadLetter=str(tmp_path / "dead"),
    )  # fmt: skip
    group = opts["kafka.group.id"]
    folders = [tmp_path / "fast", tmp_path / "slow"]
    with ExitStack() as stack:
        queries = []
        for folder, seconds in zip(folders, (0.002, 0.05), strict=True):
            consumer = stack.enter_context(CooperativeConsumer(opts, spark))
            handler = Recorded(folder, Works(seconds))
            job = consumer.foreach(
                handler, ordering="none", output=str(tmp_path / "out"),
                output_schema="n bigint", retry=RetryPolicy(backoff=0.2, max_backoff=0.2),
            )  # fmt: skip
            if live:
                job.trigger(realTime="10 minutes")
            queries.append(job.start())
        for _ in range(5 if live else 0):
            for query in queries:
                until(lambda: (last := query.lastProgress) and last["mode"] == "realTime")  # noqa: B023
            for partition in (0, 1):
                offsets = produce(name, [(None, b"")] * 100, partition)
                produced[name, partition] |= dict.fromkeys(offsets)
        for query in queries:
            query.processAllAvailable()
    store = store_of(opts)
    dead = committed_rows(str(tmp_path / "dead"), opts["commitTable"], group).to_pylist()
    letters: dict = {}
    for one in dead:
        at = one["_topic"], one["_partition"]
        letters.setdefault(at, []).append((one["_offset"],) * 2)
    done = done_book(store, group)
    calls = [read_history(folder) for folder in folders]
    fast, slow = len(calls[0]), len(calls[1])
    total = sum(map(len, produced.values()))
    assert sum(len(one) for one in letters.values()) == 2 * len(range(9, total // 2, 101))
    every = tmp_path / "every"
    every.mkdir()
    for file in (one for folder in folders for one in folder.glob("*")):
        shutil.copy(file, every / file.name)
    verdict = check(read_history(every), produced, done, pending_book(store, group), letters)
    assert verdict.ok, str(verdict)
    assert verdict.repeated.count == 0
    assert slow < 0.3 * (fast + slow)
    rows = committed_rows(str(tmp_path / "out"), opts["commitTable"], group)
    assert rows.num_rows == total - len(dead)


def test_parked_records_wait_and_nothing_else_does(spark, kafka, topic, produce, tmp_path):
    """Through a restart; they are listed, and one is replayed and one discarded."""
    name = topic(1)
    produce(name, [(None, b"v%d" % n) for n in range(60)])
    opts = options(
        kafka, tmp_path, name, sharing="cooperative", slots=2, deadLetter=str(tmp_path / "dead")
    )
    fixed, history = tmp_path / "fixed", tmp_path / "history"

    def job(consumer):
        policy = RetryPolicy(max_attempts=2, backoff=0.1)
        handler = Recorded(history, FailsUntil(fixed))
        return consumer.foreach(handler, ordering="none", retry=policy, on_dead="park")

    with CooperativeConsumer(opts, spark) as consumer:
        query = job(consumer).trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE), "parked records do not keep a job from its end"
        (partition,) = query.lastProgress["partitions"]
        assert (partition["stableOffset"], partition["parked"], partition["pending"]) == (3, 2, 2)
        assert query.lastProgress["totals"]["deadLetters"] == 2
    dead_letters = DeadLetters(opts)
    assert [(one.offset, one.status, one.attempts)
            for one in dead_letters.letters()] == [(3, "parked", 1), (5, "parked", 2)]  # fmt: skip
    fixed.touch()
    with CooperativeConsumer(opts, spark) as consumer:
        query = job(consumer).start()
        produce(name, [(None, b"")] * 40)
        query.processAllAvailable()
        (partition,) = query.lastProgress["partitions"]
        assert (partition["stableOffset"], partition["parked"]) == (3, 2)
        dead_letters.carry_out("replay", dead_letters.plan(Choice(reason="refused")))
        dead_letters.carry_out("discard", dead_letters.plan(Choice(reason="luck")))
        until(lambda: query.lastProgress["partitions"][0]["stableOffset"] == 100)
    assert not dead_letters.letters()
    calls = [(one.offset, one.attempt) for one in read_history(history)]
    again = {3: [1, 1], 5: [1, 2]}
    assert sorted(calls) == [(n, attempt) for n in range(100) for attempt in again.get(n, [1])]


def test_members_that_share_in_another_way_are_refused(spark, kafka, topic, produce, tmp_path):
    """Only the newcomer is, with the reason; the group goes on."""
    name = topic(1)
    produce(name, [(None, b"") for _ in range(100)])
    opts = options(kafka, tmp_path, name, sharing="cooperative", slots=2)
    with CooperativeConsumer(opts, spark) as consumer:
        query = consumer.foreach(Works(0.0), ordering="none", dead_letter=str(tmp_path / "d"))
        query = query.start()
        refused = pytest.raises(GroupRefused, match=r"sharing keyRanges.*with cooperative")
        with CooperativeConsumer(opts | {"sharing": "keyRanges"}, spark) as other, refused:
            other.subscribe()
        with pytest.raises(InvalidOption, match="ordering='key'"):
            consumer.foreach(Works(0.0), dead_letter=str(tmp_path / "d"))
        produce(name, [(None, b"") for _ in range(100)])
        query.processAllAvailable()
        assert query.isActive
    assert done_book(store_of(opts), opts["kafka.group.id"]) == {(name, 0): [(0, 199)]}


@pytest.mark.parametrize("is_mixed", [False, True], ids=["a-span-each", "mixed"])
def test_each_slot_gets_its_slices_in_order(spark, kafka, topic, produce, tmp_path, is_mixed):
    """Whether its task reads them itself, or they are dealt by offset."""
    names = [topic(1), topic(1)]
    for name in names:
        produce(name, [(None, b"") for _ in range(60)])
    parsed = Options.parse(options(kafka, tmp_path, ",".join(names)))
    mixed = {0: [(40, 49)], 1: [(10, 19)], 3: [(0, 9), (20, 39)]}
    own = {3: [(0, 19)], 1: [(20, 39)]} if not is_mixed else mixed
    rest = {0: [(5, 50)]}
    wanted = [
        WantedRows(
            name, 0, OffsetRanges([pair for some in pairs.values() for pair in some]),
            slices=tuple((OffsetRanges(some), slot) for slot, some in pairs.items()),
        )
        for name, pairs in zip(names, (own, rest), strict=True)
    ]  # fmt: skip
    spans = [Span(names[0], 0, 0, 49 if is_mixed else 39), Span(names[1], 0, 5, 50)]
    tasks = (0, 1, 3)
    frame = batch_frame(spark, parsed, spans, wanted, tasks, 2, headers=False)
    assert frame.rdd.getNumPartitions() == len(tasks)
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert ("Exchange" in plan) == is_mixed
    rows = frame.selectExpr("spark_partition_id() AS task", "part", "offset").collect()
    found: dict = {}
    for row in rows:
        found.setdefault((tasks[row.task], row.part), []).append(row.offset)
    expected = {(slot, 0): OffsetRanges(some) for slot, some in own.items()}
    expected[0, 1] = OffsetRanges(rest[0])
    assert found == {at: some.offsets().tolist() for at, some in expected.items()}
