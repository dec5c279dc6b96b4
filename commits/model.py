"""The types of the commit store: epochs, shares, pending records."""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypedDict

from assignors.ranges import KeyRange
from assignors.shares import Share
from commits.offsets import OffsetRanges

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


TopicPartition: TypeAlias = tuple[str, int]

PARKED_MS = 2**63 - 1
"""The due time of a parked record, which waits for a decision of an operator."""

MAX_SHORT_KEY = 65
"""The largest length of `Pending.key`, in characters."""


@dataclass(frozen=True, slots=True, order=True)
class Epoch:
    """A fencing number of a group, opened by one row of the log.

    Attributes:
        number: Greater than the number of every earlier epoch and claim of the group.
        nonce: Unique to the epoch, even among epochs with the same number.
    """

    number: int
    nonce: str


def has_failed(attempts: int, error: str) -> bool:
    """Return whether a call of a record has failed.

    A call that does not count, as with `CircuitOpen`, leaves no attempt but an error.
    """
    return attempts > 0 or bool(error)


@dataclass(frozen=True, slots=True)
class Pending:
    """A record that its owner has read and that is not done.

    Attributes:
        offset: Its offset.
        key_hash: The hash of its key, from 0 to 2**63 - 1; None if it has no key.
        attempts: The number of handler calls so far.
        due_ms: The time of the next attempt, in milliseconds since 1970; 0 for immediately,
            `PARKED_MS` if it waits for a decision.
        error: The last error, as text.
        delay_ms: The time from the writing of its row until it was due, by the writer's clock; None
            if it is not known. It limits the wait if clocks differ or are changed.
        headers: Names and values of headers that were added to the record; a value is bytes or
            None.
        key: The key of the record for people, shortened to `MAX_SHORT_KEY`; None if it has none, or
            the key is not kept.
        since_ms: When it failed first or was parked, by the writer's clock, in milliseconds since
            1970; None if that is not known.
    """

    offset: int
    key_hash: int | None = None
    attempts: int = 0
    due_ms: int = 0
    error: str = ""
    delay_ms: int | None = field(default=None, compare=False)
    headers: tuple[tuple[str, bytes | None], ...] = ()
    key: str | None = None
    since_ms: int | None = field(default=None, compare=False)

    @property
    def is_parked(self) -> bool:
        """Whether the record waits for a decision of an operator."""
        return self.due_ms == PARKED_MS

    @property
    def has_failed(self) -> bool:
        """Whether a call of it has failed."""
        return has_failed(self.attempts, self.error)

    def after(self, before: Pending | None) -> Pending:
        """Return this row of a record with the time since which it has failed or is parked.

        Args:
            before: Its row before; None: it had none.
        """
        if before is None or before.since_ms == self.since_ms:
            return self
        state = self.has_failed, self.is_parked
        if state != (before.has_failed, before.is_parked):
            return self
        return replace(self, since_ms=before.since_ms)

    def wait(self, now_ms: int) -> float:
        """Return the seconds until the next attempt; infinity if it is parked.

        The result is at most the delay that the writer requested. A reader whose clock differs may
        retry earlier by the difference, but never waits longer.

        Args:
            now_ms: The current time of the reader, in milliseconds since 1970.
        """
        if self.is_parked:
            return math.inf
        left = max(0, self.due_ms - now_ms)
        return (left if self.delay_ms is None else min(left, self.delay_ms)) / 1000


