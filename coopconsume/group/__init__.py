"""Membership in a Kafka consumer group whose members share partitions by key range.

Names are imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coopconsume.lazy_names import lazy_names

if TYPE_CHECKING:
    from coopconsume.group.member import GroupMember as GroupMember
    from coopconsume.group.owner import AssignmentOwner as AssignmentOwner

_HOME = {
    "AssignmentOwner": "owner",
    "GroupMember": "member",
}

__all__ = list(_HOME)

__getattr__, __dir__ = lazy_names(__name__, _HOME)
