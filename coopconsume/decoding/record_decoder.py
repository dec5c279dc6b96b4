"""Decodes the records of a slot, for handlers of every kind. Task-side code."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

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

#: Decoders that a worker process keeps: to make one takes long, and clients keep connections.
_MOST: Final = 16
_kept: OrderedDict[str, RecordDecoder] = OrderedDict()
_make = tuple.__new__


def record_decoder(decoding: Decoding) -> RecordDecoder:
    """Returns the decoder of a declaration; a process makes it once.

    Raises:
        InvalidOption: The declaration cannot be used here.
    """
    found = _kept.get(decoding.id)
    if found is None:
        found = _kept[decoding.id] = RecordDecoder(decoding)
        if len(_kept) > _MOST:
            _kept.popitem(last=False)
    return found


class RecordDecoder:
    """Decodes keys and values.

    Attributes:
        fields: The decoders of what is declared, by ``key`` and ``value``.

    Args:
        decoding: The declarations.

    Raises:
        InvalidOption: One cannot be used here.
    """

    def __init__(self, decoding: Decoding) -> None:
        self.fields = {name: decoder_of(name, given) for name, given in decoding.declared.items()}
        self._of = {name: _of_field(name, field) for name, field in self.fields.items()}

    def field(self, name: str) -> Field:
        """Returns the function that decodes the key or the value, null included.

        It raises `NotDecodable`, or what `refusal` says.

        Args:
            name: ``key`` or ``value``.
        """
        return self._of[name]

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


def _of_field(name: str, field: FieldDecoder) -> Field:
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
