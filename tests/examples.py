"""How many examples a costly property is tried on."""

from __future__ import annotations

from hypothesis import settings


def examples(most: int) -> int:
    """All of them where they are new ones each time, and a third where they are always the same."""
    return most // 3 if settings.default.derandomize else most
