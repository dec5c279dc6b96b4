"""The text of values in what commands and notebooks show (pure)."""

from __future__ import annotations

from datetime import datetime


def cell(value: object) -> str:
    """Returns a value as text: numbers grouped, times with their zone, None as a dash.

    Control characters are escaped: a key or an error of a record must not reach a terminal as
    commands.
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S %Z}"
    return printable(str(value), kept="")


def printable(text: str, kept: str = "\n\t") -> str:
    """Returns a text with its control characters escaped, but for those that are ``kept``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept else repr(c)[1:-1] for c in text)
