"""How many examples a costly property is tried on."""

from __future__ import annotations

from hypothesis import settings


def examples(most: int) -> int:
    """All of them, but a third where tests run every time and are to take less of it."""
    return most // 3 if settings.default is settings.get_profile("steady") else most
