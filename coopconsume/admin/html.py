"""Shows the parts of a status as HTML for notebooks, with maps of the hash space (pure).

The HTML contains no script. Maps and headlines have the colours of `admin.tables`; everything else
uses the notebook's theme.
"""

from __future__ import annotations

import logging
import threading
from html import escape
from typing import TYPE_CHECKING, TypeVar

from assignors import KeyRange
from coopconsume.admin.tables import Headline, KeyRangeMap, OwnedPart, Owner, Table, cell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from coopconsume.admin.tables import Part

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_WIDTH, _HEIGHT = 320, 14


def html(parts: Iterable[Part]) -> str:
    """Returns sentences as paragraphs and tables as tables, in one element."""
    return f"<div>{''.join(map(_part, parts))}</div>"


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


def _part(part: Part) -> str:
    if isinstance(part, Table):
        return _table(part)
    if isinstance(part, Headline):
        style = f"color:{part.colour};font-weight:bold"
        return f'<p style="{style}">{escape(cell(part.text))}</p>'
    return _text(part)


def _text(sentence: str) -> str:
    return f"<p>{escape(cell(sentence))}</p>" if sentence else ""


def _table(table: Table) -> str:
    sides = ["right" if one else "left" for one in table.numeric]
    style = [f'style="text-align:{side}"' for side in sides]
    head = "".join(
        f"<th {at}>{escape(title)}</th>" for title, at in zip(table.titles, style, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(f"<td {at}>{_cell(value)}</td>" for value, at in zip(row, style, strict=True))
        + "</tr>"
        for row in table.rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    if isinstance(value, KeyRangeMap):
        return _map(value.parts, _WIDTH)
    if isinstance(value, Owner):
        return f"{_map([OwnedPart(KeyRange(), value, str(value))], _HEIGHT)} {value}"
    return escape(cell(value))


def _map(parts: Iterable[OwnedPart], width: int) -> str:
    """Returns a picture of the hash space: ranges with the colours of their owners."""
    space = KeyRange().size
    shown = "".join(
        f'<rect x="{width * part.first / space:.2f}" y="0" width="{width * part.size / space:.2f}" '
        f'height="{_HEIGHT}" fill="{owner.colour}"><title>{escape(tooltip)}</title></rect>'
        for part, owner, tooltip in parts
    )
    frame = (
        f'<rect x="0.5" y="0.5" width="{width - 1}" height="{_HEIGHT - 1}" fill="none" '
        'stroke="currentColor" stroke-opacity="0.4"/>'
    )
    return f'<svg width="{width}" height="{_HEIGHT}" role="img">{shown}{frame}</svg>'
