"""What handlers declare of keys and values, and the functions that decode them. Task-side code."""

from __future__ import annotations

import dataclasses
import json
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from coopconsume.decoding.registry import SchemaRegistryDecoder, with_context
from coopconsume.errors import InvalidOption
from coopconsume.values.callables import (
    NameNotFound,
    is_async,
    name_of,
    object_named,
    refused_call,
)
from coopconsume.values.shown import clean, safely

T = TypeVar("T")

#: A function of bytes, or of bytes, the topic of their record and its headers.
Decode = Callable[..., Any]
#: What JSON has.
_OF_JSON = (dict, list, str, int, float, bool, NoneType)
#: What makes defaults, and is no code of the user's.
_MAKE_DATA = (list, dict, set)
#: What becomes of null: the handler gets None, the record does not decode, or the function decides.
Null = Literal["none", "refused", "decoded"]

_GIVE = (
    "give a pydantic model, a dataclass, a msgspec.Struct, 'json', 'text', a function of bytes, "
    "SchemaRegistryDecoder(…), DecoderFactory(…), or the name of one as module:name"
)


@dataclass(frozen=True)
class DecoderFactory:
    """Declares a decoder that is made where it is used, as its clients cannot be pickled.

    Attributes:
        make: A function without arguments that returns a function of bytes, or a deserializer of
            `confluent_kafka`. It is called once in each worker process; threads share its result.
    """

    make: Callable[[], Any]

    def __repr__(self) -> str:
        return f"DecoderFactory({name_of(self.make)})"


#: A declaration of keys or values: a class that is read from JSON, a function of bytes, or one
#: whose type only the handler says: ``"json"``, ``"text"``, a name, a decoder, ``Order | None``.
Declared = type[T] | Callable[[bytes], T] | str | UnionType | DecoderFactory | SchemaRegistryDecoder


@dataclass(frozen=True)
class Decoding:
    """How keys and values of records are decoded; the declarations are those of ``foreach``.

    Attributes:
        key: The declaration of keys; None: they stay bytes.
        value: The declaration of values; None: they stay bytes.
        id: Identifies it in worker processes, which keep what they make of it.
    """

    key: Any = None
    value: Any = None
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def declared(self) -> dict[str, Any]:
        """The declarations that are given, by ``key`` and ``value``."""
        both = {"key": self.key, "value": self.value}
        return {name: given for name, given in both.items() if given is not None}

    def check(self) -> None:
        """Finds out now, not in a task, whether the declarations can be used.

        Raises:
            InvalidOption: One is unknown, or names a package or an object that is missing.
        """
        for name, given in self.declared.items():
            decoder_of(name, given, connects=False)


class FieldDecoder(NamedTuple):
    """How a key or a value is decoded.

    Attributes:
        decode: The function of bytes.
        null: What becomes of null.
        declared: The declared type; None: it is not known.
        shown: The declaration, for people.
        needs_context: Whether the function also takes the topic of the record and its headers.
        is_pure: Whether the function runs no code of the user's, such as a validator: it always
            ends, and nobody sees when it is called.
    """

    decode: Decode
    null: Null
    declared: Any
    shown: str
    needs_context: bool = False
    is_pure: bool = False


def decoder_of(name: str, given: Any, *, connects: bool = True) -> FieldDecoder:
    """Returns the decoder that a declaration asks for.

    Args:
        name: ``key`` or ``value``.
        given: The declaration.
        connects: Whether clients of registries, and what factories make, are made. Without it the
            declaration is only checked.

    Raises:
        InvalidOption: The declaration is unknown, or cannot be used here.
    """
    label = label_of(given)
    found = _named(name, given) if isinstance(given, str) and ":" in given else given
    try:
        return _decoder_of(name, found, label, connects=connects)
    except ImportError as error:
        raise InvalidOption(name, label, _missing(found, error)) from error


def _named(name: str, text: str) -> Any:
    try:
        found = object_named(text)
    except Exception as error:
        is_form = isinstance(error, NameNotFound)
        why = str(error) if is_form else f"{type(error).__name__}: {error}"
        raise InvalidOption(name, text, f"{why}; {_GIVE}") from error
    if found is None:
        raise InvalidOption(name, text, f"the module has no such name; {_GIVE}")
    return found


def label_of(given: Any) -> str:
    """Returns a declaration as text for people, without what it has: that may be a secret."""
    if isinstance(given, str):
        return clean(given)
    if isinstance(given, SchemaRegistryDecoder | DecoderFactory):
        return repr(given)
    if get_origin(given) in (Union, UnionType):
        return " | ".join("None" if one is NoneType else label_of(one) for one in get_args(given))
    if get_origin(given) is not None:
        return str(given)
    return name_of(given) if callable(given) else f"an object of type {name_of(given)}"


def _decoder_of(name: str, given: Any, label: str, *, connects: bool) -> FieldDecoder:
    if given == "json":
        return FieldDecoder(json.loads, "none", None, label, is_pure=True)
    if given == "text":
        return FieldDecoder(bytes.decode, "none", str, label, is_pure=True)
    if isinstance(given, SchemaRegistryDecoder):
        given.check(name)
        made = with_context(given.made(), name) if connects else bytes
        return FieldDecoder(made, "none", None, label, needs_context=connects)
    if isinstance(given, DecoderFactory):
        _check_call(name, label, given.make, (), "make")
        function = _made(name, given, label) if connects else bytes
        return _of_function(name, function, label)
    if isinstance(given, type) or get_origin(given) is not None:
        return _of_type(name, given, label, connects=connects)
    if not callable(given) or is_async(given):
        raise InvalidOption(name, label, _GIVE)
    _check_call(name, label, given, ("data",), "decode")
    return _of_function(name, given, label)


