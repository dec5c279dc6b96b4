"""Decodes the keys and values of frames to columns. Task-side code.

A class becomes a column for each of its fields, ``value.amount`` for example. The Arrow type of a
column follows from the type of the field, so that all frames have the same columns.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import uuid
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import repeat
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import pyarrow as pa

from coopconsume.decoding.declaration import decoder_of
from coopconsume.decoding.record_decoder import field_of, kept
from coopconsume.errors import InvalidOption, NotDecodable
from coopconsume.values.conversion import DoesNotFit, converter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from coopconsume.decoding.declaration import Decoding
    from coopconsume.record import Headers

_PLAIN = {
    str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_(), bytes: pa.binary(),
    dt.datetime: pa.timestamp("us", "UTC"), dt.date: pa.date32(), uuid.UUID: pa.string(),
    decimal.Decimal: pa.decimal128(38, 18),
}  # fmt: skip
_LISTS = (list, tuple, set, frozenset, Sequence, AbstractSet)


def frame_decoder(decoding: Decoding, format: str) -> FrameDecoder:  # noqa: A002
    """Returns the decoder of a declaration; a process makes it once.

    Raises:
        InvalidOption: The declaration cannot be used here, or has no columns.
    """
    return kept((decoding.id, format), lambda: FrameDecoder(decoding, format))


class FrameDecoder:
    """Decodes the declared keys and values of a frame.

    Args:
        decoding: The declarations.
        format: The form of frames, ``arrow`` or ``pandas``.
        connects: As for `decoder_of`.

    Raises:
        InvalidOption: A declaration cannot be used here, or has no columns.
    """

    def __init__(self, decoding: Decoding, format: str, *, connects: bool = True) -> None:  # noqa: A002
        self._fields = {
            name: _FieldColumns(name, given, format, connects=connects)
            for name, given in decoding.declared.items()
        }

    @property
    def names(self) -> tuple[str, ...]:
        """What is declared: ``key``, ``value`` or both."""
        return tuple(self._fields)

    def rows(
        self, keys: Sequence[bytes | None], values: Sequence[bytes | None], topic: str,
        headers: Iterable[Headers],
    ) -> list[dict[str, list[Any]] | BaseException]:  # fmt: skip
        """Returns for each row the cells of its key and value, or the error of its decoder."""
        return [
            self._row({"key": key, "value": value}, topic, own)
            for key, value, own in zip(keys, values, headers, strict=False)
        ]

    def _row(
        self, data: Mapping[str, bytes | None], topic: str, headers: Headers
    ) -> dict[str, list[Any]] | BaseException:
        try:
            return {
                name: field.cells(data[name], topic, headers)
                for name, field in self._fields.items()
            }
        except BaseException as error:  # noqa: BLE001 - SystemExit too costs its record alone
            return error

    def columns(self, name: str, cells: Sequence[list[Any]]) -> dict[str, Any]:
        """Returns the columns of the keys or values of some rows, by their names.

        Args:
            name: ``key`` or ``value``.
            cells: The cells of each row.
        """
        return self._fields[name].columns(cells)


class _FieldColumns:
    """The columns of keys or of values."""

    def __init__(self, name: str, given: Any, format: str, *, connects: bool) -> None:  # noqa: A002
        decoder = decoder_of(name, given, connects=connects)
        self._decode = field_of(name, decoder)
        self._name = name
        self._attributes: tuple[str, ...] = ()
        self._types: list[pa.DataType | None] = [None]
        one, why = _without_none(decoder.declared), ""
        if decoder.declared is str:
            self._types = [pa.string()]
        elif one is not None and _names_of(one):
            self._attributes = _names_of(one)
            try:
                hints = _hints_of(one)
                self._types = [_type_of(hints[field], field) for field in self._attributes]
            except RecursionError:
                why = "it contains itself"
            except Exception as error:  # noqa: BLE001 - a name in an annotation may raise any
                why = str(error)
        elif format == "arrow":
            why = "it has no columns of known types"
        if why:
            remedy = f"{why}: give a class whose fields have columns, 'text', or format='pandas'"
            raise InvalidOption(name, decoder.shown, remedy)
        self._convert: list[Callable[[Any], Any] | None] = [
            None if kind is None else converter(kind) for kind in self._types
        ]

    def cells(self, data: bytes | None, topic: str, headers: Headers) -> list[Any]:
        """Returns the cells of a key or a value.

        Raises:
            Exception: It does not decode, or a field does not fit its column.
        """
        decoded = self._decode(data, topic, headers)
        if not self._attributes:
            return [decoded]
        if decoded is None:
            return [None] * len(self._attributes)
        return [
            self._fitting(field, convert, _plain(getattr(decoded, field)))
            for field, convert in zip(self._attributes, self._convert, strict=True)
        ]

    def _fitting(self, field: str, convert: Callable[[Any], Any] | None, value: Any) -> Any:
        assert convert is not None
        try:
            return convert(value)
        except DoesNotFit as error:
            raise NotDecodable(f"{self._name}.{field}", str(error)) from None

    def columns(self, cells: Sequence[list[Any]]) -> dict[str, Any]:
        """Returns the columns: Arrow arrays, or a list of objects for pandas."""
        names = [f"{self._name}.{field}" for field in self._attributes] or [self._name]
        by_column = zip(*cells, strict=True) if cells else repeat(())
        return {
            name: list(column) if kind is None else pa.array(column, kind)
            for name, kind, column in zip(names, self._types, by_column, strict=False)
        }


def _without_none(declared: Any) -> Any:
    """Returns the one class of a type; None if it has several."""
    if get_origin(declared) not in (Union, UnionType):
        return declared
    classes = [one for one in get_args(declared) if one is not NoneType]
    return classes[0] if len(classes) == 1 else None


def _bare(hint: Any) -> Any:
    """Returns a type without its limits, such as those of pydantic, and without its new name."""
    while True:
        if get_origin(hint) is Annotated:
            hint = get_args(hint)[0]
        elif hasattr(hint, "__supertype__"):
            hint = hint.__supertype__
        else:
            return hint


def _names_of(kind: Any) -> tuple[str, ...]:
    """Returns the names of the fields of a class; none of another type."""
    kind = get_origin(kind) or kind  # Of a generic class, such as Page[Order], the class.
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    for attribute in ("__pydantic_fields__", "__struct_fields__"):
        names = getattr(kind, attribute, None)
        if names is not None:
            return tuple(names)
    return ()


def _hints_of(kind: Any) -> Mapping[str, Any]:
    """Returns the types of the fields of a class."""
    fields = getattr(kind, "__pydantic_fields__", None)
    if fields is not None:
        return {name: field.annotation for name, field in fields.items()}
    of = get_origin(kind) or kind
    given = dict(zip(getattr(of, "__parameters__", ()), get_args(kind), strict=False))
    return {name: _filled(hint, given) for name, hint in get_type_hints(of).items()}


def _filled(hint: Any, given: Mapping[Any, Any]) -> Any:
    """Returns a type with what is given for the variables of its generic class."""
    if isinstance(hint, TypeVar):
        return given.get(hint, hint)
    variables = getattr(hint, "__parameters__", ()) if get_args(hint) else ()
    return hint[tuple(given.get(one, one) for one in variables)] if variables else hint


def _type_of(hint: Any, path: str) -> pa.DataType:
    """Returns the Arrow type of a field.

    Raises:
        TypeError: It has none.
    """
    hint = _bare(_without_none(_bare(hint)))
    if hint in _PLAIN:
        return _PLAIN[hint]
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _type_of_values([one.value for one in hint], path)
    if names := _names_of(hint):
        hints = _hints_of(hint)
        return pa.struct([(name, _type_of(hints[name], f"{path}.{name}")) for name in names])
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return _type_of_values(inner, path)
    if origin in _LISTS and len({one for one in inner if one is not ...}) == 1:
        return pa.list_(_type_of(inner[0], f"{path}[]"))
    if origin in (dict, Mapping) and inner[0] is str:
        return pa.map_(pa.string(), _type_of(inner[1], f"{path}{{}}"))
    raise TypeError(f"the field {path} of type {hint} has no column")


def _type_of_values(values: Iterable[Any], path: str) -> pa.DataType:
    kinds = {type(value) for value in values}
    if len(kinds) != 1:
        raise TypeError(f"the field {path} has values of several types and no column")
    return _type_of(kinds.pop(), path)


def _plain(value: Any) -> Any:
    """Returns a value as dictionaries, lists and plain values."""
    if isinstance(value, enum.Enum):
        return _plain(value.value)
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, list | tuple | AbstractSet):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if names := _names_of(type(value)):
        return {name: _plain(getattr(value, name)) for name in names}
    return value
