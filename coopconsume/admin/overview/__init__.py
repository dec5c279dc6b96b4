"""Groups as an operator sees them: Kafka's coordinator and the commit log, put side by side."""

from coopconsume.admin.overview.collect import describe_group, list_groups, overview_of
from coopconsume.admin.overview.data import (
    ClaimOverview,
    DoubtedRange,
    GroupEvent,
    GroupOverview,
    GroupSummary,
    MemberOverview,
    OwnedRange,
    PartitionOverview,
)

__all__ = [
    "ClaimOverview",
    "DoubtedRange",
    "GroupEvent",
    "GroupOverview",
    "GroupSummary",
    "MemberOverview",
    "OwnedRange",
    "PartitionOverview",
    "describe_group",
    "list_groups",
    "overview_of",
]
