"""Dead letters as tables, for text and the live page (pure)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from coopconsume.admin.records.tables import retry_command
from coopconsume.admin.tables import Table, cell, text_of
from coopconsume.texts import counted, one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coopconsume.admin.dead_letters.stored import Letter

#: The most characters of a key and a reason in a list.
_MOST: Final = 60


def letter_table(letters: Sequence[Letter]) -> Table:
    """Returns a row for each letter."""
    return Table(
        ("record", "key", "attempts", "given up", "status", "reason", "decided"),
        [
            (
                name_of(one), _key(one), one.attempts, moment(one.rejected_at),
                one.status, one_line(one.reason, _MOST), decided_on(one) or None,
            )
            for one in letters
        ],
    )  # fmt: skip


def next_replay(letters: Sequence[Letter], group: str, options: str) -> str:
    """Returns how to decide on a letter, a parked one if there is any; empty without an open one.

    Args:
        letters: The letters.
        group: The group id.
        options: The options that name the cluster, the commit table and the letters.
    """
    found = [one for one in letters if one.status in ("parked", "open")]
    if not found:
        return ""
    first = min(found, key=lambda one: one.status != "parked")
    place = first.topic, first.partition, first.offset
    command = retry_command(group, place, options, "dead-letters replay")
    return f"next: {command}\ndiscard in place of replay; --execute applies it"


def letter_facts(one: Letter) -> Table:
    """Returns what is known of a letter, but for its value and its trace."""
    headers = [(f"header {name}", text_of(value)) for name, value in one.headers]
    return Table(
        ("", "value"),
        [
            ("status", one.status), ("key", text_of(one.key)), ("reason", one.reason),
            ("attempts", str(one.attempts)), ("written", moment(one.timestamp)),
            ("given up", moment(one.rejected_at)), ("decided", decided_on(one) or None),
            ("topic id", one.topic_id or None),
            ("value", None if one.value is None else counted(len(one.value), "byte")), *headers,
        ],
    )  # fmt: skip


def name_of(one: Letter) -> str:
    """Returns the position of a record as text."""
    return f"{one.topic}-{one.partition}@{one.offset}"


def decided_on(one: Letter) -> str:
    """Returns who decided on a letter, when and why; empty without a decision."""
    by = one.by
    at = f"at {cell(moment(by.at_ms))}" if by.at_ms else ""
    who = f"by {by.name}" if by.name else ""
    text = " ".join(word for word in (who, at) if word)
    return f"{text}: {by.reason}" if by.reason else text


def moment(millis: int) -> object:
    """Returns milliseconds since the epoch as a time; a record may have any timestamp."""
    try:
        return datetime.fromtimestamp(millis / 1000, UTC)
    except (OSError, OverflowError, ValueError):
        return f"{millis} ms since 1970"


def _key(one: Letter) -> str | None:
    key = text_of(one.key)
    return None if key is None else one_line(key, _MOST)
