"""Key ranges and the assignors that distribute them. Pure functions: no Spark, no sockets.

Names are imported when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assignors.contract import KeyRangeAssignor as KeyRangeAssignor
    from assignors.contract import Member as Member
    from assignors.errors import AssignmentConflict as AssignmentConflict
    from assignors.errors import AssignorError as AssignorError
    from assignors.errors import InvalidKeyRange as InvalidKeyRange
    from assignors.errors import InvalidMember as InvalidMember
    from assignors.errors import InvalidTopic as InvalidTopic
    from assignors.errors import ProtocolMismatch as ProtocolMismatch
    from assignors.range_ import RangeKeyRangeAssignor as RangeKeyRangeAssignor
    from assignors.ranges import MAX_KEY_HASH as MAX_KEY_HASH
    from assignors.ranges import Coverage as Coverage
    from assignors.ranges import KeyRange as KeyRange
    from assignors.ranges import coverage as coverage
    from assignors.ranges import key_hash as key_hash
    from assignors.ranges import merge as merge
    from assignors.ranges import offset_hash as offset_hash
    from assignors.round_robin import RoundRobinKeyRangeAssignor as RoundRobinKeyRangeAssignor
    from assignors.shares import Share as Share
    from assignors.sticky import StickyCost as StickyCost
    from assignors.sticky import StickyKeyRangeAssignor as StickyKeyRangeAssignor
    from assignors.sticky import sticky_cost as sticky_cost

_HOME = {
    "AssignmentConflict": "errors",
    "AssignorError": "errors",
    "Coverage": "ranges",
    "InvalidKeyRange": "errors",
    "InvalidMember": "errors",
    "InvalidTopic": "errors",
    "KeyRange": "ranges",
    "KeyRangeAssignor": "contract",
    "MAX_KEY_HASH": "ranges",
    "Member": "contract",
    "ProtocolMismatch": "errors",
    "RangeKeyRangeAssignor": "range_",
    "RoundRobinKeyRangeAssignor": "round_robin",
    "Share": "shares",
    "StickyCost": "sticky",
    "StickyKeyRangeAssignor": "sticky",
    "coverage": "ranges",
    "key_hash": "ranges",
    "merge": "ranges",
    "offset_hash": "ranges",
    "sticky_cost": "sticky",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
