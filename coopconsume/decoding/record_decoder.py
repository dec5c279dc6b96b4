"""Decodes the records of a slot, for handlers of every kind. Task-side code."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, TypeVar

from coopconsume.decoding.declaration import FieldDecoder, decoder_of
from coopconsume.decoding.failures import refusal
from coopconsume.errors import NotDecodable
from coopconsume.record import Record
from coopconsume.values.callables import HandlerParts, is_async, taking_fields, with_parts

if TYPE_CHECKING:
    from collections.abc import Callable

    from coopconsume.decoding.declaration import Decoding
    from coopconsume.record import Fields, Headers

    Field = Callable[[bytes | None, str, Headers], Any]

T = TypeVar("T")

#: Decoders that a worker process keeps: to make one takes long, and clients keep connections.
_MOST: Final = 16
_kept: OrderedDict[tuple[str, str], Any] = OrderedDict()


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
        self._of = {name: decoder_of(name, given) for name, given in decoding.declared.items()}
        self._decoded = self._before(lambda record: record)

    def decoded(self, record: Fields) -> Record[Any, Any]:
        """Returns a record with its key and value decoded as they are declared.

        Raises:
            NotDecodable: One of them does not decode.
        """
        return self._decoded(record)  # type: ignore[no-any-return]

    def wrapped(self, handler: Any, *, with_state: bool = False) -> Callable[..., Any]:
        """Returns a handler that calls one with decoded records.

        Decoding is a part of the handler's call: what does not decode is an error of its record.

        Args:
            handler: A function of a record, or of a record and its state.
            with_state: Whether it takes a state.
        """
        decoded = self._decoded
        if is_async(handler):

            async def call_async(record: Fields, *state: Any) -> Any:
                return await handler(decoded(record), *state)

            return taking_fields(call_async)
        if with_state:
            return lambda record, state: handler(decoded(record), state)
        call = self._before(handler)
        decode = {name: field.decode for name, field in self._of.items()}
        with_context = [name for name, field in self._of.items() if field.needs_context]
        reads_ahead = [field.is_pure for field in self._of.values()] == [True]
        return with_parts(call, HandlerParts(handler, decode, with_context, reads_ahead))

    def _before(self, handler: Callable[[Record[Any, Any]], Any]) -> Callable[[Fields], Any]:
        """Returns a function that decodes a record before it calls a handler with it."""
        key_of, value_of = (
            field_of(name, self._of[name]) if name in self._of else None
            for name in ("key", "value")
        )
        make = tuple.__new__

        def call(fields: Fields) -> Any:
            topic, partition, offset, key, value, timestamp, headers, attempt = fields
            if key_of is not None:
                key = key_of(key, topic, headers)
            if value_of is not None:
                value = value_of(value, topic, headers)
            decoded = (topic, partition, offset, key, value, timestamp, headers, attempt)
            return handler(make(Record, decoded))

        return taking_fields(call)


def field_of(name: str, field: FieldDecoder) -> Field:
    """Returns the function that decodes keys or values, null included.

    It raises `NotDecodable`, or what `refusal` says.

    Args:
        name: ``key`` or ``value``.
        field: Its decoder.
    """
    decode, null, shown = field.decode, field.null, field.shown
    needs_context = field.needs_context

    def of(data: bytes | None, topic: str, headers: Headers) -> Any:
        if data is None and null != "decoded":
            if null == "none":
                return None
            raise NotDecodable(name, f"it is null, and {shown} does not allow None")
        try:
            return decode(data, topic, headers) if needs_context else decode(data)
        except Exception as error:
            failure = refusal(name, error)
            if failure is error:
                raise
            raise failure from None

    return of
