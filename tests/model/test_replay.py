"""A recorded run of a job, replayed without Spark, Kafka and a commit log, decides the same."""

from __future__ import annotations

import itertools
import json
import math
import threading
import time
from types import SimpleNamespace

import pytest

from assignors import key_hash
from commits import CommitLogUnavailable
from coopconsume.group.epoch_proof import EpochProof
from coopconsume.record import Reject, Retry
from coopconsume.runtime import completion, epoch_state, log_watch, loop, rebalance, trace
from coopconsume.runtime.commit import committer
from coopconsume.runtime.decisions import Decision, decide
from coopconsume.runtime.dispatch import batch, dispatcher, job_slots, reports, spark_jobs
from coopconsume.runtime.plan import acquiring
from tests import replay
from tests.model.job_group import HIGH, LOW, WHOLE, Group
from tests.model.job_world import TP, CountedJob, World, until

SECRET = "s3cr3t"


class Letters:
    """Takes dead letters."""

    def append(self, letters, _topic_ids, _commit_id):
        """Takes them."""
        assert letters

    def close(self):
        """Nothing is open."""


@pytest.fixture
def record(monkeypatch, tmp_path):
    """Records jobs of a world; a turn of the loop, and each event, has one time.

    So a replay that knows the time of each turn decides the same to the microsecond.
    """
    clock = threading.local()

    def monotonic():
        return getattr(clock, "now", None) or time.monotonic()

    def step():
        clock.now = time.monotonic()

    class Stepping(CountedJob):
        def _turn(self):
            step()
            super()._turn()

        def _handle(self, event):
            step()
            super()._handle(event)

    of_slots = batch, dispatcher, job_slots, reports, spark_jobs
    of_jobs = loop, completion, rebalance
    for module in (*of_jobs, *of_slots, committer, acquiring, epoch_state, log_watch, trace):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=monotonic, time=time.time))
    monkeypatch.setattr("tests.model.job_world.CountedJob", Stepping)
    path = tmp_path / "trace.jsonl"
    monkeypatch.setenv(trace.VARIABLE, str(path))
    worlds = []

    def world(keys, **options):
        worlds.append(World(monkeypatch, tmp_path, keys, **options))
        return worlds[-1]

    yield world, path
    for one in worlds:
        one.close()


def each_decided(path):
    """Of each run in a trace its decisions, and those of its replay."""
    return [
        (replay.decisions(lines), replay.replay(lines)) for lines in replay.runs(path.read_text())
    ]


def decided(path):
    """The decisions of the run in a trace, and of its replay."""
    (found,) = each_decided(path)
    return found


def test_a_failing_job_decides_the_same_when_it_is_replayed(record):
    """Its records fail, are tried again, hold back their keys, and end the job."""
    world, path = record
    there = world({offset: b"%s %d" % (SECRET.encode(), offset % 5) for offset in range(40)})
    calls = []

    def handler(record):
        calls.append(record.offset)
        if record.offset in {3, 14} and record.attempt <= 2:
            raise Retry(0.05)
        if record.offset == 22:
            raise ValueError(SECRET) if record.attempt <= 3 else Reject(SECRET)

    job = there.run(there.claim(), handler)
    assert job.ended.wait(120)
    assert SECRET in str(job.error)
    recorded, replayed = decided(path)
    assert replayed == recorded
    kinds = [one["kind"] for one in recorded]
    assert kinds.count("BatchStarted") >= 2, "failed records are tried again in later batches"
    assert "CommitStarted" in kinds
    assert recorded[-1] == {"kind": "JobEnded", "error": type(job.error).__name__}
    attempts = [
        part["attempts"]
        for one in recorded
        if one["kind"] == "BatchStarted"
        for slot in one["plan"]["work"].values()
        for part in slot.values()
    ]
    assert any("22" in one for one in attempts), "a later batch knows the attempts of a record"
    assert calls.count(22) == 4


