"""Errors of the commit store.

    CommitStoreError
     +-- IndividualCommitNotAllowed      the store's switch is off (KIP-X, error 88)
     +-- IndividualCommitTooOld          entirely below the stable offset (KIP-X, error 91)
     +-- MaxIndividualCommitsReached     too many ranges (KIP-X, error 92)
     +-- CommitRefused                   another topic id, or a partition that is not the member's
     +-- FencedMember                    the member's epoch is no longer in force
     |    +-- EpochConflict              an epoch whose predecessor is not in force
     +-- ClaimConflict                   another owner holds an overlapping share
     +-- CommitStoreBusy                 the table changed under every attempt; try again
     +-- CommitLogUnavailable            the table does not answer; nothing shows that it is damaged
     +-- CommitTableFormat               not a commit table, or another format
     +-- CorruptCommitLog                rows that cannot be read or are not valid
     +-- RepairRefused                   members are active, or no state can be read
     +-- UnsupportedTarget               a target that no engine can open

All of them have their data as attributes and can be pickled. `retriable` is true if the same call
may succeed when it is repeated.
"""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING, Any, ClassVar

from commits.secrets import hidden_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commits.model import Epoch, TopicPartition
    from commits.offsets import OffsetRanges
    from commits.partition_commits import CommitResult

    Results = Mapping[TopicPartition, CommitResult]

__all__ = [
    "ClaimConflict",
    "CommitLogUnavailable",
    "CommitRefused",
    "CommitStoreBusy",
    "CommitStoreError",
    "CommitTableFormat",
    "CommitTableNotFound",
    "CorruptCommitLog",
    "EpochConflict",
    "FencedMember",
    "IndividualCommitNotAllowed",
    "IndividualCommitTooOld",
    "MaxIndividualCommitsReached",
    "RepairRefused",
    "UnsupportedTarget",
]


class CommitStoreError(Exception):
    """Base class of all errors of the commit store. Secrets in URIs are hidden.

    Attributes:
        retriable: Whether the same call may succeed when it is made again.
    """

    retriable: ClassVar[bool] = False

    def __init__(self, *args: object) -> None:
        super().__init__(*map(hidden_in, args))

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, hidden_in(value))


class IndividualCommitNotAllowed(CommitStoreError):
    """The switch `accept.individual.commit` of the store is off (KIP-X, error 88).

    Attributes:
        group: The group of the commit.
    """

    def __init__(self, group: str) -> None:
        super().__init__(group)
        self.group = group

    def __str__(self) -> str:
        return (
            f"group {self.group!r} may not commit: 'accept.individual.commit' is false in this "
            "store; nothing was written. Set it to true to allow individual commits again"
        )


class IndividualCommitTooOld(CommitStoreError):
    """A commit is entirely below the stable offset (KIP-X, error 91); its offsets are committed.

    Attributes:
        stable_offset: The first offset that is not committed.
        last: The last offset of the refused commit.
        results: The result of every partition, for a commit of a store; else None.
    """

    def __init__(self, stable_offset: int, last: int, results: Results | None = None) -> None:
        super().__init__(stable_offset, last, results)
        self.stable_offset = stable_offset
        self.last = last
        self.results = results

    def __str__(self) -> str:
        return (
            f"commit up to offset {self.last} is too old: everything below the stable offset "
            f"{self.stable_offset} is committed already; continue from there"
        )


class MaxIndividualCommitsReached(CommitStoreError):
    """A commit would raise the number of ranges above the limit (KIP-X, error 92).

    Attributes:
        range_count: The number of ranges after the commit.
        max_ranges: The limit.
        results: The result of every partition, for a commit of a store; else None.
        uncommitted: For a commit of a store, the offsets of each partition that exceed the limit;
            all other offsets of the commit are committed.
    """

    retriable = True

    def __init__(
        self,
        range_count: int,
        max_ranges: int,
        results: Results | None = None,
        uncommitted: Mapping[TopicPartition, OffsetRanges] | None = None,
    ) -> None:
        super().__init__(range_count, max_ranges, results, uncommitted)
        self.range_count = range_count
        self.max_ranges = max_ranges
        self.results = results
        self.uncommitted = uncommitted or {}

    def __str__(self) -> str:
        what = "commit refused: it"
        if self.uncommitted:
            (topic, partition), offsets = min(self.uncommitted.items())
            others = len(self.uncommitted) - 1
            more = f" and {others} more partitions" if others else ""
            what = (
                f"{len(offsets)} offsets of {topic}-{partition} from {offsets.first} on{more} are "
                "not committed: they"
            )
        return (
            f"{what} would leave {self.range_count} separate ranges above the stable offset, at "
            f"most {self.max_ranges} are allowed; commit the gaps first"
        )


