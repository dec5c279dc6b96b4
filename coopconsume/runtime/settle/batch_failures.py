"""Batches that fail: how often in a row, and what Spark says of it in one line."""

from __future__ import annotations

from typing import Final

#: Batches that fail in a row until the job ends; the second one may begin at once.
MOST_FAILURES: Final = 4
# What errors begin with whose own words come later.
_OF_PY4J = "An error occurred while calling"
_OF_PYTHON = "An exception was thrown from the Python worker"


class BatchFailures:
    """Counts how often batches failed without a record handled in between.

    Batches that ran side by side and failed together are one failure: a lost executor takes all
    that ran on it.
    """

    def __init__(self) -> None:
        self.count = 0
        self._last = 0.0

    def failed(self, started: float, now: float, *, handled: bool) -> int:
        """Takes the failure of a batch.

        Args:
            started: When it was started, in seconds.
            now: The time now, on the same clock.
            handled: Whether one of its slots reported handled records, or the records that it
                wanted were deleted.

        Returns:
            The number of failures in a row.
        """
        if handled:
            self.count = 0
        elif started > self._last:
            self.count += 1
            self._last = now
        return self.count

    def is_first(self, started: float) -> bool:
        """Returns whether a batch that fails now is the first in a row, or fails with the first.

        Args:
            started: When it was started, in seconds.
        """
        return self.count + (started > self._last) <= 1

    def succeeded(self) -> None:
        """Takes the success of a batch."""
        self.count = 0


def reason(error: BaseException) -> str:
    """Returns the line of an error's text that says what went wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].startswith(_OF_PYTHON):
        return lines[-1]
    own = [line.removeprefix(": ") for line in lines if not line.startswith(_OF_PY4J)]
    return next(iter(own), type(error).__name__)
