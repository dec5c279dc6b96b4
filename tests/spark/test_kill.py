"""kill -9 of a whole job, driver and JVM and workers, at random moments, and on again."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from deltalake import DeltaTable
from kafka.admin import KafkaAdminClient, MemberToRemove

from commits import CommitStore
from coopconsume import CooperativeConsumer, committed_rows, committed_state
from coopconsume.cli.run import status_line
from coopconsume.demo.processes import kill_tree, process_tree
from coopconsume.group.owned import LEASE
from coopconsume.testing.history import Kill, check, read_history
from coopconsume.worker.crash_journal import has_ended
from tests.spark.job_to_kill import PHASES
from tests.spark.support import PATIENCE, Recorded, done_book, options, pending_book, until

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.slow]
ROOT = Path(__file__).parents[2]


def start(*configs: dict, log, host: Path | None = None) -> subprocess.Popen:
    """Start jobs in a process of their own, with one session; they begin after `go`.

    Args:
        configs: Of each job.
        log: Gets what it prints.
        host: Its folder for temporary files, if it is to be on another host as far as is known.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "tests.spark.job_to_kill", json.dumps(configs)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        start_new_session=True,
        env=os.environ | ({"TMPDIR": str(host)} if host else {}),
    )


def go(job: subprocess.Popen) -> None:
    """Let a job begin."""
    assert job.stdin is not None
    job.stdin.write(b"\n")
    job.stdin.close()


def forget_members(kafka, group: str) -> None:
    """Have the broker take a killed job's member for gone, as it does when its session is over.

    So that sessions can be long: a slow machine is not to cost a job its membership.
    """
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    members = admin.describe_groups([group])[group]["members"]
    admin.remove_group_members(group, [MemberToRemove(one["member_id"]) for one in members])
    admin.close()


def written(history: Path) -> int:
    """Bytes in a history."""
    return sum(file.stat().st_size for file in history.glob("*"))


@pytest.mark.nightly
@pytest.mark.parametrize("live", [False, True], ids=["batches", "real-time"])
def test_killed_at_random_moments_nothing_is_lost(kafka, topic, produce, tmp_path, live):
    """After each SIGKILL it goes on from the log: no loss, key order, repeats in flight only."""
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    name = topic(2)
    produced: dict = {(name, 0): {}, (name, 1): {}}

    def more(count):
        for partition in (0, 1):
            records = [(b"k%d" % dice.randrange(120), b"%d" % i) for i in range(count)]
            offsets = produce(name, records, partition)
            keys = (key for key, _ in records)
            produced[name, partition] |= dict(zip(offsets, keys, strict=True))

    more(400)
    opts = options(
        kafka, tmp_path, name, batchTime="1 second", handlerTimeout="6 seconds",
        maxOffsetsPerTrigger=300,
    )  # fmt: skip
    group = opts["kafka.group.id"]
    history = tmp_path / "history"
    config = {
        "options": opts, "history": str(history), "output": str(tmp_path / "out"), "most": 0.01,
    }  # fmt: skip
    kills = []
    log_path = tmp_path / "job.log"
    cluster = ""
    with log_path.open("w") as log, ExitStack() as stack:

        def prepared(*, endless: bool) -> subprocess.Popen:
            job = start(config | {"endless": endless, "live": live and endless}, log=log)
            stack.callback(lambda: kill_tree(job) if job.poll() is None else None)
            return job

        following = prepared(endless=True)
        for number in range(2):
            job, following = following, prepared(endless=number == 0)
            more(200)  # So that there is work, however long the kill before took.
            seen = written(history)
            go(job)
            until(lambda j=job, n=seen: written(history) > n or j.poll() is not None)
            time.sleep(dice.uniform(0.1, 1.5))
            assert job.poll() is None, log_path.read_text()[-3000:]
            kill_tree(job)
            forget_members(kafka, group)
            (cluster,) = CommitStore.open(opts["commitTable"]).clusters(group)
            store = CommitStore.open(opts["commitTable"], cluster=cluster)
            kills.append(Kill(time.monotonic_ns(), done_book(store, group)))
        go(following)
        assert following.wait(PATIENCE) == 0, log_path.read_text()[-3000:]
    store = CommitStore.open(opts["commitTable"], cluster=cluster)
    verdict = check(
        read_history(history), produced, done_book(store, group), pending_book(store, group), {},
        kills=kills,
    )  # fmt: skip
    assert verdict.ok, f"seed {seed}\n{verdict}"
    assert verdict.done == 1_600
    # Two batches at work, beside one whose commit is under way.
    assert all(flying <= 3 * 300 for flying in verdict.in_flight_at_kill)
    rows = committed_rows(str(tmp_path / "out"), opts["commitTable"], group)
    assert rows.num_rows == 1_600
    assert len({(r["partition"], r["offset"]) for r in rows.to_pylist()}) == 1_600


