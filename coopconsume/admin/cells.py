"""The text of values in the tables of commands and notebooks (pure)."""

from __future__ import annotations

from datetime import datetime


def cell(value: object) -> str:
    """Returns a value as text: numbers grouped, times with their zone, None as a dash.

    Control characters are escaped: a key or an error of a record must not reach a terminal as
    commands.
    """
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S %Z}"
    text = str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
