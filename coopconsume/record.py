"""What a handler gets and what it may answer. Task-side: the standard library alone."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, get_args

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # Defaults of type variables need Python 3.13.
    KeyT_co = TypeVar("KeyT_co", covariant=True, default=bytes | None)
    ValueT_co = TypeVar("ValueT_co", covariant=True, default=bytes | None)
else:
    from typing import TypeVar

    KeyT_co = TypeVar("KeyT_co", covariant=True)
    ValueT_co = TypeVar("ValueT_co", covariant=True)

#: What a record that ends as a dead letter does to its key: later records go on, or wait.
OnDead = Literal["continue", "park"]
#: What becomes of a record whose key or value does not decode.
OnUndecodable = Literal["reject", "park", "retry"]
#: Record headers: pairs of a name and bytes, or None.
Headers = tuple[tuple[str, bytes | None], ...]
#: The fields of a record as it is in Kafka: a `Record`, or a plain tuple, which is faster to make.
Fields = tuple[str, int, int, bytes | None, bytes | None, int, Headers, int]


class Record(NamedTuple, Generic[KeyT_co, ValueT_co]):
    """One Kafka record as a handler sees it.

    ``Record[K, V]`` has a key of type K and a value of type V, as ``key=`` and ``value=`` declare
    them; ``Record`` alone has bytes, or None.

    Attributes:
        topic: Name of the topic.
        partition: Number of the partition.
        offset: Offset within the partition.
        key: Key bytes, or None; records without a key have no order to keep.
        value: Value bytes, or None for a tombstone.
        timestamp: Milliseconds since the epoch, as the topic's timestamp type defines it.
        headers: Pairs of name and bytes: the record's own, if ``includeHeaders`` or
            ``traceHandlers`` is true, dead letters are kept or there is an ``orderingKey``, and
            those that `Retry` has added.
            With ``orderingKey``, `ORDERING_KEY` is among them.
        attempt: 1 the first time, one more after each failure; survives restarts.
    """

    topic: str
    partition: int
    offset: int
    key: KeyT_co
    value: ValueT_co
    timestamp: int
    headers: Headers = ()
    attempt: int = 1


def time_of(millis: int) -> datetime:
    """Returns the time of a record, which may be any number, or the nearest `datetime`."""
    try:
        return datetime.fromtimestamp(millis / 1000, UTC)
    except (OSError, OverflowError, ValueError):
        latest, earliest = datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)
        return latest if millis > 0 else earliest


def exhausted(answer: Any) -> Any:
    """Returns a handler's answer; if it is a generator, the rows that it yields, as a list."""
    return list(answer) if type(answer) is GeneratorType else answer


#: The longest wait, in seconds, before a record is tried again: 365 days.
MAX_WAIT = 31_536_000.0


def usable_seconds(given: Any) -> float | None:
    """Returns a wait as a float from 0 to `MAX_WAIT`; None if it is no such number."""
    if isinstance(given, str | bytes | bytearray):
        return None
    try:
        seconds = float(given)
    except Exception:  # noqa: BLE001 - any object may stand here
        return None
    return seconds if 0 <= seconds <= MAX_WAIT else None


#: The largest size of all headers that `Retry` adds to a record: UTF-8 bytes of their names, and
#: bytes of their values.
MAX_ADDED_BYTES = 1_024


def checked_headers(given: Any) -> Headers:
    """Returns headers that are to be added to a record, as pairs; `ORDERING_KEY` is left out.

    Raises:
        ValueError: They are no mapping or list of names and bytes, or exceed `MAX_ADDED_BYTES`.
    """
    pairs = tuple(given.items()) if isinstance(given, Mapping) else given
    if not isinstance(pairs, list | tuple):
        kind = type(given).__name__
        raise ValueError(  # noqa: TRY004 - as for other values that a handler gives
            f"headers of type {kind}: give a mapping or a list of (name, bytes)"
        )
    headers = tuple(_checked_header(pair) for pair in pairs)
    # A handler may add all headers that its record has.
    headers = without_ordering_key(headers)
    size = sum(len(name.encode()) + len(value or b"") for name, value in headers)
    if size > MAX_ADDED_BYTES:
        raise ValueError(
            f"the added headers of a record have {size:,} bytes: give at most {MAX_ADDED_BYTES:,}"
        )
    return headers