#: Sessions and handlers for which no test waits.
LONG = {"kafka.session.timeout.ms": 1_800_000, "handlerTimeout": "1 hour", "leaseGrace": "1 hour"}


#: Kinds of jobs, each with its options, how it is run, and the order that it keeps.
KINDS: dict[str, tuple[dict, dict]] = {
    "batches": ({}, {}),
    "real-time": ({}, {"live": True}),
    "static": ({"kafka.group.instance.id": "one"}, {}),
    "chunks": ({"sharing": "cooperative"}, {"ordering": "none"}),
}


def test_killed_and_started_again_on_its_host_it_goes_on_at_once(kafka, topic, produce, tmp_path):
    """Neither Kafka's session nor the life of handlers is waited for: the dead run nothing.

    The jobs of one process are one of each kind, and are killed together. Handlers last until none
    is to be killed any more, so that each has work left.
    """
    count, stop, gate = 600, tmp_path / "stop", tmp_path / "gate"
    records = [(b"k%d" % (i % 60), b"%d" % i) for i in range(count)]
    produced, names = {offset: key for offset, (key, _) in enumerate(records)}, {}
    configs = {}
    for kind, (more, how) in KINDS.items():
        names[kind] = name = topic(1)
        produce(name, records)
        opts = options(
            kafka, tmp_path / kind, name, batchTime="1 minute", slots=2, **LONG, **more
        )  # fmt: skip
        configs[kind] = {
            "options": opts, "history": str(tmp_path / kind / "history"),
            "output": str(tmp_path / kind / "out"), "most": 0.05, "endless": True,
            "stops_at": str(stop), "gate": str(gate), "held": 10.0, "cores": 3, **how,
        }  # fmt: skip

    def store_of(kind):
        opts = configs[kind]["options"]
        (cluster,) = CommitStore.open(opts["commitTable"]).clusters(opts["kafka.group.id"])
        return CommitStore.open(opts["commitTable"], cluster=cluster)

    def group_of(kind):
        return configs[kind]["options"]["kafka.group.id"]

    def seen():
        return {kind: written(Path(one["history"])) for kind, one in configs.items()}

    log_path, kills = tmp_path / "job.log", {kind: [] for kind in KINDS}
    with log_path.open("w") as log, ExitStack() as stack:
        jobs = [start(*configs.values(), log=log) for _ in range(3)]
        for job in jobs:
            stack.callback(lambda j=job: kill_tree(j) if j.poll() is None else None)
        for job in jobs[:2]:
            before = seen()
            go(job)
            until(lambda j=job, b=before: all(n > b[k] for k, n in seen().items()) or j.poll())
            assert job.poll() is None, log_path.read_text()[-3000:]
            kill_tree(job)
            for kind in KINDS:
                book = done_book(store_of(kind), group_of(kind))
                kills[kind].append(Kill(time.monotonic_ns(), book))
        gate.touch()
        go(jobs[2])
        stores = {kind: store_of(kind) for kind in KINDS}
        for kind, store in stores.items():
            until(lambda k=kind, s=store: (
                s.state(group_of(k))[names[k], 0].stable_offset == count
                or jobs[2].poll() is not None
            ))  # fmt: skip
        stop.touch()
        assert jobs[2].wait(PATIENCE) == 0, log_path.read_text()[-3000:]
    for kind, store in stores.items():
        verdict = check(
            read_history(Path(configs[kind]["history"])), {(names[kind], 0): produced},
            done_book(store, group_of(kind)), pending_book(store, group_of(kind)), {},
            kills=kills[kind], ordering=configs[kind].get("ordering", "key"),
        )  # fmt: skip
        assert verdict.ok, f"{kind}: {verdict}"
        assert verdict.done == count, kind


