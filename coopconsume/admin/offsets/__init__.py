"""A group's offsets for operators: their status, their blockers, and moves.

Names are imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coopconsume.lazy_names import lazy_names

if TYPE_CHECKING:
    from coopconsume.admin.offsets.admin import OffsetAdmin as OffsetAdmin
    from coopconsume.admin.offsets.checkpoint import read_checkpoint as read_checkpoint
    from coopconsume.admin.offsets.document import read_document as read_document
    from coopconsume.admin.offsets.document import write_document as write_document
    from coopconsume.admin.offsets.moves import Kept as Kept
    from coopconsume.admin.offsets.moves import Move as Move
    from coopconsume.admin.offsets.status import Blocker as Blocker
    from coopconsume.admin.offsets.status import Gap as Gap
    from coopconsume.admin.offsets.status import PartitionStatus as PartitionStatus

_HOME = {
    "Blocker": "status",
    "Gap": "status",
    "Kept": "moves",
    "Move": "moves",
    "OffsetAdmin": "admin",
    "PartitionStatus": "status",
    "read_checkpoint": "checkpoint",
    "read_document": "document",
    "write_document": "document",
}

__all__ = list(_HOME)

__getattr__, __dir__ = lazy_names(__name__, _HOME)
