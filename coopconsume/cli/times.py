"""Texts of commands: what records have, and times that people give."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import tzinfo

_MOST_TEXT = 60


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
