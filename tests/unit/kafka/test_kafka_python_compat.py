"""What kafka-python leaves behind is closed."""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest
from kafka import KafkaConsumer
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

from coopconsume.kafka.kafka_python_compat import connected

if TYPE_CHECKING:
    from collections.abc import Iterator


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
