"""``coopconsume run`` and ``broker`` as a user starts them: processes of their own."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake

from commits import CommitStore, PartitionCommits
from coopconsume.cli import main
from coopconsume.demo.processes import kill_tree, process_tree
from coopconsume.testing.local.jars import spark_jars
from coopconsume.texts import counted
from tests.pages import block
from tests.spark.support import PATIENCE, until
from tests.terminal import on_terminal, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from coopconsume.testing.local.broker import LocalKafka
    from tests.conftest import Produce, TopicFactory

pytestmark = [pytest.mark.spark, pytest.mark.broker]

HANDLERS = """
import pathlib, time

def length(record):
    return {"key": record.key.decode(), "length": len(record.value)}

def size(data):
    return len(data)

def typed_length(record):
    print("length", record.value)
    return {"key": record.key, "length": record.value}

def slow(record):
    print("called with", record.offset, flush=True)
    here = pathlib.Path(__file__).parent
    (here / f"called-{record.offset}").touch()
    (here / "started").touch()
    time.sleep(1.0)

def stuck(record):
    (pathlib.Path(__file__).parent / "started").touch()
    time.sleep(6000.0)

def refuses_first(record):
    if not record.offset:
        raise ValueError("no luck")

def stuck_later(record):
    if record.offset:
        stuck(record)
"""


#: A program of a user, with a session that PySpark has made.
USERS_SESSION = """
import os
import sys

from handlers_of_a_user import slow
from pyspark.sql import SparkSession

from coopconsume import CooperativeConsumer

os.environ["PYSPARK_PYTHON"] = sys.executable
spark = SparkSession.builder.master("local[2]").config("spark.jars", {jars!r}).getOrCreate()
with CooperativeConsumer({options!r}, spark) as consumer:
    consumer.foreach(slow).start().awaitTermination()
"""

COMMAND = ("-m", "coopconsume")

_started: list[Running] = []


class Running:
    """A command that runs, with what it says on standard error, or on a terminal, in a file."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        program: tuple[str, ...] = COMMAND,
        terminal: bool = False,
    ) -> None:
        self.said = folder / "said"
        self.process: subprocess.Popen[Any]
        self.reader: threading.Thread | None = None
        command = [sys.executable, *program, *arguments]
        if terminal:
            self.said.touch()
            self.process, self.reader = on_terminal(
                command, self._say, cwd=folder, start_new_session=True
            )
            _started.append(self)
            return
        with self.said.open("w") as stream:
            self.process = subprocess.Popen(
                command, cwd=folder, stdout=subprocess.PIPE, stderr=stream, text=True,
                start_new_session=True,
            )  # fmt: skip
        _started.append(self)

    def _say(self, data: bytes) -> None:
        with self.said.open("ab") as stream:
            stream.write(data)

    def wait_for(self, path: Path) -> None:
        """Wait until a handler has made a file."""
        self.until(path.exists)

    def end(self, *signals: signal.Signals, to_group: bool = False) -> int:
        """Send signals, wait for the end and see that nothing of it is left."""
        send = os.killpg if to_group else os.kill
        tree = process_tree(self.process.pid)
        for place, number in enumerate(signals):
            if place:  # Two at once would be one.
                self.until(lambda: "waiting for running handlers" in self.said.read_text())
            send(self.process.pid, number)
        code = self.process.wait(PATIENCE)
        until(lambda: not any(map(_runs, tree)))
        if self.reader is not None:
            self.reader.join(PATIENCE)
        return code

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds; the command must not end meanwhile."""
        until(lambda: holds() or self.process.poll() is not None)
        assert self.process.poll() is None, self.said.read_text()


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _is_jvm(pid: int) -> bool:
    return Path(f"/proc/{pid}/exe").resolve().name == "java"


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """A test that fails leaves no command behind."""
    yield
    while _started:
        command = _started.pop()
        if command.process.poll() is None:
            kill_tree(command.process)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder with a module of handlers."""
    (tmp_path / "handlers_of_a_user.py").write_text(HANDLERS)
    return tmp_path


def arguments(kafka: LocalKafka, folder: Path, topic: str, handler: str, *more: str) -> list[str]:
    """Of ``coopconsume run`` for a topic, with two slots."""
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "kafka.group.id": f"{topic}-group",
        "subscribe": topic,
        "commitTable": str(folder / "commits"),
        "slots": "2",
        "handlerTimeout": "6000",
    }
    pairs = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    return ["run", f"handlers_of_a_user:{handler}", *pairs, *more]


def done(folder: Path, kafka: LocalKafka, topic: str) -> int:
    """Offsets of partition 0 that the commit log counts as done."""
    from kafka import KafkaAdminClient

    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    cluster = str(admin.describe_cluster()["cluster_id"])
    admin.close()
    state = CommitStore.open(folder / "commits", cluster=cluster).state(f"{topic}-group")
    commits = state.get((topic, 0), PartitionCommits())
    return commits.stable_offset + len(commits.ranges)


