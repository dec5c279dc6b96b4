"""The rows of the commit log: their kinds, their columns, and how events become rows and back.

Every change of state is an *event*: one append of one or more rows that share a row id. An event
has one row for each partition it is about, and one row if it is about none. A commit of very many
ranges has several rows of a partition, one after the other, which are read as one (see `divided`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby, zip_longest
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from commits.errors import CommitTableFormat, CorruptCommitLog
from commits.model import Epoch, Pending
from commits.offsets import OffsetRanges

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from commits.model import TopicPartition

__all__ = ["FORMAT", "KINDS", "SCHEMA", "Event", "Part", "decode", "divided", "encode"]

FORMAT = 1
"""The version of the rows; a reader that meets another one stops."""

KINDS = frozenset(
    {
        "epoch",  # who may commit what from here on; follows on `previous`
        "takeover",  # a member's shares go to another id (static membership)
        "claim",  # shares taken by hand, with an epoch of their own
        "release",  # a member gives back its shares of an epoch or a claim
        "commit",  # offsets done, proven holes, and pending records of partitions
        "start",  # where an unknown partition begins; of several rows the first counts
        "log_start",  # the partition's log now begins at first_offset
        "truncation",  # the partition's log now ends before first_offset
        "primary",  # Kafka's offset is first_offset and not ours; without first_offset it is ours
        "reset",  # the stable offset is first_offset, `offsets` above; without an epoch it fences
        "setting",  # a switch or limit, of the store or of one topic
        "snapshot",  # part of the state of all groups at one version
    }
)

SCHEMA = pa.schema(
    [
        pa.field("format", pa.int32(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("row_id", pa.string(), nullable=False),  # of the event; a commit's is its id
        pa.field("row", pa.int32(), nullable=False),  # its place within the event
        pa.field("cluster_id", pa.string(), nullable=False),
        pa.field("group_id", pa.string(), nullable=False),
        pa.field("topic", pa.string()),
        pa.field("topic_id", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("epoch", pa.int64()),
        pa.field("nonce", pa.string()),
        pa.field("previous", pa.int64()),
        pa.field("previous_nonce", pa.string()),
        pa.field("generation", pa.int64()),
        pa.field("member", pa.string()),
        pa.field("first_offset", pa.int64()),  # of a claim: the first and last key hash
        pa.field("last_offset", pa.int64()),
        pa.field("offset_count", pa.int64()),
        pa.field("offsets", pa.binary()),  # portable 64-bit roaring bitmaps
        pa.field("holes", pa.binary()),
        pa.field(
            "pending",
            pa.list_(
                pa.struct(
                    [
                        pa.field("offset", pa.int64()),
                        pa.field("key_hash", pa.int64()),
                        pa.field("attempts", pa.int32()),
                        pa.field("due_ms", pa.int64()),
                        pa.field("error", pa.string()),
                    ]
                )
            ),
        ),
        pa.field("detail", pa.string()),  # JSON
        pa.field("written_at", pa.timestamp("us", tz="UTC")),  # for people, and `Pending.delay_ms`
        pa.field("segment", pa.int64(), nullable=False),  # the table's partition column
    ]
)
"""The columns of the commit table."""


_NOTHING = OffsetRanges()  # never changed, so that all parts can share it


@dataclass(frozen=True, slots=True)
class Part:
    """What an event says about one partition.

    Attributes:
        topic: The topic.
        partition: The partition.
        topic_id: The topic's id; empty if it is not known.
        first: The offset of a start, log start, truncation, reset or primary; the first key hash
            of a claim.
        last: The last key hash of a claim.
        offsets: Offsets that are done.
        holes: Offsets that are proven never to be delivered.
        pending: Records that were read and are not done.
    """

    topic: str
    partition: int
    topic_id: str = ""
    first: int | None = None
    last: int | None = None
    offsets: OffsetRanges = field(default_factory=lambda: _NOTHING)
    holes: OffsetRanges = field(default_factory=lambda: _NOTHING)
    pending: tuple[Pending, ...] = ()

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition."""
        return self.topic, self.partition

    @property
    def is_empty(self) -> bool:
        """Whether a commit of it would say nothing."""
        return not (self.offsets or self.holes or self.pending)


