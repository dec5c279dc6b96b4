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
        self._pauses = 0
        self._until = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds that are left; never below 0."""
        return max(0.0, self._until - time.monotonic())

    @property
    def is_over(self) -> bool:
        """Whether none are left."""
        return self.left == 0.0

    def pause(self) -> None:
        """Sleeps a little, longer each time, and not as long as others do."""
        self._pauses += 1
        longest = min(_LONGEST_PAUSE, _PAUSE * 2 ** min(self._pauses, 10), self.left)
        time.sleep(random.uniform(0, longest))  # noqa: S311 - only to get out of step
