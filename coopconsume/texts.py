"""Numbers, time spans and lines as people read them (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_NAMED: Final = 3
#: When a failed record is tried again that is due, in a group on which nobody works.
WITH_A_JOB: Final = "when a job runs"


def counted(count: int, what: str) -> str:
    """Returns a number with the thing that it counts: ``1 member``, ``2 members``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def tries(attempts: int) -> str:
    """Returns how far a failed record is: ``attempt 3``; ``postponed`` before any attempt."""
    return f"attempt {attempts}" if attempts else "postponed"


def failures(attempts: int) -> str:
    """Returns how often a failed record has failed: ``failed 3 times``; else as `tries`."""
    return f"failed {counted(attempts, 'time')}" if attempts else tries(attempts)


def span(seconds: float) -> str:
    """Returns a time span in its largest unit, from seconds to days; what is over is 0 s."""
    seconds = max(0.0, seconds)
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def due_in(seconds: float, *, is_worked_on: bool) -> str:
    """Returns in what time a failed record is tried again; `WITH_A_JOB` if nobody does it now.

    Args:
        seconds: Until it is due.
        is_worked_on: Whether the group has members or claims.
    """
    return span(seconds) if is_worked_on or seconds > 0 else WITH_A_JOB


def one_line(text: str, most: int) -> str:
    """Returns a text in one line of some characters at most."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def some(names: Sequence[str]) -> str:
    """Returns the first names, and how many more there are."""
    more = [f"{len(names) - _NAMED:,} more"] if len(names) > _NAMED else []
    return ", ".join([*names[:_NAMED], *more])


def printable(text: str, kept: str = "\n\t") -> str:
    """Returns a text with its control characters escaped, but for those that are ``kept``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept else repr(c)[1:-1] for c in text)
