"""Times in sentences: with their date if it is not that of today, as tests run at midnight, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from datetime import datetime

#: A regular expression of a time with its zone.
TIME: Final = r"(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d UTC"


def with_and_without_date(at: datetime) -> tuple[str, str]:
    """Return both forms of a time in UTC."""
    return f"{at:%H:%M:%S} UTC", f"{at:%Y-%m-%d %H:%M:%S} UTC"
