"""Errors of coopconsume. Each message states what was found, what is expected and what to do.

`CoopConsumeError` is the base class of all of them, including those of `commits` and `assignors`.
Every error has its facts as attributes and in ``args``, so that it can be pickled. ``retriable``
is true if the same call may succeed later without anybody changing anything.
"""

from __future__ import annotations

from assignors.errors import (
    AssignmentConflict,
    AssignorError,
    InvalidKeyRange,
    InvalidMember,
    InvalidTopic,
    ProtocolMismatch,
)
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
from coopconsume.errors.base import CoopConsumeError
from coopconsume.errors.cluster import (
    AuthenticationFailed,
    BrokerUnreachable,
    DataLoss,
    NotAuthorized,
    TopicNotFound,
    TopicReplaced,
)
from coopconsume.errors.fenced import (
    AppendOutcomeUnknown,
    AppendRefused,
    BatchRefused,
    CheckpointReplaced,
    EngineNotUsable,
    FencedLogError,
    LogBlocked,
    LogCorrupt,
    LogReplaced,
    LogTruncated,
    LogUnavailable,
    OffsetMismatch,
    OwnershipFormat,
    OwnershipUnavailable,
    ProducerBusy,
    ProducerFenced,
    SinkUnavailable,
    StaleGeneration,
    WriterNotOpen,
)
from coopconsume.errors.group import (
    ConsumerRangeFetchNotAccepted,
    ExternalReset,
    GroupActive,
    GroupNotFound,
    GroupRefused,
    TopicRangeFetchNotAllowed,
)
from coopconsume.errors.local import (
    BrokerStartFailed,
    BrokerStopped,
    JarsUnavailable,
    JavaNotFound,
    JavaVersionUnsupported,
    SparkNotFound,
    SparkSessionConflict,
    SparkVersionUnsupported,
)
from coopconsume.errors.options import (
    InvalidOption,
    MissingOption,
    OptionError,
    UnknownOption,
)
from coopconsume.errors.processing import (
    AlreadyClosed,
    HandlerFailed,
    HandlerNotUsable,
    NotPolled,
    OutputNotWritten,
    OutputRefused,
    OutputsNotPublished,
    PollWokenUp,
    RealTimeUnavailable,
    SessionUnusable,
    TableUnusable,
)
from coopconsume.errors.queue import NotHeld, QueueLogFormat, QueueUnavailable
from coopconsume.errors.state import (
    ResetNotFinished,
    StateAhead,
    StateNeedsKey,
    StateNotChosen,
    StateNotReadable,
)

__all__ = [
    "AlreadyClosed",
    "AppendOutcomeUnknown",
    "AppendRefused",
    "AssignmentConflict",
    "AssignorError",
    "AuthenticationFailed",
    "BatchRefused",
    "BrokerStartFailed",
    "BrokerStopped",
    "BrokerUnreachable",
    "CheckpointReplaced",
    "ClaimConflict",
    "CommitLogUnavailable",
    "CommitRefused",
    "CommitStoreBusy",
    "CommitStoreError",
    "CommitTableFormat",
    "CommitTableNotFound",
    "ConsumerRangeFetchNotAccepted",
    "CoopConsumeError",
    "CorruptCommitLog",
    "DataLoss",
    "EngineNotUsable",
    "EpochConflict",
    "ExternalReset",
    "FencedLogError",
    "FencedMember",
    "GroupActive",
    "GroupNotFound",
    "GroupRefused",
    "HandlerFailed",
    "HandlerNotUsable",
    "IndividualCommitNotAllowed",
    "IndividualCommitTooOld",
    "InvalidKeyRange",
    "InvalidMember",
    "InvalidOption",
    "InvalidTopic",
    "JarsUnavailable",
    "JavaNotFound",
    "JavaVersionUnsupported",
    "LogBlocked",
    "LogCorrupt",
    "LogReplaced",
    "LogTruncated",
    "LogUnavailable",
    "MaxIndividualCommitsReached",
    "MissingOption",
    "NotAuthorized",
    "NotHeld",
    "NotPolled",
    "OffsetMismatch",
    "OptionError",
    "OutputNotWritten",
    "OutputRefused",
    "OutputsNotPublished",
    "OwnershipFormat",
    "OwnershipUnavailable",
    "PollWokenUp",
    "ProducerBusy",
    "ProducerFenced",
    "ProtocolMismatch",
    "QueueLogFormat",
    "QueueUnavailable",
    "RealTimeUnavailable",
    "RepairRefused",
    "ResetNotFinished",
    "SessionUnusable",
    "SinkUnavailable",
    "SparkNotFound",
    "SparkSessionConflict",
    "SparkVersionUnsupported",
    "StaleGeneration",
    "StateAhead",
    "StateNeedsKey",
    "StateNotChosen",
    "StateNotReadable",
    "TableUnusable",
    "TopicNotFound",
    "TopicRangeFetchNotAllowed",
    "TopicReplaced",
    "UnknownOption",
    "UnsupportedTarget",
    "WriterNotOpen",
]

# These two packages do not import this one, and ``except`` follows real base classes alone.
AssignorError.__bases__ = (CoopConsumeError,)
CommitStoreError.__bases__ = (CoopConsumeError,)

for _error in tuple(globals().values()):
    if isinstance(_error, type) and _error.__module__.startswith(f"{__name__}."):
        _error.__module__ = __name__  # As users import it, so it is shown and pickled.
