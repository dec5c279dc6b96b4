"""The registry of owners, and the places that keep it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coopconsume.fenced.ownership.kafka_store import KafkaStore
from coopconsume.fenced.ownership.model import (
    AccessMode,
    Grant,
    Holder,
    OwnershipEvent,
    OwnershipStore,
    Row,
    Session,
)
from coopconsume.fenced.ownership.registry import OwnershipRegistry
from coopconsume.fenced.ownership.rules import Busy, Fenced, Outcome, Queued, Replaced

if TYPE_CHECKING:
    from coopconsume.fenced.ownership.delta_store import DeltaStore

__all__ = [
    "AccessMode", "Busy", "DeltaStore", "Fenced", "Grant", "Holder", "KafkaStore", "Outcome",
    "OwnershipEvent", "OwnershipRegistry", "OwnershipStore", "Queued", "Replaced", "Row", "Session",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name != "DeltaStore":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from coopconsume.fenced.ownership.delta_store import DeltaStore  # loads deltalake

    return DeltaStore
