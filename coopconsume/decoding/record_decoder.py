"""Decodes the records of a slot, for handlers of every kind. Task-side code."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, TypeVar

from coopconsume.decoding.declaration import FieldDecoder, decoder_of
from coopconsume.decoding.failures import refusal
from coopconsume.errors import NotDecodable
from coopconsume.record import Record
from coopconsume.values.callables import is_async

if TYPE_CHECKING:
    from collections.abc import Callable

    from coopconsume.decoding.declaration import Decoding
    from coopconsume.record import Headers

    Field = Callable[[bytes | None, str, Headers], Any]

T = TypeVar("T")

#: Decoders that a worker process keeps: to make one takes long, and clients keep connections.
_MOST: Final = 16
_kept: OrderedDict[tuple[str, str], Any] = OrderedDict()
_make = tuple.__new__


def kept(name: tuple[str, str], make: Callable[[], T]) -> T:
    """Returns what this process keeps by a name; makes it first if it is not there."""
    found: T | None = _kept.get(name)
    if found is None:
        found = _kept[name] = make()
        if len(_kept) > _MOST:
            _kept.popitem(last=False)
    return found


def record_decoder(decoding: Decoding) -> RecordDecoder:
    """Returns the decoder of a declaration; a process makes it once.

    Raises:
        InvalidOption: The declaration cannot be used here.
    """
    return kept((decoding.id, ""), lambda: RecordDecoder(decoding))


class RecordDecoder:
    """Decodes keys and values.

    Args:
        decoding: The declarations.

    Raises:
        InvalidOption: One cannot be used here.
    """

    def __init__(self, decoding: Decoding) -> None:
        self._of = {
            name: field_of(name, decoder_of(name, given))
            for name, given in decoding.declared.items()
        }

    def decoded(self, record: Record) -> Record[Any, Any]:
        """Returns a record with its key and value decoded as they are declared.

        Raises:
            NotDecodable: One of them does not decode.
        """
        topic, partition, offset, key, value, timestamp, headers, attempt = record
        of = self._of
        fields: tuple[Any, ...] = (
            topic,
            partition,
            offset,
            of["key"](key, topic, headers) if "key" in of else key,
            of["value"](value, topic, headers) if "value" in of else value,
            timestamp,
            headers,
            attempt,
        )
        return _make(Record, fields)

    def wrapped(self, handler: Any) -> Callable[..., Any]:
        """Returns a handler that calls one with decoded records.

        Decoding is a part of the handler's call: what does not decode is an error of its record.

        Args:
            handler: A function of a record, or of a record and more.
        """
        decoded = self.decoded
        if is_async(handler):

            async def call_async(record: Record, *more: Any) -> Any:
                return await handler(decoded(record), *more)

            return call_async

        def call(record: Record, *more: Any) -> Any:
            return handler(decoded(record), *more)

        return call


def field_of(name: str, field: FieldDecoder) -> Field:
    """Returns the function that decodes keys or values, null included.

    It raises `NotDecodable`, or what `refusal` says.

    Args:
        name: ``key`` or ``value``.
        field: Its decoder.
    """
    decode, null, _, shown = field

    def of(data: bytes | None, topic: str, headers: Headers) -> Any:
        if data is None and null != "decoded":
            if null == "none":
                return None
            raise NotDecodable(name, f"it is null, and {shown} does not allow None")
        try:
            return decode(data, topic, headers)
        except Exception as error:
            failure = refusal(name, error)
            if failure is error:
                raise
            raise failure from None

    return of
