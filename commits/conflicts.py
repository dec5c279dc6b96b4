"""Repeats writes to Delta tables that conflict with those of other writers."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable


T = TypeVar("T")

MOST_TRIES: Final = 20
"""The maximum number of attempts of a write that conflicts with commits of other writers."""

#: The maximum pause after the first conflict, in seconds; it grows with each conflict.
_PAUSE: Final = 0.05


def repeated_write(write: Callable[[], T]) -> T:
    """Open a Delta table and write to it; repeat both after a conflict with another writer.

    A conflicting write has no effect. It conflicts if another writer has removed rows since the
    table was opened.

    Args:
        write: Opens the table and writes to it.

    Returns:
        What the write returns.

    Raises:
        deltalake.exceptions.CommitFailedError: It conflicts at each attempt.
    """
    from deltalake.exceptions import CommitFailedError

    for conflicts in range(1, MOST_TRIES):
        try:
            return write()
        except CommitFailedError:
            time.sleep(random.uniform(0, _PAUSE * conflicts))  # noqa: S311 - no secret
    return write()
