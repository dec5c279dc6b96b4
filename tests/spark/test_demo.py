"""The demo, small: its figures, its order, and that it cleans up."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from coopconsume.demo.processes import kill_tree, process_tree
from coopconsume.demo.text import slow_aircraft
from coopconsume.demo.topic import planned_records
from tests.spark.cluster import is_there
from tests.spark.support import PATIENCE, until

if TYPE_CHECKING:
    from kafka import KafkaAdminClient

    from coopconsume.testing.local.broker import LocalKafka

pytestmark = [pytest.mark.spark, pytest.mark.broker]

RECORDS = 5_000


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start the demo with its temporary files in a folder that tests can look into."""
    return subprocess.Popen(
        [sys.executable, "-m", "coopconsume", "demo", "--records", str(RECORDS), *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"TMPDIR": str(folder)}, start_new_session=True,
    )  # fmt: skip


@pytest.mark.slow
def test_all_checks_pass_and_nothing_is_left(tmp_path: Path) -> None:
    """One line of JSON with all figures, four steps in words, an empty temporary folder."""
    demo = start(tmp_path, "--json")
    out, said = demo.communicate(timeout=600)
    assert demo.returncode == 0, said
    (line,) = out.splitlines()
    figures: dict[str, Any] = json.loads(line)
    assert list(figures) == [
        "produced", "done", "pending", "dead_lettered", "lost", "order_breaks", "repeated",
        "in_flight_at_kill", "repeated_by_lost_slots", "seconds",
        "seconds_from_kill_to_next_call", "records_per_second", "stable_offsets", "log_end_offsets",
    ]  # fmt: skip
    assert figures["produced"] == RECORDS == figures["done"] + figures["dead_lettered"]
    assert figures["dead_lettered"] > 0
    assert figures["lost"] == figures["pending"] == figures["order_breaks"] == 0
    # On a loaded machine a handler may exceed handlerTimeout, and its worker is ended.
    in_flight = figures["in_flight_at_kill"] + figures["repeated_by_lost_slots"]
    assert figures["repeated"] <= in_flight
    assert figures["stable_offsets"] == figures["log_end_offsets"]
    assert sum(figures["log_end_offsets"].values()) == RECORDS
    steps = [line for line in said.splitlines() if line.startswith("Step ")]
    assert [step[:7] for step in steps] == ["Step 1.", "Step 2.", "Step 3.", "Step 4."]
    assert "blocks it" in said
    assert 0 < figures["seconds_from_kill_to_next_call"] < figures["seconds"]
    assert not list(tmp_path.iterdir())


@pytest.mark.nightly
@pytest.mark.slow
def test_a_worker_that_ends_is_named_and_excuses_what_it_had_not_reported(tmp_path: Path) -> None:
    """It is killed while it runs a handler, before the whole job is killed."""
    demo = start(tmp_path)

    def at_work() -> int | None:
        """A process whose last line in the history is the start of a call."""
        assert demo.poll() is None
        for path in tmp_path.glob("coopconsume-demo-*/failing/history/calls-*"):
            lines = path.read_text().splitlines()
            if len(lines) > 20 and lines[-1].startswith("S\t"):
                return int(path.name.split("-")[1])
        return None

    def is_noted() -> bool:
        return any(
            '"lostSlot": {"slot": ' in line and f'"pid": {killed},' in line
            for path in tmp_path.glob("coopconsume-demo-*/failing/job.log")
            for line in path.read_text().splitlines()
        )

    killed = until(at_work)
    # What kills the whole job waits until the job has noted the loss.
    demo.send_signal(signal.SIGSTOP)
    os.kill(killed, signal.SIGKILL)
    until(is_noted)
    demo.send_signal(signal.SIGCONT)
    out, errors = demo.communicate(timeout=600)
    assert demo.returncode == 0, out + errors
    assert re.search(rf"was lost: its worker, process {killed}, has ended: ", out), out
    assert "  0 of them were not in flight" in out
    assert "Checks:        all passed." in out


