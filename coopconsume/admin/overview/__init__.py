"""Overviews of groups, from Kafka's coordinator and the commit log."""

from coopconsume.admin.overview.collect import describe_group, list_groups, overview_of
from coopconsume.admin.overview.data import (
    ChunkOverview,
    ClaimOverview,
    DecisionOverview,
    GroupEvent,
    GroupOverview,
    GroupSummary,
    InDoubtRange,
    MemberOverview,
    OwnedRange,
    PartitionOverview,
)
from coopconsume.admin.overview.keys import KeyMetadata, key_metadata

__all__ = [
    "ChunkOverview",
    "ClaimOverview",
    "DecisionOverview",
    "GroupEvent",
    "GroupOverview",
    "GroupSummary",
    "InDoubtRange",
    "KeyMetadata",
    "MemberOverview",
    "OwnedRange",
    "PartitionOverview",
    "describe_group",
    "key_metadata",
    "list_groups",
    "overview_of",
]
