"""The parts that read records or keep offsets, each as a user works with it.

A new part enters itself in `PARTS`, and the modules in which it makes a reader in `READERS`.
"""

from __future__ import annotations

import itertools
import json
import os
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from assignors import key_hash
from commits import CommitStore
from coopconsume import CooperativeConsumer, FencedWriter
from coopconsume.admin.dead_letters.actions import DeadLetters
from coopconsume.admin.dead_letters.choice import Choice
from coopconsume.admin.offsets.admin import OffsetAdmin
from coopconsume.fenced import LogReader
from coopconsume.kafka.cluster import Cluster
from coopconsume.kafka.parked_keys import ParkedKeys, count_behind
from coopconsume.options import Options
from coopconsume.queue import QueueConsumer, QueueReplica
from coopconsume.sinks import open_dead_letters
from coopconsume.worker.report import DeadLetter
from tests.situations.logs import HEADERS, PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import SparkSession

    from coopconsume import Record
    from tests.situations.logs import Logs, Seen

#: Whatever a group may be called: Kafka asks for one character at least, and for nothing else.
GROUP = "gr\u00fcp/%20 '\"\\;=.."


@dataclass
class Run:
    """What came of a turn of a part.

    Attributes:
        seen: The records that the user was given in this turn, by topic.
        expected: The records that the user had to be given, by topic; by default those that are in
            the log and were not given in an earlier turn.
        stable: The first offset that is not committed, by topic and partition, where it is kept.
        errors: What was raised, by topic.
    """

    seen: dict[str, list[Seen]] = field(default_factory=dict)
    expected: dict[str, set[Seen]] = field(default_factory=dict)
    stable: dict[tuple[str, int], int] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)


class Part(Protocol):
    """One way to read records.

    Attributes:
        name: Its name in the tests.
        writes: Whether it writes what it reads, into topics of its own.
    """

    name: str
    writes: bool

    def run(self, logs: Logs, folder: Path, spark: SparkSession, turn: int) -> Run:
        """Read all that the group has not read in earlier turns, and commit it."""


class Noted:
    """A handler that appends what it gets to a file of its process."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)

    def __call__(self, record: Record) -> None:
        """Note the record."""
        value = checked(record.topic, record.value, record.headers).decode()
        line = json.dumps([record.topic, record.partition, record.offset, value])
        with (Path(self._folder) / str(os.getpid())).open("a") as file:
            file.write(line + "\n")


def checked(topic: str, value: bytes | None, headers: Iterable[tuple[str, bytes | None]]) -> bytes:
    """Return a record's value, or what is wrong with its headers."""
    found = tuple((name, None if data is None else bytes(data)) for name, data in headers)
    is_wrong = topic.startswith("header_names") and found != HEADERS
    return repr(found).encode() if is_wrong else bytes(value or b"")


def noted(folder: Path) -> dict[str, list[Seen]]:
    """Return what handlers have noted, by topic."""
    found: dict[str, list[Seen]] = defaultdict(list)
    for file in folder.iterdir():
        for line in file.read_text().splitlines():
            topic, partition, offset, value = json.loads(line)
            found[topic].append((partition, offset, value.encode()))
    return found


def options_of(part: Part, logs: Logs, folder: Path, turn: int) -> dict[str, Any]:
    """Return the options of a group that has all topics; what is lost ends only the first turn."""
    return {
        "kafka.bootstrap.servers": logs.broker.bootstrap_servers,
        "kafka.group.id": f"{part.name} {GROUP}",
        "subscribe": ",".join(log.topic for log in logs.to_read.values()),
        "commitTable": str(folder / part.name),
        "slots": 4,
        "includeHeaders": True,
        # Those that are added later begin at their start all the same.
        "startingOffsets": "latest" if turn else "earliest",
        "failOnDataLoss": not turn,
    }


def stable_offsets(options: Mapping[str, Any]) -> dict[tuple[str, int], int]:
    """Return what a commit table has, by topic and partition."""
    with closing(Cluster(Options.parse(options))) as cluster:
        store = CommitStore.open(options["commitTable"], cluster=cluster.cluster_id)
    state = store.state(options["kafka.group.id"])
    return {tp: commits.stable_offset for tp, commits in state.items()}


class Batches:
    """A job with the trigger ``availableNow``."""

    name = "batches"
    writes = False
    more: Mapping[str, Any] = {}
    ordering = "key"

    def run(self, logs: Logs, folder: Path, spark: SparkSession, turn: int) -> Run:
        """Start a job and wait for its end."""
        options, run = options_of(self, logs, folder, turn) | self.more, Run()
        (notes := folder / f"{self.name}-{turn}").mkdir()
        with CooperativeConsumer(options, spark) as consumer:
            job = consumer.foreach(Noted(notes), ordering=self.ordering)
            self.work(job, logs, notes)
            run.seen, run.stable = noted(notes), stable_offsets(options)
        return run

    def work(self, job: Any, logs: Logs, notes: Path) -> None:
        """Run the job until all is done."""
        del logs, notes
        assert job.trigger(availableNow=True).start().awaitTermination(PATIENCE)


