"""`State`: what a handler sees and leaves of a key. Task-side code."""

from __future__ import annotations

import copy
import datetime as dt
from typing import Any, Final

#: The value of a key that no record of the batch had so far.
UNREAD: Final = object()
#: Values of these types cannot be changed in place, so they are handed out without a copy.
_PLAIN: Final = frozenset({type(None), bool, bytes, float, int, str})


class SeenValues:
    """The values of keys of one partition, as the records of a batch have left them so far.

    Attributes:
        values: By key; None: it has no state.
        expiry: When values are gone, of those that do not stay.
        unseen: The value of all other keys: `UNREAD`, or None, as none of them has a state.
    """

    __slots__ = ("expiry", "unseen", "values")

    def __init__(self) -> None:
        self.values: dict[bytes, Any] = {}
        self.expiry: dict[bytes, dt.datetime] = {}
        self.unseen: Any = UNREAD

    def see(self, key: bytes, value: Any, expires: dt.datetime | None) -> None:
        """Notes the value of a key, and when it is gone; None: it stays."""
        self.values[key] = value
        if expires is not None:
            self.expiry[key] = expires
        elif self.expiry:
            self.expiry.pop(key, None)


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
        seen: Shows what the handler leaves to later records of the key; None: nothing does.
    """

    # In the class, as a state is made for each record.
    answer: Any = None
    is_changed = False
    _lifetime: float | None = None

    def __init__(
        self,
        value: Any,
        lifetime: float | None = None,
        key: bytes = b"",
        seen: SeenValues | None = None,
    ) -> None:
        self.key = key
        self._value = value
        self._default = lifetime
        self._seen = seen

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

    def pass_on(self, value: Any, expires: dt.datetime | None) -> None:
        """Shows later records of the key what its record has left, as it has succeeded."""
        if self._seen is not None:
            self._seen.see(self.key, value, expires)

    def __repr__(self) -> str:
        return f"State({self._value!r})"
