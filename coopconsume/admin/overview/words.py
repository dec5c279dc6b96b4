"""Words for people that several views of a group share (pure)."""

from __future__ import annotations


def members_text(count: int) -> str:
    """Returns a number of members in words."""
    return f"{count} member{'' if count == 1 else 's'}"
