"""Errors of coopconsume. Each message states what was found, what is expected and what to do.

`CoopConsumeError` is the base class of all of them, including those of `commits` and `assignors`.
Every error has its facts as attributes and in ``args``, so that it can be pickled. ``retriable``
is true if the same call may succeed later without anybody changing anything.
"""

from __future__ import annotations

from assignors.errors import AssignmentConflict as AssignmentConflict
from assignors.errors import AssignorError as AssignorError
from assignors.errors import InvalidKeyRange as InvalidKeyRange
from assignors.errors import InvalidMember as InvalidMember
from assignors.errors import InvalidTopic as InvalidTopic
from assignors.errors import ProtocolMismatch as ProtocolMismatch
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
from coopconsume.errors.base import CoopConsumeError as CoopConsumeError
from coopconsume.errors.cluster import AuthenticationFailed as AuthenticationFailed
from coopconsume.errors.cluster import BrokerUnreachable as BrokerUnreachable
from coopconsume.errors.cluster import DataLoss as DataLoss
from coopconsume.errors.cluster import NotAuthorized as NotAuthorized
from coopconsume.errors.cluster import TopicNotFound as TopicNotFound
from coopconsume.errors.cluster import TopicReplaced as TopicReplaced
from coopconsume.errors.fenced import AppendOutcomeUnknown as AppendOutcomeUnknown
from coopconsume.errors.fenced import AppendRefused as AppendRefused
from coopconsume.errors.fenced import BatchRefused as BatchRefused
from coopconsume.errors.fenced import CheckpointReplaced as CheckpointReplaced
from coopconsume.errors.fenced import EngineNotUsable as EngineNotUsable
from coopconsume.errors.fenced import FencedLogError as FencedLogError
from coopconsume.errors.fenced import LogBlocked as LogBlocked
from coopconsume.errors.fenced import LogCorrupt as LogCorrupt
from coopconsume.errors.fenced import LogReplaced as LogReplaced
from coopconsume.errors.fenced import LogTruncated as LogTruncated
from coopconsume.errors.fenced import LogUnavailable as LogUnavailable
from coopconsume.errors.fenced import OffsetMismatch as OffsetMismatch
from coopconsume.errors.fenced import OwnershipFormat as OwnershipFormat
from coopconsume.errors.fenced import OwnershipUnavailable as OwnershipUnavailable
from coopconsume.errors.fenced import ProducerBusy as ProducerBusy
from coopconsume.errors.fenced import ProducerFenced as ProducerFenced
from coopconsume.errors.fenced import SinkUnavailable as SinkUnavailable
from coopconsume.errors.fenced import StaleGeneration as StaleGeneration
from coopconsume.errors.fenced import WriterNotOpen as WriterNotOpen
from coopconsume.errors.group import ConsumerRangeFetchNotAccepted as ConsumerRangeFetchNotAccepted
from coopconsume.errors.group import ExternalReset as ExternalReset
from coopconsume.errors.group import GroupActive as GroupActive
from coopconsume.errors.group import GroupNotFound as GroupNotFound
from coopconsume.errors.group import GroupRefused as GroupRefused
from coopconsume.errors.group import TopicRangeFetchNotAllowed as TopicRangeFetchNotAllowed
from coopconsume.errors.local import BrokerStartFailed as BrokerStartFailed
from coopconsume.errors.local import BrokerStopped as BrokerStopped
from coopconsume.errors.local import ExporterUnavailable as ExporterUnavailable
from coopconsume.errors.local import JarsUnavailable as JarsUnavailable
from coopconsume.errors.local import JavaNotFound as JavaNotFound
from coopconsume.errors.local import JavaVersionUnsupported as JavaVersionUnsupported
from coopconsume.errors.local import PageUnavailable as PageUnavailable
from coopconsume.errors.local import SparkNotFound as SparkNotFound
from coopconsume.errors.local import SparkSessionConflict as SparkSessionConflict
from coopconsume.errors.local import SparkVersionUnsupported as SparkVersionUnsupported
from coopconsume.errors.options import InvalidOption as InvalidOption
from coopconsume.errors.options import MissingOption as MissingOption
from coopconsume.errors.options import OptionError as OptionError
from coopconsume.errors.options import OptionsFileError as OptionsFileError
from coopconsume.errors.options import UnknownOption as UnknownOption
from coopconsume.errors.processing import AlreadyClosed as AlreadyClosed
from coopconsume.errors.processing import HandlerFailed as HandlerFailed
from coopconsume.errors.processing import HandlerNotOpened as HandlerNotOpened
from coopconsume.errors.processing import HandlerNotUsable as HandlerNotUsable
from coopconsume.errors.processing import NotDecodable as NotDecodable
from coopconsume.errors.processing import NotPolled as NotPolled
from coopconsume.errors.processing import OutputNotWritten as OutputNotWritten
from coopconsume.errors.processing import OutputRefused as OutputRefused
from coopconsume.errors.processing import OutputsNotPublished as OutputsNotPublished
from coopconsume.errors.processing import PollWokenUp as PollWokenUp
from coopconsume.errors.processing import RealTimeUnavailable as RealTimeUnavailable
from coopconsume.errors.processing import SessionUnusable as SessionUnusable
from coopconsume.errors.processing import SlotFailed as SlotFailed
from coopconsume.errors.processing import TableUnusable as TableUnusable
from coopconsume.errors.queue import NotHeld as NotHeld
from coopconsume.errors.queue import QueueLogFormat as QueueLogFormat
from coopconsume.errors.queue import QueueNotFound as QueueNotFound
from coopconsume.errors.queue import QueueUnavailable as QueueUnavailable
from coopconsume.errors.state import ResetNotFinished as ResetNotFinished
from coopconsume.errors.state import StateAhead as StateAhead
from coopconsume.errors.state import StateNeedsKey as StateNeedsKey
from coopconsume.errors.state import StateNotChosen as StateNotChosen
from coopconsume.errors.state import StateNotReadable as StateNotReadable

__all__ = [name for name, found in sorted(globals().items()) if isinstance(found, type)]

# These two packages do not import this one, and ``except`` follows real base classes alone.
AssignorError.__bases__ = (CoopConsumeError,)
CommitStoreError.__bases__ = (CoopConsumeError,)

for _error in tuple(globals().values()):
    if isinstance(_error, type) and _error.__module__.startswith(f"{__name__}."):
        _error.__module__ = __name__  # As users import it, so it is shown and pickled.
