"""Seconds that a call may take, and pauses between its attempts."""

from __future__ import annotations

import random
import time
from typing import Final

_PAUSE: Final = 0.005
_LONGEST_PAUSE: Final = 0.2


def monotonic() -> float:
    """Seconds on a clock that never steps."""
    return time.monotonic()


class Deadline:
    """Some seconds from now on."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._until = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds that are left; never below 0."""
        return max(0.0, self._until - time.monotonic())

    @property
    def is_over(self) -> bool:
        """Whether none are left."""
        return self.left == 0.0

    def pause(self, attempt: int) -> None:
        """Sleep a little, longer after more attempts, and not as long as others do."""
        longest = min(_LONGEST_PAUSE, _PAUSE * 2 ** min(attempt, 10), self.left)
        time.sleep(random.uniform(0, longest))  # noqa: S311 - only to get out of step
