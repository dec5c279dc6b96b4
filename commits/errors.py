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

from commits.declared import Declared
from commits.secrets import hidden_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assignors.shares import Share
    from commits.model import Epoch, TopicPartition
    from commits.offsets import OffsetRanges
    from commits.partition_commits import CommitResult

    Results = Mapping[TopicPartition, CommitResult]


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


class IndividualCommitNotAllowed(Declared, CommitStoreError):
    """The switch `accept.individual.commit` of the store is off (KIP-X, error 88).

    Attributes:
        group: The group of the commit.
    """

    message = (
        "group {group!r} may not commit: 'accept.individual.commit' is false in this store; "
        "nothing was written. Set it to true to allow individual commits again"
    )

    group: str


class IndividualCommitTooOld(Declared, CommitStoreError):
    """A commit is entirely below the stable offset (KIP-X, error 91); its offsets are committed.

    Attributes:
        stable_offset: The first offset that is not committed.
        last: The last offset of the refused commit.
        results: The result of every partition, for a commit of a store; else None.
    """

    message = (
        "commit up to offset {last} is too old: everything below the stable offset {stable_offset} "
        "is committed already; continue from there"
    )

    stable_offset: int
    last: int
    results: Results | None = None


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


class CommitRefused(Declared, CommitStoreError):
    """Partitions of a commit were refused, for the reasons in the results.

    Attributes:
        group: The group.
        member: The member that committed.
        results: The result of every partition of the commit.
    """

    group: str
    member: str
    results: Results

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


class FencedMember(Declared, CommitStoreError):
    """The epoch or membership of a member is not in force; its call has no effect.

    Attributes:
        group: The group.
        member: The member or operator.
        epoch: The epoch of the call; None without one.
        in_force: The group's epoch in force; None without one.
        reason: Why the call does not count.
        results: The result of every partition of a commit; else None.
    """

    group: str
    member: str
    epoch: Epoch | None
    in_force: Epoch | None
    reason: str
    results: Results | None = None

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


class ClaimConflict(Declared, CommitStoreError):
    """Another claim or a member of the epoch in force holds a share.

    Attributes:
        group: The group.
        member: The member that requested the share.
        share: The overlapping share of the holder.
        holder: The member that holds it.
        holder_epoch: The epoch of the holder.
    """

    group: str
    member: str
    share: Share
    holder: str
    holder_epoch: Epoch

    def __str__(self) -> str:
        topic, partition, key_range = self.share
        return (
            f"{self.member!r} does not get its shares in group {self.group!r}: "
            f"{topic}-{partition} {key_range} is held by {self.holder!r} under "
            f"{_epoch(self.holder_epoch)}. Let it release them, or fence it with takeover=True"
        )


class CommitStoreBusy(Declared, CommitStoreError, TimeoutError):
    """Every attempt failed because of concurrent compactions.

    Attributes:
        target: The commit table.
        operation: The operation: `append` or `compact`.
        attempts: The number of attempts.
    """

    retriable = True
    message = (
        "{operation} to commit table {target} failed {attempts} times because the table changed in "
        "between; nothing was written. Try again, a commit with its id"
    )

    target: str
    operation: str
    attempts: int


class CommitLogUnavailable(Declared, CommitStoreError):
    """The table cannot be reached, read or written; there is no sign of damage.

    After a failed write it is not known whether the row is in the log.

    Attributes:
        target: The commit table.
        operation: The operation: `open`, `read`, `append`, `compact` or `vacuum`.
        problem: The error of the table's engine.
    """

    retriable = True

    target: str
    operation: str
    problem: str

    def __str__(self) -> str:
        unknown = "" if self.operation in {"open", "read"} else _UNKNOWN
        repeated = "; a commit that is repeated with its id counts once"
        return (
            f"commit table {self.target} is unavailable: {self.operation} failed: "
            f"{_in_words(self.problem)}. {unknown}Try again once its storage answers"
            f"{repeated if self.operation == 'append' else ''}"
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


class CommitTableFormat(Declared, CommitStoreError, ValueError):
    """The target is not a commit table, or this version does not support its format.

    Attributes:
        target: The commit table.
        found: What was found.
        expected: What is expected.
    """

    message = (
        "{target} cannot be used as commit table: found {found}, expected {expected}. Name another "
        "table, or use a version of coopconsume that knows it"
    )

    target: str
    found: str
    expected: str


class CommitTableNotFound(Declared, CommitStoreError):
    """The commit table does not exist, and the call does not create it.

    Attributes:
        target: Its path or name.
    """

    message = (
        "there is no commit table at {target}: check the path; a group's first member creates the "
        "table"
    )

    target: str


class CorruptCommitLog(Declared, CommitStoreError):
    """The commit table is damaged: the storage answers, but files or rows are missing or invalid.

    An outage of the storage raises `CommitLogUnavailable`.

    Attributes:
        target: The commit table.
        problem: What is wrong, and where.
    """

    message = (
        "commit table {target} is damaged: {problem}. Its storage answers, so this is not an "
        "outage. Restore the missing files, or run 'coopconsume store check' and then 'coopconsume "
        "store repair', which goes back to an older version of the table, to its newest readable "
        "snapshot, or to the groups' stable offsets in Kafka (at least once)"
    )

    target: str
    problem: str


class RepairRefused(Declared, CommitStoreError):
    """A commit table cannot be repaired; nothing was changed.

    Attributes:
        target: The commit table.
        problem: Why, and what to do.
    """

    message = "commit table {target} is not repaired, nothing was changed: {problem}"

    target: str
    problem: str


class UnsupportedTarget(Declared, CommitStoreError, ValueError):
    """No engine can open the target.

    Attributes:
        target: The target.
        problem: Why, and what to give instead.
    """

    message = "cannot open {target!r} as commit table: {problem}"

    target: str
    problem: str


def _epoch(epoch: Any) -> str:
    return "no epoch" if epoch is None else f"epoch {epoch.number} ({epoch.nonce})"