def _check_call(
    name: str, label: str, function: Any, arguments: tuple[str, ...], call: str
) -> None:
    if wrong := refused_call(function, arguments, call):
        raise InvalidOption(name, label, wrong)


def _made(name: str, given: DecoderFactory, label: str) -> Decode:
    try:
        made = given.make()
    except Exception as error:
        raise InvalidOption(name, label, f"{type(error).__name__}: {error}") from error
    if not callable(made) or isinstance(made, type) or is_async(made):
        raise InvalidOption(name, label, f"it made {label_of(made)}: return a function of bytes")
    return made  # type: ignore[no-any-return]


def _of_function(name: str, function: Any, label: str) -> FieldDecoder:
    kafka = sys.modules.get("confluent_kafka.serialization")
    is_kafka = kafka is not None and isinstance(function, kafka.Deserializer)
    decode = with_context(function, name) if is_kafka else function
    return FieldDecoder(decode, "decoded", None, label, needs_context=is_kafka)


def _of_type(name: str, given: Any, label: str, *, connects: bool) -> FieldDecoder:
    """Returns the decoder of a class, or of one of several classes, from JSON."""
    members = get_args(given) if get_origin(given) in (Union, UnionType) else (given,)
    kinds = [one for one in members if one is not NoneType]
    # Of a generic class, such as Page[Order], the class.
    classes = [get_origin(one) or one for one in kinds]
    if not all(isinstance(one, type) and (_is_pydantic(one) or _is_plain(one)) for one in classes):
        raise InvalidOption(name, label, _GIVE)
    of_pydantic = any(map(_is_pydantic, classes))
    try:
        decode = _json_decoder(given, pydantic=of_pydantic)
    except ImportError:
        raise
    except Exception as error:
        raise InvalidOption(name, label, f"{type(error).__name__}: {error}") from error
    if not connects and not of_pydantic:
        _refuse_unreadable(name, label, kinds)
    null: Null = "none" if NoneType in members else "refused"
    is_pure = not of_pydantic and all(map(_is_data, _types_of(kinds)))
    return FieldDecoder(decode, null, given, label, is_pure=is_pure)


def _json_decoder(given: Any, *, pydantic: bool) -> Callable[[bytes], Any]:
    if pydantic:
        from pydantic import TypeAdapter

        # Its method of the same name is Python, and does the same with bytes.
        return TypeAdapter(given).validator.validate_json
    import msgspec

    return msgspec.json.Decoder(given).decode


def _refuse_unreadable(name: str, label: str, kinds: Sequence[Any]) -> None:
    """Refuses classes with a part that msgspec reads from no JSON: no record would decode."""
    from msgspec import inspect

    def is_needed(one: Any) -> bool:
        # A field that may be left out, or be something else, does without it.
        return getattr(one, "required", True) and not isinstance(one, inspect.UnionType)

    for one in _types_of(kinds, is_needed):
        if isinstance(one, inspect.CustomType):
            _refuse_custom(name, label, one.cls)


def _types_of(kinds: Sequence[Any], follows: Callable[[Any], bool] = bool) -> Iterator[Any]:
    """Yields the types and fields of classes, and those of their parts, as msgspec sees them.

    Args:
        kinds: The classes.
        follows: Whether a type or a field is one to yield, and its parts are.
    """
    from msgspec import inspect

    rest: list[Any] = [*inspect.multi_type_info(kinds)]
    seen: dict[int, Any] = {}
    while rest:
        one = rest.pop()
        if id(one) in seen or not follows(one):
            continue
        seen[id(one)] = one
        yield one
        parts = [getattr(one, field) for field in one.__struct_fields__]
        parts += [each for part in parts if isinstance(part, tuple) for each in part]
        rest += [part for part in parts if isinstance(part, inspect.Type | inspect.Field)]


def _is_data(one: Any) -> bool:
    """Whether msgspec makes values of a type or a field of a class by itself."""
    match type(one).__name__:
        case "Field":
            make = one.default_factory
            return any(make is kind for kind in _MAKE_DATA) or not callable(make)
        case "StructType":
            kind = get_origin(one.cls) or one.cls  # Page[Order] shows no method of Page.
            return not (hasattr(kind, "__post_init__") or hasattr(kind, "__del__"))
        case "StrType":
            return one.pattern is None
        case "DictType":
            return type(one.key_type).__name__ == "StrType"
        case (
            "AnyType"
            | "NoneType"
            | "BoolType"
            | "IntType"
            | "FloatType"
            | "DecimalType"
            | "DateTimeType"
            | "UUIDType"
            | "ListType"
            | "UnionType"
            | "LiteralType"
        ):
            return True
        case _:
            return False


def _refuse_custom(name: str, label: str, kind: Any) -> None:
    if not any(safely(partial(issubclass, of, kind)) for of in _OF_JSON):
        raise InvalidOption(
            name,
            label,
            f"msgspec reads no {name_of(kind)} from JSON: declare {label} as a model "
            "or dataclass of pydantic, or give a function of bytes",
        )


def _is_pydantic(one: type) -> bool:
    """Whether a class is a model or a dataclass of pydantic."""
    return hasattr(one, "__pydantic_validator__")


def _is_plain(one: type) -> bool:
    """Whether a class is a dataclass or a msgspec.Struct."""
    return dataclasses.is_dataclass(one) or hasattr(one, "__struct_fields__")


def _missing(given: Any, error: ImportError) -> str:
    """Returns what to do about a package that is not installed."""
    extra = given.format if isinstance(given, SchemaRegistryDecoder) else error.name
    return f"{error.name} is not installed: pip install 'coopconsume[{extra}]'"