class Chunks(Batches):
    """A job whose group shares partitions by chunks."""

    name = "chunks"
    more: Mapping[str, Any] = {"sharing": "cooperative"}
    ordering = "none"


class RealTime(Batches):
    """A job in real time: batches catch up, and its slots read what comes then."""

    name = "real time"

    def work(self, job: Any, logs: Logs, notes: Path) -> None:
        """Write records while slots read; the job ends once the last one is done."""
        query = job.trigger(realTime="5 minutes").start()

        def is_live() -> bool:
            assert query.isActive, query.exception()
            return bool(query.lastProgress) and query.lastProgress["mode"] == "realTime"

        def all_are_done() -> bool:
            assert query.isActive, query.exception()
            done = noted(notes)
            return all(
                logs.kept(log) - before[log.topic] <= set(done[log.topic])
                for log in logs.to_read.values()
            )

        until(is_live)
        before = {log.topic: logs.kept(log) for log in logs.to_read.values()}
        logs.grow()
        until(all_are_done)
        query.processAllAvailable()
        query.stop()


class Polling:
    """`CooperativeConsumer.poll` and `commit`."""

    name = "poll"
    writes = False

    def run(self, logs: Logs, folder: Path, spark: SparkSession, turn: int) -> Run:
        """Poll until nothing has come for some polls."""
        options, run = options_of(self, logs, folder, turn), Run()
        with CooperativeConsumer(options, spark) as consumer:
            empty = 0
            while empty < 3:
                polled = consumer.poll(2.0)
                rows = polled.select("topic", "partition", "offset", "value", "headers").collect()
                for topic, partition, offset, value, headers in rows:
                    seen = (partition, offset, checked(topic, value, headers or ()))
                    run.seen.setdefault(topic, []).append(seen)
                empty = 0 if rows else empty + bool(consumer.assignment())
                consumer.commit()
            run.stable = stable_offsets(options)
        return run


class Queues:
    """A `QueueConsumer` for each topic, with a replica of its own."""

    name = "queue"
    writes = False

    def run(self, logs: Logs, folder: Path, spark: SparkSession, turn: int) -> Run:
        """Poll and acknowledge until nothing has come for some polls."""
        del spark
        options = options_of(self, logs, folder, turn)
        for name in ("subscribe", "commitTable", "slots", "includeHeaders"):
            del options[name]
        if not turn:  # its replica has a topic whose records the broker compresses
            number = [*logs.to_read].index("codecs")
            logs.broker.create_topic(f"queue-{number}", 1, {"compression.type": "lz4"})
        topics = [log.topic for log in logs.to_read.values()]
        # Most of the time passes in polls that return nothing.
        with ThreadPoolExecutor() as pool:
            seen = pool.map(partial(self._read, options), topics, itertools.count())
            return Run(dict(zip(topics, seen, strict=True)))

    @staticmethod
    def _read(options: Mapping[str, Any], topic: str, number: int) -> list[Seen]:
        """Read and acknowledge what a topic has for the group."""
        replica, seen = QueueReplica(f"queue-{number}"), []
        with QueueConsumer(options, topic, [replica]) as consumer:
            empty = 0
            while empty < 2:
                records = consumer.poll(100, timeout=1.0)
                for record in records:
                    value = checked(topic, record.value, record.headers)
                    seen.append((record.partition, record.offset, value))
                    consumer.acknowledge(record)
                consumer.commit()
                empty = 0 if records else empty + 1
        return seen


class FencedLogs:
    """A fenced log in each topic: what is appended is read, and nothing else."""

    name = "fenced log"
    writes = True

    def run(self, logs: Logs, folder: Path, spark: SparkSession, turn: int) -> Run:
        """Append to each log as its next owner, and read it from its start."""
        del folder, spark
        run = Run()
        options = {"kafka.bootstrap.servers": logs.broker.bootstrap_servers}
        for log in logs.to_write.values():
            values = [b"%d of turn %d" % (n, turn) for n in range(3)]
            entries = [(b"%d" % n, value) for n, value in enumerate(values)]
            try:
                with FencedWriter(options, log.topic, fence_owner=True) as writer:
                    first = writer.append(entries)
                with LogReader(options, log.topic) as reader:
                    read = [(0, record.offset, record.value) for record in reader.read()]
            except Exception as error:  # noqa: BLE001 - the tests look at it
                run.errors[log.topic] = error
                continue
            run.seen[log.topic] = [one for one in read if one[2] in values]
            run.expected[log.topic] = {
                (0, first.first_offset + n, value) for n, value in enumerate(values)
            }
        return run


