"""What every test may use: one broker and one Spark session for the whole run, topics, records."""

from __future__ import annotations

import itertools
import logging
import os
import re
import signal
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from coopconsume.option_names import COMMAND_CONFIG
from coopconsume.testing.local.broker import LocalKafka
from coopconsume.testing.local.jars import KAFKA_VERSION
from coopconsume.testing.local.session import local_session, stop_session
from tests import browser, prometheus
from tests.jvm import JVM_OPTIONS
from tests.upgrade import kept

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kafka import KafkaProducer
    from pyspark.sql import SparkSession
    from xdist.workermanage import WorkerController

    from tests.apt import Programs
    from tests.upgrade.versions import History

# Inherited by every process that the run starts, directly or not, those of pytest-xdist included.
_MARK = os.environ.setdefault("COOPCONSUME_TEST_RUN", str(uuid.uuid4()))
os.environ.setdefault("JDK_JAVA_OPTIONS", JVM_OPTIONS)
# The options of the user's own cluster are not those of the commands under test.
os.environ.pop(COMMAND_CONFIG, None)

# A run in the background inherits from its shell that Ctrl-C is ignored, and so would the programs
# that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# kafka-python warns of turns of its loop that a busy machine makes long, in threads of clients that
# many tests share: what a test says of its log would depend on it.
logging.getLogger("kafka.net.selector").setLevel(logging.ERROR)

# By default Spark and its Python give each other up after 15 s.
os.environ.setdefault("SPARK_AUTH_SOCKET_TIMEOUT", "60")

# A run decides over what somebody changed: it looks at the same examples each time, and how long
# they take on a busy machine decides nothing. `--hypothesis-profile=fresh` looks for new ones.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fresh", _PATIENT, derandomize=False)
settings.register_profile("steady", _PATIENT, derandomize=True, database=None, max_examples=40)
settings.load_profile("steady")

_CORES = 6
_PATIENCE = 120.0
_BROKER = {
    # It is never killed nor frozen: if it stood still for want of a processor, it stays.
    "broker.session.timeout.ms": 60_000,
    # What tests would only wait for: the ends of overdue transactions, and the log cleaner's turn.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
    "log.cleaner.backoff.ms": 500,
}
#: Tests of Spark that only start programs with a session of their own. Without the tests of queues
#: they would end long before the others.
_PROGRAMS = {
    *("test_chaos.py", "test_cli_run.py", "test_container.py", "test_demo.py", "test_kill.py"),
    *("test_lease.py", "test_quiet_source.py", "test_spark_submit.py"),
    *("test_standalone_cluster.py", "test_wheel.py", "test_yarn.py"),
    *("test_queue.py", "test_queue_chaos.py", "test_queue_logs.py"),
}
#: Tests with a session that take about as long as all others with one: they have a second one.
_SECOND_SESSION = {
    *("test_commit_catalog.py", "test_cooperative.py", "test_delta_sink.py", "test_pages.py"),
    *("test_real_time.py", "test_situations.py"),
}
_LIVING = {
    *("coopconsume-claim", "coopconsume-group", "coopconsume-leases", "coopconsume-loop"),
    *("coopconsume-mirror", "coopconsume-state", "coopconsume-unused"),
}
_names = itertools.count(1)
#: The number of nightly tests that are left out.
_NIGHTLY = pytest.StashKey[int]()


class TopicFactory(Protocol):
    """Creates a topic of a name not used before in this run, and returns the name."""

    def __call__(self, partitions: int = 1, config: Mapping[str, object] | None = None) -> str: ...


class Produce(Protocol):
    """Writes records of key and value, in order, and returns the offset of each."""

    def __call__(
        self,
        topic: str,
        records: Iterable[tuple[bytes | None, bytes | None]],
        partition: int | None = None,
    ) -> list[int]: ...


@pytest.fixture(autouse=True)
def _threads_end() -> Iterator[None]:
    """Fail a test that leaves a thread of the library behind: later tests would meet its calls."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + _PATIENCE
    while left := _library_threads() - before:
        assert time.monotonic() < deadline, f"close what runs these threads: {left}"
        time.sleep(0.01)


def _library_threads() -> set[threading.Thread]:
    """Return the threads that use commit tables or brokers for as long as they live."""
    return {thread for thread in threading.enumerate() if thread.name in _LIVING}


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """One broker for the whole run; tests that stop or freeze a broker start their own."""
    log = tmp_path_factory.mktemp("kafka") / "broker.log"
    version = os.environ.get("COOPCONSUME_TEST_KAFKA", KAFKA_VERSION)
    with LocalKafka(version=version, log_file=log, config=_BROKER) as broker:
        yield broker


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark session of six task slots for the whole run."""
    settings = {
        "spark.python.authenticate.socketTimeout": "300s",
        # Spark's default, as in sessions of users: what was fetched must not be read in its place
        # after a topic was created again.
        "spark.kafka.consumer.fetchedData.cache.timeout": "5m",
        # By default Delta's VACUUM lists files by ten thousand tasks.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
    }
    session = local_session("coopconsume-tests", cores=_CORES, conf=settings)
    yield session
    stop_session(session)


