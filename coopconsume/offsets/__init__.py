"""A group's offsets for operators: how they stand, what holds them, and how they are moved."""

from coopconsume.offsets.admin import OffsetAdmin
from coopconsume.offsets.document import read_document, write_document
from coopconsume.offsets.moves import Kept, Move
from coopconsume.offsets.standing import Gap, Holder, Standing

__all__ = [
    "Gap",
    "Holder",
    "Kept",
    "Move",
    "OffsetAdmin",
    "Standing",
    "read_document",
    "write_document",
]
