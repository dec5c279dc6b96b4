"""The embedded broker: it is real, keeps its data, and never outlives its program."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError, TopicAlreadyExistsError

from coopconsume.errors import BrokerStartFailed, BrokerStopped
from coopconsume.testing.local.broker import LocalKafka
from coopconsume.testing.local.process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """A broker of these tests alone, on a folder of its own, as they stop and kill it."""
    with LocalKafka(tmp_path_factory.mktemp("own")) as broker:
        yield broker


def _folder(broker: LocalKafka) -> Path:
    assert broker.log_path is not None
    return broker.log_path.parent


def _first_line(program: subprocess.Popen[str]) -> list[str]:
    """Return the words of the line that a program prints once its broker runs."""
    assert program.stdout is not None
    return program.stdout.readline().split()


def _write(broker: LocalKafka, topic: str, *values: bytes) -> None:
    with closing(KafkaProducer(bootstrap_servers=broker.bootstrap_servers)) as producer:
        for value in values:
            producer.send(topic, value)
        producer.flush(timeout=120)


def _read(broker: LocalKafka, topic: str) -> list[bytes]:
    with closing(
        KafkaConsumer(
            topic,
            bootstrap_servers=broker.bootstrap_servers,
            auto_offset_reset="earliest",
            consumer_timeout_ms=60_000,
        )
    ) as consumer:
        records = []
        for record in consumer:
            records.append(record.value)
            if record.offset + 1 == consumer.end_offsets([tp := consumer.assignment().pop()])[tp]:
                break
        return records


def _exists(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _eventually(condition: Callable[[], bool], seconds: float = 90) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _program(body: str) -> subprocess.Popen[str]:
    """Run a Python program that prints one line as soon as its broker runs."""
    return subprocess.Popen(
        [sys.executable, "-c", body], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )


@pytest.mark.slow
def test_stop_and_kill_keep_data_and_address(own: LocalKafka) -> None:
    """Records survive a restart and a crash, and clients find the broker where it was."""
    address = own.bootstrap_servers
    own.create_topic("kept")
    _write(own, "kept", b"before the stop")
    own.restart()
    _write(own, "kept", b"before the crash")
    crashed = own.pid
    own.kill()
    assert not own.is_running
    assert not _exists(crashed)
    own.start()
    assert own.bootstrap_servers == address
    assert _read(own, "kept") == [b"before the stop", b"before the crash"]


def test_data_in_use_is_refused(own: LocalKafka) -> None:
    """A second broker on the same data is refused before it touches anything."""
    settings = (_folder(own) / "server.properties").read_text()
    second = LocalKafka(_folder(own))
    with pytest.raises(BrokerStartFailed, match="another broker runs on the data"):
        second.start()
    assert not second.is_running
    assert (_folder(own) / "server.properties").read_text() == settings
    own.create_topic("still-fine")


def test_frozen_broker_answers_again_after_thaw(own: LocalKafka) -> None:
    """A frozen broker keeps its connections and answers nobody until it is thawed."""
    own.freeze()
    try:
        with (
            pytest.raises((KafkaError, TimeoutError)),
            closing(
                KafkaAdminClient(bootstrap_servers=own.bootstrap_servers, bootstrap_timeout_ms=700)
            ) as admin,
        ):
            admin.list_topics()
        assert own.is_running
    finally:
        own.thaw()
    own.create_topic("thawed")


def test_broker_is_out_of_reach_of_the_terminal(own: LocalKafka) -> None:
    """Ctrl-C goes to the terminal's session: the broker and its guard are in others."""
    assert os.getsid(own.pid) != os.getsid(0)
    assert os.getpgid(own.pid) != os.getpgid(0)


def test_tools_of_kafka_run(own: LocalKafka) -> None:
    """Kafka's own command-line tools work on the fetched jars."""
    own.create_topic("listed")
    tool = "org.apache.kafka.tools.TopicCommand"
    ran = own.run_tool(tool, "--bootstrap-server", own.bootstrap_servers, "--list")
    assert ran.returncode == 0, ran.stderr
    assert "listed" in ran.stdout.split()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has death signals")
