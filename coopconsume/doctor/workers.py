"""What the Python of the workers has, and whether it reaches the driver and the brokers."""

from __future__ import annotations

import errno
import json
import platform
import re
import secrets
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from commits.secrets import hidden_in
from coopconsume.classic import cores, interrupt, tagged
from coopconsume.doctor.diagnosis import Check
from coopconsume.errors.base import sentence_of
from coopconsume.texts import counted
from coopconsume.worker import look
from coopconsume.worker.channel.server import listen, plain_host

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession

Found = dict[str, Any]

_SOURCES: Final = ("coopconsume", "assignors", "commits")
_FOR_REAL_TIME: Final = ("confluent_kafka", "xxhash")
#: The line of a traceback that names the error.
_RAISED: Final = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception)\b.*", re.MULTILINE)
#: Seconds for the job.
_JOB: Final = 120.0
#: Seconds for a worker to connect.
_CONNECT: Final = 10.0
#: Tasks where the number of the session's cores is unknown.
_TASKS: Final = 2
#: Seconds by which clocks may differ; on Spark Connect, when slots must end depends on them.
_CLOCK: Final = 1.0
_MIB: Final = 2**20
_NETWORK: Final = (
    "let workers connect to the driver: set spark.driver.host, spark.driver.bindAddress and the "
    "option channelPort; batches go on without it, real time does not"
)
_IN_USE: Final = "stop what listens there, such as a running job, or give another channelPort"


class _Port(NamedTuple):
    """A port of the driver that workers connect to.

    Attributes:
        address: Its host and port as workers reach it, and a token; None: there is none.
        error: Why there is none.
        errno: The number of that error, if the system has given one.
    """

    address: tuple[str, int, bytes] | None
    error: str = ""
    errno: int | None = None


def worker_checks(
    spark: SparkSession,
    address: tuple[str, str] | None,
    port: int,
    brokers: Collection[tuple[str, int]],
) -> Iterator[Check]:
    """Yields what workers have found, by a Spark job.

    Args:
        spark: The session.
        address: The address that the driver listens on, and its name for workers; None: workers do
            not connect to it.
        port: Where it listens; 0: on any free port.
        brokers: Hosts and ports of the brokers, which workers read from.
    """
    with _port(address, port) as own:
        try:
            found = _look_in_time(spark, own, brokers)
        except Exception as error:  # noqa: BLE001 - the reason is what the user wants to know
            remedy = (
                "give the workers a Python of the driver's minor version, with pyarrow: "
                "spark.pyspark.python"
            )
            yield Check("workers", "failed", hidden_in(reason_of(error)), remedy)
            return
    if found is None:
        why = f"no worker has taken a task within {_JOB:g} s"
        remedy = "see whether executors start, and reach spark.driver.host"
        yield Check("workers", "failed", why, remedy)
        return
    hosts = sorted({one["host"] for one in found})
    yield Check("workers", "ok", f"{counted(len(found), 'task')} on {', '.join(hosts)}")
    yield _python(found)
    yield _packages(found)
    yield _real_time(found)
    if address is not None:
        yield _channel(own, found)
        yield _clocks(found)
    yield _memory(spark, found)
    if brokers:
        yield _brokers(found)


@contextmanager
def _port(address: tuple[str, str] | None, number: int) -> Iterator[_Port]:
    if address is None:
        yield _Port(None)
        return
    try:
        listener = listen(address[0], number)
    except OSError as error:
        yield _Port(
            None, f"the driver cannot listen on {address[0]}:{number}: {error}", error.errno
        )
        return
    token = secrets.token_hex(16).encode()
    listener.setblocking(True)
    thread = threading.Thread(
        target=_serve, args=(listener, token), name="coopconsume-doctor", daemon=True
    )
    thread.start()
    try:
        yield _Port((plain_host(address[1]), listener.getsockname()[1], token))
    finally:
        # A listener that is only closed keeps a thread that waits for it.
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        listener.close()


def _serve(listener: socket.socket, token: bytes) -> None:
    """Answers those who know the token with the time, until the listener is shut down."""
    while True:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        with sock, suppress(OSError):
            sock.settimeout(_CONNECT)
            if sock.makefile("rb").readline(len(token) + 1) == token + b"\n":
                sock.sendall(repr(time.time()).encode() + b"\n")


def _look_in_time(
    spark: SparkSession, port: _Port, brokers: Iterable[tuple[str, int]]
) -> list[Found] | None:
    """Returns what workers have found; None: no job has ended in time, as without executors."""
    tag = f"coopconsume-doctor-{secrets.token_hex(8)}"

    def look_in_thread() -> list[Found]:
        with tagged(spark, tag, tag, "coopconsume doctor"):
            return _look(spark, port, brokers)

    pool = ThreadPoolExecutor(1, thread_name_prefix="coopconsume-doctor")
    try:
        return pool.submit(look_in_thread).result(_JOB)
    except TimeoutError:
        interrupt(spark, tag)
        return None
    finally:
        pool.shutdown(wait=False)


