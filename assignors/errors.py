"""Errors of this package. Each one carries its data, a remedy and whether a retry can succeed.

    AssignorError
    ├── InvalidKeyRange      (ValueError)
    ├── InvalidMember        (ValueError)
    ├── InvalidTopic         (ValueError)
    ├── AssignmentConflict
    └── ProtocolMismatch     (ValueError)

An error is declared by its annotated attributes, which are its arguments, and a message. All of
them can be pickled, because every argument is passed to ``Exception``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, dataclass_transform

if TYPE_CHECKING:
    from assignors.ranges import KeyRange


@dataclass_transform(eq_default=False)
class AssignorError(Exception):
    """Base class of every error of this package.

    Attributes:
        retriable: Whether the same call may succeed later without anybody changing anything.
        message: The text, with names of attributes in braces.
    """

    retriable: ClassVar[bool] = False
    message: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        dataclass(eq=False, repr=False)(cls)

    def __post_init__(self) -> None:
        self.args = tuple(vars(self).values())

    def __str__(self) -> str:
        return self.message.format_map(vars(self))


class InvalidKeyRange(AssignorError, ValueError):
    """A key range, or a split of a key range, is not valid.

    Attributes:
        first: The requested first hash.
        last: The requested last hash.
        reason: What is wrong and what is expected.
    """

    message = "key range [{first!r}, {last!r}]: {reason}"

    first: object
    last: object
    reason: str


class InvalidMember(AssignorError, ValueError):
    """An assignor cannot work with a member or with its group.

    Attributes:
        member: Id of the member.
        reason: What is wrong and what is expected.
    """

    message = "member {member!r}: {reason}"

    member: object
    reason: str


class InvalidTopic(AssignorError, ValueError):
    """An assignor cannot work with a topic or with one of its partitions.

    Attributes:
        topic: Name of the topic.
        reason: What is wrong and what is expected.
    """

    message = "topic {topic!r}: {reason}"

    topic: object
    reason: str


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

    topic: str
    partition: int
    holes: tuple[KeyRange, ...]
    overlaps: tuple[KeyRange, ...]

    def __str__(self) -> str:
        faults = [
            f"{what} {', '.join(map(str, ranges))}"
            for what, ranges in (("nobody owns", self.holes), ("several own", self.overlaps))
            if ranges
        ]
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

    message = "the {what} data of a group member: found {found}, expected {expected}. {remedy}"

    what: str
    found: str
    expected: str
    remedy: str