def in_turn(rows: Iterable[Pending], before: Mapping[int, Pending]) -> dict[int, Pending]:
    """Return new rows of pending records by offset; a row keeps the time of that before it."""
    return {one.offset: one.after(before.get(one.offset)) for one in rows}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request wants to acquire of one partition.

    Attributes:
        count: The largest number of offsets, from 1.
        last: The last offset of the partition that the member knows; -1 without one.
        due: Pending records that are due by the member's clock. They are acquired first; other
            pending records are not acquired.
    """

    count: int
    last: int
    due: OffsetRanges = field(default_factory=OffsetRanges)


class AcquisitionId(NamedTuple):
    """An acquired chunk, as a watcher has seen it.

    Attributes:
        topic: The topic.
        partition: The partition.
        id: The id of the chunk, see `Acquisition.id`.
        renewals: How often it was renewed at that time.
    """

    topic: str
    partition: int
    id: str
    renewals: int = 0


@dataclass(frozen=True, slots=True)
class AcquireRequest:
    """A request of a member of a cooperative epoch: it acquires, renews and expires chunks.

    Attributes:
        id: Unique in the group. A request that is repeated with its id, because its answer was
            lost, gets the same chunk.
        wanted: What to acquire of each partition.
        renew: Chunks of the member whose time starts again.
        expire: Chunks of any member that were held for too long. They are returned, unless they
            were renewed since the watcher saw them.
        watched: For how many milliseconds chunks were watched, see `AcquisitionWatch.notes`.
    """

    id: str
    wanted: Mapping[TopicPartition, Wanted] = field(default_factory=dict)
    renew: tuple[AcquisitionId, ...] = ()
    expire: tuple[AcquisitionId, ...] = ()
    watched: Mapping[AcquisitionId, int] = field(default_factory=dict)


class Doubt(NamedTuple):
    """A share in doubt: it was not handed over, and its last owner may still work on it.

    Attributes:
        share: The share.
        life_ms: The longest time that this can last, in milliseconds from the row that gave the
            share to another owner.
    """

    share: Share
    life_ms: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """The shares of the members of an epoch or claim.

    Attributes:
        epoch: The epoch.
        generation: Kafka's generation of the epoch; -1 without one.
        members: The shares of each member, including members that joined by a takeover.
        fenced: Members that may no longer commit, with the reason (`released`, `taken over by …`).
        topic_ids: The ids of topics, as far as they are known.
        life_ms: The longest time that a batch of its members may run; 0 if it is not known.
        doubts: Its shares that previous owners did not hand over.
        heirs: Members whose shares went to another id, with that id.
        session_ms: For a claim, the time without a row after which its process counts as dead; 0
            for never.
        beats: For a claim, the number of its rows that the reader has seen. It increases while the
            process of the claim is alive.
        handed: Shares that members released while they kept the others.
        previous: The epoch that it follows, as far as it is known; None for a claim.
        record_filter: Which records its members process, as text; empty for all.
        continues: Members whose work never paused, with the number of the epoch that they work
            under.
        sharing: `cooperative` if its members acquire chunks of whole partitions; empty if each
            member has key ranges of its own.
        lives: The longest time that a batch of a member may run, where it is not `life_ms`.
    """

    epoch: Epoch
    generation: int
    members: Mapping[str, tuple[Share, ...]]
    fenced: Mapping[str, str]
    topic_ids: Mapping[str, str]
    life_ms: int = 0
    doubts: tuple[Doubt, ...] = ()
    heirs: Mapping[str, str] = field(default_factory=dict)
    session_ms: int = 0
    beats: int = field(default=0, compare=False)
    handed: Mapping[str, tuple[Share, ...]] = field(default_factory=dict)
    previous: Epoch | None = None
    record_filter: str = ""
    continues: Mapping[str, int] = field(default_factory=dict)
    sharing: str = ""
    lives: Mapping[str, int] = field(default_factory=dict)

    def life_of(self, member: str) -> int:
        """Return the longest time that a batch of a member may run, in milliseconds."""
        return self.lives.get(member, self.life_ms)

    def heir(self, member: str) -> str:
        """Return the id that now has the shares of a member, which may be its own."""
        while member in self.heirs:
            member = self.heirs[member]
        return member


class GrantOptions(TypedDict, total=False):
    """Keyword arguments of `CommitStore.open_epoch` and `CommitStore.claim`.

    Attributes:
        topic_ids: The ids of topics, as far as they are known. A new id means that the topic was
            created again; its old commits are discarded.
        takeover: Whether to fence holders of overlapping shares instead of raising an error.
            Claims end; with a claim, members of the epoch in force may no longer commit.
        life_ms: The longest time that a batch of any member may run. Shares that members do not
            hand over are in doubt for this time (see `Assignment.doubts`).
        record_filter: Which records the members process, as text for the history and for the
            next epoch; empty for all.
    """

    topic_ids: Mapping[str, str] | None
    takeover: bool
    life_ms: int
    record_filter: str


class EpochOptions(GrantOptions, total=False):
    """Further keyword arguments of `CommitStore.open_epoch`.

    Attributes:
        lives: The longest time that a batch of each member may run; by default `life_ms`.
        partitions: How many partitions of each topic start by the option for new groups; by
            default as many as the assignment has. It applies in the first epoch with the topic;
            partitions with higher numbers were added later.
        continues: Members whose work never paused, with the number of the epoch that they work
            under.
        sharing: `cooperative` if the members acquire chunks of whole partitions (see
            `CommitStore.acquire`); each of them should have all partitions. Empty if each member
            has key ranges of its own.
    """

    lives: Mapping[str, int] | None
    partitions: Mapping[str, int] | None
    continues: Mapping[str, int] | None
    sharing: str


class CommitOptions(TypedDict, total=False):
    """Further keyword arguments of `CommitStore.commit`.

    Attributes:
        topic_ids: The ids of the topics from which the records were read, if they differ from
            those of the epoch. Such partitions are refused.
        too_old: Whether partitions that are entirely below the stable offset raise an error, which
            is the default, or only get the status `too_old`.
        limited: Whether to refuse what would exceed the limit of ranges, which is the default. Pass
            False for what must not wait: handled records, or a commit that other writes depend on.
        request: For a member of a cooperative epoch, chunks to acquire, renew and expire in the
            same append. `CommitStore.acquired` returns what it got.
        maintain: Whether to call `CommitStore.maintain` before the answer, which is the default.
            With False, call it later.
    """

    topic_ids: Mapping[str, str] | None
    too_old: Literal["raise", "report"]
    limited: bool
    request: AcquireRequest | None
    maintain: bool


def as_share(share: Any) -> Share:
    """Return a share that a caller gave, checked.

    Args:
        share: A `Share`, `(topic, partition)` or `(topic, partition, first, last)`.

    Raises:
        ValueError: If it has another form, or its range is not within [0, 2**63 - 1].
    """
    match share:
        case str(topic), int(partition), KeyRange() as key_range:
            pass
        case str(topic), int(partition), *ends if len(ends) in {0, 2}:
            key_range = KeyRange(*ends)
        case _:
            raise ValueError(f"share {share!r}: give a Share or (topic, partition[, first, last])")
    if not topic or type(partition) is not int or partition < 0:
        raise ValueError(f"share {share!r}: needs a topic and a partition from 0")
    return Share(topic, partition, key_range)


def as_shares(shares: Iterable[Any]) -> tuple[Share, ...]:
    """Convert shares as `as_share` does, and sort them."""
    return tuple(sorted(as_share(share) for share in shares))


def share_to_plain(share: Share) -> tuple[str, int, int, int]:
    """Return a share as the log stores it: topic, partition, first and last key hash."""
    topic, partition, (first, last) = share
    return topic, partition, first, last


def share_from_plain(plain: Sequence[Any]) -> Share:
    """Return a share that the log stores."""
    topic, partition, first, last = plain
    return Share(topic, partition, _key_range(first, last))


def headers_to_plain(headers: Iterable[tuple[str, bytes | None]]) -> list[list[str | None]]:
    """Return headers as the log and documents store them: names, and values in base64."""
    return [[name, None if value is None else b64encode(value).decode()] for name, value in headers]


def headers_from_plain(
    plain: Iterable[tuple[str, str | None]],
) -> tuple[tuple[str, bytes | None], ...]:
    """Return headers that the log or a document stores."""
    return tuple((name, None if value is None else b64decode(value)) for name, value in plain)


# A log has few distinct ranges, as most partitions are divided alike.
_key_range = lru_cache(1024)(KeyRange)
