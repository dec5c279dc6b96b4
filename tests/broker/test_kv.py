"""The replicated key-value store: several processes, killed and frozen, judged by their answers."""

from __future__ import annotations

import json
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from coopconsume.cli.kv_store import KeyValueStore
from coopconsume.fenced.reader import LogReader
from coopconsume.testing.history.linear import NEVER, Operation, check_linear

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coopconsume.testing.local.broker import LocalKafka
    from tests.conftest import TopicFactory

pytestmark = pytest.mark.broker
ROOT = Path(__file__).parents[2]
PATIENCE = 90.0
#: Seconds; of replicas that lose the lead when they are killed or frozen, or else keep it.
LEASE, LONG = 2.5, 60.0
_DID_NOTHING = ("ProducerBusy", "ProducerFenced", "WriterNotOpen")


class Replica:
    """A replica in a process of its own, and what it says."""

    def __init__(self, servers: str, topic: str, name: str, lease: float) -> None:
        self.name = name
        self.popen = subprocess.Popen(
            [
                sys.executable, "-m", "coopconsume", "kv", topic, "--owner", name, "--json",
                "--lease", str(lease), "--bootstrap-servers", servers,
            ],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.events: list[dict[str, Any]] = []
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._lock = threading.Lock()
        self.leads = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            if not line.endswith("\n"):  # it was killed while it wrote
                break
            found = json.loads(line)
            if "event" not in found:
                self._answers.put(found)
                continue
            self.events.append(found)
            if found["event"] == "leads":
                self.leads.set()
            elif found["event"] == "follows":
                self.leads.clear()
        self.leads.clear()
        self._answers.put(None)

    def ask(self, line: str) -> dict[str, Any] | None:
        """What it answers to a command; None if it ended before."""
        with self._lock:
            try:
                assert self.popen.stdin is not None
                self.popen.stdin.write(f"{line}\n")
                self.popen.stdin.flush()
            except OSError:
                return None
            found = self._answers.get(timeout=PATIENCE)
            if found is None:
                self._answers.put(None)
            return found

    def end(self) -> None:
        """Let it end in order."""
        assert self.popen.stdin is not None
        self.popen.stdin.close()
        self.popen.wait(PATIENCE)

    def kill(self) -> None:
        """As kill -9 does it."""
        self.popen.send_signal(signal.SIGKILL)
        self.popen.wait(PATIENCE)


class Group:
    """The replicas of one store."""

    def __init__(self, kafka: LocalKafka, topic: str) -> None:
        self.servers, self.topic = kafka.bootstrap_servers, topic
        self.replicas: list[Replica] = []

    def start(self, name: str, lease: float = LEASE) -> Replica:
        self.replicas.append(Replica(self.servers, self.topic, name, lease))
        return self.replicas[-1]

    def leader(self, *, other_than: Replica | None = None) -> Replica:
        """The replica that says that it leads."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            for replica in self.replicas:
                leads = replica.leads.is_set() and replica.popen.poll() is None
                if leads and replica is not other_than:
                    return replica
            time.sleep(0.02)
        raise AssertionError("no replica leads")


@pytest.fixture
def group(kafka: LocalKafka, topic: TopicFactory) -> Iterator[Group]:
    """A store without replicas yet."""
    found = Group(kafka, topic(1))
    yield found
    for replica in found.replicas:
        replica.kill()


class Client(threading.Thread):
    """Calls whichever replica leads, and writes down what it saw."""

    def __init__(self, group: Group, name: str, seed: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.seen: list[Operation] = []
        self.failure: BaseException | None = None
        self._group, self._client, self._stop_it = group, name, stop
        self._draw = random.Random(seed)
        self._life = 0

    def run(self) -> None:
        try:
            number = 0
            while not self._stop_it.is_set():
                number += 1
                self._call(f"{self._client}-{number}")
        except BaseException as error:  # noqa: BLE001
            self.failure = error

    def _call(self, value: str) -> None:
        draw, key = self._draw, self._draw.choice(["a", "b", "c"])
        kind = draw.choice(["get", "put", "cas", "cas", "cas", "delete"])
        known = [o.value for o in self.seen if o.key == key and o.kind != "delete"]
        expected = draw.choice([None, *known[-2:]]) if known else None
        line = {
            "get": f"get {key}",
            "put": f"put {key} {value}",
            "cas": f"cas {key} {expected or '-'} {value}",
            "delete": f"delete {key}",
        }[kind]
        replica = self._group.leader()
        called = time.monotonic()
        found = replica.ask(line)
        answered = time.monotonic()
        if found is not None and found.get("error") in _DID_NOTHING:
            time.sleep(0.02)  # until it is known who leads
            return
        unknown = found is None or "error" in found
        answer = None if found is None else found.get("answer")
        self.seen.append(
            Operation(
                f"{self._client}.{self._life}", kind, key, called, NEVER if unknown else answered,
                answer if kind == "get" else None if kind == "delete" else value,
                expected if kind == "cas" else None,
                unknown or answer is not False,
            )
        )  # fmt: skip
        # What was asked may happen at any time: from now on this is another client.
        self._life += unknown


def judge(group: Group, clients: list[Client]) -> list[Operation]:
    """What the clients saw has to be what one store does, and the log has to say the same."""
    for client in clients:
        client.join(PATIENCE)
        assert client.failure is None
    seen = [operation for client in clients for operation in client.seen]
    found = check_linear(seen)
    assert found is None, found
    with LogReader({"kafka.bootstrap.servers": group.servers}, group.topic) as reader:
        records = list(reader.read())
    written = [record.value for record in records if record.value is not None]
    assert len(set(written)) == len(written)
    epochs = [record.epoch for record in records]
    assert epochs == sorted(epochs)
    sure = {
        (o.value or "").encode()
        for o in seen
        if not o.is_open and o.done and o.kind in ("put", "cas")
    }
    assert sure <= set(written)
    return seen


@pytest.mark.slow
def test_replicas_that_are_killed_and_frozen_are_one_store(group: Group) -> None:
    """The leader is killed, the next one frozen and woken; clients see one store throughout."""
    for name in ("one", "two", "three"):
        group.start(name)
    stop = threading.Event()
    clients = [Client(group, f"client{n}", 11 + n, stop) for n in range(3)]
    group.leader()
    for client in clients:
        client.start()

    def progress(more: int) -> None:
        goal = sum(len(client.seen) for client in clients) + more
        until = time.monotonic() + PATIENCE
        while sum(len(client.seen) for client in clients) < goal:
            assert time.monotonic() < until, "the clients get no answers"
            assert not any(client.failure for client in clients)
            time.sleep(0.02)

    progress(15)
    first = group.leader()
    first.kill()
    progress(15)
    second = group.leader()
    assert second is not first
    os.kill(second.popen.pid, signal.SIGSTOP)
    second.leads.clear()
    third = group.leader(other_than=second)
    assert third is not first
    os.kill(second.popen.pid, signal.SIGCONT)
    progress(15)
    group.start("four")
    assert third.ask("resign") == {"done": True}
    progress(15)
    stop.set()
    seen = judge(group, clients)
    assert any(o.kind == "cas" and o.done and not o.is_open for o in seen)
    assert any(o.kind == "cas" and not o.done for o in seen)


def test_operations_where_the_replica_does_not_lead_name_the_leader(group: Group) -> None:
    """And do nothing; wrong usage is an error; each replica has what the leader wrote."""
    one = group.start("one", LONG)
    assert one.leads.wait(PATIENCE)
    assert one.ask("put a 'some words'") == {"done": True}
    assert one.ask("cas a - x") == {"answer": False}
    assert one.ask("cas b - x") == {"answer": True}
    assert one.ask("get a") == {"answer": "some words"}
    assert one.ask("put a ''") == {"done": True}
    assert one.ask("get a") == {"answer": ""}
    assert one.ask("cas a - x") == {"answer": False}
    assert one.ask("cas a '' '-'") == {"answer": True}
    assert one.ask("cas a '-' x") == {"answer": True}
    assert one.ask("delete a") == {"done": True}
    assert one.ask("get a") == {"answer": None}
    two = group.start("two", LONG)
    refused = two.ask("put a b")
    assert refused is not None
    assert refused["error"] == "ProducerBusy"
    for wrong in ("put a", "what", "get 'a"):
        answer = one.ask(wrong)
        assert answer is not None
        assert answer["error"] == "Usage"
    until = time.monotonic() + PATIENCE
    while two.ask("all") != {"answer": {"b": "x"}}:
        assert time.monotonic() < until
        time.sleep(0.1)
    named = two.ask("get b")
    assert named is not None
    assert "'one'" in named["text"]
    one.end()
    assert two.leads.wait(PATIENCE)
    assert two.ask("get b") == {"answer": "x"}


def test_a_filtered_log_serves_as_well(kafka: LocalKafka, topic: TopicFactory) -> None:
    """In one process, without transactions."""
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
    with KeyValueStore(options, topic(1), visibility="filter", owner="one") as store:
        store.lead(PATIENCE)
        assert store.compare_and_set("a", None, "1")
        assert not store.compare_and_set("a", None, "2")
        assert (store.get("a"), store.local(), store.leader_name) == ("1", {"a": "1"}, "one")
