"""The demo's own errors."""

from __future__ import annotations

from coopconsume.errors import CoopConsumeError


class DemoFailed(CoopConsumeError):
    """The demo could not be played to its end.

    Attributes:
        reason: What happened.
        log_tail: The last lines that the job wrote, if it wrote any.
    """

    def __init__(self, reason: str, log_tail: str = "") -> None:
        super().__init__(reason, log_tail)
        self.reason = reason
        self.log_tail = log_tail

    def __str__(self) -> str:
        tail = f"\nLast lines of the job's log:\n{self.log_tail}" if self.log_tail else ""
        return f"the demo's job failed: {self.reason}{tail}"


class BooksDoNotBalance(CoopConsumeError):
    """The demo's books show a fault.

    Attributes:
        complaints: What does not balance.
    """

    def __init__(self, complaints: tuple[str, ...]) -> None:
        super().__init__(complaints)
        self.complaints = complaints

    def __str__(self) -> str:
        return (
            f"the books do not balance: {'; '.join(self.complaints)} "
            "(coopconsume demo --keep keeps the tables and the history to look at)"
        )
