"""Key ranges and the assignors that distribute them. Pure functions: no Spark, no sockets."""

from assignors.contract import KeyRangeAssignor, Member
from assignors.errors import (
    AssignmentConflict,
    AssignorError,
    InvalidKeyRange,
    InvalidMember,
    InvalidTopic,
    ProtocolMismatch,
)
from assignors.range_ import RangeKeyRangeAssignor
from assignors.ranges import (
    MAX_KEY_HASH,
    Coverage,
    KeyRange,
    coverage,
    key_hash,
    merge,
    offset_hash,
)
from assignors.round_robin import RoundRobinKeyRangeAssignor
from assignors.shares import Share
from assignors.sticky import StickyCost, StickyKeyRangeAssignor, sticky_cost

__all__ = [
    "MAX_KEY_HASH",
    "AssignmentConflict",
    "AssignorError",
    "Coverage",
    "InvalidKeyRange",
    "InvalidMember",
    "InvalidTopic",
    "KeyRange",
    "KeyRangeAssignor",
    "Member",
    "ProtocolMismatch",
    "RangeKeyRangeAssignor",
    "RoundRobinKeyRangeAssignor",
    "Share",
    "StickyCost",
    "StickyKeyRangeAssignor",
    "coverage",
    "key_hash",
    "merge",
    "offset_hash",
    "sticky_cost",
]
