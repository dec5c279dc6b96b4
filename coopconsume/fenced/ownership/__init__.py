"""The registry of owners, and the places that keep it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from coopconsume.fenced.ownership.model import (
    AccessMode,
    Entry,
    Grant,
    Holder,
    OwnershipStore,
    Row,
    Session,
)
from coopconsume.fenced.ownership.registry import OwnershipRegistry
from coopconsume.fenced.ownership.rules import Busy, Fenced, Outcome, Queued, Replaced

if TYPE_CHECKING:
    from coopconsume.fenced.ownership.delta_store import DeltaStore
    from coopconsume.fenced.ownership.kafka_store import KafkaStore

__all__ = [
    "AccessMode", "Busy", "DeltaStore", "Entry", "Fenced", "Grant", "Holder", "KafkaStore",
    "Outcome", "OwnershipRegistry", "OwnershipStore", "Queued", "Replaced", "Row", "Session",
]  # fmt: skip

# Each store has clients of its own to load.
_HOMES = {"DeltaStore": "delta_store", "KafkaStore": "kafka_store"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
