"""A group's offsets for operators: how they stand, what holds them, and how they are moved."""

from coopconsume.admin.offsets.admin import OffsetAdmin
from coopconsume.admin.offsets.document import read_document, write_document
from coopconsume.admin.offsets.moves import Kept, Move
from coopconsume.admin.offsets.status import Gap, Holder, PartitionStatus

__all__ = [
    "Gap",
    "Holder",
    "Kept",
    "Move",
    "OffsetAdmin",
    "PartitionStatus",
    "read_document",
    "write_document",
]
