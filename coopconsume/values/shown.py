"""Texts of objects that a handler may have made: nothing here raises because of one."""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

#: Characters of an error text.
ERROR_CHARS = 500
#: Characters of a value that an error text shows.
_SHOWN_CHARS = 200
_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = _SHOWN_CHARS
_repr.maxdict = 20


def safely(call: Callable[[], Any]) -> Any:
    """Returns what a call returns; None if it raises, as a user's object may do anywhere."""
    try:
        return call()
    except BaseException:  # noqa: BLE001 - SystemExit too
        return None


def clean(text: Any, most: int = ERROR_CHARS) -> str:
    """Returns the beginning of a text, with what UTF-8 cannot hold escaped; "" of anything else."""
    # By the methods of `str` itself, as a subclass may have others; the answer is no subclass.
    begin = safely(lambda: str.__getitem__(text, slice(most)))
    return "" if begin is None else str.encode(begin, "utf-8", "backslashreplace").decode()[:most]


def shown(value: Any) -> str:
    """Returns a value for an error text, shortened, whatever it is."""
    text = clean(safely(lambda: _repr.repr(value)))
    kind = clean(safely(lambda: type(value).__name__)) or "unknown"
    return text or f"an object of type {kind}"
