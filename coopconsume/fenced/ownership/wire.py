"""Rows and history entries of the registry as JSON. All stores use this format."""

from __future__ import annotations

import json
from dataclasses import dataclass, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, get_args, get_origin, get_type_hints

from commits.secrets import message_of
from coopconsume.closing import RaisedAs
from coopconsume.errors.fenced import OwnershipFormat, OwnershipUnavailable
from coopconsume.fenced.log import json_object
from coopconsume.fenced.ownership.model import AccessMode, OwnershipEvent, Row

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")
FORMAT: Final = 1
"""Version of the format; a reader does not accept other versions."""
#: Later changes add to a number, which must stay below 2**63.
_LARGEST: Final = 2**62
_types: Final = cache(get_type_hints)


@dataclass(frozen=True)
class Change:
    """Rows that changed together, and what happened."""

    id: str
    rows: tuple[Row, ...]
    entries: tuple[OwnershipEvent, ...]


@dataclass(frozen=True)
class Snapshot(Change):
    """One of the parts of a snapshot of all records before the offset ``upto``."""

    part: int
    parts: int
    upto: int


def reporting(place: str, errors: tuple[type[Exception], ...], operation: str) -> RaisedAs:
    """Raises errors of a store's client as `OwnershipUnavailable`."""

    def reported(error: Exception) -> OwnershipUnavailable | None:
        if not isinstance(error, errors):
            return None
        return OwnershipUnavailable(place, operation, message_of(error) or type(error).__name__)

    return RaisedAs(reported)


def dumps(document: Any) -> bytes:
    """Returns compact JSON."""
    return json.dumps(document, separators=(",", ":")).encode()


def loads(place: str, text: bytes | str | None) -> dict[str, Any]:
    """Parses a JSON object of this format; raises `OwnershipFormat` if it is something else."""
    expected = "what an ownership store writes"
    try:
        found = json_object(text)
    except ValueError:
        raise OwnershipFormat(place, "no JSON object", expected) from None
    version = found.pop("format", None)
    if version != FORMAT:
        named = "other JSON" if version is None else f"format {version}"
        raise OwnershipFormat(place, named, f"format {FORMAT}: {expected}")
    return found


def is_newer(text: bytes | str | None) -> bool:
    """Whether a newer version of this library wrote a change or a snapshot."""
    try:
        found = json_object(text)
    except ValueError:
        return False
    version = found.get("format")
    return found.get("kind") in ("change", "snapshot") and type(version) is int and version > FORMAT


def parsed(kind: type[T], place: str, found: Mapping[str, Any]) -> T:
    """Parses a dataclass; raises `OwnershipFormat` unless each field is there, with its type."""
    try:
        return cast("T", _parsed(kind, found))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        problem = f"{type(error).__name__} {error}"
        raise OwnershipFormat(place, problem, f"a {kind.__name__} of the registry") from None


def _parsed(kind: Any, found: Mapping[str, Any]) -> Any:
    types = _types(kind)
    return kind(**{name: _value(name, types[name], value) for name, value in found.items()})


def _value(name: str, kind: Any, value: Any) -> Any:
    if get_origin(kind) is tuple:
        return tuple(_value(name, get_args(kind)[0], each) for each in value)
    if get_args(kind):  # or None
        return None if value is None else _value(name, get_args(kind)[0], value)
    if is_dataclass(kind):
        return _parsed(kind, value)
    if kind is AccessMode:
        return AccessMode(value)
    if type(value) is not kind or (kind is int and not 0 <= value <= _LARGEST):
        raise TypeError(f"{name} {value!r}")
    return value
