"""A registry that one thread closes while another one asks it."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import pytest

from coopconsume.errors import OwnershipUnavailable
from coopconsume.fenced import AccessMode
from coopconsume.fenced.ownership import OwnershipRegistry
from coopconsume.fenced.ownership.model import Key, Row
from tests.model.memory_store import Memory, MemoryStore

_PATIENCE = 60.0


class Shelf(MemoryStore):
    """A store in memory whose reads take a while."""

    def __init__(self) -> None:
        super().__init__(Memory())
        self.looked = threading.Event()
        self.closed = False
        self.closed_under_a_look = False

    def rows(self) -> Mapping[Key, Row]:
        """No rows; notes whether the store is closed during the read."""
        self.looked.set()
        until = time.monotonic() + 0.1
        while time.monotonic() < until:
            self.closed_under_a_look |= self.closed
        return {}

    def close(self) -> None:
        """Is not used any more."""
        self.closed = True


def test_a_registry_is_not_closed_during_a_request() -> None:
    """It is closed after the answer, and from then on says so."""
    store = Shelf()
    registry = OwnershipRegistry(store, lease=0)
    asking = threading.Thread(target=lambda: registry.show("group", "resource"))
    asking.start()
    assert store.looked.wait(_PATIENCE)
    registry.close()
    asking.join(_PATIENCE)
    assert store.closed
    assert not store.closed_under_a_look
    for ask in (
        lambda: registry.show("group", "resource"),
        registry.list,
        lambda: registry.history("group", "resource"),
        lambda: registry.poll("group", "resource"),
        lambda: registry.wait(1),
        lambda: registry.own("group", {"resource": 0}),
        lambda: registry.acquire("group", "resource", AccessMode.EXCLUSIVE),
        lambda: registry.evict("group", "resource"),
    ):
        with pytest.raises(OwnershipUnavailable, match="this registry is closed"):
            ask()
    registry.release("group", ["resource"])