@pytest.mark.parametrize("channel", [False, True])
def test_a_job_with_records_that_are_given_up_is_replayed(record, channel):
    """With progressive reports and without."""
    world, path = record
    there = world({offset: b"%d" % (offset % 3) for offset in range(30)}, channel=channel)

    def handler(record):
        if record.offset == 7:
            raise Reject("no")
        if record.offset % 5 == 2 and record.attempt == 1:
            raise Retry(0.05, headers=[("h", b"v")])

    member = there.claim()
    job = there.run(member, handler, dead_letters=Letters(), available_now=True)
    assert job.ended.wait(120)
    assert job.error is None
    recorded, replayed = decided(path)
    assert replayed == recorded
    assert there.done(member) == set(range(30))


def test_a_job_whose_read_fails_is_replayed(record):
    """The trace says which slots never connected, and are planned again at once."""
    world, path = record
    there = world({offset: b"%d" % (offset % 3) for offset in range(30)}, channel=True)
    there.failures = [RuntimeError("the read failed")]
    member = there.claim()
    job = there.run(member, lambda _: None, available_now=True)
    assert job.ended.wait(120)
    assert job.error is None
    recorded, replayed = decided(path)
    assert replayed == recorded
    kinds = [one["kind"] for one in recorded]
    assert kinds.count("BatchStarted") >= 2, "the first one failed"


def test_a_job_whose_commit_table_does_not_answer_is_replayed(record, monkeypatch):
    """No batch starts until it answers."""
    world, path = record
    there = world({offset: b"%d" % (offset % 3) for offset in range(30)})
    check, calls = EpochProof.check, itertools.count()

    def unavailable(self, **within):
        if next(calls) < 2:
            raise CommitLogUnavailable("commits", "read", "no answer")
        return check(self, **within)

    monkeypatch.setattr(EpochProof, "check", unavailable)
    member = there.claim()
    member.assignment.proof._seen = -math.inf
    job = there.run(member, lambda _: None, available_now=True)
    assert job.ended.wait(120)
    assert job.error is None
    assert next(calls) > 2
    assert '"BatchWithheld"' in path.read_text()
    recorded, replayed = decided(path)
    assert replayed == recorded


@pytest.mark.parametrize("how", ["handed over", "given up"])
def test_a_job_is_replayed_through_rebalances(record, how):
    """All shares are handed over and some come back, or some move while the others go on."""
    world, path = record
    keys = {offset: b"k%d" % (offset % 5) for offset in range(60)}
    # The job is not refused commits while it waits for its next epoch.
    options = {"drainTimeout": "300 seconds", "commitInterval": "0.2 seconds"}
    there = world({o: keys[o] for o in range(20)}, channel=True, **options)
    group, gate = Group(there), there.gate(3)
    group.opens([WHOLE])
    group.begins(continues=False)
    job = there.run(group.member, gate)
    there.until(lambda: gate.at_work)
    if how == "handed over":
        moves, request = threading.Thread(target=group.member.owner.hand_over), "hand_over"
    else:
        assert group.member.owner.continue_work()
        group.opens([WHOLE])
        moves = threading.Thread(target=group.begins, kwargs={"moving": (HIGH,)})
        request = "leaving"
    moves.start()
    until(lambda: getattr(job._rebalance, request) is not None or not moves.is_alive())
    gate.opened.set()
    moves.join(120)
    if how == "handed over":
        group.opens([LOW], [HIGH])
        group.begins(continues=False)
    there.kafka.log |= keys
    there.kafka.end = 60
    low = {offset for offset, key in keys.items() if LOW.key_range.contains(key_hash(key))}
    there.until(lambda: low <= there.done(group.member))
    job.stop()
    assert job.ended.wait(120)
    recorded, replayed = decided(path)
    assert replayed == recorded
    lines = path.read_text().splitlines()
    kinds = [json.loads(line)["kind"] for line in lines]
    moved = kinds.index("HandOverRequested" if how == "handed over" else "SharesRevoked")
    assert "BatchStarted" in kinds[moved:], "the job goes on after the rebalance"


