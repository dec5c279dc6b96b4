"""A real Apache Kafka broker as a child process, for demos, notebooks and tests."""

from __future__ import annotations

import logging
import re
import signal
import socket
import subprocess
import tempfile
import time
import weakref
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from coopconsume.closing import Closing
from coopconsume.errors import BrokerStartFailed, BrokerStopped
from coopconsume.testing.local import config as broker_config
from coopconsume.testing.local import security as broker_security
from coopconsume.testing.local import storage
from coopconsume.testing.local.jars import KAFKA_VERSION, broker_jars, logs_by_log4j1
from coopconsume.testing.local.java import find_java
from coopconsume.testing.local.process import STOP_TIMEOUT, BrokerProcess, BrokerResources, suspend

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from kafka.admin import KafkaAdminClient

log = logging.getLogger(__name__)

_TOPIC_TIMEOUT_MS: Final = 120_000
_PORT_ATTEMPTS: Final = 3
_POLL: Final = 0.05
#: Seconds between two log lines that say that the broker is not ready yet.
_SAY_EVERY: Final = 20.0
#: Seconds for which a client tries to connect; then it is checked whether the broker still runs.
_CONNECT_WITHIN: Final = 20.0


class LocalKafka(Closing):
    """One Kafka broker with its own controller (KRaft) on the loopback address.

    It never outlives the program: when that ends, by whatever means, the broker is killed, and its
    folder removed if it was a temporary one. Topics are not created by being named, and records
    are kept whatever their timestamps say; ``config`` changes both.

    Example:
        >>> with LocalKafka() as kafka:
        ...     kafka.create_topic("flights", partitions=3)
        ...     print(kafka.bootstrap_servers)

    Args:
        data_dir: Folder that holds its data, made if need be and kept; starting on it again goes
            on with that data. None for a temporary one that ``close`` removes.
        port: Port of the loopback address; a free one if None.
        config: More of Kafka's broker settings, which win over the built-in ones.
        users: Passwords by user name. Clients then have to log in, by SCRAM-SHA-512, SCRAM-SHA-256
            or PLAIN, and may do what ACLs allow them, at first nothing; give rights through
            `admin_servers`. None lets everybody do everything.
        certificate: PEM file of a private key and its certificates: clients then have to speak TLS.
        version: Version of Kafka, from 3.9 on, such as ``"4.1.1"``.
        heap: Largest heap of its JVM, in Java's notation.
        start_timeout: Seconds it may take to become ready. A warning says every 20 s that it is
            waited for; if its process ends, so does the wait.
        log_file: File its log is appended to; ``broker.log`` in its folder if None.

    Raises:
        ValueError: ``port`` or ``start_timeout`` is out of range, or ``version`` is not a version.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        port: int | None = None,
        config: Mapping[str, object] | None = None,
        users: Mapping[str, str] | None = None,
        certificate: str | os.PathLike[str] | None = None,
        version: str = KAFKA_VERSION,
        heap: str = "768m",
        start_timeout: float = 300,
        log_file: str | os.PathLike[str] | None = None,
    ) -> None:
        if port is not None and not 0 < port < 2**16:
            raise ValueError(f"port={port}: expected 1 to 65535, or None for a free one")
        if start_timeout <= 0:
            raise ValueError(f"start_timeout={start_timeout}: expected seconds above 0")
        if not re.fullmatch(r"\d+(\.\d+){2}", version):
            raise ValueError(f"version={version!r}: expected one of Kafka's, such as 4.1.1")
        self._data_dir = None if data_dir is None else Path(data_dir).absolute()
        self._port = port
        self._port_is_chosen = port is not None
        self._config = {key: _setting(value) for key, value in (config or {}).items()}
        self._users = None if users is None else dict(users)
        self._certificate = None if certificate is None else Path(certificate).absolute()
        self._admin_port: int | None = None
        self._version = version
        self._heap = heap
        self._start_timeout = start_timeout
        self._log_file = None if log_file is None else Path(log_file).absolute()
        self._log_start = 0
        self._held = BrokerResources()
        # At the program's end, and when nobody holds this object any more.
        self._finalizer = weakref.finalize(self, self._held.release)

    @property
    def bootstrap_servers(self) -> str:
        """Address for clients, as ``host:port``; the same after a restart.

        Raises:
            BrokerStopped: It was never started, so that no port is chosen yet.
        """
        if self._port is None:
            raise BrokerStopped("bootstrap_servers")
        return f"{broker_config.HOST}:{self._port}"

    @property
    def admin_servers(self) -> str:
        """Address at which everything may be done, without login or TLS, as ``host:port``.

        The same as `bootstrap_servers` if that asks for neither; otherwise another one after each
        start, and reachable from this machine alone.

        Raises:
            BrokerStopped: It was never started, so that no port is chosen yet.
        """
        if self._port is not None and self._admin_port is not None:
            return f"{broker_config.HOST}:{self._admin_port}"
        return self.bootstrap_servers

    @property
    def pid(self) -> int:
        """Process id of the broker's JVM.

        Raises:
            BrokerStopped: It does not run.
        """
        return self._running("pid").pid

    @property
    def is_running(self) -> bool:
        """Whether the broker's process exists; a frozen one does."""
        return self._held.process is not None and self._held.process.is_running

    @property
    def log_path(self) -> Path | None:
        """The broker's log file; None before the first start on a temporary folder."""
        if self._log_file is not None:
            return self._log_file
        folder = self._folder
        return None if folder is None else folder / "broker.log"

    @property
    def jars(self) -> list[Path]:
        """Kafka's jars, fetched if need be: the broker's and those of its command-line tools."""
        return broker_jars(self._version)

    def log_tail(self, lines: int = 20) -> str:
        """Return the last lines of the broker's log; empty without a log."""
        return storage.tail(self.log_path, lines)

    def start(self) -> Self:
        """Start the broker and return once topics can be listed; no effect if it runs.

        Raises:
            BrokerStartFailed: The port is taken, the data cannot be used, or the broker ended or
                was not ready in time. Nothing is left running, and a first start's temporary
                folder is removed.
            JarsUnavailable: Its jars cannot be fetched.
            SparkNotFound: Its jars are to be fetched, and PySpark is not installed.
            JavaNotFound: There is no Java.
            JavaVersionUnsupported: Java is too old.
        """
        if self.is_running:
            return self
        java = find_java().path
        jars = broker_jars(self._version)
        first = self._port is None
        fresh = self._folder is None
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            try:
                self._start(java, jars)
                break
            except BrokerStartFailed as error:
                # Somebody took a port between our look at it and the broker's.
                beaten = "Address already in use" in error.log_tail
                if first:
                    self._port = None
                if fresh:
                    self._held.release()
                if not beaten or self._port_is_chosen or attempt == _PORT_ATTEMPTS:
                    raise
            except BaseException:
                self._held.end(0)
                raise
        return self

    def stop(self, timeout: float = STOP_TIMEOUT) -> None:
        """Stop the broker and keep its data; killed if not gone after ``timeout`` seconds."""
        self._held.end(timeout)

    def kill(self) -> None:
        """End the broker by SIGKILL, as a crash would, and keep its data."""
        self._held.end(0)

    def restart(self) -> Self:
        """Stop the broker if it runs, and start it on the same data and the same port."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """Stop the broker and remove its folder if it was a temporary one."""
        self._held.release()

    def freeze(self) -> None:
        """Suspend the broker by SIGSTOP: connections stay, nobody answers.

        Raises:
            BrokerStopped: It does not run.
            TimeoutError: It still runs after half a minute.
        """
        suspend(self._running("freeze").pid)

    def thaw(self) -> None:
        """Let a frozen broker go on.

        Raises:
            BrokerStopped: It does not run.
        """
        self._running("thaw").send(signal.SIGCONT)

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, object] | None = None
    ) -> None:
        """Create a topic and return once the broker leads every partition of it.

        Args:
            name: Name of the topic.
            partitions: Number of its partitions.
            config: Kafka's topic settings.

        Raises:
            BrokerStopped: It does not run.
            kafka.errors.KafkaError: The broker refused, such as ``TopicAlreadyExistsError``.
        """
        from kafka import TopicPartition
        from kafka.admin import OffsetSpec
        from kafka.errors import TopicAlreadyExistsError

        self._running("create_topic")
        configs = {key: _setting(value) for key, value in (config or {}).items()}
        topic = {"num_partitions": partitions, "replication_factor": 1, "configs": configs}
        with closing(self._admin()) as admin:
            is_there = name in admin.list_topics()
            try:
                admin.create_topics({name: topic})
            except TopicAlreadyExistsError:
                # The client asks a second time if the controller has changed, which on a busy
                # machine it may have done after it had created the topic.
                if is_there:
                    raise
            admin.wait_for_topics([name], timeout_ms=_TOPIC_TIMEOUT_MS)
            # Metadata names leaders that do not lead yet. Of a wide topic, a Java producer would
            # get batches back out of their order, and wait for them until they expire.
            ends = {TopicPartition(name, number): OffsetSpec.LATEST for number in range(partitions)}
            admin.list_partition_offsets(ends, timeout_ms=_TOPIC_TIMEOUT_MS)

    def run_tool(
        self, class_name: str, *args: str, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run one of Kafka's own command-line tools.

        Args:
            class_name: Such as ``org.apache.kafka.tools.consumer.group.ConsumerGroupCommand``.
            args: Its arguments, ``--bootstrap-server`` included.
            timeout: Seconds it may take.

        Returns:
            Its exit code and what it said; a code other than 0 raises nothing.

        Raises:
            subprocess.TimeoutExpired: It took too long and was killed.
        """
        jvm = broker_config.jvm_command(find_java().path, self.jars, "256m")
        command = [*jvm, class_name, *args]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)

    def __enter__(self) -> Self:
        return self.start()

    def __repr__(self) -> str:
        where = "no port yet" if self._port is None else self.bootstrap_servers
        return f"<LocalKafka {where}, {'running' if self.is_running else 'stopped'}>"

    @property
    def _folder(self) -> Path | None:
        return self._data_dir or self._held.temporary

    def _running(self, action: str) -> BrokerProcess:
        process = self._held.process
        if process is None or not process.is_running:
            raise BrokerStopped(action)
        return process

    def _start(self, java: str, jars: list[Path]) -> None:
        """Make one attempt to bring the broker up."""
        deadline = time.monotonic() + self._start_timeout
        try:
            folder = self._make_folder()
            with storage.locked(folder) as lock:
                jvm = broker_config.jvm_command(java, jars, self._heap)
                process = self._launch(folder, lock, jvm)
        except subprocess.TimeoutExpired:
            raise BrokerStartFailed(self._too_slow()) from None
        except OSError as error:
            raise BrokerStartFailed(str(error)) from error
        self._await_ready(process, deadline)

    def _launch(self, folder: Path, lock: int, jvm: list[str]) -> BrokerProcess:
        port, controller_port, admin_port = broker_config.chosen_ports(self._port)
        self._port = port
        extra = self._config
        if self._users is not None or self._certificate is not None:
            self._admin_port = admin_port
            extra = (
                broker_security.settings(
                    port, admin_port, controller_port, self._users, self._certificate
                )
                | self._config
            )
        values = broker_config.settings(port, controller_port, folder / "log", extra)
        log_path = self._log_file or folder / "broker.log"
        self._log_start = log_path.stat().st_size if log_path.exists() else 0
        if not (folder / "log").exists():
            storage.format_storage(folder, jvm, values, self._start_timeout)
        file = folder / "server.properties"
        storage.write_private(file, broker_config.as_properties(values))
        flag = broker_config.logging_flag(log4j1=logs_by_log4j1(self._version))
        process = self._held.process = BrokerProcess(
            [*jvm[:1], flag, *jvm[1:], "kafka.Kafka", str(file)],
            folder=folder,
            log_path=log_path,
            temporary=self._held.temporary,
            lock=lock,
        )
        return process

    def _make_folder(self) -> Path:
        if self._data_dir is not None:
            self._data_dir.mkdir(parents=True, exist_ok=True)
            return self._data_dir
        if self._held.temporary is None:
            self._held.temporary = Path(tempfile.mkdtemp(prefix="coopconsume-kafka-"))
        return self._held.temporary

    def _await_ready(self, process: BrokerProcess, deadline: float) -> None:
        began = time.monotonic()
        due = began + _SAY_EVERY
        while True:
            if not process.is_running:
                self._fail(f"it ended with exit code {process.exit_code} before it was ready")
            now = time.monotonic()
            if now > deadline:
                self._held.end(0)
                self._fail(self._too_slow())
            if now > due:
                due = now + _SAY_EVERY
                log.warning(
                    "the broker is not ready after %.0f s; it has %.0f s more (start_timeout)",
                    now - began,
                    deadline - now,
                )
            if self._answers(deadline):
                break
            time.sleep(_POLL)
        if self._users:
            refusal = self._make_users(self._users, deadline)
            if refusal:
                self._held.end(0)
                self._fail(refusal)

    def _make_users(self, users: Mapping[str, str], deadline: float) -> str:
        """Make the users; returns why not, nothing if they are there."""
        try:
            broker_security.make_users(self._admin(), users, deadline)
        except ValueError as error:
            return str(error)
        except TimeoutError:
            return self._too_slow()
        return ""

    def _answers(self, deadline: float) -> bool:
        """Return whether the broker counts itself in and lists its topics."""
        from kafka.errors import KafkaError

        try:  # cheaper than a client, which would log every attempt that fails
            socket.create_connection((broker_config.HOST, self._port or 0), timeout=1).close()
        except OSError:
            return False
        left = min(max(1.0, deadline - time.monotonic()), _CONNECT_WITHIN)
        try:
            with closing(self._admin(bootstrap_timeout_ms=int(left * 1000))) as admin:
                admin.list_topics()
                return bool(admin.describe_cluster()["brokers"])
        except KafkaError:
            return False

    def _admin(self, **settings: object) -> KafkaAdminClient:
        from kafka.admin import KafkaAdminClient

        return KafkaAdminClient(bootstrap_servers=self.admin_servers, **settings)

    def _too_slow(self) -> str:
        return f"it was not ready in {self._start_timeout:g} s (start_timeout)"

    def _fail(self, reason: str) -> None:
        path = self.log_path
        raise BrokerStartFailed(
            reason,
            None if path is None else str(path),
            storage.tail(path, 20, start=self._log_start),
        )


def _setting(value: object) -> str:
    """Write a value as Kafka's settings are written."""
    return str(value).lower() if isinstance(value, bool) else str(value)