@dataclass(frozen=True, slots=True)
class Event:
    """One change of state, as one append to the log tells it.

    Attributes:
        kind: One of `KINDS`.
        id: Tells it from every other one of its group; of a commit the commit id.
        cluster: The Kafka cluster's id.
        group: The group; empty for settings.
        epoch: The epoch it opens, or under which it was written.
        previous: The epoch that an epoch follows on.
        generation: Kafka's generation; -1 if there is none.
        member: Who wrote it.
        detail: What else the kind needs, as JSON.
        parts: What it says about partitions.
        written_at: The writer's clock, for people and `Pending.delay_ms`.
    """

    kind: str
    id: str
    cluster: str = ""
    group: str = ""
    epoch: Epoch | None = None
    previous: Epoch | None = None
    generation: int = -1
    member: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()
    written_at: datetime | None = field(default=None, compare=False)


def encode(events: Iterable[Event], segment: int) -> pa.Table:
    """The rows of events, to be appended together to one segment of the table."""
    now = datetime.now(UTC)
    rows = [
        (FORMAT, event.kind, event.id, number, *_event_columns(event), *_part_columns(part),
         _json(event.detail) if number == 0 and event.detail else None, now, segment)
        for event in events
        for number, part in enumerate(event.parts or (None,))
    ]  # fmt: skip
    order = [SCHEMA.get_field_index(name) for name in _WRITTEN]
    columns = dict(zip(order, zip(*rows, strict=True), strict=True))
    return pa.Table.from_arrays(
        [pa.array(columns[at], type=SCHEMA.field(at).type) for at in range(len(SCHEMA))],
        schema=SCHEMA,
    )


def divided(part: Part, most: int) -> list[Part]:
    """A partition's part of a commit as parts of at most so many ranges, each for a row of its own.

    Args:
        part: What is committed.
        most: How many ranges of offsets, and how many of holes, a row may have; from 1.
    """
    if part.offsets.range_count <= most and part.holes.range_count <= most:
        return [part]
    pieces = zip_longest(
        _pieces(part.offsets, most), _pieces(part.holes, most), fillvalue=OffsetRanges()
    )
    first, *rest = (replace(part, offsets=offsets, holes=holes) for offsets, holes in pieces)
    return [first, *(replace(one, pending=()) for one in rest)]


def _pieces(offsets: OffsetRanges, most: int) -> list[OffsetRanges]:
    firsts, lasts = offsets.bounds()
    return [
        OffsetRanges.from_bounds(firsts[at : at + most], lasts[at : at + most])
        for at in range(0, len(firsts), most)
    ]


_EVENT_COLUMNS = ("cluster_id", "group_id", "epoch", "nonce", "previous", "previous_nonce")
_PART_COLUMNS = ("topic", "topic_id", "partition", "first_offset", "last_offset", "offset_count")
_WRITTEN = (
    *("format", "kind", "row_id", "row"),
    *_EVENT_COLUMNS, "generation", "member",
    *_PART_COLUMNS, "offsets", "holes", "pending",
    *("detail", "written_at", "segment"),
)  # fmt: skip


def _event_columns(event: Event) -> tuple[Any, ...]:
    epoch, previous = event.epoch, event.previous
    return (
        event.cluster,
        event.group,
        *((epoch.number, epoch.nonce) if epoch else (None, None)),
        *((previous.number, previous.nonce) if previous else (None, None)),
        event.generation,
        event.member,
    )


def _part_columns(part: Part | None) -> tuple[Any, ...]:
    if part is None:
        return (None,) * 9
    offsets = part.offsets
    return (
        part.topic,
        part.topic_id,
        part.partition,
        offsets.first if part.first is None else part.first,
        offsets.last if part.last is None else part.last,
        len(offsets) or None,
        offsets.to_bytes() if offsets else None,
        part.holes.to_bytes() if part.holes else None,
        [(p.offset, p.key_hash, p.attempts, p.due_ms, p.error) for p in part.pending] or None,
    )


