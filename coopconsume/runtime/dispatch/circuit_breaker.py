"""Pauses a job while the service that its handlers call is down. Pure: callers pass the time."""

from __future__ import annotations

from typing import Any, Literal

from coopconsume.backoff import Backoff

#: Each failed trial doubles the pause, up to this factor.
_LONGEST = 10
#: Offsets of the first trial, and the factor for the next one if no record was handled.
_TRIAL_OFFSETS = 200
_LONGER = 64

State = Literal["closed", "open", "trial"]


class JobCircuitBreaker:
    """A circuit breaker over all slots of a job.

    It opens when a slot reports `failures` failures in a row; while it is open, no batch starts.
    After the pause, one slot gets a few records as a trial. The first failure opens the breaker
    again for twice the time. A trial in which records are handled closes it.

    Attributes:
        failures: Failures in a row in one slot that open it; None: it never opens.
        state: ``closed``, ``open`` or ``trial``.
        until: When the pause ends.
        opened: How often it has opened.
        reason: The error that opened it last.
        trial_offsets: Offsets of the next trial, at most.
    """

    def __init__(self, failures: int | None, pause: float) -> None:
        self.failures = failures
        self._trips = Backoff(pause, pause * _LONGEST)
        self.state: State = "closed"
        self.until = 0.0
        self.opened = 0
        self.reason = ""
        self.trial_offsets = _TRIAL_OFFSETS

    def may_start(self, now: float) -> bool:
        """Whether a batch may start; after a pause, the one batch of a trial."""
        if self.state == "open" and now >= self.until:
            self.state = "trial"
        return self.state != "open"

    def reported(self, tripped: str, handled: int, now: float, *, trial: bool) -> bool:
        """Takes the report of a slot.

        Args:
            tripped: The error with which the slot reached the limit, or empty.
            handled: Handler calls made.
            now: The time.
            trial: Whether its batch is a trial.

        Returns:
            Whether it opened just now.
        """
        if tripped and (trial or self.state == "closed"):
            if not trial:
                self._trips.succeeded()
            self.state, self.reason = "open", tripped
            self.until = now + self._trips.failed(now)
            self.opened += 1
            self.trial_offsets = _TRIAL_OFFSETS
            return True
        if trial and handled and self.state == "trial":
            self.state = "closed"
        elif trial:  # The filter may have dropped all of its records.
            self.trial_offsets *= _LONGER
        return False

    def describe(self, now: float) -> dict[str, Any] | None:
        """Returns its state for progress events; None if it never opens."""
        if self.failures is None:
            return None
        left = max(0.0, self.until - now) if self.state == "open" else 0.0
        return {
            "state": self.state,
            "opened": self.opened,
            "resumesInSeconds": round(left, 1),
            "reason": self.reason,
        }
