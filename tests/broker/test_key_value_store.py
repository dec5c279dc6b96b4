"""The worked example of KIP-27: its page as printed, and its store while replicas are killed."""

from __future__ import annotations

import doctest
import json
import os
import queue
import random
import re
import runpy
import signal
import subprocess
import sys
import threading
import time
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from coopconsume.fenced.reader import LogReader
from coopconsume.testing.history.linear import NEVER
from tests.linear import Operation, check_linear

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coopconsume.testing.local.broker import LocalKafka
    from tests.conftest import TopicFactory

pytestmark = pytest.mark.broker
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "fenced-log" / "key-value-store.md"
PROCESS = Path(__file__).with_name("key_value_process.py")
PATIENCE = 90.0
#: Seconds; of replicas that lose the lead when they are killed or frozen, or else keep it.
LEASE, LONG = 2.5, 60.0
_DID_NOTHING = ("NotLeading", "ProducerFenced", "WriterNotOpen")


class Page:
    """The blocks of the page, with the broker and the topic of a test.

    Attributes:
        program: The file that the reader is asked to save.
    """

    def __init__(self, kafka: LocalKafka, topic: str, folder: Path) -> None:
        text = PAGE.read_text("utf-8")
        names = {"localhost:9092": kafka.bootstrap_servers, '"seats"': f'"{topic}"'}
        for name, own in names.items():
            assert name in text
            text = text.replace(name, own)
        self._text = text
        *self._steps, store = self.blocks("python")
        self.program = folder / "store.py"
        self.program.write_text(store, "utf-8")

    def blocks(self, language: str) -> list[str]:
        """Returns the blocks of a language, in order."""
        return re.findall(rf"```{language}\n(.*?)```", self._text, re.DOTALL)

    def run_steps(self) -> str:
        """Runs the short programs before the store; returns what they print."""
        names: dict[str, object] = {}
        with redirect_stdout(StringIO()) as printed:
            for step in self._steps:
                exec(compile(step, str(PAGE), "exec"), names)
        return printed.getvalue()


