"""Overviews of groups, from Kafka's coordinator and the commit log.

Names are imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coopconsume.lazy_names import lazy_names

if TYPE_CHECKING:
    from coopconsume.admin.overview.collect import describe_group as describe_group
    from coopconsume.admin.overview.collect import list_groups as list_groups
    from coopconsume.admin.overview.collect import overview_of as overview_of
    from coopconsume.admin.overview.data import ChunkOverview as ChunkOverview
    from coopconsume.admin.overview.data import ClaimOverview as ClaimOverview
    from coopconsume.admin.overview.data import DecisionOverview as DecisionOverview
    from coopconsume.admin.overview.data import GroupEvent as GroupEvent
    from coopconsume.admin.overview.data import GroupOverview as GroupOverview
    from coopconsume.admin.overview.data import GroupSummary as GroupSummary
    from coopconsume.admin.overview.data import InDoubtRange as InDoubtRange
    from coopconsume.admin.overview.data import MemberOverview as MemberOverview
    from coopconsume.admin.overview.data import OwnedRange as OwnedRange
    from coopconsume.admin.overview.data import PartitionOverview as PartitionOverview
    from coopconsume.admin.overview.keys import KeyMetadata as KeyMetadata
    from coopconsume.admin.overview.keys import key_metadata as key_metadata

_HOME = {
    "ChunkOverview": "data",
    "ClaimOverview": "data",
    "DecisionOverview": "data",
    "GroupEvent": "data",
    "GroupOverview": "data",
    "GroupSummary": "data",
    "InDoubtRange": "data",
    "KeyMetadata": "keys",
    "MemberOverview": "data",
    "OwnedRange": "data",
    "PartitionOverview": "data",
    "describe_group": "collect",
    "key_metadata": "keys",
    "list_groups": "collect",
    "overview_of": "collect",
}

__all__ = list(_HOME)

__getattr__, __dir__ = lazy_names(__name__, _HOME)
