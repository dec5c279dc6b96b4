"""Rows and lines of history as JSON, the same in every store; checked when they are read."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from coopconsume.errors.fenced import OwnershipFormat
from coopconsume.fenced.access import AccessMode
from coopconsume.fenced.ownership.model import Entry, Holder, Row, Session

__all__ = [
    "FORMAT", "dumps", "entry_of", "is_newer", "loads", "plain_entry", "plain_row", "row_of",
]  # fmt: skip

FORMAT = 1
"""Version of what is written; a reader stops at one that it does not know."""


def dumps(document: Any) -> bytes:
    """Compact JSON."""
    return json.dumps(document, separators=(",", ":")).encode()


def loads(place: str, text: bytes | str | None) -> dict[str, Any]:
    """A JSON object of a known format.

    Raises:
        OwnershipFormat: It is something else.
    """
    try:
        found = json.loads(text or b"")
    except ValueError:
        raise OwnershipFormat(place, "no JSON", "what an ownership store writes") from None
    if not isinstance(found, dict) or "format" not in found:
        raise OwnershipFormat(place, "other JSON", "what an ownership store writes")
    if found["format"] != FORMAT:
        raise OwnershipFormat(place, f"format {found['format']}", f"format {FORMAT}")
    return found


def is_newer(text: bytes | str | None) -> bool:
    """Whether a newer version of this library wrote a change or a snapshot."""
    try:
        found = json.loads(text or b"")
    except ValueError:
        return False
    return (
        isinstance(found, dict)
        and found.get("kind") in {"change", "snapshot"}
        and type(found.get("format")) is int
        and found["format"] > FORMAT
    )


def plain_row(row: Row) -> dict[str, Any]:
    """A row as JSON has it."""
    return asdict(row)


def row_of(place: str, found: dict[str, Any]) -> Row:
    """A row from JSON.

    Raises:
        OwnershipFormat: If it is no row.
    """
    try:
        owner, shared, waiters = found["owner"], found["shared"], found["waiters"]
        last = found["last"]
        return Row(
            **found
            | {
                "owner": None if owner is None else _holder(owner),
                "shared": tuple(map(_holder, shared)),
                "waiters": tuple(map(_holder, waiters)),
                "last": None if last is None else Session(**last),
            }
        )
    except (KeyError, TypeError, ValueError) as error:
        problem = f"a row with {type(error).__name__} {error}"
        raise OwnershipFormat(place, problem, "a row of the registry") from None


def plain_entry(entry: Entry) -> dict[str, Any]:
    """A line of history as JSON has it."""
    return asdict(entry)


def entry_of(place: str, found: dict[str, Any]) -> Entry:
    """A line of history from JSON.

    Raises:
        OwnershipFormat: It is something else.
    """
    try:
        return Entry(**found)
    except TypeError as error:
        raise OwnershipFormat(place, f"an entry: {error}", "a line of history") from None


def _holder(found: dict[str, Any]) -> Holder:
    mode = found["mode"]
    session = Session(**found["session"])
    return Holder(
        **found | {"session": session, "mode": None if mode is None else AccessMode(mode)}
    )
