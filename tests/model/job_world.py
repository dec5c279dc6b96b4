"""A job in this process: everything is real but Kafka and Spark.

The loop, the dispatcher, the committer, the membership and the commit table are the library's own.
A batch's rows are dealt to the slots' code here, as its DataFrame would deal them.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import math
import os
import pickle
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from unittest import mock

import pyarrow as pa

from assignors import KeyRange, Share, key_hash
from assignors.ranges import offset_hash
from coopconsume.errors import BrokerUnreachable
from coopconsume.group.membership import Membership
from coopconsume.group.owned import EpochGrant
from coopconsume.kafka.blocker_records import BlockerRecord
from coopconsume.kafka.call_limit import CallLimit, Deadline, NoAnswerInTime, call_within
from coopconsume.kafka.cluster import LogEnd, Topic
from coopconsume.options import Options
from coopconsume.record import ORDERING_KEY, RetryPolicy
from coopconsume.runtime.dispatch.latest_start import LatestStart
from coopconsume.runtime.job_spec import JobSpec
from coopconsume.runtime.loop import Job
from coopconsume.runtime.status.progress import Meter
from coopconsume.worker.crash_journal import AtCrash
from coopconsume.worker.realtime.confirmed_reads import Fetched
from coopconsume.worker.realtime.errors import ReadFailed
from coopconsume.worker.realtime.wanted import WantedOffsets
from coopconsume.worker.report import Reads, SlotEnd, SlotReport
from coopconsume.worker.time_box import TimeBox

TP = ("t", 0)
_PATIENCE = float(os.environ.get("COOPCONSUME_TEST_PATIENCE", "120"))
#: Of the rows; the last one is that of the filter's mark.
_TYPES = [pa.int32(), pa.int64(), pa.int64(), pa.binary(), pa.binary(), pa.int64(), pa.bool_()]
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def until(holds, seconds=_PATIENCE):
    """Wait until a condition holds, and return what it gave."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.01)
    return found


class Idle:
    """A worker for a membership without a job."""

    def begin(self, assignment):
        """Nothing to begin."""

    def continue_work(self, timeout):
        """Nothing goes on."""
        return False

    def give_up(self, _shares, _timeout):
        """There is nothing to go on with."""

    def extend(self, _load):
        """There is nothing that it could come to."""

    def hand_over(self, timeout):
        """Nothing runs."""
        return []

    def drop(self):
        """Nothing to drop."""

    def fail(self, error):
        """Nothing to stop."""


# Nothing here is remote, so that looking more often costs nothing.
_OFTEN = {
    "runtime.log_watch._ENDS_EVERY": 0.05,
    "runtime.dispatch.slot_requests._ASK_EVERY": 0.05,
}


