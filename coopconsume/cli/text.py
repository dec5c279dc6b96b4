"""Formats groups and topics as text: tables, and maps of the hash space."""

from __future__ import annotations

import string
from datetime import datetime
from itertools import zip_longest
from typing import TYPE_CHECKING

from assignors import KeyRange
from coopconsume.admin.cells import cell
from coopconsume.admin.overview.words import members_text
from coopconsume.kafka.coordinator import DEAD

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import tzinfo

    from coopconsume.admin.offsets.status import PartitionStatus
    from coopconsume.admin.overview import GroupEvent, GroupOverview, OwnedRange, PartitionOverview

CELLS = 32
"""The number of places of a map; each is an equal part of the hash space."""

MEMBER_COLUMNS = ("", "MEMBER", "HOST", "CLIENT", "INSTANCE", "SLOTS", "HAS", "STATUS")
PARTITION_COLUMNS = (
    "PARTITION", "KEY HASHES", "STABLE", "END", "DONE ABOVE", "GAPS", "PENDING", "LAG",
    "KAFKA'S",
)  # fmt: skip
BLOCKER_COLUMNS = ("PARTITION", "BLOCKER", "STATE", "KEY", "ATTEMPTS", "ERROR")
CHUNK_COLUMNS = ("PARTITION", "HELD BY", "CHUNKS", "OFFSETS", "FIRST", "LAST", "SECONDS")
EVENT_COLUMNS = ("EPOCH", "WHEN", "WHAT", "BY", "COUNTED")

