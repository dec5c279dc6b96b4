"""A group's offsets for operators: their status, their blockers, and moves."""

from coopconsume.admin.offsets.admin import OffsetAdmin
from coopconsume.admin.offsets.document import read_document, write_document
from coopconsume.admin.offsets.moves import Kept, Move
from coopconsume.admin.offsets.status import Blocker, Gap, PartitionStatus

__all__ = [
    "Blocker",
    "Gap",
    "Kept",
    "Move",
    "OffsetAdmin",
    "PartitionStatus",
    "read_document",
    "write_document",
]
