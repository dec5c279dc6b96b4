"""Headers of the records that confluent-kafka returns, whatever bytes their names have.

Kafka takes any bytes as the name of a header. `Message.headers` fails if a name is not UTF-8, and
has lost it afterwards. So names are read by librdkafka's own functions, and decoded as the Java
client does: bytes that are not UTF-8 become U+FFFD.
"""

from __future__ import annotations

import ctypes
import gc
from functools import cache
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Headers: TypeAlias = "list[tuple[str, bytes | None]]"
"""The headers of a record: names with bytes or None."""

# A message begins with the objects of its topic, value and key; then come its headers in Python,
# once they were asked for, and in librdkafka until then.
_TOPIC, _VALUE, _KEY, _IN_PYTHON, _IN_LIBRDKAFKA = (
    object.__basicsize__ + place * ctypes.sizeof(ctypes.c_void_p) for place in range(5)
)
_FOUND: Final = 0
_headers: Final = methodcaller("headers")


class Message(Protocol):
    """A record as confluent-kafka returns it."""

    def topic(self) -> str | None: ...  # noqa: D102

    def key(self) -> bytes | None: ...  # noqa: D102

    def value(self) -> bytes | None: ...  # noqa: D102

    def headers(self) -> Headers | None: ...  # noqa: D102


def message_headers(message: Message) -> Headers:
    """Returns the headers of a record; bytes that are not UTF-8 in a name are U+FFFD.

    `quick_headers` takes a fifth of the time.

    Raises:
        UnicodeError: A name is not UTF-8, and this release of confluent-kafka does not allow to
            read it.
    """
    get = _function(type(message))
    if get is None:
        try:
            return quick_headers([message])[0]
        except SystemError:
            raise UnicodeError(_UNREADABLE) from None
    there = _at(message, _IN_LIBRDKAFKA)
    if there is None:
        return message.headers() or []
    found: Headers = []
    name, value, size = ctypes.c_char_p(), ctypes.c_void_p(), ctypes.c_size_t()
    places = ctypes.byref(name), ctypes.byref(value), ctypes.byref(size)
    while get(there, len(found), *places) == _FOUND:
        data = None if value.value is None else ctypes.string_at(value.value, size.value)
        found.append(((name.value or b"").decode(errors="replace"), data))
    return found


def quick_headers(messages: Iterable[Message]) -> list[Headers]:
    """Returns the headers of some records, as long as their names are UTF-8.

    confluent-kafka returns a result and an error then, and the name in the result is no object.
    Only a call from C looks at both, and Python before 3.12 may drop the error if it collects
    garbage before the call has ended.

    Raises:
        SystemError: A name is not UTF-8; the records have to be read again.
    """
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        found = [*map(_headers, messages)]
    finally:
        if is_enabled:
            gc.enable()
    return [headers or [] for headers in found]


_UNREADABLE: Final = (
    "the name of a header is not UTF-8, and this release of confluent-kafka does not return it: "
    "install confluent-kafka 2.16"
)


def _at(message: Message, place: int) -> int | None:
    return ctypes.c_void_p.from_address(id(message) + place).value


@cache
def _function(kind: type) -> Callable[..., int] | None:
    """Returns ``rd_kafka_header_get_all``; None for messages that are not laid out as known."""
    import confluent_kafka
    from confluent_kafka import cimpl

    if kind is not confluent_kafka.Message:
        return None
    key, value = b"a key", b"a value"
    message: Any = confluent_kafka.Message(topic="a topic", value=value, key=key)
    known = {_TOPIC: message.topic(), _VALUE: message.value(), _KEY: message.key()}
    with_headers: Any = confluent_kafka.Message(headers=[("a name", b"a value")])
    if (
        any(_at(message, place) != id(one) for place, one in known.items())
        or _at(with_headers, _IN_PYTHON) != id(with_headers.headers())
        or _at(message, _IN_LIBRDKAFKA) is not None
    ):
        return None
    try:
        # Also finds the functions of the library that the module is linked with.
        function: Any = ctypes.CDLL(cimpl.__file__).rd_kafka_header_get_all
    except (AttributeError, OSError):
        return None
    function.argtypes = [
        ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_char_p),
        ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t),
    ]  # fmt: skip
    function.restype = ctypes.c_int
    return function  # type: ignore[no-any-return]