def _checked_header(pair: Any) -> tuple[str, bytes | None]:
    match pair:
        case (str(name), bytes() | None as value):
            # Without their classes, which the driver may not have.
            plain = str.encode(name, "utf-8", "backslashreplace").decode()
            if plain != name:
                raise ValueError(f"UTF-8 cannot encode the name of the header {plain}")
            return plain, None if value is None else b"".join((value,))
        case (str(name), value):
            kind = type(value).__name__
            raise ValueError(f"the value of header {name!r} is of type {kind}: give bytes or None")
    raise ValueError(f"a header of type {type(pair).__name__}: give (name, bytes)")


#: The header that the option ``orderingKey`` sets: the ordering key of the record, or None.
ORDERING_KEY: Final = "coopconsume.ordering_key"


def ordering_key_of(headers: Headers) -> bytes | None:
    """Returns the ordering key of a record by its headers; None if it has none."""
    return next((value for name, value in headers if name == ORDERING_KEY), None)


def without_ordering_key(headers: Headers) -> Headers:
    """Returns headers without the ordering key."""
    return tuple(one for one in headers if one[0] != ORDERING_KEY)


#: Characters of a key that people are shown.
_SHOWN: Final = 64
#: Bytes of a key that `shown_key` looks at, at most; a character has up to four.
SHOWN_KEY_BYTES: Final = 4 * (_SHOWN + 1)


def shown_key(key: bytes | None) -> str | None:
    """Returns a key as text for people; None for None.

    Bytes that are not UTF-8 are escaped. Of a long key it has the first 64 characters, and ``…``.
    """
    if key is None:
        return None
    text = key[:SHOWN_KEY_BYTES].decode("utf-8", "backslashreplace")
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def with_added(headers: Headers, added: Headers) -> Headers:
    """Returns headers with further ones, which replace those of the same names."""
    names = {name for name, _ in added}
    return (*(one for one in headers if one[0] not in names), *added)


class Retry(Exception):
    """Raised or returned by a handler: not done, try this record again.

    Args:
        after: Seconds to wait at least, 0 to 31,536,000 (365 days); None leaves it to the retry
            policy's backoff.
        reason: Kept with the pending record and shown to operators; text, or any object, such as
            the error that is the reason.
        headers: Headers that all later attempts and the dead letter have besides the record's own:
            a mapping or a list of (name, bytes). A header replaces those of the same name. They
            are kept with the pending record, at most 1,024 bytes of names and values in all.
        counts: Whether the call counts as an attempt. If not, the record has as many attempts left
            as before, and its next call has the same `Record.attempt`.

    Raises:
        ValueError: ``after`` is no such number, ``headers`` are no such pairs or too large, or
            ``counts`` is neither true nor false.
    """

    # For subclasses that do not call this class's ``__init__``.
    after: float | None = None
    reason: object = ""
    headers: Headers = ()
    counts: bool = True

    def __init__(
        self,
        after: float | None = None,
        reason: object = "",
        headers: Any = (),
        *,
        counts: bool = True,
    ) -> None:
        if after is not None and usable_seconds(after) is None:
            raise ValueError(f"Retry(after={after!r}): give seconds from 0 to {MAX_WAIT:.0f}")
        if not isinstance(counts, bool):
            raise ValueError(f"Retry(counts={counts!r}): give True or False")  # noqa: TRY004
        self.headers = checked_headers(headers)
        super().__init__(after, reason, *([self.headers] if self.headers else []))
        self.after = after
        self.reason = reason
        self.counts = counts

    @classmethod
    def after_response(cls, headers: Any, reason: object = "", *, counts: bool = True) -> Retry:
        """Returns a `Retry` that waits as the ``Retry-After`` header of a response says.

        The header is a number of seconds or an HTTP date. A date counts from the ``Date`` header of
        the response, else from the clock of this host. A time that has passed is 0 seconds, one
        beyond 365 days is 365 days. Without the header, or if it is neither, the retry policy's
        backoff counts.

        Args:
            headers: The headers of the response, as HTTP clients have them: a mapping or pairs of
                names and values; upper and lower case are the same.
            reason: As for `Retry`.
            counts: As for `Retry`.

        Raises:
            ValueError: ``headers`` are no such headers.
        """
        return cls(_seconds_after(headers), reason, counts=counts)

    def __str__(self) -> str:
        return reason_text(self.reason) or "retry asked for"