def test_handlers_that_outlive_their_driver_are_waited_for_and_not_longer(
    kafka, topic, produce, tmp_path
):
    """The driver alone is killed, its JVM is frozen, its workers go on: nobody runs beside them."""
    name, count = topic(1), 200
    records = [(b"k%d" % (i % 20), b"%d" % i) for i in range(count)]
    produce(name, records)
    produced = {(name, 0): {offset: key for offset, (key, _) in enumerate(records)}}
    opts = options(kafka, tmp_path, name, batchTime="1 minute", **LONG)
    group, history, gate = opts["kafka.group.id"], tmp_path / "history", tmp_path / "gate"
    config = {
        "options": opts, "history": str(history), "output": str(tmp_path / "out"), "most": 0.01,
        "gate": str(gate), "held": 2 * PATIENCE,
    }  # fmt: skip
    log_path = tmp_path / "job.log"
    with log_path.open("w") as log, ExitStack() as stack:
        job, following = start(config | {"endless": True}, log=log), start(config, log=log)
        for one in (job, following):
            stack.callback(lambda j=one: kill_tree(j) if j.poll() is None else None)
        go(job)
        until(lambda: (history.exists() and written(history) > 0) or job.poll() is not None)
        assert job.poll() is None, log_path.read_text()[-3000:]
        rest = process_tree(job.pid)[1:]

        def end(pids: list[int]) -> None:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

        stack.callback(end, rest)
        for pid in rest:
            if b"java" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGSTOP)
        job.kill()
        job.wait()
        go(following)
        until(lambda: "waiting for handlers that process" in log_path.read_text())
        (cluster,) = CommitStore.open(opts["commitTable"]).clusters(group)
        store = CommitStore.open(opts["commitTable"], cluster=cluster)
        assert store.assignment(group).epoch.number == 1
        # It stands still until it is noted what is committed as the others end.
        os.kill(following.pid, signal.SIGSTOP)
        started = len(read_history(history))
        end(rest)
        until(lambda: all(map(has_ended, rest)))
        assert len(read_history(history)) == started
        kill = Kill(time.monotonic_ns(), done_book(store, group))
        gate.touch()
        os.kill(following.pid, signal.SIGCONT)
        assert following.wait(PATIENCE) == 0, log_path.read_text()[-3000:]
    verdict = check(
        read_history(history), produced, done_book(store, group), pending_book(store, group), {},
        kills=[kill],
    )  # fmt: skip
    assert verdict.ok, f"{verdict}"
    assert verdict.done == count
    assert verdict.in_flight_at_kill == (started,)