class Kafka:
    """One topic as `coopconsume.kafka.cluster.Cluster` shows it.

    Args:
        keys: The key of each record, by offset; an offset without one is a hole.
    """

    cluster_id = "cluster"
    servers = "nowhere:1"

    def __init__(self, keys):
        self.log = dict(keys)
        self.end = max(self.log, default=-1) + 1
        self.start = 0
        self.topic_id = "topic-id"
        #: All of them have the same records.
        self.partitions = 1
        self.is_deleted = False
        #: Where the epoch of each former leader ends.
        self.former = []
        #: Where the log begins while each of the next batches is read.
        self.retention = []
        #: The offsets of blockers whose records were read, and what the next reads fail with.
        self.blockers_read = []
        self.blocker_errors = []
        #: Reads of blockers wait for it.
        self.may_read_blockers = threading.Event()
        self.may_read_blockers.set()
        #: What retention deletes next; what was asked about it; what the next answers fail with.
        self.forecast = None
        self.forecasts_asked = []
        self.forecast_errors = []
        self.may_forecast = threading.Event()
        self.may_forecast.set()
        #: Calls wait for it; which of them have begun.
        self.answers = threading.Event()
        self.answers.set()
        self.calls = []
        self.limit = CallLimit()
        self._here = threading.local()

    def delete(self):
        """Retention takes its next step."""
        if self.retention:
            self.start = self.retention.pop(0)
            self.log = {offset: key for offset, key in self.log.items() if offset >= self.start}

    @contextlib.contextmanager
    def limited_by(self, limit):
        """Ends looks of this thread at a limit."""
        self._here.limit = limit
        yield
        self._here.limit = None

    @contextlib.contextmanager
    def patient_for(self, seconds):
        """Limits the wait of this thread for each answer."""
        self._here.patience = seconds
        yield
        self._here.patience = math.inf

    def call(self, name):
        """Wait until brokers answer."""
        limits = [self.limit, getattr(self._here, "limit", None) or self.limit]
        limits.append(Deadline(getattr(self._here, "patience", math.inf)))
        self.calls.append(name)
        if self.answers.is_set():
            return
        try:
            call_within(lambda: min(limit.left for limit in limits), self.answers.wait)
        except NoAnswerInTime:
            raise BrokerUnreachable(self.servers, "no answer") from None

    def topics(self, *_names, **_options):
        """The topic."""
        self.call("topics")
        return [] if self.is_deleted else [Topic("t", self.topic_id, self.partitions)]

    def visible_topics(self, _names):
        """The topic, and none that is hidden."""
        return self.topics(), []

    def topic_names(self):
        """Its name."""
        return [topic.name for topic in self.topics()]

    def ends(self, partitions):
        """Where its log ends."""
        return dict.fromkeys(partitions, self.end)

    def log_starts(self, partitions):
        """Where its log begins."""
        return dict.fromkeys(partitions, self.start)

    starting = log_starts

    def log_ends(self, partitions):
        """Where its log ends, and who leads it."""
        self.call("log ends")
        return dict.fromkeys(partitions, LogEnd(self.end, len(self.former)))

    def epoch_ends(self, epochs):
        """Where the epochs of former leaders end."""
        count = len(self.former)
        return {tp: self.former[e] for tp, e in epochs.items() if e is not None and e < count}

    def elect_leader(self, kept, end):
        """Another leader has the records below an offset, and new ones from there to the end."""
        self.former.append(kept)
        self.log = {at: key if at < kept else b"new" for at, key in self.log.items() if at < end}
        self.end = end

    def primary(self, _stable=()):
        """The group has no offset in Kafka."""
        return {}

    def commit_primary(self, offsets, patience=15.0):
        """Nobody looks at it; it waits for brokers that do not answer."""
        limit = CallLimit()
        limit.set(patience)
        with self.limited_by(limit):
            self.call("offsets of the group")

    def read_blockers(self, _options, offsets, *, log_level):
        """What the log has at the offsets of blockers."""
        assert log_level == logging.DEBUG
        self.blockers_read.append(offsets)
        assert self.may_read_blockers.wait(_PATIENCE)
        if self.blocker_errors:
            raise self.blocker_errors.pop()
        return {tp: BlockerRecord(at in self.log, self.log.get(at)) for tp, at in offsets.items()}

    def forecast_retention(self, _cluster, partitions):
        """What retention deletes next."""
        self.forecasts_asked.append(partitions)
        assert self.may_forecast.wait(_PATIENCE)
        if self.forecast_errors:
            raise self.forecast_errors.pop()
        return self.forecast

    def record_bytes(self, _partitions):
        """Unknown."""

    def close(self):
        """Nothing is open."""


