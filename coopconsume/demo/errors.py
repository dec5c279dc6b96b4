"""The demo's own errors."""

from __future__ import annotations

from coopconsume.errors.base import DeclaredError


class DemoFailed(DeclaredError):
    """The demo did not finish.

    Attributes:
        reason: What happened.
        log_tail: The last lines of the job's log, if there are any.
    """

    reason: str
    log_tail: str = ""

    def __str__(self) -> str:
        tail = f"\nLast lines of the job's log:\n{self.log_tail}" if self.log_tail else ""
        return f"the demo's job failed: {self.reason}{tail}"


class DemoCheckFailed(DeclaredError):
    """A check of the demo failed.

    Attributes:
        problems: The failed checks.
    """

    problems: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"checks of the demo failed: {'; '.join(self.problems)} "
            "(use coopconsume demo --keep to keep the tables and the history)"
        )
