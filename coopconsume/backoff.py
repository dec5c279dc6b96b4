"""Failures in a row, and the pauses after them. Pure: callers pass the time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from random import Random

#: Failures in a row from which on they may be lasting.
_ENOUGH: Final = 3


@dataclass
class Backoff:
    """Counts failures in a row; each pause is twice as long as the one before, up to a limit.

    Attributes:
        first: Seconds of the pause after the first failure.
        longest: Seconds of a pause, at most.
        jitter: Draws a pause from half of these seconds to all of them, so that others that failed
            at the same time do not try again together; None: no jitter.
        failures: Failures since the last success.
        pause: Seconds of the pause after the last of them.
        not_before: When the next attempt is due.
    """

    first: float
    longest: float
    jitter: Random | None = None
    failures: int = 0
    pause: float = 0.0
    not_before: float = -math.inf
    _since: float = math.inf
    _is_denied: bool = False

    def failed(self, now: float, *, is_denied: bool = False) -> float:
        """Counts a failure.

        Args:
            now: The time.
            is_denied: Whether a right is missing; the pause is the longest until it is granted.

        Returns:
            The pause in seconds.
        """
        # The exponent is bounded first: 2.0 ** 2000 is an error, not infinity.
        pause = min(self.longest, self.first * 2.0 ** min(60, self.failures))
        if self.jitter is not None:
            pause *= 0.5 + 0.5 * self.jitter.random()
        self.failures, self._since = self.failures + 1, min(self._since, now)
        self.pause, self._is_denied = self.longest if is_denied else pause, is_denied
        self.not_before = now + self.pause
        return self.pause

    def succeeded(self) -> None:
        """Ends the row of failures."""
        self.failures, self.pause, self._is_denied = 0, 0.0, False
        self.not_before, self._since = -math.inf, math.inf

    def is_lasting(self, now: float, patience: float) -> bool:
        """Whether a job that is to end gives up: a right is missing, or failures go on."""
        return self._is_denied or (self.failures >= _ENOUGH and now - self._since >= patience)