def test_jobs_that_share_by_chunks_are_replayed(record):
    """Records fail, are parked and decided on; one job pauses, and returns what it holds."""
    world, path = record
    log = {offset: None for offset in range(300) if offset != 77}
    there = world(log, channel=True, sharing="cooperative", maxOffsetsPerTrigger=40)
    lock, parked, calls = threading.Lock(), {101, 201}, {}

    def handler(of):
        def handle(record):
            with lock:
                calls.setdefault(of, []).append(record.offset)
                again = sum(some.count(record.offset) for some in calls.values()) > 1
            until(lambda: len(calls) == 2)
            if record.offset in parked and not again:
                raise Reject(SECRET)
            if record.offset % 40 == 5 and record.attempt == 1:
                raise Retry(0.05, headers=[(SECRET, SECRET.encode())])

        return handle

    members = there.cooperate("a", "b")
    store = members[0].store
    jobs = [
        there.run(member, handler(of), ordering="none", dead_letters=Letters(), park=True)
        for of, member in enumerate(members)
    ]
    there.until(lambda: there.done(members[0]) == set(range(300)) - parked)
    decide(store, "g", [Decision(*TP, 101, "replay"), Decision(*TP, 201, "discard")])
    there.until(lambda: there.done(members[0]) == set(range(300)))
    jobs[0].pause()
    there.until(lambda: not any(one.member == "a" for one in store.acquisitions("g").get(TP, ())))
    there.kafka.log |= dict.fromkeys(range(300, 400))
    there.kafka.end = 400
    there.until(lambda: there.done(members[0]) == set(range(400)))
    for job in jobs:
        job.stop()
        assert job.error is None
    found = each_decided(path)
    assert len(found) == 2
    for recorded, replayed in found:
        assert replayed == recorded
        assert any(one["kind"] == "CommitStarted" and one["request"] for one in recorded)
        assert recorded[-1] == {"kind": "JobEnded", "error": None}
    assert SECRET not in path.read_text()


def test_another_decision_is_found(record, capsys):
    """The command prints the first decision that is another one now."""
    world, path = record
    there = world(dict.fromkeys(range(10), b"k"))
    job = there.run(there.claim(), lambda _: None, available_now=True)
    assert job.ended.wait(120)
    assert replay.main(str(path)) == 0
    changed = [json.loads(line) for line in path.read_text().splitlines()]
    (first,) = [line for line in changed if line["kind"] == "BatchStarted"]
    first["plan"]["reads"][0]["last"] = 3
    path.write_text("".join(json.dumps(line) + "\n" for line in changed))
    assert replay.main(str(path)) == 1
    assert '"last": 3' in capsys.readouterr().out


def test_a_trace_has_no_keys_values_or_texts_and_only_its_owner_reads_it(record):
    """Nor what handlers return, or texts of errors; it has numbers only."""
    world, path = record
    there = world({offset: SECRET.encode() for offset in range(4)}, **{"kafka.client.id": SECRET})

    def handler(_):
        raise Reject(SECRET)

    job = there.run(there.claim(), handler, dead_letters=Letters(), available_now=True)
    assert job.ended.wait(120)
    text = path.read_text()
    assert '"JobEnded"' in text
    assert SECRET not in text
    assert str(there.options.commit_table) not in text
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_trace_that_cannot_be_written_ends_no_job(record, monkeypatch, tmp_path, caplog):
    """It is logged once."""
    world, _ = record
    monkeypatch.setenv(trace.VARIABLE, str(tmp_path / "absent" / "trace"))
    there = world({0: b"k"})
    member = there.claim()
    job = there.run(member, lambda _: None, available_now=True)
    assert job.ended.wait(120)
    assert job.error is None
    assert there.done(member) == {0}
    assert "The job runs without a trace" in caplog.text
