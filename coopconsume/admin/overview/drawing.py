"""Renders groups and assignments as HTML for notebooks, with maps of the hash space (pure).

The HTML contains no script. The colours of the maps are those of Okabe and Ito, as in
`coopconsume.admin.pictures`; everything else uses the notebook's theme.
"""

from __future__ import annotations

import logging
import threading
from html import escape
from typing import TYPE_CHECKING, Any, Final, TypeVar

from assignors import KeyRange
from coopconsume.admin.cells import cell
from coopconsume.admin.overview.words import members_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from coopconsume.admin.overview import GroupOverview, OwnedRange, PartitionOverview

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_COLOURS: Final = (
    "#56b4e9", "#e69f00", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7",
)  # fmt: skip
_WIDTH, _HEIGHT = 320, 14
_SHOWN_EVENTS = 10


def group_html(group: GroupOverview, me: str | None = None) -> str:
    """Returns the HTML of a group: members, partitions with maps, and events.

    Args:
        group: The group.
        me: The id of the member to highlight.
    """
    colours = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(group.owners)}
    epoch = "" if group.epoch is None else f", epoch {group.epoch}"
    title = f"<b>group {escape(group.group)}</b>: {escape(group.state)}{epoch}"
    found = [f"<p>{title}, {group.lag:,} records not done</p>"]
    if group.record_filter:
        found.append(f"<p>filter {escape(group.record_filter)}</p>")
    found += [f"<p>{escape(note)}</p>" for note in group.notes]
    found.append(_members(group, colours, me))
    found.append(
        _table(
            (
                "partition",
                "key hashes",
                "stable",
                "end",
                "done above",
                "gaps",
                "not done",
                "blocker",
            ),
            (_partition(partition, colours) for partition in group.partitions),
        )
    )
    if group.events:
        found.append(
            _table(
                ("epoch", "when", "what", "by", "counted"),
                (
                    (
                        _text(event.epoch),
                        _text(event.at),
                        _text(event.kind if event.members is None else members_text(event.members)),
                        _text(event.by),
                        "yes" if event.counted else f"no: {escape(event.reason)}",
                    )
                    for event in reversed(group.events[-_SHOWN_EVENTS:])
                ),
            )
        )
    return f"<div>{''.join(found)}</div>"


def assignment_html(ranges: Mapping[tuple[str, int], Sequence[KeyRange]]) -> str:
    """Returns the HTML of the key ranges of each partition, with a map of the hash space."""
    rows = (
        (
            _text(f"{topic}-{partition}"),
            _bar([(key_range, _COLOURS[0], str(key_range)) for key_range in owned]),
        )
        for (topic, partition), owned in sorted(ranges.items())
    )
    return f"<div>{_table(('partition', 'key hashes'), rows)}</div>"


def progress_html(title: str, partitions: Iterable[Mapping[str, Any]]) -> str:
    """Returns the HTML of a query: its title, and its partitions as in progress events."""
    rows = (
        (
            _text(f"{at['topic']}-{at['partition']}"),
            *(_text(at[field]) for field in ("stableOffset", "endOffset", "lag", "gapRanges")),
            _blocking(at["blocker"]),
        )
        for at in partitions
    )
    table = _table(("partition", "stable", "end", "not done", "gaps", "blocker"), rows)
    return f"<div><p>{escape(title)}</p>{table}</div>"


def settings_html(title: str, settings: Mapping[str, object]) -> str:
    """Returns the HTML of a title and a table of settings."""
    rows = ((_text(name), _text(value)) for name, value in settings.items())
    return f"<div><p>{escape(title)}</p>{_table(('setting', 'value'), rows)}</div>"


def _blocking(blocker: Mapping[str, Any] | None) -> str:
    if blocker is None:
        return ""
    key = f" key {blocker['key']}," if blocker["key"] is not None else ""
    found = f"{blocker['offset']:,},{key} {blocker['state']} for {blocker['ageSeconds']:,} s"
    if blocker["attempts"]:
        found += f", failed {blocker['attempts']} times: {blocker['error']}"
    return _text(found)


def in_time(seconds: float, draw: Callable[[], _T]) -> _T | None:
    """Returns the drawing; None if it fails or takes too long, so that the text is shown."""
    found: list[_T] = []

    def try_it() -> None:
        try:
            found.append(draw())
        except Exception:
            log.debug("the HTML could not be drawn", exc_info=True)

    thread = threading.Thread(target=try_it, name="coopconsume-drawing", daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else None


def _members(group: GroupOverview, colours: Mapping[str, str], me: str | None) -> str:
    rows = []
    for member in group.members:
        name = escape(member.id) + (" <b>(this one)</b>" if member.id == me else "")
        place = " ".join(filter(None, (member.host, member.client_id)))
        shown = (_text(place), _text(member.slots), _text(member.status))
        rows.append((_bar([(KeyRange(), colours[member.id], member.id)], _HEIGHT), name, *shown))
    for claim in group.claims:
        name = escape(claim.member) + (" <b>(this one)</b>" if claim.member == me else "")
        square = _bar([(KeyRange(), colours[claim.member], claim.member)], _HEIGHT)
        rows.append((square, name, "", "", f"standalone claim {claim.epoch}"))
    return _table(("", "member", "host, client", "slots", "status"), rows)


def _partition(p: PartitionOverview, colours: Mapping[str, str]) -> tuple[str, ...]:
    gaps = len(p.open_ranges)
    offsets = (p.stable_offset, p.end_offset, p.committed_above, gaps, p.lag)
    parts = _bar([_part(owned, colours) for owned in p.owners])
    return (_text(p.name), parts, *map(_text, offsets), _blocker(p))


def _blocker(p: PartitionOverview) -> str:
    blocker = p.blocker
    if blocker is None:
        return ""
    since = f" since {_text(blocker.since)}" if blocker.since else ""
    key = f", key {_text(blocker.shown_key)}" if blocker.shown_key is not None else ""
    if blocker.deleted_by or not blocker.attempts:
        return f"{blocker.offset:,}{key}, {blocker.shown_state}{since}"
    error = _text(blocker.error)
    return f"{blocker.offset:,}{key}, failed {blocker.attempts} times{since}: {error}"


def _part(owned: OwnedRange, colours: Mapping[str, str]) -> tuple[KeyRange, str, str]:
    colour = colours.get(owned.member, _COLOURS[-1])
    return (owned.key_range, colour, f"{owned.member} {owned.key_range}")


def _bar(parts: Iterable[tuple[KeyRange, str, str]], width: int = _WIDTH) -> str:
    """Returns a picture of the hash space: ranges with their colours and tooltips."""
    space = KeyRange().size
    shown = "".join(
        f'<rect x="{width * part.first / space:.2f}" y="0" width="{width * part.size / space:.2f}" '
        f'height="{_HEIGHT}" fill="{colour}"><title>{escape(tooltip)}</title></rect>'
        for part, colour, tooltip in parts
    )
    frame = (
        f'<rect x="0.5" y="0.5" width="{width - 1}" height="{_HEIGHT - 1}" fill="none" '
        'stroke="currentColor" stroke-opacity="0.4"/>'
    )
    return f'<svg width="{width}" height="{_HEIGHT}" role="img">{shown}{frame}</svg>'


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{_text(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(f'<td>{html}</td>' for html in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _text(value: object) -> str:
    return escape(cell(value))
