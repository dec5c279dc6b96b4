"""Membership in a Kafka consumer group whose members share partitions by key range.

Names are imported when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coopconsume.group.member import GroupMember as GroupMember
    from coopconsume.group.owner import AssignmentOwner as AssignmentOwner

_HOME = {
    "AssignmentOwner": "owner",
    "GroupMember": "member",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