def _look(spark: SparkSession, port: _Port, brokers: Iterable[tuple[str, int]]) -> list[Found]:
    from pyspark import cloudpickle

    tasks = cores(spark) or _TASKS
    task = look.Look((*_SOURCES, *_FOR_REAL_TIME), _SOURCES, port.address, tuple(brokers), _CONNECT)
    cloudpickle.register_pickle_by_value(look)
    try:
        rows = spark.range(0, tasks, 1, tasks).mapInArrow(task, "found string").collect()
    finally:
        cloudpickle.unregister_pickle_by_value(look)
    return [json.loads(row.found) for row in rows]


def reason_of(error: BaseException) -> str:
    """Returns an error as one sentence; of an error of a task, the one that Python raised there."""
    raised = _RAISED.findall(str(error))
    return raised[-1] if raised else sentence_of(error)


def _python(found: Sequence[Found]) -> Check:
    name, own = "Python of the workers", platform.python_version()
    others = sorted({one["python"] for one in found})
    if any(_minor(one) != _minor(own) for one in others):
        remedy = "set spark.pyspark.python to the same minor version: handlers travel by pickle"
        return Check(name, "failed", f"{', '.join(others)}; the driver has {own}", remedy)
    return Check(name, "ok", ", ".join(others))


def _packages(found: Sequence[Found]) -> Check:
    name = "coopconsume on the workers"
    zipped = "by --py-files coopconsume.zip, spark.submit.pyFiles or spark.addArtifacts"
    for one in found:
        missing = [package for package in _SOURCES if package in one["missing"]]
        if missing:
            why = f"{one['host']}: {missing[0]}: {one['missing'][missing[0]]}"
            return Check(name, "failed", why, f"install it there, or send it {zipped}")
    own = look.digest(_SOURCES)
    strange = sorted({one["host"] for one in found if one["sources"] not in ("", own)})
    if strange:
        why = f"its sources on {', '.join(strange)} are not those of the driver"
        return Check(name, "failed", why, f"install the same version, or send it {zipped}")
    return Check(name, "ok", "the driver's sources")


def _real_time(found: Sequence[Found]) -> Check:
    name = "packages for real time"
    for one in found:
        missing = [package for package in _FOR_REAL_TIME if package in one["missing"]]
        if missing:
            why = f"{one['host']}: {missing[0]}: {one['missing'][missing[0]]}"
            return Check(name, "warning", why, "install it on all workers")
    return Check(name, "ok", ", ".join(_FOR_REAL_TIME))


def _channel(port: _Port, found: Sequence[Found]) -> Check:
    name = "channel to the driver"
    if port.address is None:
        in_use = port.errno == errno.EADDRINUSE
        return Check(name, "warning", port.error, _IN_USE if in_use else _NETWORK)
    place = f"{port.address[0]}:{port.address[1]}"
    for one in found:
        if one["driver"]["why"]:
            why = f"{one['host']} cannot reach {place}: {one['driver']['why']}"
            return Check(name, "warning", why, _NETWORK)
    return Check(name, "ok", place)


def _clocks(found: Sequence[Found]) -> Check:
    name = "clocks"
    ahead = [one["driver"]["ahead"] for one in found if one["driver"]["ahead"] is not None]
    if not ahead:
        return Check(name, "untried", "no worker has connected")
    most = max(ahead, key=abs)
    if abs(most) > _CLOCK:
        words = "ahead of" if most > 0 else "behind"
        why = f"a worker is {abs(most):.1f} s {words} the driver"
        return Check(name, "warning", why, "synchronize the machines, as by chrony")
    return Check(name, "ok", f"less than {_CLOCK:g} s apart")


def _memory(spark: SparkSession, found: Sequence[Found]) -> Check:
    """Each task of a host is a process of Python beside the executor's heap."""
    name = "memory of the workers"
    need = max(one["memory"] for one in found)
    limit = spark.conf.get("spark.executor.pyspark.memory", None)
    shown = f"{need // _MIB} MiB a process once the library is loaded"
    hosts = {one["host"] for one in found}
    for host in sorted(hosts):
        there = [one for one in found if one["host"] == host]
        free = min(one["free"] for one in there)
        processes = len({one["pid"] for one in there})
        if free and free < need * processes:
            why = f"{shown}, {processes} of them, and {free // _MIB} MiB free on {host}"
            remedy = "raise spark.executor.memoryOverhead, or lower spark.executor.cores"
            return Check(name, "warning", why, remedy)
    bound = f"; spark.executor.pyspark.memory={limit}" if limit else ""
    return Check(name, "ok", f"{shown}{bound}")


def _brokers(found: Sequence[Found]) -> Check:
    name = "brokers from the workers"
    for one in found:
        for broker, why in one["brokers"].items():
            if why:
                remedy = "let workers connect to what the brokers have as advertised.listeners"
                reason = f"{one['host']} cannot reach {broker}: {why}"
                return Check(name, "failed", reason, remedy)
    reached = ", ".join(sorted(found[0]["brokers"]))
    return Check(name, "ok", f"{reached} accept connections; login and TLS are not tried")


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
