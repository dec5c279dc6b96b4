"""What a member owns under one epoch, as data."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

from assignors import KeyRange, Share, coverage, merge
from assignors.ranges import offset_hash
from commits.model import has_failed
from commits.offsets import MAX_OFFSET
from coopconsume.record import ordering_key_of, shown_key, without_ordering_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from commits import Epoch, OffsetRanges, Pending
    from commits.model import TopicPartition
    from coopconsume.options import Options
    from coopconsume.record import Headers

#: Seconds for which a look at the log is good enough to start another batch. A member that is not
#: in the group any more may start one for so long, so it counts to the life of a batch.
LEASE = 2.0
#: Seconds within which a batch starts on Spark Connect, or not at all: there the server goes on
#: with what a client sent that is gone. They count to the life of a batch.
STARTS_WITHIN = 60.0


def left_ms(waits: Iterable[tuple[Share, float]]) -> dict[Share, int]:
    """Returns parts that somebody may still work on as a release names them.

    The wait for an earlier owner goes on at the next one, it does not begin again.

    Args:
        waits: The parts, and for how many seconds.
    """
    left: dict[Share, int] = {}
    for part, seconds in waits:
        left[part] = max(math.ceil(1000 * seconds), left.get(part, 0))
    return left


def kept_key(pending: Pending) -> str | None:
    """Returns the key of a failed record that the commit log has for people; None without one.

    Rows of earlier versions have an ordering key as a header, and no other keys.
    """
    if pending.key is not None:
        return pending.key
    return shown_key(ordering_key_of(pending.headers))


def is_known_key(key: str | None, key_hash: int | None, offset: int) -> bool:
    """Returns whether the commit log says all of a failed record's key.

    A record that is dealt by its offset, or has no hash, has no key; others are read from Kafka if
    the log does not have theirs.
    """
    return key is not None or key_hash in {None, offset_hash(offset)}


def to_keep(
    options: Options, pending: Mapping[TopicPartition, Iterable[Pending]]
) -> dict[TopicPartition, list[Pending]]:
    """Returns failed records as the commit log is to have them: their keys are an option."""
    return {
        tp: [one if options.keep_failed_keys else replace(one, key=None) for one in records]
        for tp, records in pending.items()
    }


@dataclass
class Failed:
    """A failed record, as the commit log has it.

    Attributes:
        offset: Its offset.
        key_hash: The hash that it is dealt by.
        attempts: Failed attempts.
        due: When it is tried again, on the monotonic clock; infinity: it is parked until an
            operator decides.
        error: The error of its last attempt.
        headers: All headers that handlers have added to it.
        key: Its key for people, if it has one and this process or the commit log knows it.
        due_ms: When it is tried again, as the commit log has it; None: it failed in this process.
        since: When it failed first or was parked, on the monotonic clock; None: it is not known.
    """

    offset: int
    key_hash: int
    attempts: int
    due: float
    error: str
    headers: Headers = ()
    key: str | None = None
    due_ms: int | None = None
    since: float | None = None

    @classmethod
    def of(cls, pending: Pending, now: float, now_ms: int) -> Self:
        """Returns a pending record of the commit log.

        Args:
            pending: The record.
            now: The time, on the monotonic clock.
            now_ms: The time by this process's clock, in milliseconds since 1970.
        """
        return cls(
            offset=pending.offset,
            key_hash=pending.key_hash or 0,
            attempts=pending.attempts,
            due=now + pending.wait(now_ms),
            error=pending.error,
            headers=without_ordering_key(pending.headers),
            key=kept_key(pending),
            due_ms=pending.due_ms,
            since=None if pending.since_ms is None else now - (now_ms - pending.since_ms) / 1000,
        )

    @property
    def is_parked(self) -> bool:
        """Whether it waits until an operator decides."""
        return self.due == math.inf

    @property
    def has_failed(self) -> bool:
        """Whether a call of it has failed."""
        return has_failed(self.attempts, self.error)

    @property
    def has_unknown_key(self) -> bool:
        """Whether it has a key, and nothing but Kafka knows it."""
        return not is_known_key(self.key, self.key_hash, self.offset)


@dataclass
class Owned:
    """A partition, and the key ranges of it that this member owns.

    Attributes:
        ranges: The key ranges, disjoint and ascending.
        stable: The stable offset in the commit log.
        committed: What the log has above it.
        pending: The records that have failed.
        range_count: Ranges above the stable offset in the commit log when it was last looked at.
        last_committed: The highest offset that the commit log had above its stable offset when it
            was last read, by any member; -1: none.
        max_ranges: With 80 % of so many nothing new is read.
        is_deleted: Whether the topic was deleted, and nothing of it can be read any more.
        uses_chunks: Whether all members of the group have it, and acquire chunks of it.
        leads: Of such a partition, whether this member writes its offset to Kafka and takes
            decisions on its parked records.
    """

    topic: str
    partition: int
    ranges: tuple[KeyRange, ...]
    stable: int
    committed: OffsetRanges
    pending: list[Failed] = field(default_factory=list)
    range_count: int = 0
    last_committed: int = -1
    max_ranges: int = 1_000_000
    is_deleted: bool = False
    uses_chunks: bool = False
    leads: bool = False

    @cached_property
    def is_whole(self) -> bool:
        """Whether the ranges are the whole partition, and no other member has any of it."""
        return not (self.uses_chunks or coverage(self.ranges).holes)

    def keep(self, ranges: tuple[KeyRange, ...]) -> None:
        """Keeps only these key ranges."""
        self.ranges = ranges
        vars(self).pop("is_whole", None)

    def extend(self, gained: Owned) -> None:
        """Adds key ranges; the commit log was just read for them."""
        self.keep(merge([*self.ranges, *gained.ranges]))
        self.pending = gained.pending
        self.range_count, self.last_committed = gained.range_count, gained.last_committed
        self.follow(gained.stable, gained.committed)

    @property
    def owns_first(self) -> bool:
        """Whether hash 0 is ours: its owner commits holes and the primary offset."""
        if self.uses_chunks:
            return self.leads
        return any(key_range.contains(0) for key_range in self.ranges)

    def look(self, ranges: OffsetRanges) -> None:
        """Takes the ranges that the commit log has now, those of other members included."""
        self.range_count = ranges.range_count
        self.last_committed = -1 if ranges.last is None else ranges.last

    def follow(self, stable: int, committed: OffsetRanges | None = None) -> None:
        """Takes a stable offset of the commit log, and what is committed above it."""
        self.stable = max(stable, self.stable)
        known = self.committed | committed if committed else self.committed
        self.committed = known.clip(self.stable, MAX_OFFSET)


@dataclass(frozen=True)
class EpochGrant:
    """Who we are and what is ours under one epoch of the commit log, or one claim.

    Attributes:
        epoch: The epoch.
        member: Our id in it.
        shares: The shares that the member owns.
        topic_ids: Kafka's ids of the topics.
        waits: Parts that an earlier owner may still work on, and for how many seconds.
        life_ms: How long work of the member may go on after its death. The commit log has it for
            the next owners of its shares.
        continues: Whether the member joined without a hand-over and goes on with what it had, as
            its ownership never paused.
        moving: Shares that the member releases as soon as nothing of them runs.
        generation: Kafka's generation of the epoch; -1: it is a claim, or not known.
    """

    epoch: Epoch
    member: str
    shares: tuple[Share, ...]
    topic_ids: Mapping[str, str]
    waits: tuple[tuple[Share, float], ...] = ()
    life_ms: int = 0
    continues: bool = False
    moving: tuple[Share, ...] = ()
    generation: int = -1
