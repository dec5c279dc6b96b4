"""The commit store: individual commits of records of Kafka partitions.

Names are imported when first used, so that errors and offset sets do not load Delta.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commits.acquisitions import Acquisition
    from commits.chunk_watch import AcquisitionWatch
    from commits.errors import (
        ClaimConflict,
        CommitLogUnavailable,
        CommitRefused,
        CommitStoreBusy,
        CommitStoreError,
        CommitTableFormat,
        CommitTableNotFound,
        CorruptCommitLog,
        EpochConflict,
        FencedMember,
        IndividualCommitNotAllowed,
        IndividualCommitTooOld,
        MaxIndividualCommitsReached,
        RepairRefused,
        UnsupportedTarget,
    )
    from commits.ids import CommitIds
    from commits.model import (
        AcquireRequest,
        AcquisitionId,
        Assignment,
        Doubt,
        Epoch,
        OffsetAndEpoch,
        OwnedShare,
        Pending,
        Wanted,
    )
    from commits.offsets import OffsetRanges
    from commits.partition_commits import CommitResult, PartitionCommits
    from commits.repair import (
        StableOffset,
        TableCheck,
        TableRepair,
        check_table,
        move_table,
        repair_table,
    )
    from commits.settings import (
        ACCEPT_INDIVIDUAL_COMMIT,
        ACCEPT_RANGE_FETCH,
        MAX_NUM_RANGES,
        SNAPSHOT_BYTES,
        SNAPSHOT_COMMITS,
    )
    from commits.store import CommitStore

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
    "FencedMember": "errors",
    "IndividualCommitNotAllowed": "errors",
    "IndividualCommitTooOld": "errors",
    "MAX_NUM_RANGES": "settings",
    "MaxIndividualCommitsReached": "errors",
    "OffsetRanges": "offsets",
    "OwnedShare": "model",
    "PartitionCommits": "partition_commits",
    "OffsetAndEpoch": "model",
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

__all__ = [
    "ACCEPT_INDIVIDUAL_COMMIT",
    "ACCEPT_RANGE_FETCH",
    "MAX_NUM_RANGES",
    "SNAPSHOT_BYTES",
    "SNAPSHOT_COMMITS",
    "AcquireRequest",
    "Acquisition",
    "AcquisitionId",
    "AcquisitionWatch",
    "Assignment",
    "ClaimConflict",
    "CommitIds",
    "CommitLogUnavailable",
    "CommitRefused",
    "CommitResult",
    "CommitStore",
    "CommitStoreBusy",
    "CommitStoreError",
    "CommitTableFormat",
    "CommitTableNotFound",
    "CorruptCommitLog",
    "Doubt",
    "Epoch",
    "EpochConflict",
    "FencedMember",
    "IndividualCommitNotAllowed",
    "IndividualCommitTooOld",
    "MaxIndividualCommitsReached",
    "OffsetAndEpoch",
    "OffsetRanges",
    "OwnedShare",
    "PartitionCommits",
    "Pending",
    "RepairRefused",
    "StableOffset",
    "TableCheck",
    "TableRepair",
    "UnsupportedTarget",
    "Wanted",
    "check_table",
    "move_table",
    "repair_table",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