class Letters:
    """Dead letters in each topic: they are listed, and replayed to a topic of their own."""

    name = "dead letters"
    writes = True

    def run(self, logs: Logs, folder: Path, spark: SparkSession, turn: int) -> Run:
        """Write letters of a commit that counts, list them, and replay them."""
        del spark
        run = Run()
        for number, log in enumerate(logs.to_write.values()):
            orders = f"orders-{number}"
            if not turn:
                logs.broker.create_topic(orders)
            options = options_of(self, logs, folder, turn) | {
                "kafka.group.id": f"{log.situation} {GROUP}", "deadLetter": f"kafka:{log.topic}"
            }  # fmt: skip
            parsed, at = Options.parse(options), (orders, 0)
            with closing(Cluster(parsed)) as cluster:
                topic_id = cluster.topic_ids([orders])[orders]
                store = CommitStore.open(options["commitTable"], cluster=cluster.cluster_id)
            offsets = range(3 * turn, 3 * turn + 3)
            headers = HEADERS if log.situation == "header_names" else ()
            letters = [
                DeadLetter(orders, 0, o, b"k%d" % o, b"letter %d" % o, 0, headers, 1, "no", "")
                for o in offsets
            ]
            with closing(open_dead_letters(options["deadLetter"], parsed)) as sink:
                sink.append(letters, {orders: topic_id}, f"run-{turn}")
            group = parsed.group_id
            epoch = store.open_epoch(group, {"m": [at]}, previous=store.current_epoch(group))
            store.commit(
                group, epoch, "m", {at: [(offsets[0], offsets[-1])]}, commit_id=f"run-{turn}"
            )
            found = DeadLetters(options)
            run.seen[log.topic] = [
                (0, one.offset, checked(log.topic, one.value, one.headers))
                for one in found.letters(whole=True)
            ]
            found.carry_out("replay", found.plan(Choice()))
            assert not found.letters()
            with closing(Cluster(parsed)) as cluster:
                assert cluster.ends([at])[at] == offsets.stop
            run.expected[log.topic] = {(0, o, b"letter %d" % o) for o in offsets}
        return run


class Resets:
    """``offsets reset``: what a move skips and what it has handled again is counted by reading.

    So are the records behind parked ones.
    """

    name = "resets"
    writes = False

    def run(self, logs: Logs, folder: Path, spark: SparkSession, turn: int) -> Run:
        """Move a group to the end of each log and back to its start."""
        del spark
        run = Run()
        options = options_of(self, logs, folder, turn)
        CommitStore.open(options["commitTable"])
        with OffsetAdmin(options, options["kafka.group.id"], create=True) as admin:
            for log in logs.to_read.values():
                counts = []
                for where in ("latest", "earliest"):
                    statuses = admin.statuses({log.topic: []}, may_be_new=True)
                    moves = admin.to_offsets(statuses, where)
                    counts += [sum(admin.count_records(move)[where == "latest"] for move in moves)]
                    admin.execute(moves)
                counts.append(self._behind(admin, log.topic))
                kept = len(logs.kept(log))
                if counts != [kept] * 3:
                    text = f"{counts} records were counted up to the end and back, {kept} are there"
                    run.errors[log.topic] = AssertionError(text)
                run.expected[log.topic] = set()
        return run

    def _behind(self, admin: OffsetAdmin, topic: str) -> int:
        """Count the records of all keys, as if each key were held back before the log begins."""
        hashes = [key_hash(b"k%d" % number) for number in range(3)]
        parked = {
            (topic, one.partition): ParkedKeys(
                {found: (one.log_start or 0) - 1 for found in hashes if found is not None},
                one.done, one.log_start or 0, one.end_offset or 0,
            )
            for one in admin.statuses({topic: []})
        }  # fmt: skip
        found = count_behind(admin.options, parked).values()
        assert all(one.is_all for one in found)
        return sum(one.records for one in found)


PARTS: tuple[Part, ...] = (
    Batches(), RealTime(), Polling(), Chunks(), Queues(), FencedLogs(), Letters(), Resets(),
)  # fmt: skip

#: The modules that make a reader of Kafka records, and the parts whose turns use it.
READERS: Mapping[str, tuple[str, ...]] = {
    "coopconsume/runtime/read/offset_frames.py": ("batches", "poll", "chunks"),
    "coopconsume/runtime/read/timestamp_overflow.py": ("batches", "poll", "chunks"),
    "coopconsume/worker/realtime/source.py": ("real time",),
    "coopconsume/queue/record_source.py": ("queue",),
    "coopconsume/fenced/kafka_engine.py": ("fenced log",),
    "coopconsume/fenced/frames.py": ("fenced log",),
    "coopconsume/admin/dead_letters/stored.py": ("dead letters",),
    "coopconsume/admin/offsets/counting.py": ("resets",),
    "coopconsume/kafka/blocker_records.py": ("resets",),
    "coopconsume/kafka/parked_keys.py": ("resets",),
    "coopconsume/kafka/one_partition.py": ("fenced log", "queue"),
    "coopconsume/kafka/records.py": tuple(part.name for part in PARTS),
}
