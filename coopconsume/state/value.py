"""`State`: what a handler sees and leaves of a key. Task-side code."""

from __future__ import annotations

import copy
import datetime as dt
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from coopconsume.record import Record

#: Values of these types cannot be changed in place, so they are handed out without a copy.
_PLAIN: Final = frozenset({type(None), bool, bytes, float, int, str})


class State:
    """The state of a record's key, as a handler sees it before the record and leaves it after.

    A change counts if the handler succeeds and the record is committed. It is not visible to
    anybody else before that.

    Args:
        value: The value before the record; None if the key has no state.
        lifetime: Seconds after which a value is gone that the handler sets; None: it stays.
    """

    __slots__ = ("_default", "_lifetime", "_value", "is_changed")

    def __init__(self, value: Any, lifetime: float | None = None) -> None:
        self._value = value
        self._default = lifetime
        self._lifetime: float | None = None
        self.is_changed = False

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

    def change(self, answer: Any, record: Record) -> Any:
        """Returns what the handler of a record has answered, with the change if it made one."""
        if not self.is_changed:
            return answer
        expires = None
        if self._lifetime is not None and self._value is not None:
            expires = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=self._lifetime)
        return Change(answer, record.topic, record.partition, record.key, self._value, expires)

    def __repr__(self) -> str:
        return f"State({self._value!r})"


class Change(NamedTuple):
    """What a handler answered, and the change of the state that it made.

    Attributes:
        answer: The answer.
        topic: The topic of the record.
        partition: Its partition.
        key: Its key.
        value: The value that the handler left; None: it removed the state.
        expires: When the value is gone; None: it stays.
    """

    answer: Any
    topic: str
    partition: int
    key: bytes | None
    value: Any
    expires: dt.datetime | None