def test_the_successor_of_a_killed_application_says_for_what_it_waits_and_until_when(
    spark, kafka, topic, produce, tmp_path, caplog
):
    """On screen and in progress: for handlers of the killed one, lease + handlerTimeout at most.

    Kafka has removed the killed member by then, as after its session.
    """
    name, count, timeout = topic(1), 200, 6.0
    records = [(b"k%d" % (i % 20), b"") for i in range(count)]
    produce(name, records)
    produced = {(name, 0): {offset: key for offset, (key, _) in enumerate(records)}}
    opts = options(kafka, tmp_path, name, batchTime="1 minute", handlerTimeout=timeout)
    group, history = opts["kafka.group.id"], tmp_path / "history"
    config = {
        "options": opts, "history": str(history), "output": str(tmp_path / "out"), "most": 0.5,
        "endless": True,
    }  # fmt: skip
    log_path, host = tmp_path / "job.log", tmp_path / "host"
    host.mkdir()
    with log_path.open("w") as log, ExitStack() as stack:
        job = start(config, log=log, host=host)
        stack.callback(lambda: kill_tree(job) if job.poll() is None else None)
        go(job)
        until(lambda: (history.exists() and written(history) > 0) or job.poll() is not None)
        assert job.poll() is None, log_path.read_text()[-3000:]
        kill_tree(job)
    forget_members(kafka, group)
    (cluster,) = CommitStore.open(opts["commitTable"]).clusters(group)
    store = CommitStore.open(opts["commitTable"], cluster=cluster)
    kills, events = [Kill(time.monotonic_ns(), done_book(store, group))], []
    with CooperativeConsumer(opts, spark) as consumer:
        work = consumer.foreach(Recorded(history)).trigger(availableNow=True)
        query = work.onProgress(events.append).start()
        assert query.awaitTermination(PATIENCE)
    waits = [e for e in events if (e["waitingFor"] or {}).get("reason") == "lostMember"]
    first = waits[0]
    message = first["waitingFor"]["message"]
    found = re.match(r"waiting for a lost member until \d\d:\d\d:\d\d UTC \((\d+) s\)", message)
    assert found is not None, message
    assert int(found[1]) <= LEASE + timeout
    assert f"its key ranges of {name}-0" in message
    assert 0 < first["partitions"][0]["inDoubtSeconds"] <= LEASE + timeout
    assert message in status_line(first, 0.0)
    assert any(line.levelname == "WARNING" and "lost member" in line.getMessage()
               for line in caplog.records)  # fmt: skip
    verdict = check(
        read_history(history), produced, done_book(store, group), pending_book(store, group), {},
        kills=kills,
    )  # fmt: skip
    assert verdict.ok, f"{verdict}"
    assert verdict.done == count


def test_slots_of_a_frozen_driver_start_nothing_once_their_leases_have_passed(
    kafka, topic, produce, tmp_path
):
    """Though their batch has a minute; with the driver awake the job goes on, and repeats none."""
    name, count = topic(1), 3_000
    records = [(b"k%d" % (i % 120), b"") for i in range(count)]
    produce(name, records)
    produced = {(name, 0): {offset: key for offset, (key, _) in enumerate(records)}}
    # However long it is frozen on a loaded machine: what runs may end.
    opts = options(kafka, tmp_path, name, batchTime="1 minute", leaseGrace="1 hour")
    group, history = opts["kafka.group.id"], tmp_path / "history"
    config = {
        "options": opts, "history": str(history), "output": str(tmp_path / "out"), "most": 0.04,
        "endless": False,
    }  # fmt: skip
    log_path = tmp_path / "job.log"
    with log_path.open("w") as log, ExitStack() as stack:
        job = start(config, log=log)
        stack.callback(lambda: kill_tree(job) if job.poll() is None else None)
        go(job)
        until(lambda: (history.exists() and written(history) > 0) or job.poll() is not None)
        os.kill(job.pid, signal.SIGSTOP)
        frozen = time.monotonic_ns()
        seen = -1
        while seen != (seen := written(history)):
            time.sleep(LEASE)
        starts = read_history(history).start
        os.kill(job.pid, signal.SIGCONT)
        assert len(starts) < count
        # Twice the lease: a starved thread may be late to notice it.
        assert starts.max() < frozen + 2 * LEASE * 1e9
        assert job.wait(PATIENCE) == 0, log_path.read_text()[-3000:]
    (cluster,) = CommitStore.open(opts["commitTable"]).clusters(group)
    store = CommitStore.open(opts["commitTable"], cluster=cluster)
    verdict = check(
        read_history(history), produced, done_book(store, group), pending_book(store, group), {}
    )
    assert verdict.ok, f"{verdict}"