class CommitRefused(CommitStoreError):
    """Partitions of a commit were refused, for the reasons in the results.

    Attributes:
        group: The group.
        member: The member that committed.
        results: The result of every partition of the commit.
    """

    def __init__(self, group: str, member: str, results: Results) -> None:
        super().__init__(group, member, results)
        self.group = group
        self.member = member
        self.results = results

    def __str__(self) -> str:
        refused = "; ".join(
            f"{topic}-{partition}: {result.reason}"
            for (topic, partition), result in sorted(self.results.items())
            if result.status == "refused"
        )
        return (
            f"partitions of a commit of member {self.member!r} of group {self.group!r} were "
            f"refused ({refused}); the other partitions are committed"
        )


class FencedMember(CommitStoreError):
    """The epoch or membership of a member is not in force; its call has no effect.

    Attributes:
        group: The group.
        member: The member or operator.
        epoch: The epoch of the call; None without one.
        in_force: The group's epoch in force; None without one.
        reason: Why the call does not count.
        results: The result of every partition of a commit; else None.
    """

    def __init__(
        self,
        group: str,
        member: str,
        epoch: Epoch | None,
        in_force: Epoch | None,
        reason: str,
        results: Results | None = None,
    ) -> None:
        super().__init__(group, member, epoch, in_force, reason, results)
        self.group = group
        self.member = member
        self.epoch = epoch
        self.in_force = in_force
        self.reason = reason
        self.results = results

    def __str__(self) -> str:
        return (
            f"member {self.member!r} of group {self.group!r} is fenced: {self.reason} (it named "
            f"{_epoch(self.epoch)}, in force is {_epoch(self.in_force)}); nothing of it counted. "
            "Stop working for it, or join the group again"
        )


class EpochConflict(FencedMember):
    """An epoch could not be opened because its predecessor is no longer in force.

    The attributes are those of `FencedMember`; `epoch` is the expected predecessor.
    """

    def __str__(self) -> str:
        return (
            f"epoch of group {self.group!r} not opened by {self.member!r}: {self.reason} (it was "
            f"to follow {_epoch(self.epoch)}, in force is {_epoch(self.in_force)}). Join the group "
            "again"
        )


class ClaimConflict(CommitStoreError):
    """Another claim or a member of the epoch in force holds a share.

    Attributes:
        group: The group.
        member: The member that requested the share.
        share: The overlapping share of the holder: topic, partition, first and last key hash.
        holder: The member that holds it.
        holder_epoch: The epoch of the holder.
    """

    def __init__(
        self,
        group: str,
        member: str,
        share: tuple[str, int, int, int],
        holder: str,
        holder_epoch: Epoch,
    ) -> None:
        super().__init__(group, member, share, holder, holder_epoch)
        self.group = group
        self.member = member
        self.share = share
        self.holder = holder
        self.holder_epoch = holder_epoch

    def __str__(self) -> str:
        topic, partition, first, last = self.share
        return (
            f"{self.member!r} does not get its shares in group {self.group!r}: "
            f"{topic}-{partition} [{first}, {last}] is held by {self.holder!r} under "
            f"{_epoch(self.holder_epoch)}. Let it release them, or fence it with takeover=True"
        )


class CommitStoreBusy(CommitStoreError, TimeoutError):
    """Every attempt failed because of concurrent compactions.

    Attributes:
        target: The commit table.
        operation: The operation: `append` or `compact`.
        attempts: The number of attempts.
    """

    retriable = True

    def __init__(self, target: str, operation: str, attempts: int) -> None:
        super().__init__(target, operation, attempts)
        self.target = target
        self.operation = operation
        self.attempts = attempts

    def __str__(self) -> str:
        return (
            f"{self.operation} to commit table {self.target} failed {self.attempts} times because "
            "the table changed in between; nothing was written. Try again, a commit with its id"
        )