@pytest.fixture
def topic(kafka: LocalKafka, request: pytest.FixtureRequest) -> TopicFactory:
    """Return what creates topics on the run's broker, named after the test."""
    stem = re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name).strip("-")[:80]

    def create(partitions: int = 1, config: Mapping[str, object] | None = None) -> str:
        name = f"{stem}-{next(_names)}"
        kafka.create_topic(name, partitions, config)
        return name

    return create


@pytest.fixture(scope="module")
def _producer(kafka: LocalKafka) -> Iterator[KafkaProducer]:
    """One for each module: kafka-python's spins once a topic is deleted that it wrote to."""
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers, linger_ms=50, batch_size=512 * 1024
    )
    yield producer
    producer.close(timeout=60)


@pytest.fixture
def produce(_producer: KafkaProducer) -> Produce:
    """Return what writes records to the run's broker."""

    def write(
        topic: str,
        records: Iterable[tuple[bytes | None, bytes | None]],
        partition: int | None = None,
    ) -> list[int]:
        sent = [
            _producer.send(topic, key=key, value=value, partition=partition)
            for key, value in records
        ]
        _producer.flush(timeout=300)
        return [future.get(timeout=300).offset for future in sent]

    return write


class _ByPlace(LoadScopeScheduling):
    """Runs tests that share a Spark session in one process, all of the broker in one, and so on."""

    def _split_scope(self, nodeid: str) -> str:
        return _place(nodeid.partition("::")[0])


def _place(file: str) -> str:
    """Return what the tests of a file share; tests of one place run in one process, in order."""
    folder, name = Path(file).parts[-2:]
    if folder == "notebooks" or (folder in ("spark", "broker") and name in _PROGRAMS):
        return "programs"
    if folder == "spark" and name in _SECOND_SESSION:
        return "second session"
    return {"spark": "session", "broker": "broker"}.get(folder, file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    """Deal tests to the processes of `pytest -n` by place, in the order of the collection."""
    config.option.loadscopereorder = False
    return _ByPlace(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put what takes longest first, so that all processes end at about the same time.

    Tests of programs that are not installed are left out, except in CI, where they fail, and tests
    of a version that the history lacks.
    """
    for marker, _ in _without_programs():
        left_out = [item for item in items if item.get_closest_marker(marker)]
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)
    if hasattr(config, "workerinput"):
        places = ("programs", "session", "second session", "broker")
        rank = {place: number for number, place in enumerate(places)}
        items.sort(key=lambda item: rank.get(_place(item.nodeid.partition("::")[0]), len(rank)))


def _without_programs() -> list[tuple[str, Programs | History]]:
    """The markers of tests whose programs or versions are missing and may be, and these."""
    of = {
        "browser": browser.PROGRAMS, "prometheus": prometheus.PROGRAMS, "history": kept.BEFORE,
    }  # fmt: skip
    # Sources may be given without their history; programs can be installed.
    may_lack = ("history",) if os.environ.get("CI") else tuple(of)
    return [both for both in of.items() if both[0] in may_lack and both[1].missing]


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Count the nightly tests that are left out; each process of `pytest -n` collects all tests."""
    nightly = [item for item in items if item.get_closest_marker("nightly")]
    if nightly:
        config = nightly[0].config
        config.stash[_NIGHTLY] = config.stash.get(_NIGHTLY, 0) + len(nightly)
        if hasattr(config, "workeroutput"):
            config.workeroutput["nightly"] = config.stash[_NIGHTLY]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: WorkerController) -> None:
    """Note what a process of `pytest -n` has counted; one that crashed has no output."""
    counted = getattr(node, "workeroutput", {}).get("nightly", 0)
    node.config.stash[_NIGHTLY] = max(node.config.stash.get(_NIGHTLY, 0), counted)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say which tests were left out, and how to run them."""
    if nightly := config.stash.get(_NIGHTLY, 0):
        terminalreporter.write_line(
            f"Nightly tests left out: {nightly}. make test-nightly runs them, and .ci/scheduled."
        )
    for _, programs in _without_programs():
        title = f"{programs.tests} did not run".upper()
        terminalreporter.section(title, red=True, bold=True)
        terminalreporter.write(f"{programs.missing}\n")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run if a JVM or a worker that it started is still there after it."""
    if hasattr(session.config, "workerinput"):
        return  # the process that shares out the tests looks at all of them
    deadline = time.monotonic() + _PATIENCE
    while (left := _leftovers()) and time.monotonic() < deadline:
        time.sleep(0.2)
    if left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.section("processes left running", red=True, bold=True)
            reporter.write("".join(f"{line}\n" for line in left))


def _leftovers() -> list[str]:
    """Return the command lines of this run's processes that are ours to end; Linux only."""
    left = []
    for folder in Path("/proc").glob("[0-9]*"):
        if folder.name == str(os.getpid()):
            continue
        try:
            marked = _MARK.encode() in (folder / "environ").read_bytes()
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:  # another user's, or gone meanwhile
            continue
        ours = Path(words[0]).name == "java" or any("coopconsume" in word for word in words[:5])
        # A helper process of `multiprocessing` ends with this one.
        ours = ours and "from multiprocessing." not in " ".join(words[:5])
        if marked and ours:
            left.append(f"{folder.name} {' '.join(words)[:200]}")
    return left
