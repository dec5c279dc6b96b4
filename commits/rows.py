"""The rows of the commit log: their kinds and columns, and the conversion of events.

Every change of state is an *event*: one append of one or more rows with the same row id. An event
has one row for each of its partitions, and one row if it has no partitions. A commit of very many
ranges has several consecutive rows of a partition, which are read as one (see `divided`).
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
from commits.model import Epoch, Pending, headers_from_plain, headers_to_plain
from commits.offsets import OffsetRanges

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from commits.model import TopicPartition


FORMAT = 1
"""The version of the row format. A reader that finds another one stops."""

KINDS = frozenset(
    {
        "epoch",  # who may commit what from here on; follows on `previous`
        "takeover",  # a member's shares go to another id (static membership)
        "claim",  # shares taken by hand, with an epoch of their own
        "release",  # a member gives back its shares of an epoch or a claim
        "commit",  # offsets done, proven holes, and pending records of partitions
        "acquire",  # a chunk of partitions, up to last_offset; `offsets` are pending records
        "renew",  # the time of chunks starts again
        "expire",  # chunks that were held for too long are returned
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
        pa.field("detail", pa.string()),  # JSON; `headers` and `keys` in it are those of `pending`
        pa.field("written_at", pa.timestamp("us", tz="UTC")),  # for people and of `Pending`
        pa.field("segment", pa.int64(), nullable=False),  # the table's partition column
    ]
)
"""The columns of the commit table."""


_NOTHING = OffsetRanges()  # never changed, so that all parts can share it


@dataclass(frozen=True, slots=True)
class Part:
    """The part of an event about one partition.

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
        """Whether a commit of it would change nothing."""
        return not (self.offsets or self.holes or self.pending)


@dataclass(frozen=True, slots=True)
class Event:
    """One change of state, written by one append to the log.

    Attributes:
        kind: One of `KINDS`.
        id: Unique within the group; for a commit the commit id.
        cluster: The Kafka cluster's id.
        group: The group; empty for settings.
        epoch: The epoch that it opens, or under which it was written.
        previous: The predecessor of an epoch.
        generation: Kafka's generation; -1 without one.
        member: The member that wrote it.
        detail: Further data of the kind, as JSON.
        parts: Its parts by partition.
        written_at: The time by the writer's clock, for the history and times of `Pending`.
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
    """Convert events to rows that are appended together to one segment of the table."""
    now = datetime.now(UTC)
    rows = [
        (FORMAT, event.kind, event.id, number, *_event_columns(event), *_part_columns(part),
         _detail(event, number, part), now, segment)
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
    """Divide a partition's part of a commit into parts with at most `most` ranges, one per row.

    Args:
        part: The part.
        most: The largest number of ranges of offsets and of holes in a row, from 1.
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


_HEADERS = "headers"  # names in the detail of a row
_KEYS = "keys"  # earlier versions ignore it

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
    """Convert rows of the log to events, each with the version of the table that added it.

    Args:
        table: Rows with the columns of `SCHEMA` and `_commit_version`, in any order.
        target: The table, for errors.

    Yields:
        Version and event, in the order of the log.

    Raises:
        CommitTableFormat: If a row has another format or an unknown kind.
        CorruptCommitLog: If a row cannot be read.
    """
    if not table.num_rows:
        return
    # Column by column, because a dictionary for each row takes twice as long.
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
    """The columns of a row that are folded or shown."""

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
        detail=_event_detail(head),
        parts=_parts(head.kind, rows),
        written_at=_1970 + timedelta(microseconds=head.written_us) if head.written_us else None,
    )


def _event_detail(head: _Row) -> dict[str, Any]:
    detail: dict[str, Any] = json.loads(head.detail) if head.detail else {}
    for name in (_HEADERS, _KEYS):  # those of the pending records of the first row
        detail.pop(name, None)
    return detail


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
    headers, keys = _headers_of(row), dict(_of_pending(row, _KEYS))
    return Part(
        topic=row.topic or "",
        partition=row.partition,
        topic_id=row.topic_id,
        first=row.first_offset,
        last=row.last_offset,
        offsets=_ranges(row.offsets),
        holes=_ranges(row.holes),
        pending=tuple(
            _pending(
                Pending(
                    **pending,
                    headers=headers.get(pending["offset"], ()),
                    key=keys.get(pending["offset"]),
                ),
                row,
            )
            for pending in row.pending or ()
        ),
    )


def _pending(pending: Pending, row: _Row) -> Pending:
    """Return a pending record of a row with the times that are those of the row."""
    if row.written_us is None:
        return pending
    written_ms = row.written_us // 1000
    # Those of other rows failed before.
    begins = row.kind == "commit" and (pending.has_failed or pending.is_parked)
    return replace(
        pending,
        delay_ms=None if pending.is_parked else max(0, pending.due_ms - written_ms),
        since_ms=written_ms if begins else None,
    )


def _ranges(data: bytes | None) -> OffsetRanges:
    return OffsetRanges.from_bytes(data) if data else _NOTHING


def _detail(event: Event, number: int, part: Part | None) -> str | None:
    """Return the JSON of a row: of its event in the first row, and more of its `pending`."""
    detail = dict(event.detail) if number == 0 else {}
    pending = part.pending if part else ()
    if headers := [[p.offset, headers_to_plain(p.headers)] for p in pending if p.headers]:
        detail[_HEADERS] = headers
    if keys := [[p.offset, p.key] for p in pending if p.key is not None]:
        detail[_KEYS] = keys
    return _json(detail) if detail else None


def _headers_of(row: _Row) -> dict[int, tuple[tuple[str, bytes | None], ...]]:
    """Return the headers of the pending records of a row, by offset."""
    return {offset: headers_from_plain(pairs) for offset, pairs in _of_pending(row, _HEADERS)}


def _of_pending(row: _Row, name: str) -> Sequence[Any]:
    """Return what the detail of a row has of its pending records: pairs of an offset and more."""
    if not row.pending or not row.detail or f'"{name}"' not in row.detail:
        return ()
    found: Sequence[Any] = json.loads(row.detail).get(name, ())
    return found


def _epoch(number: int | None, nonce: str | None) -> Epoch | None:
    return None if number is None else Epoch(number, nonce or "")


def _json(detail: Mapping[str, Any]) -> str:
    return json.dumps(detail, separators=(",", ":"), sort_keys=True)
