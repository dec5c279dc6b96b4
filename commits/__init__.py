"""The commit store: individual commits of records of Kafka partitions.

Names are imported when first used, so that errors and offset sets do not load Delta.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commits.acquisitions import Acquisition as Acquisition
    from commits.chunk_watch import AcquisitionWatch as AcquisitionWatch
    from commits.errors import ClaimConflict as ClaimConflict
    from commits.errors import CommitLogUnavailable as CommitLogUnavailable
    from commits.errors import CommitRefused as CommitRefused
    from commits.errors import CommitStoreBusy as CommitStoreBusy
    from commits.errors import CommitStoreError as CommitStoreError
    from commits.errors import CommitTableFormat as CommitTableFormat
    from commits.errors import CommitTableNotFound as CommitTableNotFound
    from commits.errors import CorruptCommitLog as CorruptCommitLog
    from commits.errors import EpochConflict as EpochConflict
    from commits.errors import FencedMember as FencedMember
    from commits.errors import IndividualCommitNotAllowed as IndividualCommitNotAllowed
    from commits.errors import IndividualCommitTooOld as IndividualCommitTooOld
    from commits.errors import MaxIndividualCommitsReached as MaxIndividualCommitsReached
    from commits.errors import RepairRefused as RepairRefused
    from commits.errors import UnsupportedTarget as UnsupportedTarget
    from commits.ids import CommitIds as CommitIds
    from commits.model import AcquireRequest as AcquireRequest
    from commits.model import AcquisitionId as AcquisitionId
    from commits.model import Assignment as Assignment
    from commits.model import CommitOptions as CommitOptions
    from commits.model import Doubt as Doubt
    from commits.model import Epoch as Epoch
    from commits.model import EpochOptions as EpochOptions
    from commits.model import GrantOptions as GrantOptions
    from commits.model import Pending as Pending
    from commits.model import Wanted as Wanted
    from commits.offset_and_epoch import OffsetAndEpoch as OffsetAndEpoch
    from commits.offsets import OffsetRanges as OffsetRanges
    from commits.partition_commits import CommitResult as CommitResult
    from commits.partition_commits import PartitionCommits as PartitionCommits
    from commits.repair import StableOffset as StableOffset
    from commits.repair import TableCheck as TableCheck
    from commits.repair import TableRepair as TableRepair
    from commits.repair import check_table as check_table
    from commits.repair import move_table as move_table
    from commits.repair import repair_table as repair_table
    from commits.settings import ACCEPT_INDIVIDUAL_COMMIT as ACCEPT_INDIVIDUAL_COMMIT
    from commits.settings import ACCEPT_RANGE_FETCH as ACCEPT_RANGE_FETCH
    from commits.settings import MAX_NUM_RANGES as MAX_NUM_RANGES
    from commits.settings import SNAPSHOT_BYTES as SNAPSHOT_BYTES
    from commits.settings import SNAPSHOT_COMMITS as SNAPSHOT_COMMITS
    from commits.store import CommitStore as CommitStore

_HOME = {
    "ACCEPT_INDIVIDUAL_COMMIT": "settings",
    "ACCEPT_RANGE_FETCH": "settings",
    "AcquireRequest": "model",
    "Acquisition": "acquisitions",
    "AcquisitionId": "model",
    "AcquisitionWatch": "chunk_watch",
    "Assignment": "model",
    "ClaimConflict": "errors",
    "CommitIds": "ids",
    "CommitLogUnavailable": "errors",
    "CommitOptions": "model",
    "CommitRefused": "errors",
    "CommitResult": "partition_commits",
    "CommitStore": "store",
    "CommitStoreBusy": "errors",
    "CommitStoreError": "errors",
    "CommitTableFormat": "errors",
    "CommitTableNotFound": "errors",
    "CorruptCommitLog": "errors",
    "Doubt": "model",
    "Epoch": "model",
    "EpochConflict": "errors",
    "EpochOptions": "model",
    "FencedMember": "errors",
    "GrantOptions": "model",
    "IndividualCommitNotAllowed": "errors",
    "IndividualCommitTooOld": "errors",
    "MAX_NUM_RANGES": "settings",
    "MaxIndividualCommitsReached": "errors",
    "OffsetRanges": "offsets",
    "PartitionCommits": "partition_commits",
    "OffsetAndEpoch": "offset_and_epoch",
    "Pending": "model",
    "RepairRefused": "errors",
    "SNAPSHOT_BYTES": "settings",
    "SNAPSHOT_COMMITS": "settings",
    "StableOffset": "repair",
    "TableCheck": "repair",
    "TableRepair": "repair",
    "UnsupportedTarget": "errors",
    "Wanted": "model",
    "check_table": "repair",
    "move_table": "repair",
    "repair_table": "repair",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