def test_killed_at_every_phase_each_output_and_change_of_state_is_there_once(
    kafka, topic, produce, tmp_path, monkeypatch
):
    """From reading to after the commit: a merged table is clean whenever read."""
    monkeypatch.setenv("COOPCONSUME_STATE_DIR", str(tmp_path / "stores"))
    name, count = topic(1), 1_000
    records = [(b"k%d" % (i % 37), b"%d" % i) for i in range(count)]
    produce(name, records)
    produced = {(name, 0): {o: key for o, (key, _) in enumerate(records)}}
    opts = options(
        kafka, tmp_path, name, batchTime="1 second", handlerTimeout="6 seconds",
        maxOffsetsPerTrigger=100,
    )  # fmt: skip
    group, history, out = opts["kafka.group.id"], tmp_path / "history", str(tmp_path / "out")
    config = {
        "options": opts, "history": str(history), "output": out, "mode": "merge", "most": 0.004,
        "dead": str(tmp_path / "dead"), "state": str(tmp_path / "state"),
    }  # fmt: skip
    kills = []
    log_path = tmp_path / "job.log"

    def lying() -> list[int]:
        if not DeltaTable.is_deltatable(out):
            return []  # The first kill may come before the first row is written.
        return sorted(DeltaTable(out).to_pyarrow_table(columns=["offset"]).column(0).to_pylist())

    with log_path.open("w") as log, ExitStack() as stack:

        def prepared(more: dict) -> subprocess.Popen:
            job = start(config | more, log=log)
            stack.callback(lambda: kill_tree(job) if job.poll() is None else None)
            return job

        markers = [tmp_path / f"stopped-{number}" for number in range(len(PHASES))]
        plans = [
            {"stop": (phase, 2, str(marker))} for phase, marker in zip(PHASES, markers, strict=True)
        ]
        following = prepared(plans[0])
        for plan, marker in zip([*plans[1:], {}], markers, strict=True):
            job, following = following, prepared(plan)
            go(job)
            until(lambda j=job, m=marker: m.exists() or j.poll() is not None)
            assert job.poll() is None, log_path.read_text()[-3000:]
            kill_tree(job)
            forget_members(kafka, group)
            (cluster,) = CommitStore.open(opts["commitTable"]).clusters(group)
            store = CommitStore.open(opts["commitTable"], cluster=cluster)
            kills.append(Kill(time.monotonic_ns(), done_book(store, group)))
            found = lying()
            assert len(found) == len(set(found)), "each record once, whenever it is looked at"
        go(following)
        assert following.wait(PATIENCE) == 0, log_path.read_text()[-3000:]
    letters = committed_rows(config["dead"], opts["commitTable"], group).to_pylist()
    dead = [letter["_offset"] for letter in letters]
    assert sorted(dead) == list(range(9, count, 101))
    state = committed_state(config["state"], opts["commitTable"], group).to_pylist()
    calls = read_history(history)
    assert len(calls.saw) == len(calls), "each call has recorded its state"
    verdict = check(
        calls, produced, done_book(store, group), pending_book(store, group),
        {(name, 0): [(o, o) for o in dead]}, kills=kills,
        states={(name, 0): {row["key"]: row["value"] for row in state}},
    )  # fmt: skip
    assert verdict.ok, str(verdict)
    assert lying() == [offset for offset in range(count) if offset not in dead]
    assert {row["key"]: row["value"] for row in state} == {
        b"k%d" % key: [offset for offset in range(key, count, 37) if offset not in dead]
        for key in range(37)
    }
    assert committed_rows(out, opts["commitTable"], group).num_rows == count - len(dead)