class Terminal:
    """A replica that is started as on the page, and what its terminal shows."""

    def __init__(self, page: Page, name: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-u", page.program.name, name], cwd=page.program.parent, text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            self._lines.put(re.sub(r"^(>>> |\.\.\. )+", "", line))

    def shown_until(self, end: str) -> str:
        """Returns what it shows until a line contains a text, that line included."""
        shown, until = "", time.monotonic() + PATIENCE
        while end not in shown:
            shown += self._lines.get(timeout=max(0.0, until - time.monotonic()))
        return shown

    def typed(self, line: str) -> str:
        """Types a line of Python; returns what is shown for it."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(f"{line}\nprint('end', 'of the answer')\n")
        self.popen.stdin.flush()
        return self.shown_until("end of the answer\n").removesuffix("end of the answer\n")

    def agrees_with(self, session: str) -> None:
        """Types the lines of a session of the page; each must be answered as the page says."""
        checker = doctest.OutputChecker()
        for example in doctest.DocTestParser().get_examples(session):
            want, until = example.want, time.monotonic() + PATIENCE
            if example.exc_msg is not None:
                want = f"Traceback (most recent call last):\n...\n{example.exc_msg}"
            shown = self.typed(example.source.rstrip())
            # A follower applies what the leader wrote a little later.
            while not checker.check_output(want, shown, doctest.ELLIPSIS):
                assert example.source == "store.values\n", shown
                assert time.monotonic() < until, shown
                shown = self.typed(example.source.rstrip())


@pytest.fixture
def page(kafka: LocalKafka, topic: TopicFactory, tmp_path: Path) -> Page:
    """The page, for a topic of its own."""
    return Page(kafka, topic(1), tmp_path)


def test_the_steps_of_the_page_print_what_it_says(page: Page) -> None:
    """A condition that fails, the log as the state, and a writer that is fenced."""
    assert page.run_steps() == "".join(page.blocks("text"))


@pytest.mark.slow
def test_the_sessions_of_the_page_are_answered_as_it_says(page: Page) -> None:
    """Two replicas, a leader that is killed as by `kill -9`, and the other one in its place."""
    page.run_steps()
    first, following, second = page.blocks("pycon")
    one = Terminal(page, "one")
    two = None
    try:
        one.shown_until("one leads")
        one.agrees_with(first)
        two = Terminal(page, "two")
        two.agrees_with(following)
        one.popen.kill()
        two.shown_until("two leads")
        two.agrees_with(second)
        assert two.popen.stdin is not None
        two.popen.stdin.close()
        assert two.popen.wait(PATIENCE) == 0
    finally:
        for terminal in (one, two):
            if terminal is not None:
                terminal.popen.kill()
                terminal.popen.wait(PATIENCE)


class Replica:
    """A replica in a process of its own, and what it says."""

    def __init__(self, program: Path, servers: str, topic: str, name: str, lease: float) -> None:
        self.name = name
        self.popen = subprocess.Popen(
            [sys.executable, PROCESS, program, servers, topic, name, str(lease)],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
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
            if found["event"] == "leads":
                self.leads.set()
            elif found["event"] == "follows":
                self.leads.clear()
        self.leads.clear()
        self._answers.put(None)

    def ask(self, method: str, *arguments: str | None) -> dict[str, Any] | None:
        """What it answers to a call; None if it ended before."""
        with self._lock:
            try:
                assert self.popen.stdin is not None
                self.popen.stdin.write(f"{json.dumps([method, *arguments])}\n")
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

    def __init__(self, kafka: LocalKafka, topic: str, program: Path) -> None:
        self.servers, self.topic, self.program = kafka.bootstrap_servers, topic, program
        self.replicas: list[Replica] = []

    def start(self, name: str, lease: float = LEASE) -> Replica:
        self.replicas.append(Replica(self.program, self.servers, self.topic, name, lease))
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
def group(kafka: LocalKafka, topic: TopicFactory, page: Page) -> Iterator[Group]:
    """A store without replicas yet."""
    found = Group(kafka, topic(1), page.program)
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
        method, *arguments = {
            "get": ("get", key),
            "put": ("put", key, value),
            "cas": ("compare_and_set", key, expected, value),
            "delete": ("delete", key),
        }[kind]
        replica = self._group.leader()
        called = time.monotonic()
        found = replica.ask(method, *arguments)
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
    assert third.ask("resign") == {"answer": None}
    progress(15)
    stop.set()
    seen = judge(group, clients)
    assert any(o.kind == "cas" and o.done and not o.is_open for o in seen)
    assert any(o.kind == "cas" and not o.done for o in seen)


def test_operations_where_the_replica_does_not_lead_name_the_leader(group: Group) -> None:
    """And do nothing; each replica has what the leader wrote."""
    one = group.start("one", LONG)
    assert one.leads.wait(PATIENCE)
    assert one.ask("put", "a", "some words") == {"answer": None}
    assert one.ask("compare_and_set", "a", None, "x") == {"answer": False}
    assert one.ask("compare_and_set", "b", None, "x") == {"answer": True}
    assert one.ask("get", "a") == {"answer": "some words"}
    assert one.ask("put", "a", "") == {"answer": None}
    assert one.ask("get", "a") == {"answer": ""}
    assert one.ask("compare_and_set", "a", None, "x") == {"answer": False}
    assert one.ask("compare_and_set", "a", "", "x") == {"answer": True}
    assert one.ask("delete", "a") == {"answer": None}
    assert one.ask("get", "a") == {"answer": None}
    two = group.start("two", LONG)
    until = time.monotonic() + PATIENCE
    while (refused := two.ask("put", "a", "b")) != {"error": "NotLeading", "text": "ask one"}:
        assert time.monotonic() < until, refused  # it does not know yet who leads
        time.sleep(0.02)
    assert two.ask("get", "b") == refused
    one.end()
    assert two.leads.wait(PATIENCE)
    assert two.ask("get", "b") == {"answer": "x"}
    assert two.ask("get", "a") == {"answer": None}


def test_a_filtered_log_serves_as_well(kafka: LocalKafka, topic: TopicFactory, page: Page) -> None:
    """In one process, without transactions."""
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
    make = runpy.run_path(str(page.program))["KeyValueStore"]
    with make(options, topic(1), visibility="filter", owner="one") as store:
        store.lead(PATIENCE)
        assert store.compare_and_set("a", None, "1")
        assert not store.compare_and_set("a", None, "2")
        assert (store.get("a"), store.values, store.leader_name) == ("1", {"a": "1"}, "one")
