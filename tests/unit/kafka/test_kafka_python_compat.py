"""kafka-python is used through one module, which closes what it leaves behind."""

from __future__ import annotations

import ast
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kafka import KafkaConsumer
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

from coopconsume.kafka import kafka_python_compat
from coopconsume.kafka.kafka_python_compat import connected

if TYPE_CHECKING:
    from collections.abc import Iterator


ROOT = Path(__file__).parents[3]


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a broker that answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("client", [KafkaAdminClient, KafkaConsumer])
def test_a_client_that_never_connected_leaves_no_thread(silent: str, client: type) -> None:
    """Otherwise each attempt while no broker answers would leave one, and connections."""
    before = set(threading.enumerate())
    with pytest.raises(KafkaError):
        connected(client, bootstrap_servers=silent, bootstrap_timeout_ms=100)
    deadline = time.monotonic() + 60
    while set(threading.enumerate()) - before:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def private_uses(code: str) -> list[str]:
    """Return the private names of kafka-python's clients that code uses."""
    clients = {"admin", "consumer", "_admin", "_consumer"}
    return [
        node.attr
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and getattr(node.value, "attr", getattr(node.value, "id", "")) in clients
    ]


def test_private_names_of_the_clients_are_used_in_one_module() -> None:
    """Another release of kafka-python changes that module alone."""
    both = private_uses("admin._manager.run(f); self._consumer._net")
    assert sorted(both) == ["_manager", "_net"]
    own = Path(kafka_python_compat.__file__)
    # Its consumers are those of this library.
    pictures = ROOT / "coopconsume" / "admin" / "pictures.py"
    uses = {
        str(path): found
        for path in (ROOT / "coopconsume").rglob("*.py")
        if path not in (own, pictures) and (found := private_uses(path.read_text()))
    }
    assert uses == {}
    assert private_uses(own.read_text())
