"""Times that people give to commands."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import tzinfo


def time_of(text: str, zone: tzinfo | None = None) -> datetime:
    """Returns an ISO 8601 time; one without a zone is of this zone, by default the local one.

    Raises:
        ValueError: It has another form.
    """
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=zone) if zone else found.astimezone()
