"""The registry of owners, and the places that keep it.

Names are imported when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coopconsume.fenced.ownership.delta_store import DeltaStore as DeltaStore
    from coopconsume.fenced.ownership.kafka_store import KafkaStore as KafkaStore
    from coopconsume.fenced.ownership.model import AccessMode as AccessMode
    from coopconsume.fenced.ownership.model import Grant as Grant
    from coopconsume.fenced.ownership.model import Holder as Holder
    from coopconsume.fenced.ownership.model import OwnershipEvent as OwnershipEvent
    from coopconsume.fenced.ownership.model import OwnershipStore as OwnershipStore
    from coopconsume.fenced.ownership.model import Row as Row
    from coopconsume.fenced.ownership.model import Session as Session
    from coopconsume.fenced.ownership.registry import OwnershipRegistry as OwnershipRegistry
    from coopconsume.fenced.ownership.rules import Busy as Busy
    from coopconsume.fenced.ownership.rules import Fenced as Fenced
    from coopconsume.fenced.ownership.rules import Outcome as Outcome
    from coopconsume.fenced.ownership.rules import Queued as Queued
    from coopconsume.fenced.ownership.rules import Replaced as Replaced

_HOME = {
    "AccessMode": "model",
    "Busy": "rules",
    "DeltaStore": "delta_store",
    "Fenced": "rules",
    "Grant": "model",
    "Holder": "model",
    "KafkaStore": "kafka_store",
    "Outcome": "rules",
    "OwnershipEvent": "model",
    "OwnershipRegistry": "registry",
    "OwnershipStore": "model",
    "Queued": "rules",
    "Replaced": "rules",
    "Row": "model",
    "Session": "model",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
