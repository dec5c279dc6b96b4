"""The status of a group in a partition: offsets, gaps, the blocker, and since when (pure).

Times come from the history of the commit log. A gap begins with the first commit above it. A
record blocks the stable offset from the time at which the stable offset reached it. Where a
snapshot has replaced older rows, the oldest time in the log is used, so ages are never too great.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from commits import OffsetRanges
from commits.model import has_failed
from coopconsume.group.owned import is_known_key, kept_key
from coopconsume.record import shown_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from commits import PartitionCommits, Pending
    from commits.model import TopicPartition
    from coopconsume.kafka.blocker_records import BlockerRecord
    from coopconsume.kafka.primary import Primary


#: The last millisecond that a `datetime` can represent; the log may contain later due times.
_LAST_MS = 253_402_300_799_999

#: A handler was called for the record and failed.
FAILED = "failed"
#: The record was given up and waits for a decision (`coopconsume dead-letters`).
PARKED = "parked"
#: No handler has failed on the record: it is in flight, blocked behind a failed record of its key,
#: or not read yet.
NOT_DONE = "not done"
#: Why the log has no record at the offset of a blocker: its start has passed the offset; or the
#: record was compacted away or aborted, or the offset is that of a transaction marker.
RETENTION, COMPACTION = "retention", "compaction"


def time_of(ms: int) -> datetime:
    """Returns a time in milliseconds since 1970; the last one that can be shown if it is later."""
    return datetime.fromtimestamp(min(ms, _LAST_MS) / 1000, UTC)


def since_of(record: Pending) -> datetime | None:
    """Returns when a record failed first or was parked; None if the log does not say."""
    return None if record.since_ms is None else time_of(record.since_ms)


@dataclass(frozen=True)
class Times:
    """The times of a partition's commits, by the clocks of the committers.

    Attributes:
        tops: The highest committed offsets, ascending.
        reached: When each of them was first committed.
        stable_offset: The stable offset after the newest row.
        stable_since: When the stable offset reached this value; None if the log does not say.
    """

    tops: tuple[int, ...] = ()
    reached: tuple[datetime, ...] = ()
    stable_offset: int = -1
    stable_since: datetime | None = None

    def passed(self, offset: int) -> datetime | None:
        """Returns when an offset above the given one was first committed; None if unknown."""
        at = bisect_right(self.tops, offset)
        return self.reached[at] if at < len(self.tops) else None


def times_of(history: Iterable[Mapping[str, Any]]) -> dict[TopicPartition, Times]:
    """Returns the commit times of each partition.

    Args:
        history: The result of `commits.CommitStore.history`.
    """
    tops: dict[TopicPartition, list[tuple[int, datetime]]] = {}
    stable: dict[TopicPartition, tuple[int, datetime]] = {}
    for entry in history:
        at = entry["written_at"]
        for part in entry["partitions"] if entry["counted"] else ():
            tp = (part["topic"], part["partition"])
            if part["stable_offset"] is None or part["status"] in ("refused", "not_held"):
                continue
            if entry["kind"] in ("reset", "truncation") or entry["detail"].get("follow"):
                tops[tp] = []
            if tp not in stable or stable[tp][0] != part["stable_offset"]:
                stable[tp] = part["stable_offset"], at
            known, top = tops.setdefault(tp, []), part["last"]
            done = entry["kind"] in ("commit", "reset") and part["count"]
            if done and top is not None and (not known or known[-1][0] < top):
                known.append((top, at))
    return {
        tp: Times(
            tuple(top for top, _ in tops.get(tp, ())), tuple(at for _, at in tops.get(tp, ())),
            offset, since,
        )
        for tp, (offset, since) in stable.items()
    }  # fmt: skip


@dataclass(frozen=True)
class Gap:
    """A range of uncommitted offsets below a committed one.

    Attributes:
        first, last: The range, both included.
        since: When the gap began; None if the log does not say.
    """

    first: int
    last: int
    since: datetime | None

    @property
    def offsets(self) -> int:
        """The number of offsets in the gap."""
        return self.last - self.first + 1


@dataclass(frozen=True)
class Blocker:
    """The record that blocks the stable offset of a partition.

    Attributes:
        offset: Its offset, which is the stable offset.
        state: ``failed``, ``parked``, or ``not done`` if no handler has failed on it.
        key_hash: The hash of its key, if it failed and has a key.
        attempts: The number of its failed attempts.
        since: Since when it blocks the stable offset; None if the log does not say.
        due: When the next attempt is due, if it failed.
        error: The last error of its handler; else empty.
        done_behind: The number of committed offsets above it.
        open_behind: The number of other uncommitted offsets up to the highest committed one.
        key: The key of the record, if it has one, and the commit log has it or it was read.
        deleted_by: ``retention`` or ``compaction`` if the log has no such record any more; else
            empty. Transaction markers and aborted records count as compacted.
        ordering_key: The ordering key of the record (option ``orderingKey``), if it has one and
            has failed; the commit log has it then.
        has_ordering_key: Whether the group has the option ``orderingKey``.
        knows_ordering_key: Whether the commit log has the ordering key; it may be none.
        failing_since: When it failed first or was parked; None if the log does not say.
    """

    offset: int
    state: str
    key_hash: int | None
    attempts: int
    since: datetime | None
    due: datetime | None
    error: str
    done_behind: int
    open_behind: int
    key: str | None = None
    deleted_by: str = ""
    ordering_key: str | None = None
    has_ordering_key: bool = False
    knows_ordering_key: bool = False
    failing_since: datetime | None = None

    @property
    def shown_key(self) -> str | None:
        """The key; its hash if it was not read; None if it has none, or nothing is known.

        In a group with an ordering key it is that, or what is known of it, beside the record key.
        """
        shown = None if self.key_hash is None else f"hash {self.key_hash}"
        if not self.has_ordering_key:
            return shown if self.key is None else self.key
        if self.ordering_key is not None:
            record = "" if self.key is None else f"; record key: {self.key}"
            return f"{self.ordering_key} (ordering key{record})"
        if self.knows_ordering_key:
            found = "no ordering key"
        else:
            # Only Spark computes it.
            found = "ordering key not known" if shown is None else f"ordering key: {shown}"
        return found if self.key is None else f"{self.key} (record key; {found})"

    @property
    def has_failed(self) -> bool:
        """Whether a call of it has failed."""
        return has_failed(self.attempts, self.error)

    @property
    def needs_attention(self) -> bool:
        """Whether it needs attention: something is done behind it, it has failed or was deleted."""
        return bool(self.done_behind or self.has_failed or self.deleted_by)

    @property
    def shown_state(self) -> str:
        """The state, or what deleted the record."""
        return f"deleted by {self.deleted_by}" if self.deleted_by else self.state


@dataclass(frozen=True)
class PartitionStatus:
    """The status of a group in a partition.

    Attributes:
        topic, partition: The partition.
        topic_id: The topic id in the commit log; empty if the log has none.
        stable_offset: The first uncommitted offset; None if the commit log has no entry.
        done: The committed offsets above it.
        pending: Failed records that await a retry, by offset.
        log_start, end_offset: The bounds of Kafka's log; None if the partition does not exist or
            its log was not asked for.
        primary_offset: The group's offset in ``__consumer_offsets``, if there is one.
        primary_is_ours: Whether this library wrote it.
        times: When the offsets were committed.
        record: What the log has at the stable offset; None if it was not read.
        has_ordering_keys: Whether the group has the option ``orderingKey``.
    """

    topic: str
    partition: int
    topic_id: str = ""
    stable_offset: int | None = None
    done: OffsetRanges = field(default_factory=OffsetRanges)
    pending: Mapping[int, Pending] = field(default_factory=dict)
    log_start: int | None = None
    end_offset: int | None = None
    primary_offset: int | None = None
    primary_is_ours: bool = False
    times: Times = field(default_factory=Times)
    record: BlockerRecord | None = None
    has_ordering_keys: bool = False

    @classmethod
    def of(
        cls,
        partition: TopicPartition,
        commits: PartitionCommits | None,
        *,
        topic_id: str = "",
        pending: Mapping[int, Pending] | None = None,
        log_start: int | None = None,
        end_offset: int | None = None,
        primary: Primary | None = None,
        times: Times | None = None,
        has_ordering_keys: bool = False,
    ) -> Self:
        """Builds the status of a partition from the committed state and what Kafka reports.

        Args:
            partition: Topic and number.
            commits: The committed state; None if the commit log has no entry.
            topic_id: As the attribute.
            pending: As the attribute.
            log_start: As the attribute.
            end_offset: As the attribute.
            primary: The group's offset in ``__consumer_offsets``, if there is one.
            times: As the attribute; None if the history was not read.
            has_ordering_keys: As the attribute.
        """
        return cls(
            *partition, topic_id,
            commits.stable_offset if commits else None,
            commits.ranges if commits else OffsetRanges(),
            pending or {}, log_start, end_offset,
            primary.offset if primary else None, primary is not None and primary.ours,
            times or Times(), has_ordering_keys=has_ordering_keys,
        )  # fmt: skip

    @property
    def name(self) -> str:
        """The topic and the number of the partition, joined by a hyphen."""
        return f"{self.topic}-{self.partition}"

    @property
    def lag(self) -> int | None:
        """The number of uncommitted offsets, gaps included; None if an offset is not known."""
        if self.stable_offset is None or self.end_offset is None:
            return None
        return max(0, self.end_offset - self.stable_offset - len(self.done))

    @property
    def committed_above(self) -> int:
        """The number of committed offsets above the stable offset."""
        return len(self.done)

    def figures(self) -> dict[str, Any]:
        """Returns the partition, its offsets and their numbers, as JSON and SQL views have them."""
        return {
            "topic": self.topic, "partition": self.partition, "stable_offset": self.stable_offset,
            "end_offset": self.end_offset, "committed_above": self.committed_above,
            "gaps": len(self.open_ranges), "lag": self.lag,
            "primary_offset": self.primary_offset, "primary_is_ours": self.primary_is_ours,
        }  # fmt: skip

    @property
    def parked(self) -> tuple[int, ...]:
        """The offsets of the records that were given up and wait for a decision, ascending."""
        return tuple(sorted(offset for offset, one in self.pending.items() if one.is_parked))

    @property
    def open_ranges(self) -> list[tuple[int, int]]:
        """The ranges of uncommitted offsets below the highest committed one."""
        if self.stable_offset is None or self.done.last is None:
            return []
        return [*self.done.gaps(self.stable_offset, self.done.last)]

    def gaps(self) -> Iterator[Gap]:
        """Yields the gaps, ascending."""
        for first, last in self.open_ranges:
            yield Gap(first, last, self.times.passed(last))

    @property
    def blocker_offset(self) -> int | None:
        """The offset of a blocker whose key only Kafka knows, if the log may have its record."""
        offset = self.stable_offset
        if offset is None or self.log_start is None or self.end_offset is None:
            return None
        if self._key_at(offset)[1]:
            return None
        is_in_log = self.log_start <= offset < self.end_offset
        return offset if is_in_log and self.blocker is not None else None

    @property
    def blocker(self) -> Blocker | None:
        """The record that blocks the stable offset; None if every offset is committed."""
        offset = self.stable_offset
        if offset is None or not (self.done or offset in self.pending or self.lag):
            return None
        failed = self.pending.get(offset)
        stands = self.times.stable_offset == offset
        kept, is_known = self._key_at(offset)
        key = shown_key(self.record.key) if self.record else None
        if not self.has_ordering_keys:
            key, kept = kept if is_known else key, None
        return Blocker(
            offset,
            (PARKED if failed.is_parked else FAILED) if failed else NOT_DONE,
            failed.key_hash if failed else None,
            failed.attempts if failed else 0,
            self.times.stable_since if stands else None,
            time_of(failed.due_ms) if failed and not failed.is_parked else None,
            failed.error if failed else "",
            len(self.done),
            max(0, sum(last - first + 1 for first, last in self.open_ranges) - 1),
            key,
            self._deleted_by(offset),
            kept,
            has_ordering_key=self.has_ordering_keys,
            knows_ordering_key=self.has_ordering_keys and is_known,
            failing_since=since_of(failed) if failed else None,
        )

    def _key_at(self, offset: int) -> tuple[str | None, bool]:
        """Returns the key that a record is dealt by, and whether the commit log knows it.

        A record that is dealt by its offset has none.
        """
        failed = self.pending.get(offset)
        if failed is None:
            return None, False
        kept = kept_key(failed)
        return kept, is_known_key(kept, failed.key_hash, offset)

    def _deleted_by(self, offset: int) -> str:
        if self.log_start is not None and offset < self.log_start:
            return RETENTION
        return COMPACTION if self.record is not None and not self.record.is_there else ""