class Frame:
    """What `batch_frame` makes of a batch: rows that slots' code is run over."""

    def __init__(self, world, spans, wanted, slots):
        self._world, self._spans, self._wanted, self._slots = world, spans, wanted, slots

    def mapInArrow(self, runner, _schema):  # noqa: N802 - PySpark's name
        """Run this over the rows."""
        self._runner = runner
        return self

    def collect(self):
        """Run every slot's code in a thread; without a mailbox reports come when all have ended."""
        failure = self._world.failures.pop(0) if self._world.failures else None
        if failure is not None:
            raise failure
        if self._world.is_reading:
            self._world.is_reading = False
            assert self._world.interrupted.wait(_PATIENCE)
            raise RuntimeError("the job was cancelled")
        self._world.kafka.delete()
        if min(span.first for span in self._spans) < self._world.kafka.start:
            raise RuntimeError("OffsetOutOfRangeException")
        if (fails_on := self._world.fails_on) is not None:
            self._world.fails_on = None
            for slot in set(self._slots) - self._world.without_core:
                threading.Thread(target=self._run, args=(slot,), daemon=True).start()
            assert fails_on.wait(_PATIENCE)
            raise RuntimeError("executor lost")
        with ThreadPoolExecutor(len(self._slots)) as pool:
            return [row for row in pool.map(self._run, self._slots) if row is not None]

    def isEmpty(self):  # noqa: N802 - PySpark's name
        """Whether no slot has a row."""
        return not any(map(self._rows, self._slots))

    def _rows(self, slot):
        rows = []
        for part, wanted in enumerate(self._wanted):
            ranges = [key_range for key_range, of in wanted.slots if of == slot]
            slices = [offsets for offsets, of in wanted.slices if of == slot]
            for offset, key in sorted(self._world.kafka.log.items()):
                by = key if self._world.ordered_by is None else self._world.ordered_by(offset)
                dealt = offset_hash(offset) if by is None else key_hash(by)
                is_its_own = any(r.contains(dealt) for r in ranges)
                is_its_own |= any(offset in some for some in slices)
                if offset in wanted.offsets and is_its_own:
                    is_denied = key in self._world.options.record_filter.deny.keys
                    own = [{"key": ORDERING_KEY, "value": by}]
                    rows.append((part, offset, dealt, key, b"v", 0, own, is_denied))
        return rows

    def _run(self, slot):
        rows = self._rows(slot)
        if slot in self._world.without_core:
            # For longer than a test waits for what must not wait for this.
            assert self._world.interrupted.wait(2 * _PATIENCE)
            raise RuntimeError("the job was cancelled")
        if slot in self._world.silent:
            self._world.silent.remove(slot)
            return None
        if not any(map(self._rows, self._slots)):
            return None  # Spark runs no task for a batch without rows.
        types = list(enumerate(_TYPES[:6]))
        if self._world.ordered_by is not None:
            types.append((6, _HEADERS))
        if self._world.options.record_filter:
            types.append((7, _TYPES[6]))
        arrays = [pa.array([row[i] for row in rows], t) for i, t in types]
        batch = pa.RecordBatch.from_arrays(arrays, names=list("abcdefgh")[: len(types)])
        report = self._runner.run(slot, [batch] if rows else [])
        return self._world.ended(report, self._runner)


class Message:
    """A record as confluent-kafka returns it."""

    def __init__(self, offset, key, epoch):
        self.offset, self.key, self.leader_epoch = (lambda: offset), (lambda: key), (lambda: epoch)

    topic, partition = (staticmethod(lambda one=one: one) for one in TP)
    value, timestamp = staticmethod(lambda: b"v"), staticmethod(lambda: (1, 0))
    headers = staticmethod(lambda: None)


class LogSource:
    """What a real-time slot reads from: the log of `Kafka`."""

    reads = Reads(1, 2, 3)

    def __init__(self, world, starts):
        (start,) = starts.values()
        self._wanted = WantedOffsets(start)
        self._world = world
        world.sources.append(self)

    def want(self, _part, pairs):
        """Adds offsets to read."""
        self._wanted.add(pairs)

    def poll(self, timeout, most):
        """Returns the next records, and the end where there are no more."""
        deadline = time.monotonic() + min(timeout, 0.01)
        while self._wanted.first >= self._world.kafka.end and time.monotonic() < deadline:
            time.sleep(0.001)
        if self._world.read_errors:
            raise ReadFailed(self._world.read_errors.pop())
        kafka, first = self._world.kafka, self._wanted.first
        if first < kafka.start:
            raise ReadFailed("the offset is not in the log")
        if not self._wanted:
            return Fetched()
        until = self._wanted.until
        following = min(max(first, kafka.end), first + most, until + 1)
        self._wanted.take(first, following)
        log = kafka.log
        epoch = len(kafka.former)
        records = [Message(o, log[o], epoch) for o in range(first, following) if o in log]
        is_end = following in (kafka.end, until + 1)
        return Fetched(records, {TP: following} if is_end else {})

    def close(self):
        """Nothing is open."""
        self._world.sources.remove(self)