_LETTERS = string.ascii_uppercase + string.ascii_lowercase + string.digits
_TOO_MANY = "#"
_NOBODY = "."
_MOST_TEXT = 60
_PLACES = KeyRange().split(CELLS)


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Returns the lines of a table: numbers right-aligned, None as a dash."""
    cells = [[cell(value) for value in row] for row in rows]
    right = [
        any(isinstance(value, int) for value in column) for column in zip(*rows, strict=True)
    ] or [False] * len(header)
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    return [
        "  ".join(
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in (header, *cells)
    ]


def group_lines(group: GroupOverview, now: datetime, history: int = 10) -> Iterator[str]:
    """Yields the overview of a group as text.

    Args:
        group: The group.
        now: The current time, which decides what ranges are still in doubt.
        history: The number of last events to show.
    """
    letters = letters_of(group)
    dead = "unknown to Kafka" if group.state == DEAD else group.state
    members = members_text(len(group.members))
    yield f"group {group.group}: {dead}, {members}, {group.lag:,} records not done"
    yield f"commit table {group.table}"
    yield f"Kafka {group.servers}, cluster {group.cluster}"
    if group.epoch is not None:
        by = f", {group.assignor}" if group.assignor else ""
        yield f"epoch {group.epoch}, generation {group.generation}{by}"
    if group.record_filter:
        yield f"filter {group.record_filter}"
    for note in group.notes:
        yield f"note: {note}"
    yield from _members(group, letters)
    yield from _claims(group, letters)
    if group.partitions:
        yield ""
        yield from table(
            PARTITION_COLUMNS,
            [_partition(partition, letters, group.sharing) for partition in group.partitions],
        )
    yield from _chunks(group, letters, now)
    yield from _blockers(group)
    yield from _in_doubt(group, now)
    yield from _events(group.events[-history:] if history else (), letters)


def letters_of(group: GroupOverview) -> dict[str, str]:
    """Returns a letter for each member and each claimant, in the order of the list."""
    return dict(zip_longest(group.owners, _LETTERS[: len(group.owners)], fillvalue=_TOO_MANY))


def hash_map(owners: Sequence[OwnedRange], letters: Mapping[str, str]) -> str:
    """Returns a map of the hash space: in each place the letter of its main owner."""
    return "".join(_place(place, owners, letters) for place in _PLACES)


def _place(place: KeyRange, owners: Sequence[OwnedRange], letters: Mapping[str, str]) -> str:
    parts = [
        (common.size, letters.get(owned.member, _TOO_MANY))
        for owned in owners
        if (common := owned.key_range.intersect(place)) is not None
    ]
    return max(parts, key=lambda part: part[0])[1] if parts else _NOBODY


def _members(group: GroupOverview, letters: Mapping[str, str]) -> Iterator[str]:
    if group.members:
        yield ""
        yield from table(
            MEMBER_COLUMNS,
            [
                (
                    letters[m.id], m.id, m.host or None, m.client_id or None, m.instance_id,
                    m.slots, _has(share.key_range for share in m.shares), m.status,
                )
                for m in group.members
            ],
        )  # fmt: skip


def _claims(group: GroupOverview, letters: Mapping[str, str]) -> Iterator[str]:
    if group.claims:
        yield ""
        yield from table(
            ("", "STANDALONE CLAIM OF", "CLAIM", "HAS"),
            [
                (letters[c.member], c.member, c.epoch, _has(s.key_range for s in c.shares))
                for c in group.claims
            ],
        )
        yield from (
            f"filter of {letters[c.member]}: {c.record_filter}"
            for c in group.claims
            if c.record_filter
        )


def _partition(
    p: PartitionOverview, letters: Mapping[str, str], sharing: str
) -> tuple[object, ...]:
    keys = f"all, {sharing}" if sharing else hash_map(p.owners, letters)
    return (
        p.name, keys, p.stable_offset, p.end_offset, p.committed_above, len(p.open_ranges),
        len(p.pending), p.lag, shown_primary(p),
    )  # fmt: skip


def _chunks(group: GroupOverview, letters: Mapping[str, str], now: datetime) -> Iterator[str]:
    """Yields what each member holds of each partition, and for how long."""
    rows: list[tuple[object, ...]] = []
    for p in group.partitions:
        for member in sorted({chunk.member for chunk in p.chunks}):
            held = [chunk for chunk in p.chunks if chunk.member == member]
            oldest = min((chunk.since for chunk in held if chunk.since), default=None)
            rows.append(
                (
                    p.name, letters.get(member, member), len(held),
                    sum(chunk.offsets for chunk in held), min(chunk.first for chunk in held),
                    max(chunk.last for chunk in held),
                    None if oldest is None else max(0, round((now - oldest).total_seconds())),
                )
            )  # fmt: skip
    if rows:
        yield ""
        yield from table(CHUNK_COLUMNS, rows)


def _blockers(group: GroupOverview) -> Iterator[str]:
    """Yields the records that something is done behind, that have failed or that were deleted."""
    rows = [
        (
            p.name, b.offset, b.shown_state, b.shown_key,
            b.attempts or None, " ".join(b.error.split()) or None,
        )
        for p in group.partitions
        if (b := p.blocker) is not None and (b.done_behind or b.attempts or b.deleted_by)
    ]  # fmt: skip
    if rows:
        yield ""
        yield from table(BLOCKER_COLUMNS, rows)


def _in_doubt(group: GroupOverview, now: datetime) -> Iterator[str]:
    waits = []
    for p in group.partitions:
        for doubt in p.in_doubt:
            left = doubt.seconds if doubt.until is None else (doubt.until - now).total_seconds()
            if left > 0:
                waits.append((p.name, _percent(doubt.key_range), f"{left:.0f}"))
    if waits:
        yield ""
        yield from table(("WAITS FOR AN EARLIER OWNER", "KEY HASHES", "SECONDS AT MOST"), waits)


def _events(events: Sequence[GroupEvent], letters: Mapping[str, str]) -> Iterator[str]:
    if events:
        yield ""
        yield from table(
            EVENT_COLUMNS,
            [
                (
                    event.epoch,
                    event.at,
                    _what(event, letters),
                    letters.get(event.by, event.by),
                    "yes" if event.counted else f"no: {event.reason}",
                )
                for event in reversed(events)
            ],
        )


def _what(event: GroupEvent, letters: Mapping[str, str]) -> str:
    if event.kind == "epoch":
        return members_text(event.members or 0)
    if event.kind == "takeover":
        replaced = event.replaces or ""
        return f"takes over from {letters.get(replaced, replaced)}"
    return "standalone claim" if event.kind == "claim" else "offsets set by an operator"


def _has(ranges: Iterable[KeyRange]) -> str:
    """Returns the size of key ranges, in whole partitions."""
    return f"{sum(key_range.size for key_range in ranges) / KeyRange().size:.2f}"


def shown_primary(status: PartitionStatus) -> object:
    """Returns the group's offset in Kafka, and whether another client wrote it."""
    if status.primary_offset is None or status.primary_is_ours:
        return status.primary_offset
    return f"{status.primary_offset:,} (not ours)"


def _percent(key_range: KeyRange) -> str:
    first, last = (100 * end / KeyRange().size for end in (key_range.first, key_range.last + 1))
    return f"{first:.1f} to {last:.1f} %"


def text_of(data: bytes | None) -> str | None:
    """Returns bytes as text; what is not UTF-8 is escaped."""
    return None if data is None else data.decode("utf-8", "backslashreplace")


def short(text: str | None) -> str | None:
    """Returns a text in one line, cut after 60 characters."""
    line = None if text is None else " ".join(text.split())
    return line if line is None or len(line) <= _MOST_TEXT else f"{line[: _MOST_TEXT - 1]}…"


def time_of(text: str, zone: tzinfo | None = None) -> datetime:
    """Returns an ISO 8601 time; one without a zone is of this zone, by default the local one.

    Raises:
        ValueError: It has another form.
    """
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=zone) if zone else found.astimezone()