def _seconds_after(headers: Any) -> float | None:
    """Returns the seconds that the ``Retry-After`` header of a response asks for."""
    fields = _response_fields(headers)
    asked = fields.get("retry-after", "")
    if asked.isascii() and asked.isdigit():
        return min(float(asked), MAX_WAIT)
    due = _http_date(asked)
    if due is None:
        return None
    now = _http_date(fields.get("date", "")) or datetime.now(UTC)
    return min(max(0.0, (due - now).total_seconds()), MAX_WAIT)


def _response_fields(headers: Any) -> dict[str, str]:
    try:
        pairs = headers.items() if hasattr(headers, "items") else headers
        if not isinstance(pairs, str | bytes):
            return {_header_text(name).lower(): _header_text(value) for name, value in pairs}
    except (TypeError, ValueError):
        pass
    # Without what they are: they may hold a secret.
    raise ValueError(
        f"Retry.after_response() got headers of type {type(headers).__name__}: give the headers of "
        "the response, a mapping or pairs of names and values"
    )


def _header_text(text: Any) -> str:
    return (text.decode("latin-1") if isinstance(text, bytes) else str(text)).strip()


def _http_date(text: str) -> datetime | None:
    """Returns an HTTP date in any of its three forms; None if the text is something else."""
    from email.utils import parsedate_to_datetime

    try:
        found = parsedate_to_datetime(text)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


class Reject(Exception):
    """Raised or returned by a handler: this record will never succeed, make it a dead letter.

    Args:
        reason: Written beside the dead letter: text, or any object, such as the error that is the
            reason.
    """

    reason: object = ""

    def __init__(self, reason: object = "") -> None:
        super().__init__(reason)
        self.reason = reason
        if isinstance(reason, BaseException):
            self.__cause__ = reason

    def __str__(self) -> str:
        return reason_text(self.reason) or "rejected"


def reason_text(reason: object) -> str:
    """Returns the text of a reason; raises what the text of a user's object raises."""
    if reason is None:
        return ""
    if isinstance(reason, bytes | bytearray):
        return reason.decode("utf-8", "backslashreplace")
    if isinstance(reason, BaseException):
        return f"{type(reason).__name__}: {reason}".removesuffix(": ")
    return str(reason)