def test_a_handler_of_the_users_folder_drains_a_topic(
    kafka: LocalKafka, topic: TopicFactory, produce: Produce, folder: Path
) -> None:
    """Quiet plain lines, exit code 0, one output row a record, everything committed.

    Keys and values are what the command says, by names of the user's module. The topic of dead
    letters is made when there is one, so it need not exist. What the handler prints is shown with
    its records.
    """
    name = topic()
    produce(name, ((b"k%d" % (n % 7), b"x" * n) for n in range(100)))
    output = folder / "out"
    command = Running(folder, *arguments(
        kafka, folder, name, "typed_length", "--available-now", "--name", "lengths", "--output",
        str(output), "--output-schema", "key string, length int", "--max-attempts", "2",
        "--dead-letter", f"kafka:{name}-dead", "-o", "deadLetterPartitions=1",
        "-o", "showHandlerLines=1000",
        "--key", "text", "--value", "handlers_of_a_user:size",
    ))  # fmt: skip
    assert command.end() == 0, command.said.read_text()
    assert "drained: 100 records done" in command.said.read_text()
    # What takes long is announced.
    said = command.said.read_text()
    assert -1 < said.find("starting Spark") < said.find(f"joining group {name}-group")
    assert "\x1b" not in command.said.read_text()
    for n in range(100):
        assert f"{name}-0@{n} key=k{n % 7} attempt=1: length {n}\n" in said
    rows: pa.Table = DeltaTable(output).to_pyarrow_table()
    assert sorted(rows["length"].to_pylist()) == list(range(100))
    assert set(rows["key"].to_pylist()) == {f"k{n}" for n in range(7)}
    assert done(folder, kafka, name) == 100


def test_the_last_line_says_what_waits_for_a_decision(
    kafka: LocalKafka, topic: TopicFactory, produce: Produce, folder: Path
) -> None:
    """With what is behind it, and the command that lists it; also if the job had nothing to do."""
    name = topic()
    produce(name, [(b"a", b"1"), (b"a", b"2"), (b"b", b"3"), (b"a", b"4")])
    words = arguments(
        kafka, folder, name, "refuses_first", "--available-now", "--max-attempts", "1",
        "--on-dead", "park", "--dead-letter", str(folder / "dead"), "--log-format", "json",
    )  # fmt: skip
    for done_now in (1, 0):
        command = Running(folder, *words)
        assert command.end() == 0, command.said.read_text()
        lines = [json.loads(line) for line in command.said.read_text().splitlines()]
        said, _, following = lines[-1]["msg"].partition("; next: ")
        assert said == (
            f"drained: {counted(done_now, 'record')} done, 1 waits for your decision with 2 "
            "records behind it"
        )
        result = CliRunner().invoke(main, shlex.split(following)[1:])
        assert f"\n{name}-0@0 " in result.stdout, result.output


@pytest.mark.slow
def test_ctrl_c_once_and_twice(
    kafka: LocalKafka, topic: TopicFactory, produce: Produce, folder: Path
) -> None:
    """SIGTERM, as the first Ctrl-C, commits what has run; a second Ctrl-C leaves at once."""
    commands = {}
    for handler, records in (("slow", [(b"a", b"1"), (b"b", b"2")]), ("stuck", [(b"a", b"1")])):
        name, home = topic(), folder / handler
        produce(name, records)
        home.mkdir()
        (home / "handlers_of_a_user.py").write_text(HANDLERS)
        # Both at once, as starting is most of what they do.
        command = Running(home, *arguments(kafka, home, name, handler), terminal=handler == "slow")
        commands[handler] = command, home, name

    command, home, name = commands["slow"]
    command.wait_for(home / "started")
    # systemd and `timeout` send it to the whole process group, Spark's JVM and workers included.
    assert command.end(signal.SIGTERM, to_group=True) == 0, command.said.read_text()
    assert "waiting for running handlers" in command.said.read_text()
    assert done(home, kafka, name) == len(list(home.glob("called-*"))) > 0
    # The status has gone from the terminal, and lines of handlers and of the command are whole.
    called = len(list(home.glob("called-*")))
    rows = shown(command.said.read_bytes().decode())
    for words in (
        *(f"called with {n}" for n in range(called)),
        "waiting for running handlers; Ctrl-C again leaves at once",
    ):
        assert rows.count(words) == 1, (words, rows)
    assert rows[-1] == f"stopped: {counted(called, 'record')} done"
    assert not [row for row in rows if re.search("/s, lag|starting Spark|joining group", row)]

    command, home, name = commands["stuck"]
    command.wait_for(home / "started")
    # Its handler takes longer than anybody waits here.
    assert command.end(signal.SIGINT, signal.SIGINT) == 130, command.said.read_text()
    assert done(home, kafka, name) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_program_of_a_page_without_a_traceback(
    kafka: LocalKafka, topic: TopicFactory, produce: Produce, folder: Path, number: signal.Signals
) -> None:
    """It commits what has run, and says nothing."""
    name = topic(1)
    produce(name, [(b"k", b"v")])
    table = str(folder / "commits")
    program = block("docs/how-to/run-a-job.md", "from contextlib")
    for printed, own in {
        "localhost:9092": kafka.bootstrap_servers, "printed": f"{name}-group", "orders": name,
        "./commits": table,
    }.items():  # fmt: skip
        assert printed in program
        program = program.replace(printed, own)
    (folder / "program.py").write_text(program)
    running = Running(folder, program=("program.py",))
    running.wait_for(folder / "commits" / "_delta_log")
    running.until(lambda: done(folder, kafka, name) == 1)
    assert running.end(number) == 0, running.said.read_text()
    assert "Traceback" not in running.said.read_text()