class LiveSpark:
    """Runs the slots of a real-time run, each in a thread."""

    def __init__(self, world):
        self._world = world

    def range(self, _first, count, *_):
        """So many tasks."""
        self._count = count
        return self

    def mapInArrow(self, runner, _schema):  # noqa: N802 - PySpark's name
        """Run this in each."""
        self._runner = runner
        return self

    def collect(self):
        """Runs them, and returns their rows."""
        world, runner = self._world, self._runner
        world.begun.update((runner._spec.run, slot) for slot in runner.slots)
        with ThreadPoolExecutor(self._count) as pool:
            return list(pool.map(self._run, runner.slots))

    def _run(self, slot):
        world, runner = self._world, self._runner
        if slot in world.without_core:
            assert world.interrupted.wait(2 * _PATIENCE)
            raise RuntimeError("the job was cancelled")
        return world.ended(copy.copy(runner).run(slot, ()), runner)


class CountedJob(Job):
    """A job that counts its turns, and checks the states of records after each of them."""

    turns = 0

    def _turn(self):
        self.turns += 1
        super()._turn()
        for partition in self.partitions:
            partition.check()
        self._dispatcher.runs.check()


def keeps(run):
    """Whether a slot of a batch has given back all but what its handlers work on."""
    return any(task.kept is not None for task in run.tasks.values())


class Calls:
    """A handler that notes its calls, and may do more."""

    def __init__(self, act=lambda record: None):
        self.calls, self.attempts = [], {}
        self._act, self._lock = act, threading.Lock()

    def __call__(self, record):
        with self._lock:
            self.calls.append(record.offset)
            self.attempts.setdefault(record.offset, []).append(record.attempt)
        return self._act(record)

    @property
    def count(self):
        return Counter(self.calls)