def test_ctrl_c_ends_the_demo_with_all_it_has_started(tmp_path: Path) -> None:
    """Broker, job, JVMs and files go with it, and the exit code is 130."""
    demo = start(tmp_path)
    tree = until(lambda: found if len(found := process_tree(demo.pid)) >= 4 else None)
    os.kill(demo.pid, signal.SIGINT)
    assert demo.wait(PATIENCE) == 130
    for stream in (demo.stdout, demo.stderr):
        assert stream is not None
        stream.close()
    until(lambda: not any(map(is_there, tree)))
    assert not list(tmp_path.iterdir())


def test_ctrl_c_on_another_cluster_leaves_nothing_there(kafka: LocalKafka, tmp_path: Path) -> None:
    """The topic of its own and its groups are deleted; what else the cluster has stays."""
    from kafka import KafkaAdminClient

    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    before = set(admin.list_topics())
    demo = start(tmp_path, "--bootstrap-servers", kafka.bootstrap_servers)
    assert demo.stdout is not None
    assert demo.stderr is not None
    said = []
    for line in demo.stdout:
        said.append(line)
        if line.startswith("Step 1."):
            break
    (topic,) = {name for name in admin.list_topics() if name.startswith("flights-")} - before
    assert topic in "".join(said), said
    until(lambda: any(group.endswith(topic[-8:]) for group in groups(admin)))
    os.kill(demo.pid, signal.SIGINT)
    assert demo.wait(PATIENCE) == 130
    for stream in (demo.stdout, demo.stderr):
        stream.close()
    # A broker answers for a deletion a moment before it has forgotten what was deleted.
    until(lambda: topic not in admin.list_topics())
    assert not any(group.endswith(topic[-8:]) for group in groups(admin))
    admin.close()
    assert not list(tmp_path.iterdir())


def groups(admin: KafkaAdminClient) -> set[str]:
    """The groups that a cluster knows."""
    return {str(group["group_id"]) for group in admin.list_groups()}


def test_a_tree_is_killed_whole() -> None:
    """Also what has left its parent's process group, as PySpark's daemon does."""
    script = "setsid sleep 600 & (sleep 600 & wait) & echo up; wait"
    child = subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    child.stdout.readline()
    tree = until(lambda: found if len(found := process_tree(child.pid)) >= 4 else None)
    assert kill_tree(child) >= 4
    child.stdout.close()
    assert child.returncode == -signal.SIGKILL
    assert not [pid for pid in tree if len(process_tree(pid)) > 1]


def test_the_slow_aircraft_is_the_only_one_that_holds_its_partition_back() -> None:
    """Enough flights, then no bad record before its last one, then soon through."""
    keys: dict[int, bytes | None] = dict(enumerate([b"A", b"B", None, b"B", b"A", *[b"C"] * 3]))
    planned = {("t", 0): keys}
    assert slow_aircraft(planned, (2, 3), lambda _p, _o: False) == "B"
    assert slow_aircraft(planned, (3, 3), lambda _p, _o: False) == "C"
    assert slow_aircraft(planned, (9, 9), lambda _p, _o: False) == "C"
    two = {("t", 0): dict.fromkeys(range(2), b"A"), ("t", 1): dict.fromkeys(range(1, 3), b"B")}
    assert slow_aircraft(two, (2, 2), lambda p, _: p == 0) == "B"


def test_planned_records_are_dealt_as_producers_deal_them() -> None:
    """Keys by their murmur2 hash, records without one in turn, offsets counted up."""
    planned = planned_records([b"N1", None, b"N1", None, b"N2"], "t", partitions=2)
    assert {tp: len(keys) for tp, keys in planned.items()}.keys() == {("t", 0), ("t", 1)}
    assert sum(len(keys) for keys in planned.values()) == 5
    for keys in planned.values():
        assert list(keys) == list(range(len(keys)))
        assert list(keys.values()).count(None) == 1