def decode(table: pa.Table, target: str) -> Iterator[tuple[int, Event]]:
    """The events of rows of the log, each with the table's version that brought it.

    Args:
        table: Rows with the columns of `SCHEMA` and `_commit_version`, in any order.
        target: The table, for errors.

    Yields:
        Version and event, in the order of the log.

    Raises:
        CommitTableFormat: If a row has another format or a kind that is not known.
        CorruptCommitLog: If a row cannot be read.
    """
    if not table.num_rows:
        return
    # By columns: a dictionary for each row takes twice as long.
    columns = [table.column(name) for name in _DECODED]
    columns.append(table.column("written_at").cast(pa.int64()))
    rows = sorted(map(_Row, *(column.to_pylist() for column in columns)), key=_ORDER)
    for (version, row_id), same in groupby(rows, key=_EVENT):
        try:
            event = _event(row_id, list(same), target)
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, CommitTableFormat):
                raise
            raise CorruptCommitLog(
                target, f"version {version} brought a row that cannot be read: {row_id!r}: {error}"
            ) from error
        yield version, event


class _Row(NamedTuple):
    """A row of the log, as far as it is folded or shown."""

    version: int
    format: int
    kind: str
    row_id: str
    row: int
    cluster_id: str
    group_id: str
    topic: str | None
    topic_id: str
    partition: int
    epoch: int | None
    nonce: str | None
    previous: int | None
    previous_nonce: str | None
    generation: int
    member: str
    first_offset: int | None
    last_offset: int | None
    offsets: bytes | None
    holes: bytes | None
    pending: list[dict[str, Any]] | None
    detail: str | None
    written_us: int | None


_DECODED = ("_commit_version", *_Row._fields[1:-1])
_ORDER = attrgetter("version", "row_id", "row")
_EVENT = attrgetter("version", "row_id")
_1970 = datetime(1970, 1, 1, tzinfo=UTC)


def _event(row_id: str, rows: Sequence[_Row], target: str) -> Event:
    head = rows[0]
    if head.format != FORMAT or head.kind not in KINDS:
        raise CommitTableFormat(
            target,
            f"a row of kind {head.kind!r} in format {head.format}",
            f"rows of format {FORMAT}",
        )
    if [row.row for row in rows] != list(range(len(rows))):
        raise ValueError(f"it has the rows {[row.row for row in rows]}")
    return Event(
        kind=head.kind,
        id=row_id,
        cluster=head.cluster_id,
        group=head.group_id,
        epoch=_epoch(head.epoch, head.nonce),
        previous=_epoch(head.previous, head.previous_nonce),
        generation=head.generation,
        member=head.member,
        detail=json.loads(head.detail) if head.detail else {},
        parts=_parts(head.kind, rows),
        written_at=_1970 + timedelta(microseconds=head.written_us) if head.written_us else None,
    )


def _parts(kind: str, rows: Sequence[_Row]) -> tuple[Part, ...]:
    parts = [_part(row) for row in rows if row.topic is not None]
    if kind != "commit":  # a claim has several key ranges of a partition
        return tuple(parts)
    same = groupby(parts, key=attrgetter("topic_partition"))
    return tuple(_united(list(pieces)) for _, pieces in same)


def _united(parts: list[Part]) -> Part:
    first, *rest = parts
    if not rest:
        return first
    offsets, holes, pending = first.offsets, first.holes, first.pending
    for part in rest:
        offsets, holes, pending = offsets | part.offsets, holes | part.holes, pending + part.pending
    return replace(first, last=offsets.last, offsets=offsets, holes=holes, pending=pending)


def _part(row: _Row) -> Part:
    return Part(
        topic=row.topic or "",
        partition=row.partition,
        topic_id=row.topic_id,
        first=row.first_offset,
        last=row.last_offset,
        offsets=_ranges(row.offsets),
        holes=_ranges(row.holes),
        pending=tuple(_pending(pending, row.written_us) for pending in row.pending or ()),
    )


def _pending(row: Mapping[str, Any], written_us: int | None) -> Pending:
    pending = Pending(**row)
    if written_us is None or pending.is_parked:
        return pending
    delay_ms = max(0, pending.due_ms - written_us // 1000)
    return replace(pending, delay_ms=delay_ms)


def _ranges(data: bytes | None) -> OffsetRanges:
    return OffsetRanges.from_bytes(data) if data else _NOTHING


def _epoch(number: int | None, nonce: str | None) -> Epoch | None:
    return None if number is None else Epoch(number, nonce or "")


def _json(detail: Mapping[str, Any]) -> str:
    return json.dumps(detail, separators=(",", ":"), sort_keys=True)