class World:
    """One group on one topic; jobs come and go.

    Args:
        monkeypatch: Puts the stand-ins in place.
        folder: Where the commit table goes.
        keys: The key of each record, by offset.
        channel: Whether slots have a channel to the driver.
        slow: Seconds without progress after which a slot is asked for relief.
        ordered_by: The ordering key by offset, as Spark computes it; None: records have none.
        options: Of the consumers.
    """

    def __init__(
        self,
        monkeypatch,
        folder,
        keys,
        *,
        channel=False,
        slow=math.inf,
        ordered_by=None,
        often=True,
        **options,
    ):
        self.kafka = Kafka(keys)
        self.ordered_by = ordered_by
        if ordered_by is not None:
            options["orderingKey"] = "value"
        #: What the next batches end with before a handler is called; None: they run.
        self.failures = []
        #: Set by a test to have the next batch fail; tasks of it that have begun go on.
        self.fails_on = None
        #: How many of the next slots to end die before they report.
        self.dying = 0
        #: How many of the next slots to end are found to have died, and the offsets at work then.
        self.crashing = 0
        self.at_crash = []
        #: Slots whose next task ends without a row.
        self.silent = []
        #: Whether the next batch stays in its read until it is interrupted.
        self.is_reading = False
        #: Slots that Spark does not begin before their batch is interrupted.
        self.without_core = set()
        self.interrupted = threading.Event()
        #: How often each slot of each job has begun to read by itself.
        self.begun = Counter()
        #: What such slots read from, and what their next reads fail with.
        self.sources = []
        self.read_errors = []
        self.options = Options.parse(
            {
                "kafka.bootstrap.servers": "nowhere:1", "kafka.group.id": "g", "subscribe": "t",
                "commitTable": str(folder / "commits"), "slots": 2, "batchTime": "300 seconds",
                "handlerTimeout": "300 seconds",
            } | options
        )  # fmt: skip
        self._reading = threading.Lock()
        self._jobs = []
        self._members = []
        self._gates = []
        for target, stand_in in {
            "kafka.connection.Cluster": lambda _options: self.kafka,
            "runtime.status.blocker_keys.read_blockers": self.kafka.read_blockers,
            "runtime.status.retention_watch.forecast_retention": self.kafka.forecast_retention,
            "runtime.dispatch.batch.batch_frame": lambda *_, spans, wanted, tasks, **__: Frame(
                self, spans, wanted, tasks
            ),
            "runtime.dispatch.batch.tagged": lambda *_: contextlib.nullcontext(),
            "runtime.realtime.run_job.tagged": lambda *_: contextlib.nullcontext(),
            "worker.realtime.slot.RealTimeRunner.open_source": staticmethod(
                lambda _spec, _slot, starts: LogSource(self, starts)
            ),
            "runtime.dispatch.spark_jobs.open_mailbox": lambda _, receive: (
                receive if channel else None
            ),
            "runtime.dispatch.spark_jobs.interrupt": lambda *_: self.interrupted.set(),
            "runtime.dispatch.slot_leases.driver_address": lambda _: (
                ("127.0.0.1",) * 2 if channel else None
            ),
            "runtime.dispatch.relief.SLOW": slow,
            "runtime.dispatch.relief.SLOW_WHILE_BUSY": slow,
            # Reports come with a job's result here, but it is no server that outlives its client.
            "runtime.dispatch.spark_jobs.LatestStart": lambda slots, **_: LatestStart(
                slots, is_limited=False
            ),
            # A slot must not end this process.
            "worker.slot.TimeBox": functools.partial(TimeBox, end=lambda _status: None),
            **(_OFTEN if often else {}),
        }.items():
            monkeypatch.setattr(f"coopconsume.{target}", stand_in)

    @property
    def runs(self):
        """Real-time runs so far: the slots of a job may begin one by one."""
        jobs = {job for job, _ in list(self.begun)}
        return sum(max(n for (of, _), n in list(self.begun.items()) if of == job) for job in jobs)

    def ended(self, report, runner):
        """Sends the report of a slot, or loses it; returns the row of its task.

        Args:
            report: The report.
            runner: The function of its tasks. It sends the report to the job that the slot belongs
                to; or else the row takes it there.
        """
        slot, send = report.slot, runner._send
        # A batch may end while a real-time slot still runs.
        if self.crashing and runner._spec.realtime is not None:
            self.crashing -= 1
            report = self._after_a_crash(slot, runner)
        # Of one that its driver has not met, nothing is lost.
        leases = [job._dispatcher.leases for job in self._jobs]
        met = [one._server is None or one.has_met((report.batch, slot)) for one in leases]
        if self.dying and any(met):
            self.dying -= 1
            report = SlotReport(report.batch, slot, end=SlotEnd(unknown=True))
        if send is not None:
            send(pickle.dumps(report))
        return SimpleNamespace(slot=slot, report=None if send else pickle.dumps(report))

    def _after_a_crash(self, slot, runner):
        """The report of the second attempt of a task, which finds what was at work in the first."""
        ranges = runner._spec.realtime.key_ranges[slot][0]
        hashes = {offset: key_hash(self.kafka.log[offset]) for offset in self.at_crash}
        own = [o for o, h in hashes.items() if any(a <= h <= b for a, b in ranges)]
        words = AtCrash([(0, offset) for offset in own], [], 7)
        journal = "coopconsume.worker.slot.read_journal"
        with self._reading, mock.patch(journal, return_value=words):
            return runner.after_a_crash(slot)

    def member(self):
        """Another member; it holds nothing yet."""
        self._members.append(Membership(self.options, 2, Idle()))
        return self._members[-1]

    def claim(self, **how):
        """A member that has claimed all partitions."""
        member = self.member()
        claimed = {("t", partition): [KeyRange()] for partition in range(self.kafka.partitions)}
        member.assign(claimed, takeover=how.pop("takeover", False))
        return member

    def cooperate(self, *names):
        """Members of a cooperative epoch, as a group's leader would have opened it."""
        members = [self.member() for _ in names]
        store = members[0].store
        shares = {name: [TP] for name in names}
        row = store.assignment("g")
        epoch = store.open_epoch(
            "g", shares, previous=row and row.epoch, topic_ids={"t": self.kafka.topic_id},
            sharing="cooperative", life_ms=members[0]._life.ms,
        )  # fmt: skip
        for name, member in zip(names, members, strict=True):
            ids = {"t": self.kafka.topic_id}
            grant = EpochGrant(epoch, name, (Share(*TP),), ids, life_ms=member._life.ms)
            member.owner.begin(grant)
        return members

    def run(self, member, handler, **work):
        """A job on what a member holds."""
        work = {
            "concurrency": 1, "ordering": "key", "policy": RetryPolicy(backoff=0.01, jitter=0),
            "dead_letters": None, "park": False, "outputs": None, "interval": 0.0,
            "available_now": False,
        } | work  # fmt: skip
        identity = {"id": "job", "runId": "run", "name": "job", "groupId": "g", "clientId": "c"}
        job = CountedJob(
            LiveSpark(self), member, JobSpec(handler=handler, **work), 2, Meter(identity, 2)
        )
        self._jobs.append(job)
        job.start()
        return job

    def until_one_slot_works(self, job):
        """Wait until all slots but one have ended."""
        batches = job._dispatcher.runs.by_number
        self.until(lambda: sum(len(batch.unfinished) for batch in batches.copy().values()) == 1)

    def gate(self, *offsets):
        """A handler whose calls for some offsets wait until it is opened."""
        self._gates.append(Gate(*offsets))
        return self._gates[-1]

    def close(self):
        """End all jobs, the handlers that wait and the signs of life of claims."""
        for gate in self._gates:
            gate.opened.set()
        self.kafka.may_read_blockers.set()
        self.kafka.may_forecast.set()
        self.kafka.answers.set()
        for job in self._jobs:
            job.abort()
        for member in self._members:
            if member._claim is not None:
                member._claim.stop()

    def end(self, job):
        """End a job whose events are ignored from now on."""
        self._jobs.remove(job)
        job.abort()

    def until(self, holds):
        """Wait until a condition holds; a job that ends meanwhile is an error."""
        until(lambda: holds() or any(job.ended.is_set() for job in self._jobs))
        for job in self._jobs:
            if job.error is not None:
                raise AssertionError("the job has failed") from job.error

    def done(self, member, tp=TP):
        """What the commit log counts as done of a partition."""
        state = member.store.state("g").get(tp)
        if state is None:
            return set()
        above = {int(o) for o in state.ranges.offsets()}
        return set(range(state.stable_offset)) | above

    def turns(self, job, count=3):
        """Wait until a job's loop has taken some more turns."""
        stop = job.turns + count
        until(lambda: job.turns >= stop or job.ended.is_set())


class WatchClock:
    """The clock of jobs that watch chunks of members that are gone; a test sets it forward."""

    time = staticmethod(time.time)

    def __init__(self, monkeypatch):
        self._ahead, self.looks = 0.0, 0
        monkeypatch.setattr("coopconsume.group.chunks.time", self)
        monkeypatch.setattr("coopconsume.runtime.commit.committer._CHUNKS_EVERY", 0.1)

    def monotonic(self):
        self.looks += 1
        return time.monotonic() + self._ahead

    def goes_on(self, seconds=0.0):
        """Some time passes, and the only job looks at the chunks some more times."""
        self._ahead += seconds
        enough = self.looks + 10
        until(lambda: self.looks >= enough)


class Gate:
    """A handler whose calls for some offsets wait until they may end."""

    def __init__(self, *offsets):
        self.offsets = offsets
        self.at_work = set()
        self.calls = []
        self.opened = threading.Event()

    def __call__(self, record):
        self.calls.append((record.offset, time.monotonic()))
        if record.offset in self.offsets:
            self.at_work.add(record.offset)
            assert self.opened.wait(_PATIENCE)