@dataclass(frozen=True)
class RetryPolicy:
    """When a failed record is tried again, and when it is given up.

    A record that was answered by `Reject` is never tried again; by `Retry`, or by any other
    exception that is not given up, as long as it has attempts left.

    Attributes:
        max_attempts: Handler calls a record gets before it becomes a dead letter, 1 or more; None:
            no limit.
        backoff: Seconds before the second attempt, 0 to 31,536,000; doubles with each further one.
        max_backoff: Upper bound of the wait in seconds, before jitter is added; from ``backoff`` to
            31,536,000.
        jitter: Adds a random part of the wait to it, 0 (none) to 1 (up to twice the wait). It never
            shortens the wait.
        retry_on: Exceptions that are tried again, with what derives from them; others are given up
            at once. None: all are tried again.
        give_up_on: Exceptions that are given up at once, with what derives from them; stronger
            than ``retry_on``.
        timeout: Seconds a handler call may take, above 0; None: until the batch is over. A
            coroutine is then cancelled and awaited, and fails with TimeoutError. A thread cannot be
            stopped: its key waits until it returns, and what it returns counts. After twice the
            time its worker is ended, the call counts as failed, and what else the worker had of the
            batch is done again. So is the worker of a coroutine that blocks its event loop.
        undecodable: Of a record whose key or value does not decode: ``reject`` makes it a dead
            letter at once; ``park`` does, too, and its key waits, as with ``on_dead="park"``;
            ``retry`` leaves it to the other fields. Without a place for dead letters it is tried
            again.

    Raises:
        TypeError: ``retry_on`` or ``give_up_on`` holds something else than exception classes.
        ValueError: A field is out of its range; the message names it.
    """

    max_attempts: int | None = None
    backoff: float = 1.0
    max_backoff: float = 60.0
    jitter: float = 0.1
    retry_on: tuple[type[BaseException], ...] | None = None
    give_up_on: tuple[type[BaseException], ...] = ()
    timeout: float | None = None
    undecodable: OnUndecodable = "reject"

    def __post_init__(self) -> None:
        if self.max_attempts is not None and not self.max_attempts >= 1:
            raise ValueError(f"max_attempts={self.max_attempts}: give at least 1, or None")
        if not 0 <= self.backoff <= self.max_backoff <= MAX_WAIT:
            raise ValueError(
                f"backoff={self.backoff}, max_backoff={self.max_backoff}: "
                f"need 0 <= backoff <= max_backoff <= {MAX_WAIT:.0f} (seconds)"
            )
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter={self.jitter}: give a part between 0 and 1")
        if self.timeout is not None and not 0 < self.timeout < math.inf:
            raise ValueError(f"timeout={self.timeout}: give more than 0 seconds, or None")
        if self.undecodable not in get_args(OnUndecodable):
            raise ValueError(f"undecodable={self.undecodable!r}: give reject, park or retry")
        for name in ("retry_on", "give_up_on"):
            classes = getattr(self, name)
            if classes is not None:
                object.__setattr__(self, name, exception_classes(name, classes))

    @property
    def may_give_up(self) -> bool:
        """Whether a record may become a dead letter without being rejected."""
        return self.max_attempts is not None or self.retry_on is not None or bool(self.give_up_on)

    def gives_up(self, attempt: int, error: BaseException) -> bool:
        """Whether a record whose ``attempt``-th call ended with an error is not tried again."""
        if self.max_attempts is not None and attempt >= self.max_attempts:
            return True
        if isinstance(error, Retry):
            return False
        if isinstance(error, self.give_up_on):
            return True
        return self.retry_on is not None and not isinstance(error, self.retry_on)

    def delay(self, attempt: int) -> float:
        """Returns the seconds to wait after the ``attempt``-th failure, jitter included."""
        # The exponent is bounded first: 2.0 ** 2000 is an error, not infinity.
        wait = min(self.max_backoff, self.backoff * 2.0 ** min(attempt - 1, 60))
        return min(MAX_WAIT, wait * (1 + self.jitter * random.random()))  # noqa: S311 - no secret


def exception_classes(name: str, given: Any) -> tuple[type[BaseException], ...]:
    """Returns exception classes that are given as one class, a tuple or a list.

    Args:
        name: What they are given as.
        given: The classes.

    Raises:
        TypeError: Something else is among them.
    """
    classes = given if isinstance(given, tuple | list) else (given,)
    for found in classes:
        if not (isinstance(found, type) and issubclass(found, BaseException)):
            raise TypeError(f"{name}={given!r}: give exception classes, as (OSError, ValueError)")
    return tuple(classes)
