"""Numbers, time spans and lines as people read them (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_NAMED: Final = 3


def counted(count: int, what: str) -> str:
    """Returns a number with the thing that it counts: ``1 member``, ``2 members``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def span(seconds: float) -> str:
    """Returns a time span in its largest unit, from seconds to days; what is over is 0 s."""
    seconds = max(0.0, seconds)
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def one_line(text: str, most: int) -> str:
    """Returns a text in one line of some characters at most."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def some(names: Sequence[str]) -> str:
    """Returns the first names, and how many more there are."""
    more = [f"{len(names) - _NAMED:,} more"] if len(names) > _NAMED else []
    return ", ".join([*names[:_NAMED], *more])