class CommitLogUnavailable(CommitStoreError):
    """The table cannot be reached, read or written; there is no sign of damage.

    After a failed write it is not known whether the row is in the log.

    Attributes:
        target: The commit table.
        operation: The operation: `open`, `read`, `append`, `compact` or `vacuum`.
        problem: The error of the table's engine.
    """

    retriable = True

    def __init__(self, target: str, operation: str, problem: str) -> None:
        super().__init__(target, operation, problem)
        self.target = target
        self.operation = operation
        self.problem = problem

    def __str__(self) -> str:
        unknown = "" if self.operation in {"open", "read"} else _UNKNOWN
        return (
            f"commit table {self.target} is unavailable: {self.operation} failed: "
            f"{_in_words(self.problem)}. {unknown}Try again once its storage answers; a commit "
            "that is repeated with its id counts once"
        )


#: Faults of a local disk that a user can correct, by the number that an engine's error contains.
_FAULTS = {
    errno.ENOSPC: "the disk is full: free space on it",
    errno.EDQUOT: "the disk quota is exceeded: free space",
    errno.EROFS: "the file system is read-only: mount it for writing, or use another path",
    errno.EACCES: "permission denied: let this user write to the folder",
    errno.EPERM: "permission denied: let this user write to the folder",
    errno.ENOENT: "a folder of the path does not exist and cannot be created: check the path",
    errno.ENOTDIR: "a part of the path is a file, not a folder: check the path",
}
_NUMBER = re.compile(r"\(os error (\d+)\)|Os \{ code: (\d+)|\[Errno (\d+)\]")


def _in_words(problem: str) -> str:
    """Returns an engine's error; of a known fault of a disk a sentence instead."""
    found = _NUMBER.search(problem)
    number = int(next(filter(None, found.groups()))) if found else 0
    return _FAULTS.get(number, problem)


_UNKNOWN = "It is not known whether anything was written. "


class CommitTableFormat(CommitStoreError, ValueError):
    """The target is not a commit table, or this version does not support its format.

    Attributes:
        target: The commit table.
        found: What was found.
        expected: What is expected.
    """

    def __init__(self, target: str, found: str, expected: str) -> None:
        super().__init__(target, found, expected)
        self.target = target
        self.found = found
        self.expected = expected

    def __str__(self) -> str:
        return (
            f"{self.target} cannot be used as commit table: found {self.found}, expected "
            f"{self.expected}. Name another table, or use a version of coopconsume that knows it"
        )


class CommitTableNotFound(CommitStoreError):
    """The commit table does not exist, and the call does not create it.

    Attributes:
        target: Its path or name.
    """

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.target = target

    def __str__(self) -> str:
        return (
            f"there is no commit table at {self.target}: check the path; a group's first member "
            "creates the table"
        )


class CorruptCommitLog(CommitStoreError):
    """The commit table is damaged: the storage answers, but files or rows are missing or invalid.

    An outage of the storage raises `CommitLogUnavailable`.

    Attributes:
        target: The commit table.
        problem: What is wrong, and where.
    """

    def __init__(self, target: str, problem: str) -> None:
        super().__init__(target, problem)
        self.target = target
        self.problem = problem

    def __str__(self) -> str:
        return (
            f"commit table {self.target} is damaged: {self.problem}. Its storage answers, so this "
            "is not an outage. Restore the missing files, or run 'coopconsume store check' and "
            "then 'coopconsume store repair', which goes back to an older version of the table, to "
            "its newest readable snapshot, or to the groups' stable offsets in Kafka (at least "
            "once)"
        )


class RepairRefused(CommitStoreError):
    """A commit table cannot be repaired; nothing was changed.

    Attributes:
        target: The commit table.
        problem: Why, and what to do.
    """

    def __init__(self, target: str, problem: str) -> None:
        super().__init__(target, problem)
        self.target = target
        self.problem = problem

    def __str__(self) -> str:
        return f"commit table {self.target} is not repaired, nothing was changed: {self.problem}"


class UnsupportedTarget(CommitStoreError, ValueError):
    """No engine can open the target.

    Attributes:
        target: The target.
        problem: Why, and what to give instead.
    """

    def __init__(self, target: str, problem: str) -> None:
        super().__init__(target, problem)
        self.target = target
        self.problem = problem

    def __str__(self) -> str:
        return f"cannot open {self.target!r} as commit table: {self.problem}"


def _epoch(epoch: Any) -> str:
    return "no epoch" if epoch is None else f"epoch {epoch.number} ({epoch.nonce})"
