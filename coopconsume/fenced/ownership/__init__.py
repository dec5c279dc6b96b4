"""The registry of owners, and the places that keep it.

Names are imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coopconsume.lazy_names import lazy_names

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

__getattr__, __dir__ = lazy_names(__name__, _HOME)
