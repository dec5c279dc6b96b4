"""Options of a store that say how often and how soon a request is repeated, as for `deltalake`."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

#: Units of durations, in seconds.
_NAMES_OF_UNITS: Final = (
    ("ns nsec", 1e-9), ("us usec", 1e-6), ("ms msec millis", 1e-3),
    ("s sec secs second seconds", 1.0), ("m min mins minute minutes", 60.0),
    ("h hr hrs hour hours", 3_600.0),
)  # fmt: skip
_UNITS: Final = {word: seconds for words, seconds in _NAMES_OF_UNITS for word in words.split()}


def _duration(text: str) -> timedelta:
    """Return a duration such as `30s`, `500ms` or `1m 30s`, as `deltalake` reads it."""
    parts = re.findall(r"(\d+)\s*([a-z]+)\s*", text)
    if not parts or re.sub(r"\d+\s*[a-z]+\s*", "", text) or {u for _, u in parts} - {*_UNITS}:
        raise ValueError(f'failed to parse "{text}" as a duration such as 30s')
    return timedelta(seconds=sum(int(number) * _UNITS[unit] for number, unit in parts))


def _count(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text):
        raise ValueError(f'failed to parse "{text}" as a number such as 10')
    return int(text)


def _base(text: str) -> float:
    with suppress(ValueError):
        if (base := float(text)) > 1:  # by 1 the library ends a thread of its own
            return base
    raise ValueError(f'failed to parse "{text}" as a number above 1 such as 2')


REPEATS_OF: Final[dict[str, Callable[[str], Any]]] = {
    "max_retries": _count,
    "retry_timeout": _duration,
    "backoff_config.init_backoff": _duration,
    "backoff_config.max_backoff": _duration,
    "backoff_config.base": _base,
}
"""How the options of repeats of a request are read, by their names."""