def test_death_of_the_guard_is_death_of_the_broker(tmp_path: Path) -> None:
    """Killing the guard takes along what it guards, and is noticed."""
    with (tmp_path / "lock").open("w") as lock:
        guarded = BrokerProcess(
            ["sleep", "600"],
            folder=tmp_path,
            log_path=tmp_path / "log",
            temporary=None,
            lock=lock.fileno(),
        )
    assert guarded.is_running
    guard = int(Path(f"/proc/{guarded.pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(guard, signal.SIGKILL)
    assert _eventually(lambda: not _exists(guarded.pid))
    assert _eventually(lambda: not guarded.is_running)


def test_stopped_broker_refuses_work() -> None:
    """What needs a running broker says so, and names the remedy."""
    broker = LocalKafka()
    for ask in (
        broker.freeze,
        broker.thaw,
        lambda: broker.create_topic("never"),
        lambda: broker.pid,
    ):
        with pytest.raises(BrokerStopped, match=r"call start\(\) first"):
            ask()
    assert repr(broker) == "<LocalKafka no port yet, stopped>"


def test_two_brokers_at_once(kafka: LocalKafka, own: LocalKafka) -> None:
    """Brokers on one machine do not see each other."""
    kafka.create_topic("only-in-the-first")
    assert kafka.bootstrap_servers != own.bootstrap_servers
    with closing(KafkaAdminClient(bootstrap_servers=own.bootstrap_servers)) as admin:
        assert "only-in-the-first" not in admin.list_topics()


@pytest.mark.slow
def test_killed_program_leaves_neither_broker_nor_folder() -> None:
    """SIGKILL of the program ends the broker, even one started by a thread that is gone."""
    program = _program(
        "import threading, time\n"
        "from coopconsume.testing.local.broker import LocalKafka\n"
        "broker = LocalKafka()\n"
        "starter = threading.Thread(target=broker.start)\n"
        "starter.start(); starter.join()\n"
        "time.sleep(1)\n"
        "print(broker.is_running, broker.pid, broker.log_path.parent, flush=True)\n"
        "input()\n"
    )
    running, pid, folder = _first_line(program)
    assert running == "True"
    assert _exists(int(pid))
    program.kill()
    program.wait()
    assert _eventually(lambda: not _exists(int(pid)) and not Path(folder).exists())


def test_program_that_forgets_to_close_leaves_nothing() -> None:
    """The end of the program ends the broker and removes its folder before it returns."""
    program = _program(
        "from coopconsume.testing.local.broker import LocalKafka\n"
        "broker = LocalKafka().start()\n"
        "print(broker.pid, broker.log_path.parent, flush=True)\n"
    )
    pid, folder = _first_line(program)
    assert program.wait(120) == 0
    assert not _exists(int(pid))
    assert not Path(folder).exists()


def test_taken_port_is_named() -> None:
    """A port that another program listens on is an error that names it, and nothing is left."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        broker = LocalKafka(port=port)
        with pytest.raises(BrokerStartFailed, match=f"port {port} .* is taken"):
            broker.start()
    assert not broker.is_running
    assert broker.log_path is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"config": {"num.partitions": "many"}}, "num.partitions"),
        ({"config": {"metric.reporters": "no.such.Reporter"}}, r"(?s)exit code 1 .*no\.such\.Rep"),
        ({"heap": "1k"}, "heap"),
        ({"start_timeout": 0.5}, r"not ready in 0.5 s"),
    ],
)
def test_failed_start_says_why_and_leaves_nothing(
    arguments: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """A bad setting, a JVM that does not start and lack of time are reported clearly."""
    broker = LocalKafka(tmp_path / "data", **arguments)
    with pytest.raises(BrokerStartFailed, match=message) as caught:
        broker.start()
    assert broker.jars[0].name not in str(caught.value), "the class path is of no help"
    assert not broker.is_running
    assert list((tmp_path / "data").glob(".formatting-*")) == []


@pytest.mark.parametrize("arguments", [{"port": 0}, {"port": 70_000}, {"start_timeout": 0}])
def test_nonsense_is_refused_at_once(arguments: dict[str, Any]) -> None:
    """Arguments out of range are refused before anything is started."""
    with pytest.raises(ValueError, match="expected"):
        LocalKafka(**arguments)


def test_a_wide_topic_is_led_once_it_is_created(own: LocalKafka) -> None:
    """Metadata alone names leaders too early: then a producer's first batches are refused."""
    servers, partitions = own.bootstrap_servers, 400
    for name in ("wide-1", "wide-2", "wide-3"):
        with closing(KafkaProducer(bootstrap_servers=servers, retries=0)) as producer:
            own.create_topic(name, partitions)
            sent = [producer.send(name, b"first", partition=of) for of in range(partitions)]
            assert [one.get(120).offset for one in sent] == [0] * partitions


def test_a_topic_is_created_once(own: LocalKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one is refused; but not if the client asks twice, as it does of a new controller."""
    own.create_topic("once")
    with pytest.raises(TopicAlreadyExistsError):
        own.create_topic("once")
    create = KafkaAdminClient.create_topics

    def twice(admin: KafkaAdminClient, *topics: Any) -> Any:
        create(admin, *topics)
        return create(admin, *topics)

    monkeypatch.setattr(KafkaAdminClient, "create_topics", twice)
    own.create_topic("twice", 2)
    with closing(KafkaAdminClient(bootstrap_servers=own.bootstrap_servers)) as admin:
        assert {"once", "twice"} <= set(admin.list_topics())
