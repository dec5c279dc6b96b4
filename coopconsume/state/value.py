"""`State`: what a handler sees and leaves of a key. Task-side code."""

from __future__ import annotations

import copy
import datetime as dt
from typing import Any, Final

#: Values of these types cannot be changed in place, so they are handed out without a copy.
_PLAIN: Final = frozenset({type(None), bool, bytes, float, int, str})


class State:
    """The state of a record's key, as a handler sees it before the record and leaves it after.

    A change counts if the handler succeeds and the record is committed. It is not visible to
    anybody else before that.

    Attributes:
        key: The key.
        is_changed: Whether the handler has changed it.
        answer: What the handler has answered, once it has changed the state and returned.

    Args:
        value: The value before the record; None if the key has no state.
        lifetime: Seconds after which a value is gone that the handler sets; None: it stays.
        key: The key.
    """

    __slots__ = ("_default", "_lifetime", "_value", "answer", "is_changed", "key")

    def __init__(self, value: Any, lifetime: float | None = None, key: bytes = b"") -> None:
        self.key = key
        self._value = value
        self._default = lifetime
        self._lifetime: float | None = None
        self.is_changed = False
        self.answer: Any = None

    def get(self, default: Any = None) -> Any:
        """Returns the value: as the schema says, a struct as a dictionary.

        Args:
            default: Returned if the key has no state.
        """
        value = self._value
        if value is None:
            return default
        return value if type(value) in _PLAIN else copy.deepcopy(value)

    @property
    def exists(self) -> bool:
        """Whether the key has a state."""
        return self._value is not None

    def set(self, value: Any) -> None:
        """Sets the value, with the time to live of the job, if it has one.

        Args:
            value: A value of the state schema; None is the same as `clear`. It is checked when the
                handler returns: one that does not fit fails the record.
        """
        self._value = value if type(value) in _PLAIN else copy.deepcopy(value)
        self._lifetime = self._default
        self.is_changed = True

    def clear(self) -> None:
        """Removes the state of the key."""
        self.set(None)

    def ttl(self, duration: float | str) -> None:
        """Sets the time after which the state of the key is gone, from now.

        Args:
            duration: Seconds, or text such as ``"1 day"``; above 0.

        Raises:
            ValueError: The duration is not a time above 0, or the key has no state.
        """
        from coopconsume.option_values import parse_seconds

        seconds = parse_seconds(duration) if isinstance(duration, str) else float(duration)
        if not 0 < seconds < float("inf"):
            raise ValueError(f"ttl({duration!r}): give a time above 0, such as '1 day'")
        if self._value is None:
            raise ValueError("ttl(): the key has no state; call set() first")
        self._lifetime = seconds
        self.is_changed = True

    def left(self) -> tuple[Any, dt.datetime | None]:
        """Returns the value that the handler has left, and when it is gone; None: it stays."""
        if self._lifetime is None or self._value is None:
            return self._value, None
        return self._value, dt.datetime.now(dt.UTC) + dt.timedelta(seconds=self._lifetime)

    def __repr__(self) -> str:
        return f"State({self._value!r})"
