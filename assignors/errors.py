"""Errors of this package. Each one carries its data, a remedy and whether a retry can succeed.

    AssignorError
    ├── InvalidKeyRange      (ValueError)
    ├── InvalidMember        (ValueError)
    ├── InvalidTopic         (ValueError)
    ├── AssignmentConflict
    └── ProtocolMismatch     (ValueError)

All of them can be pickled, because every positional argument is passed to ``Exception``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from assignors.ranges import KeyRange


class AssignorError(Exception):
    """Base class of every error of this package.

    Attributes:
        retriable: Whether the same call may succeed later without anybody changing anything.
    """

    retriable: ClassVar[bool] = False


class InvalidKeyRange(AssignorError, ValueError):
    """A key range, or a split of a key range, is not valid.

    Attributes:
        first: The requested first hash.
        last: The requested last hash.
        reason: What is wrong and what is expected.
    """

    def __init__(self, first: object, last: object, reason: str) -> None:
        super().__init__(first, last, reason)
        self.first = first
        self.last = last
        self.reason = reason

    def __str__(self) -> str:
        return f"key range [{self.first!r}, {self.last!r}]: {self.reason}"


class InvalidMember(AssignorError, ValueError):
    """An assignor cannot work with a member or with its group.

    Attributes:
        member: Id of the member.
        reason: What is wrong and what is expected.
    """

    def __init__(self, member: object, reason: str) -> None:
        super().__init__(member, reason)
        self.member = member
        self.reason = reason

    def __str__(self) -> str:
        return f"member {self.member!r}: {self.reason}"


class InvalidTopic(AssignorError, ValueError):
    """An assignor cannot work with a topic or with one of its partitions.

    Attributes:
        topic: Name of the topic.
        reason: What is wrong and what is expected.
    """

    def __init__(self, topic: object, reason: str) -> None:
        super().__init__(topic, reason)
        self.topic = topic
        self.reason = reason

    def __str__(self) -> str:
        return f"topic {self.topic!r}: {self.reason}"


class AssignmentConflict(AssignorError):
    """An assignment leaves key hashes of a partition without an owner or gives them to several.

    A member that sees this must not start. It leaves the group and joins again, so that the
    leader computes a new assignment.

    Attributes:
        topic: Topic of the partition.
        partition: Number of the partition.
        holes: Key ranges without an owner.
        overlaps: Key ranges with more than one owner.
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
            f"the assignment of {self.topic}-{self.partition} does not cover its key hashes "
            f"exactly once: {'; '.join(faults)}. Join the group again; if the error persists, "
            "look for members with another version of the assignor"
        )


class ProtocolMismatch(AssignorError, ValueError):
    """This version of the library cannot read the bytes that another member sent.

    Attributes:
        what: What was read: ``"subscription"`` or ``"assignment"``.
        found: What the bytes contain.
        expected: What they should contain.
        remedy: What to do.
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
