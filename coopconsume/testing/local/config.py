"""The settings, the logging and the JVM options of the embedded broker."""

from __future__ import annotations

import base64
import os
import random
import socket
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from coopconsume.errors import BrokerStartFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

HOST = "127.0.0.1"

# Below the ephemeral ports of every common system: from among those, another program's outgoing
# connection, or a client that tries again and again to reach a broker that is down and at last
# connects to itself, could take the port while the broker restarts.
_PORTS = range(10_000, 16_000)
_PORT_ATTEMPTS = 200

# A broker that lives for minutes: the short start matters, the last percent of speed does not.
_JVM_FLAGS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Xshare:auto",
    "-Djava.awt.headless=true",
)
_CONF = Path(__file__).with_name("conf")

_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    # A killed broker is not let in again before its last life's session is over.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    # Short sessions, so that tests need not wait long for a dead member to be noticed.
    "group.min.session.timeout.ms": "1000",
    # A misspelt topic is an error, not a new topic.
    "auto.create.topics.enable": "false",
    # Records keep their own timestamps, which may be years old: time must not delete them.
    "log.retention.ms": "-1",
    "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
}


def settings(
    port: int, controller_port: int, log_dir: Path, extra: Mapping[str, str]
) -> dict[str, str]:
    """Return the broker's settings; those of ``extra`` win."""
    return {
        **_SETTINGS,
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "controller.quorum.voters": f"1@{HOST}:{controller_port}",
        "log.dirs": str(log_dir),
        **extra,
    }


def jvm_command(java: str, jars: Iterable[Path], heap: str) -> list[str]:
    """Returns the command line of a JVM, up to the class to run.

    Args:
        java: The program.
        jars: Its class path.
        heap: Its largest heap, in Java's notation.
    """
    class_path = os.pathsep.join(map(str, jars))
    return [java, f"-Xmx{heap}", *_JVM_FLAGS, "-cp", class_path]


def logging_flag(*, log4j1: bool) -> str:
    """Returns the JVM's option that names the broker's logging configuration.

    Args:
        log4j1: Whether the broker logs by Log4j 1.
    """
    if log4j1:
        return f"-Dlog4j.configuration={(_CONF / 'broker-log4j.properties').as_uri()}"
    return f"-Dlog4j2.configurationFile={(_CONF / 'broker-log4j2.properties').as_uri()}"


def as_properties(values: Mapping[str, str]) -> str:
    """Write settings as a Java properties file, which is Latin-1 with escapes."""
    return "".join(f"{_escape(key)}={_escape(value)}\n" for key, value in values.items())


def _escape(text: str) -> str:
    special = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", " ": "\\ "}
    special |= {sign: f"\\{sign}" for sign in "=:#!"}
    utf16 = text.encode("utf-16-be", "surrogatepass")
    units = (int.from_bytes(utf16[at : at + 2], "big") for at in range(0, len(utf16), 2))
    return "".join(
        special.get(chr(unit), chr(unit) if 32 <= unit < 127 else f"\\u{unit:04x}")  # noqa: PLR2004
        for unit in units
    )


def new_cluster_id() -> str:
    """Return a random cluster id, written as Kafka writes its UUIDs."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):  # Kafka avoids it too: it looks like an option
            return text


def chosen_ports(port: int | None) -> tuple[int, int, int]:
    """Returns the ports of a broker: for clients, for its controller and for administrators.

    Args:
        port: The port for clients; None: a free one.

    Raises:
        BrokerStartFailed: Another program has it.
        OSError: No free ports were found.
    """
    free = free_ports(4)
    if port is None:
        return free[0], free[1], free[2]
    if not port_is_free(port):
        raise BrokerStartFailed(
            f"port {port} of {HOST} is taken by another program; stop that one or choose another "
            "port"
        )
    others = [one for one in free if one != port]
    return port, others[0], others[1]


def free_ports(count: int) -> list[int]:
    """Return different ports that nobody listens on now.

    Raises:
        OSError: None were found.
    """
    candidates = random.sample(_PORTS, _PORT_ATTEMPTS)
    found = [port for port in candidates if port_is_free(port)][:count]
    if len(found) < count:
        raise OSError(f"no free port among {_PORT_ATTEMPTS} tried from {_PORTS}")
    return found


def port_is_free(port: int) -> bool:
    """Return whether a server could listen on the port of the loopback address."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As Java does it: connections of an earlier server that wind down are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
