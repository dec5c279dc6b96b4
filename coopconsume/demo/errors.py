"""The demo's own errors."""

from __future__ import annotations

from coopconsume.errors import CoopConsumeError


class DemoFailed(CoopConsumeError):
    """The demo did not finish.

    Attributes:
        reason: What happened.
        log_tail: The last lines of the job's log, if there are any.
    """

    def __init__(self, reason: str, log_tail: str = "") -> None:
        super().__init__(reason, log_tail)
        self.reason = reason
        self.log_tail = log_tail

    def __str__(self) -> str:
        tail = f"\nLast lines of the job's log:\n{self.log_tail}" if self.log_tail else ""
        return f"the demo's job failed: {self.reason}{tail}"


class DemoCheckFailed(CoopConsumeError):
    """A check of the demo failed.

    Attributes:
        problems: The failed checks.
    """

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return (
            f"checks of the demo failed: {'; '.join(self.problems)} "
            "(use coopconsume demo --keep to keep the tables and the history)"
        )