@pytest.mark.slow
def test_ctrl_c_in_a_session_of_the_user_commits_what_has_run(
    kafka: LocalKafka, topic: TopicFactory, produce: Produce, folder: Path
) -> None:
    """PySpark's own handler would cancel the Spark job that the handlers run in."""
    name = topic()
    produce(name, [(b"a", b"1"), (b"b", b"2")])
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.group.id": f"{name}-group",
        "subscribe": name, "commitTable": str(folder / "commits"), "slots": 2,
    }  # fmt: skip
    (folder / "program.py").write_text(
        USERS_SESSION.format(jars=",".join(map(str, spark_jars())), options=options)
    )
    running = Running(folder, program=("program.py",))
    running.wait_for(folder / "started")
    # As Python itself ends at a KeyboardInterrupt that nobody catches.
    assert running.end(signal.SIGINT) == -signal.SIGINT, running.said.read_text()
    assert done(folder, kafka, name) == len(list(folder.glob("called-*"))) > 0


def test_a_job_whose_jvm_is_killed_ends(
    kafka: LocalKafka, topic: TopicFactory, produce: Produce, folder: Path
) -> None:
    """With one sentence, and soon: nothing of the JVM or of its workers is left."""
    name = topic()
    produce(name, [(b"a", b"1"), (b"a", b"2")])
    one_by_one = ["-o", "maxOffsetsPerTrigger=1"]  # a batch has ended, and has sent its report
    command = Running(folder, *arguments(kafka, folder, name, "stuck_later"), *one_by_one)
    command.wait_for(folder / "started")
    tree = process_tree(command.process.pid)
    (jvm,) = (pid for pid in tree if _is_jvm(pid))
    os.kill(jvm, signal.SIGKILL)
    assert command.process.wait(PATIENCE) == 1, command.said.read_text()
    until(lambda: not any(map(_runs, tree)))
    said = command.said.read_text()
    assert "its JVM has ended: start the job again with a new session" in said
    assert "Traceback" not in said
    assert done(folder, kafka, name) == 1


def test_no_such_topic_is_one_sentence(kafka: LocalKafka, folder: Path) -> None:
    """Exit code 1 before Spark is started; no commit table is made."""
    command = Running(folder, *arguments(kafka, folder, "absent", "length"))
    assert command.end() == 1
    said = command.said.read_text()
    assert said.startswith(f"coopconsume: no topic 'absent' on {kafka.bootstrap_servers}")
    assert "Traceback" not in said
    assert not (folder / "commits").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["--dead-letter", "kafka:absent", "--max-attempts", "2"],
        ["--output", "kafka:absent", "--output-schema", "value string"],
    ],
)
def test_a_topic_to_write_to_that_does_not_exist_is_found_before_spark_starts(
    kafka: LocalKafka, topic: TopicFactory, folder: Path, words: list[str]
) -> None:
    """Spark's JVM writes to standard error as it starts."""
    command = Running(folder, *arguments(kafka, folder, topic(), "length", *words))
    assert command.end() == 1
    assert command.said.read_text().startswith("coopconsume: no topic 'absent' on ")


def test_a_table_of_another_format_is_one_sentence(
    kafka: LocalKafka, topic: TopicFactory, folder: Path
) -> None:
    """Some other Delta table at the place of the commits is refused and left as it was."""
    import pyarrow as pa

    table = folder / "commits"
    write_deltalake(table, pa.table({"other": [1]}))
    command = Running(folder, *arguments(kafka, folder, topic(), "length"))
    assert command.end() == 1
    said = command.said.read_text()
    assert said.startswith("coopconsume: ")
    assert str(table) in said
    assert "Traceback" not in said
    assert DeltaTable(table).version() == 0


def test_the_broker_runs_until_it_is_stopped(tmp_path: Path) -> None:
    """It prints its address, has the topics, keeps its data, and ends well on Ctrl-C."""
    from kafka import KafkaAdminClient

    command = Running(tmp_path, "broker", "--data-dir", str(tmp_path / "data"), "--topic", "t:3")
    assert command.process.stdout is not None
    servers = command.process.stdout.readline().strip()
    admin = KafkaAdminClient(bootstrap_servers=servers)
    assert len(admin.describe_topics(["t"])[0]["partitions"]) == 3
    admin.close()
    assert command.end(signal.SIGINT) == 0, command.said.read_text()
    assert (tmp_path / "data").is_dir()
