"""The individual-commit store: which records of a Kafka partition are done, one by one."""

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
from commits.model import Assignment, Doubt, Epoch, OwnedShare, Pending
from commits.offsets import OffsetRanges
from commits.partition import CommitResult, PartitionCommits
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

__all__ = [
    "ACCEPT_INDIVIDUAL_COMMIT",
    "ACCEPT_RANGE_FETCH",
    "MAX_NUM_RANGES",
    "SNAPSHOT_BYTES",
    "SNAPSHOT_COMMITS",
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
    "OffsetRanges",
    "OwnedShare",
    "PartitionCommits",
    "Pending",
    "RepairRefused",
    "StableOffset",
    "TableCheck",
    "TableRepair",
    "UnsupportedTarget",
    "check_table",
    "move_table",
    "repair_table",
]
