"""Errors of this package: one base class, each error with data, a remedy and a word on retrying.

    AssignorError
    ├── InvalidKeyRange      (ValueError)
    ├── InvalidMember        (ValueError)
    ├── InvalidTopic         (ValueError)
    ├── AssignmentConflict
    └── ProtocolMismatch     (ValueError)

All of them pickle, as every positional argument is handed to ``Exception``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from assignors.ranges import KeyRange


class AssignorError(Exception):
    """Base of every error of this package.

    Attributes:
        retriable: Whether the same call may succeed later without a change by a person.
    """

    retriable: ClassVar[bool] = False


class InvalidKeyRange(AssignorError, ValueError):
    """A key range or a split of one that cannot be.

    Attributes:
        first: The first hash asked for.
        last: The last hash asked for.
        reason: What is wrong with it and what would be right.
    """

    def __init__(self, first: object, last: object, reason: str) -> None:
        super().__init__(first, last, reason)
        self.first = first
        self.last = last
        self.reason = reason

    def __str__(self) -> str:
        return f"key range [{self.first!r}, {self.last!r}]: {self.reason}"


class InvalidMember(AssignorError, ValueError):
    """A member, or the group it stands in, that an assignor cannot work with.

    Attributes:
        member: Id of the member.
        reason: What is wrong with it and what would be right.
    """

    def __init__(self, member: object, reason: str) -> None:
        super().__init__(member, reason)
        self.member = member
        self.reason = reason

    def __str__(self) -> str:
        return f"member {self.member!r}: {self.reason}"


class InvalidTopic(AssignorError, ValueError):
    """A topic, or a partition of it, that an assignor cannot work with.

    Attributes:
        topic: Name of the topic.
        reason: What is wrong with it and what would be right.
    """

    def __init__(self, topic: object, reason: str) -> None:
        super().__init__(topic, reason)
        self.topic = topic
        self.reason = reason

    def __str__(self) -> str:
        return f"topic {self.topic!r}: {self.reason}"


class AssignmentConflict(AssignorError):
    """An assignment leaves key hashes of a partition without owner, or gives them to several.

    A member that sees this must not start: it leaves the group and joins again, so that the
    leader assigns anew.

    Attributes:
        topic: Topic of the partition.
        partition: Number of the partition.
        holes: Key ranges that nobody owns.
        overlaps: Key ranges that more than one share claims.
    """

    retriable = True

    def __init__(
        self,
        topic: str,
        partition: int,
        holes: tuple[KeyRange, ...],
        overlaps: tuple[KeyRange, ...],
    ) -> None:
        super().__init__(topic, partition, holes, overlaps)
        self.topic = topic
        self.partition = partition
        self.holes = holes
        self.overlaps = overlaps

    def __str__(self) -> str:
        faults = []
        if self.holes:
            faults.append(f"nobody owns {', '.join(map(str, self.holes))}")
        if self.overlaps:
            faults.append(f"several own {', '.join(map(str, self.overlaps))}")
        return (
            f"the assignment of {self.topic}-{self.partition} is not a partition of its key "
            f"hashes: {'; '.join(faults)}. Join the group again; if it comes back, look for "
            "members with another version of the assignor"
        )


class ProtocolMismatch(AssignorError, ValueError):
    """Bytes of another member that this version of the library does not understand.

    Attributes:
        what: What was read: ``"subscription"`` or ``"assignment"``.
        found: What stood there.
        expected: What should have stood there.
        remedy: What to do about it.
    """

    def __init__(self, what: str, found: str, expected: str, remedy: str) -> None:
        super().__init__(what, found, expected, remedy)
        self.what = what
        self.found = found
        self.expected = expected
        self.remedy = remedy

    def __str__(self) -> str:
        return (
            f"the {self.what} data of a group member: found {self.found}, "
            f"expected {self.expected}. {self.remedy}"
        )
