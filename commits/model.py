"""The words of the commit store: epochs, shares, pending records."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "MAX_KEY_HASH",
    "PARKED_MS",
    "Assignment",
    "Doubt",
    "Epoch",
    "OwnedShare",
    "Pending",
    "TopicPartition",
    "as_share",
    "as_shares",
]

TopicPartition: TypeAlias = tuple[str, int]

MAX_KEY_HASH = 2**63 - 1
"""The last key hash: a share from 0 to here is a whole partition."""

PARKED_MS = 2**63 - 1
"""When a parked record is due: never, until somebody decides about it."""

_WHOLE_PARTITION = 2  # fields of (topic, partition)
_KEY_RANGE = 4  # fields of (topic, partition, first, last)


@dataclass(frozen=True, slots=True, order=True)
class Epoch:
    """A group's fencing number, as one row of the log opened it.

    Attributes:
        number: Greater than that of every epoch and claim the group has seen before.
        nonce: Tells it from every other epoch, also one of the same number.
    """

    number: int
    nonce: str


@dataclass(frozen=True, slots=True)
class Pending:
    """A record that was read by its owner and is not done.

    Attributes:
        offset: Its offset.
        key_hash: The hash of its key, from 0 to 2**63 - 1; None if it has no key.
        attempts: How often a handler has tried it.
        due_ms: When it is to be tried again, in milliseconds since 1970; 0 for at once, and
            `PARKED_MS` for not before somebody decides about it.
        error: The last error, for people.
        delay_ms: How long before it was due its row was written, by the clock of the writer; None
            if that is not known. It bounds the wait where clocks differ, or are set.
    """

    offset: int
    key_hash: int | None = None
    attempts: int = 0
    due_ms: int = 0
    error: str = ""
    delay_ms: int | None = field(default=None, compare=False)

    @property
    def is_parked(self) -> bool:
        """Whether it waits until somebody decides about it."""
        return self.due_ms == PARKED_MS

    def wait(self, now_ms: int) -> float:
        """Returns the seconds until it is to be tried again; infinity if it is parked.

        Never more than its writer asked for: a reader whose clock differs from the writer's may
        try it earlier by that much, but does not wait longer.

        Args:
            now_ms: The reader's time, in milliseconds since 1970.
        """
        if self.is_parked:
            return math.inf
        left = max(0, self.due_ms - now_ms)
        return (left if self.delay_ms is None else min(left, self.delay_ms)) / 1000


class OwnedShare(NamedTuple):
    """A key range of a partition, both ends included, as the log writes it."""

    topic: str
    partition: int
    first: int = 0
    last: int = MAX_KEY_HASH

    def overlaps(self, other: OwnedShare) -> bool:
        """Whether a key of this share is a key of the other one, too."""
        return (
            self[:2] == other[:2]  # the same topic and partition
            and self.first <= other.last
            and other.first <= self.last
        )

    def common(self, other: OwnedShare) -> OwnedShare:
        """The part of this share that is part of an overlapping one, too."""
        return self._replace(first=max(self.first, other.first), last=min(self.last, other.last))

    def without(self, other: OwnedShare) -> list[OwnedShare]:
        """What is left of this share outside another one: none, one or two parts."""
        if not self.overlaps(other):
            return [self]
        below = [self._replace(last=other.first - 1)] if self.first < other.first else []
        above = [self._replace(first=other.last + 1)] if self.last > other.last else []
        return below + above


class Doubt(NamedTuple):
    """A share that was not handed over: whoever had it may still be at work on it.

    Attributes:
        share: The share.
        life_ms: For so long, at most, in milliseconds from the row on that gave it to another.
    """

    share: OwnedShare
    life_ms: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """An epoch's row in the log: who may commit what.

    Attributes:
        epoch: The epoch.
        generation: Kafka's generation it was opened for; -1 if there is none.
        members: The shares of each member that was listed or came by a takeover.
        fenced: Members that may not commit any more, and why (`released`, `taken over by …`).
        topic_ids: The id of each topic where it was known.
        life_ms: How long a batch of its members may go on, at most; 0 if nobody said.
        doubts: Shares of it that their old owners did not hand over.
        heirs: Members whose shares went to another id, and that id.
        session_ms: Of a claim: after so long without a row of it its process is gone; 0: never.
        beats: Of a claim: how many of its rows the reader has seen. While it changes, the claim's
            process lives.
    """

    epoch: Epoch
    generation: int
    members: Mapping[str, tuple[OwnedShare, ...]]
    fenced: Mapping[str, str]
    topic_ids: Mapping[str, str]
    life_ms: int = 0
    doubts: tuple[Doubt, ...] = ()
    heirs: Mapping[str, str] = field(default_factory=dict)
    session_ms: int = 0
    beats: int = field(default=0, compare=False)

    def heir(self, member: str) -> str:
        """The id that a member's shares have gone to; its own if they have not."""
        while member in self.heirs:
            member = self.heirs[member]
        return member


def as_share(share: Any) -> OwnedShare:
    """A share as the log writes it.

    Args:
        share: `(topic, partition)`, `(topic, partition, first, last)`, or an object with `topic`,
            `partition` and `key_range` with `first` and `last`.

    Raises:
        ValueError: If it is none of these, or its range is not within [0, 2**63 - 1].
    """
    if isinstance(share, tuple) and not hasattr(share, "key_range"):
        if len(share) not in (_WHOLE_PARTITION, _KEY_RANGE):
            raise ValueError(f"share {share!r}: give (topic, partition[, first, last])")
        owned = OwnedShare(*share)
    else:
        try:
            keys = share.key_range
            owned = OwnedShare(share.topic, share.partition, keys.first, keys.last)
        except AttributeError as error:
            raise ValueError(
                f"share {share!r} has no {error.name!r}: give (topic, partition[, first, last]) or "
                "an object with topic, partition and key_range"
            ) from error
    numbers = owned[1:]
    if not isinstance(owned.topic, str) or any(type(number) is not int for number in numbers):
        raise ValueError(f"share {share!r}: the topic must be a string, the rest integers")
    if not owned.topic or owned.partition < 0 or not 0 <= owned.first <= owned.last <= MAX_KEY_HASH:
        raise ValueError(
            f"share {share!r}: needs a topic, a partition from 0 and 0 <= first <= last <= 2**63-1"
        )
    return owned


def as_shares(shares: Iterable[Any]) -> tuple[OwnedShare, ...]:
    """Several shares, sorted; see `as_share`."""
    return tuple(sorted(as_share(share) for share in shares))
