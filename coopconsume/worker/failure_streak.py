"""Counts the failures in a row of a slot, for the circuit breaker. Pure; task-side."""

from __future__ import annotations


class FailureStreak:
    """Failures in a row; they trip at as many as the batch allows.

    Args:
        break_after: How many are too many; 0: it never trips.
        streak: How many there were as the slot ended its batch before.

    Attributes:
        number: The number of the answer that is settled; kept up only for failures, and at the end.
        tripped: The last of too many failures in a row; empty: nothing has tripped.
    """

    def __init__(self, break_after: int, streak: int) -> None:
        self.number = 0
        self.tripped = ""
        self._break_after = break_after
        self._streak = streak
        self._failed_at = 0
        self._has_counted_end = False

    @property
    def at_end(self) -> int:
        """The failures in a row with which the slot ends."""
        return self._streak if self.number == self._failed_at else 0

    def count(self, text: str, *, again: bool) -> None:
        """Counts a failed call.

        Args:
            text: Its error.
            again: Whether the record has failed in this batch before; then it counts once.
        """
        if self.number == self._failed_at:
            return  # It is of the same call.
        before = self._streak if self.number == self._failed_at + 1 else 0
        self._failed(text, max(1, before + (not again)))

    def count_before_calls(self, text: str) -> None:
        """Counts the end of a worker as one failure, however many records it is charged to."""
        if self._has_counted_end:
            return
        self._has_counted_end = True
        self._failed(text, 1 + self.at_end)

    def _failed(self, text: str, streak: int) -> None:
        self._streak, self._failed_at = streak, self.number
        if 0 < self._break_after <= streak:
            self.tripped = text
